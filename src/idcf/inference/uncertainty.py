"""How sure a posterior is of the few items that are shown: `Bayes.deviation`, sooner.

The model is the reference: it takes the mean over blocks last, so that every term is laid out for
it; here terms that are linear in the moments are added up over blocks in one product.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels import Evidence
from idcf.models.bayes import Bayes, Belief
from idcf.types import Embedded, Users


class Sure:
    """A posterior that is asked about a few items of many people."""

    def __init__(self, model: Bayes) -> None:
        self.model = model
        size = len(model.triangle)
        low = torch.tril_indices(size, size, device=model.device)
        self._place = low[0] * size + low[1]  # of a packed product in a square one
        self._twice = 2 - (low[0] == low[1]).float()
        self._unknown = float((1 / model.noise).mean())  # whatever is known of a person
        self._stretch = float(model.stretch)
        self._of_one = self._place.cpu().numpy(), self._twice.cpu().numpy()

    @torch.inference_mode()
    def believe(self, users: Users) -> Belief:
        """What both their vectors and their deviations are made of."""
        return self.model.posterior(users.to(self.model.device))

    @torch.inference_mode()
    def embed(self, users: Users, belief: Belief) -> Embedded:
        """`Bayes.embed_users` of people who all have a history."""
        mean, n = belief.mean, users.history.lengths().to(self.model.device)
        vector = F.pad(mean[..., :-1].flatten(1), (0, 1))
        return Embedded(vector, mean[..., -1].mean(1) + self.model.offset(n))

    @torch.inference_mode()
    def __call__(self, belief: Belief, rows: Tensor) -> Tensor:
        """The standard deviation of the ratings of items [B, K] of these people."""
        model, (people, k) = self.model, rows.shape
        blocks, size = model.average.shape
        (mean, factor), rows = belief, rows.to(model.device)
        covariance = torch.cholesky_inverse(factor)  # [B, T, D, D]
        own, flat = mean[..., -1], rows.flatten()
        w = torch.cat([mean[..., :-1], torch.ones_like(mean[..., :1])], -1)
        item = model.means.index_select(0, flat).view(people, k, blocks, size)
        expected = (item * w[:, None]).sum(-1)  # [B, K, T]
        square = w[..., :, None] * w[..., None, :]
        square[..., :-1, :-1] += covariance[..., :-1, :-1]
        packed = square.view(-1, size * size).index_select(1, self._place) * self._twice
        seconds = model.seconds.flatten(1).index_select(0, flat).view(people, k, -1)
        crossed = covariance[..., -1].clone()  # with b_u itself, which is apart
        crossed[..., -1] = 0
        total = torch.bmm(seconds, packed.view(people, -1, 1))[..., 0]
        total += 2 * torch.bmm(item.flatten(2), crossed.view(people, -1, 1))[..., 0]
        total -= expected.square().sum(-1)
        total += covariance[..., -1, -1].sum(1)[:, None]
        inside = total.clamp(min=0) / blocks + (1 / model.noise).mean()
        between = (expected + own[:, None]).var(-1, correction=0)
        return model.stretch * (inside + between).sqrt()

    def one(self, way: Evidence, history: tuple[Ints, Floats], rows: Ints) -> Floats:
        """The same of one newcomer with a history, on arrays: [K]."""
        mean, precision = way.believe(*history)
        covariance, own = np.linalg.inv(precision), mean[:, -1]
        place, twice = self._of_one
        w = np.column_stack([mean[:, :-1], np.ones_like(own)])
        item = way.means.take(rows, 0).reshape(-1, *mean.shape)
        expected = (item * w).sum(-1)  # [K, T]
        square = w[:, :, None] * w[:, None, :]
        square[:, :-1, :-1] += covariance[:, :-1, :-1]
        packed = square.reshape(len(w), -1)[:, place] * twice
        crossed = covariance[..., -1].copy()
        crossed[:, -1] = 0
        total = way.seconds.take(rows, 0) @ packed.reshape(-1)
        total += 2 * (item.reshape(len(rows), -1) @ crossed.reshape(-1))
        total += covariance[:, -1, -1].sum() - np.square(expected).sum(-1)
        inside = np.maximum(total, 0) / len(w) + np.float32(self._unknown)
        found: Floats = self._stretch * np.sqrt(inside + (expected + own).var(-1))
        return found.astype(np.float32)
