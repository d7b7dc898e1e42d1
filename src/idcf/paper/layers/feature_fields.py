"""Embeddings of features: one vector for each field, such as age or genre, and the items' means."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.heads import Head, mlp
from idcf.models.layers.ragged import shrunk_mean
from idcf.models.options import DEFAULT_ITEM_SHRINKAGE
from idcf.types import Domain, Users

_MAX_FEATURE = 3.0  # standard deviations; the indicator of a rare word is far larger


class FieldEmbeddings(nn.Module):
    """y = [y_1(a_1) ‖ … ‖ y_m(a_m)], y_k(a_k) = a_k Y_k, for the m fields of the features a [R, F].

    A field with several words, such as genres, is embedded as the sum of their vectors. The
    features of a field without words are 0, and so is its embedding: the average.
    """

    membership: Tensor  # [F, m]: 1 where a feature belongs to a field

    def __init__(self, n_features: int, widths: tuple[int, ...], size: int, std: float) -> None:
        super().__init__()
        widths = widths or (n_features,)
        field = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths))
        self.register_buffer("membership", (field[:, None] == torch.arange(len(widths))).float())
        self.weight = nn.Parameter(torch.randn(n_features, size) * std)  # Y

    @property
    def output_size(self) -> int:
        """Length of y: m times the size of an embedding."""
        return self.membership.shape[1] * self.weight.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        """Return y [R, m · size]."""
        by_field = (self.membership[:, :, None] * self.weight[:, None]).flatten(1)
        return bounded(features) @ by_field


class DotConcatHead(Head):
    """p·q + nn([p' ‖ q']) with ReLU, for vectors [p ‖ p'] of users and [q ‖ q'] of items.

    p and q have equal sizes; they follow from the sizes of the vectors and of the network's input.
    """

    def __init__(self, deep_size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((deep_size, *hidden, 1), nn.ReLU)
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)  # training starts from the other parts of the score

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score users [M, D] against items [M, K, E], which gives [M, K], or [M, E]: [M]."""
        user = user if item.ndim == user.ndim else user[:, None].expand(*item.shape[:-1], -1)
        p, deep_user, q, deep_item = self._split(user, item)
        deep: Tensor = self.net(torch.cat([deep_user, deep_item], -1)).squeeze(-1)
        return (p * q).sum(-1) + deep

    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score every user [B, D] against every item [I, E]: [B, I]."""
        p, deep_user, q, deep_item = self._split(user, item)
        first, deeper = cast("nn.Linear", self.net[0]), self.net[1:]
        by_user, by_item = first.weight.split_with_sizes(
            [deep_user.shape[1], deep_item.shape[1]], 1
        )
        hidden = (deep_user @ by_user.T + first.bias)[:, None] + deep_item @ by_item.T
        deep: Tensor = deeper(hidden).squeeze(-1)
        return p @ q.T + deep

    def _split(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return p, p', q and q'."""
        deep_size = cast("nn.Linear", self.net[0]).weight.shape[1]
        n_dot = (user.shape[-1] + item.shape[-1] - deep_size) // 2
        return user[..., :n_dot], user[..., n_dot:], item[..., :n_dot], item[..., n_dot:]


def bounded(features: Tensor) -> Tensor:
    """Return standardized features, none further than `_MAX_FEATURE` from 0."""
    return features.clamp(-_MAX_FEATURE, _MAX_FEATURE)


def select_features(domain: Domain, user_features: bool, item_features: bool) -> Domain:
    """Return the domain without the features that a model does not use."""
    if not user_features:
        domain = replace(domain, user_features=None, n_user_features=0, user_feature_widths=())
    if not item_features:
        domain = replace(domain, item_features=None, item_feature_widths=())
    return domain


def user_features_of(users: Users, like: Tensor) -> Tensor:
    """Return the features [B, F] of users for weights [F, ...] that `like` is; zeros, the average,
    where none are known or the model uses none."""
    if users.features is None or not len(like):
        return like.new_zeros(len(users), len(like))
    return users.features


def item_features_of(domain: Domain) -> Tensor:
    """Return the features of items [I, G], of width 0 where there are none."""
    if domain.item_features is None:
        return torch.zeros(domain.n_items, 0)
    return domain.item_features.clone()


def item_table_from_means(domain: Domain, size: int, std: float) -> EmbeddingTable:
    """Return a table of items whose biases start at the shrunk means of their ratings, less μ."""
    table = EmbeddingTable(domain.n_items, size, std)
    with torch.no_grad():
        residuals = domain.raters.values - domain.mean
        table.bias.copy_(shrunk_mean(residuals, domain.raters, DEFAULT_ITEM_SHRINKAGE))
    return table
