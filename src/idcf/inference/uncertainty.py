"""Standard deviations and embeddings of many users from one computation of their posteriors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.bayes import BayesModel, UserPosterior, rating_std
from idcf.types import Embeddings, Users


class PosteriorStd:
    """Posteriors of users, with the embeddings and standard deviations that follow from them."""

    def __init__(self, model: BayesModel) -> None:
        self.model = model

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
        return rating_std(self.model, posterior, item_rows.to(self.model.device))
