"""MeLU: a user's preferences from features and a few ratings, by meta-learning (Lee et al. 2019).

    φ_u = φ - α ∇_φ L_support(φ),  r̂ = μ + b_i + nn_{φ_u}([y_u ‖ z_i ‖ q_i])

The decision layers φ are adapted to the ratings of each user, the support, by one or a few steps of
gradient descent; the embeddings are shared. Training follows the gradient of the error on other
ratings of the user through these steps (MAML), or without their second derivatives (`first_order`).
A user without ratings is scored with φ itself: the scores that are not adapted.

Without `item_ids`, as published, items are known by their features alone. That is too little here:
the director and the actors, which nearly identify a film, are not in our files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from idcf.models.base import Model
from idcf.models.layers.heads import mlp
from idcf.paper.layers.feature_fields import (
    FieldEmbeddings,
    item_features_of,
    item_table_from_means,
    select_features,
    user_features_of,
)
from idcf.paper.model_options import MeLUConfig
from idcf.types import Domain, History, Users

Parameters = dict[str, Tensor]  # of the decision layers: shared, or of each of B users [B, ...]
_USERS_PER_STEP = 64  # users whose whole catalogue is scored at once


class Support(NamedTuple):
    """The support of B users, padded to that of the longest: what the inner loop reads."""

    inputs: Tensor  # [B, S, E]: of the decision layers
    targets: Tensor  # [B, S]: rating less μ and b
    mask: Tensor  # [B, S]: 1 for a rating, 0 for padding


class MeLU(Model):
    """Embeddings of features, and decision layers that are adapted to each user."""

    inductive: ClassVar[bool] = True
    reads_user_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    item_features: Tensor  # [I, G]

    def __init__(self, config: MeLUConfig, domain: Domain) -> None:
        super().__init__()
        domain = select_features(domain, config.user_features, config.item_features)
        self.config, self.mean, self.n_items = config, domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        size, std = config.embedding_size, config.init_std
        self.register_buffer("item_features", item_features_of(domain))
        widths, n = (domain.user_feature_widths, domain.item_feature_widths), domain.n_user_features
        self.user_fields = FieldEmbeddings(n, widths[0], size, std)
        self.item_fields = FieldEmbeddings(self.item_features.shape[1], widths[1], size, std)
        self.item_table = item_table_from_means(domain, size, std) if config.item_ids else None
        n_inputs = self.user_fields.output_size + self.item_fields.output_size
        self.net = mlp((n_inputs + size * config.item_ids, *config.hidden, 1), torch.nn.ReLU)

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score `items` [M, K] for the users `owner` [M], each adapted to the history: [M, K]."""
        y, (vectors, bias) = self._embed_users(users), self._embed_items(items)
        constant = self.mean + bias
        if not len(users.history.items):
            inputs = torch.cat([y[owner, None].expand(*items.shape, -1), vectors], -1)
            return constant + self._decide(dict(self.net.named_parameters()), inputs)
        parameters = self.adapted_parameters(self._support(y, users.history))
        position, n_rows = _positions(owner, len(users))
        grouped = vectors.new_zeros(len(users), n_rows, *vectors.shape[1:])
        grouped = grouped.index_put((owner, position), vectors)
        inputs = torch.cat([y[:, None, None].expand(*grouped.shape[:3], -1), grouped], -1)
        return constant + vmap(self._decide)(parameters, inputs)[owner, position]

    def score_catalog(self, users: Users) -> Tensor:
        """Return the scores of every item for every user: [B, I]."""
        vectors, bias = self._embed_items(torch.arange(self.n_items, device=self.device))
        y, out = self._embed_users(users), []
        parameters = self.adapted_parameters(self._support(y, users.history))
        for start in range(0, len(users), _USERS_PER_STEP):
            part = slice(start, start + _USERS_PER_STEP)
            inputs = torch.cat(
                [
                    y[part, None].expand(-1, self.n_items, -1),
                    vectors.expand(len(y[part]), *vectors.shape),
                ],
                -1,
            )
            out.append(vmap(self._decide)({k: v[part] for k, v in parameters.items()}, inputs))
        return self.mean + bias + torch.cat(out)

    def adapted_parameters(self, support: Support) -> Parameters:
        """Return φ_u of B users [B, ...] after the inner steps; φ for a user without support."""
        # serving computes no gradients, but this one is part of the score
        inference = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if inference else nullcontext():
            if inference:
                support = Support(*(x.clone() for x in support))
            parameters = {
                name: (p.clone() if inference else p).expand(len(support.inputs), *p.shape)
                for name, p in self.net.named_parameters()
            }
            gradient: Callable[..., Parameters] = vmap(grad(self._support_loss))
            for _ in range(self.config.inner_steps):
                step = gradient(parameters, *support)
                if self.config.first_order:
                    step = {name: x.detach() for name, x in step.items()}
                parameters = {
                    name: p - self.config.inner_rate * step[name] for name, p in parameters.items()
                }
        return parameters

    def _support_loss(
        self, parameters: Parameters, inputs: Tensor, targets: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the mean squared error on the support of one user; 0 without support."""
        error = (self._decide(parameters, inputs) - targets).square() * mask
        return error.sum() / mask.sum().clamp(min=1)

    def _decide(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the output of the decision layers with these parameters: inputs [..., E]."""
        out: Tensor = functional_call(self.net, parameters, (inputs,))
        return out.squeeze(-1)

    def _embed_users(self, users: Users) -> Tensor:
        """Return y [B, ·]; zeros, the average, for users without features."""
        y: Tensor = self.user_fields(user_features_of(users, self.user_fields.weight))
        return y

    def _embed_items(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return [z ‖ q] [..., ·] and b [...] of items."""
        flat = items.flatten()
        vectors = self.item_fields(self.item_features.index_select(0, flat))
        bias = vectors.new_zeros(len(flat))
        if self.item_table is not None:
            item = self.item_table(flat)
            vectors, bias = torch.cat([vectors, item.vector], 1), item.bias
        return vectors.view(*items.shape, vectors.shape[1]), bias.view(items.shape)

    def _support(self, y: Tensor, history: History) -> Support:
        """Return the inputs and targets of the histories, whose users have embeddings y [B, ·]."""
        owner, n_users = history.owner(), len(y)
        position, length = _positions(owner, n_users)
        vectors, bias = self._embed_items(history.items)
        inputs = torch.cat([y[owner], vectors], 1)
        shape = (n_users, max(length, 1))
        entries = (owner, position)
        return Support(
            inputs.new_zeros(*shape, inputs.shape[1]).index_put(entries, inputs),
            inputs.new_zeros(shape).index_put(entries, history.values - self.mean - bias),
            inputs.new_zeros(shape).index_put(entries, torch.ones_like(bias)),
        )


def _positions(owner: Tensor, n_users: int) -> tuple[Tensor, int]:
    """Return the position of each row among the rows of its user [M], and the most rows of one."""
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=n_users)
    start = (counts.cumsum(0) - counts)[owner[order]]
    position = torch.empty_like(owner)
    position[order] = torch.arange(len(owner), device=owner.device) - start
    return position, int(counts.max()) if len(counts) else 0
