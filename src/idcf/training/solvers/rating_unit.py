"""The unit in which ratings are fitted, a power of two (`idcf.types.Domain.rating_unit`)."""

from __future__ import annotations

import torch

from idcf.models.bayes import BayesModel


def set_rating_unit(model: BayesModel, unit: float) -> None:
    """Turn a model of ratings divided by `unit` into one of the ratings, in place.

    Vectors of items have no unit; biases and vectors of users have that of the ratings.
    """
    scale = torch.ones_like(model.means[0, 0])  # of (q_i, b_i): [D]
    scale[-1] = unit
    low = torch.tril_indices(*model.packed_index.shape, device=scale.device)
    model.mean *= unit
    model.means *= scale
    model.second_moments *= scale[low[0]] * scale[low[1]]
    model.item_precision /= scale[:, None] * scale
    model.item_prior_information /= scale
    model.noise_precision /= unit**2
    model.precision /= unit**2
    model.prior_information /= unit
    for x in (
        model.mean_key_latent,
        model.feature_weights,
        model.empty_history_offset,
        model.selection_coefficients,
        model.cohort_centers,
        model.cohort_spread,
    ):
        x *= unit
