"""Standard deviations of the ratings of a few items, from a posterior.

`BayesModel.predictive_std` is the reference. It lays out every term per block of the posterior and
averages last; terms that are linear in the moments are summed over the blocks in one product here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.bayes import BayesModel, UserPosterior
from idcf.types import Embeddings, Users


class PosteriorStd:
    """Posteriors of users, with the embeddings and standard deviations that follow from them."""

    def __init__(self, model: BayesModel) -> None:
        self.model = model
        size = len(self.model.packed_index)
        low = torch.tril_indices(size, size, device=self.model.device)
        self._packed_index = low[0] * size + low[1]  # of a packed product in a flat square one
        self._packed_weight = 2 - (low[0] == low[1]).float()

    @torch.inference_mode()
    def posterior(self, users: Users) -> UserPosterior:
        """Return the posterior of each user, for `embed_users` and for the call."""
        return self.model.posterior(users.to(self.model.device))

    @torch.inference_mode()
    def embed_users(self, users: Users, posterior: UserPosterior) -> Embeddings:
        """Return what `BayesModel.embed_users` does, for users with histories only."""
        mean, n = posterior.mean, users.history.lengths().to(self.model.device)
        vector = F.pad(mean[..., :-1].flatten(1), (0, 1))
        return Embeddings(vector, mean[..., -1].mean(1) + self.model.selection_offset(n))

    @torch.inference_mode()
    def __call__(self, posterior: UserPosterior, item_rows: Tensor) -> Tensor:
        """Return the standard deviations [B, K] of the ratings of items [B, K].

        Parameters
        ----------
        posterior
            The posteriors of B users.
        item_rows
            Rows of K items for each user.
        """
        model, (n_users, k) = self.model, item_rows.shape
        blocks, size = model.mean_key_latent.shape
        mean, covariance = posterior.mean, torch.cholesky_inverse(posterior.precision_cholesky)
        flat_rows = item_rows.to(model.device).flatten()
        w = torch.cat([mean[..., :-1], torch.ones_like(mean[..., :1])], -1)
        item = model.means.index_select(0, flat_rows).view(n_users, k, blocks, size)
        expected = (item * w[:, None]).sum(-1)  # [B, K, T]
        square = w[..., :, None] * w[..., None, :]
        square[..., :-1, :-1] += covariance[..., :-1, :-1]
        flat_square = square.view(-1, size * size)
        packed = flat_square.index_select(1, self._packed_index) * self._packed_weight
        second_moments = model.second_moments.flatten(1).index_select(0, flat_rows)
        cross = covariance[..., -1].clone()  # with the user bias, whose variance is added below
        cross[..., -1] = 0
        total = torch.bmm(second_moments.view(n_users, k, -1), packed.view(n_users, -1, 1))[..., 0]
        total += 2 * torch.bmm(item.flatten(2), cross.view(n_users, -1, 1))[..., 0]
        total -= expected.square().sum(-1)
        total += covariance[..., -1, -1].sum(1)[:, None]
        within = total.clamp(min=0) / blocks + (1 / model.noise_precision).mean()
        between = (expected + mean[..., -1][:, None]).var(-1, correction=0)
        return model.std_scale * (within + between).sqrt()
