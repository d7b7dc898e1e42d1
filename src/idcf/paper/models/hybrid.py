"""IDCF-HY: IDCF with features (appendix of Wu et al. 2021), for users without any rating.

    r̂_ui = g_θ(p_u, y_u, q_i, z_i),  p̃_u' = h_w(y_u')

p and q are vectors of ids, y and z embeddings of features. Stage 1, `HybridBackbone`, trains all of
them on key users. Stage 2, `HybridIDCF`, freezes P, Q, Y and Z and trains the relation h_w, whose
query is y alone, and g_θ, on key users in the part of new ones. There is no bias of a user, which a
new user would lack.

The paper has eight features of MovieLens-1M, so that g_θ has 10 · 32 = 320 inputs. Of them the MPAA
rating, the director and the actors are not in our files; the year is there instead. With six fields
(gender, age, occupation, zip; genre, year) and two ids, g_θ is 256-64-64-1: the width follows from
the number of fields.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from idcf.models.base import Backbone, BackboneWrapper
from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.heads import Head
from idcf.models.layers.relation import Relation
from idcf.paper.layers.feature_fields import (
    DotConcatHead,
    FieldEmbeddings,
    item_features_of,
    item_table_from_means,
    select_features,
    user_features_of,
)
from idcf.paper.model_options import HybridBackboneConfig, HybridConfig
from idcf.types import Batch, Domain, Embeddings, Users


class HybridBackbone(Backbone):
    """g_θ(p, y, q, z) + b_i + μ, trained on key users."""

    reads_history: ClassVar[bool] = False
    reads_user_features: ClassVar[bool] = True
    item_features: Tensor  # [I, G]
    key_rows: Tensor  # int64 [K]: the users with training rows

    def __init__(self, config: HybridBackboneConfig, domain: Domain) -> None:
        super().__init__()
        domain = select_features(domain, config.user_features, config.item_features)
        self.config = config
        self.mean, self.n_items = domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        size, std = config.embedding_size, config.init_std
        self.user_table = EmbeddingTable(domain.n_users, size, std)
        self.user_table.bias.requires_grad_(False)
        self.item_table = item_table_from_means(domain, size, std)
        self.register_buffer("item_features", item_features_of(domain))
        key_rows = torch.unique(domain.raters.indices)
        self.register_buffer("key_rows", key_rows, persistent=False)  # only training reads them
        widths, n = (domain.user_feature_widths, domain.item_feature_widths), domain.n_user_features
        self.user_fields = FieldEmbeddings(n, widths[0], size, std)
        self.item_fields = FieldEmbeddings(self.item_features.shape[1], widths[1], size, std)
        sizes = self.user_fields.output_size, self.item_fields.output_size
        self.head: Head = DotConcatHead(sum(sizes) + 2 * size, config.hidden)
        self.relation: Relation | None = Relation(sizes[0], size, config.relation_heads)

    def embed_features(self, users: Users) -> Tensor:
        """Return y [B, m · d]; zeros for users without features."""
        y: Tensor = self.user_fields(user_features_of(users, self.user_fields.weight))
        return y

    def user_tower(self, latent: Embeddings, users: Users) -> Embeddings:
        """Return [p ‖ y] and no bias; in stage 1, p is at random what the relation induces."""
        y, p = self.embed_features(users), latent.vector
        if self.training and self.relation is not None:
            rows = torch.randint(
                len(self.key_rows), (self.config.relation_sample,), device=y.device
            )
            keys = self.user_table.vector.index_select(0, self.key_rows[rows]).detach()
            is_induced = torch.rand_like(p[:, :1]) < self.config.induced_share
            p = torch.where(is_induced, self.relation(y, keys, key_scale(keys)), p)
        return Embeddings(torch.cat([p, y], 1), torch.zeros_like(latent.bias))

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return [q ‖ z] and b; `exclude_users` is ignored."""
        flat = items.flatten()
        item, features = self.item_table(flat), self.item_features.index_select(0, flat)
        vector = torch.cat([item.vector, self.item_fields(features)], 1)
        return Embeddings(vector, item.bias).view(items.shape)


class HybridIDCF(BackboneWrapper):
    """The relation from features to key users, and g_θ, around the backbone of stage 1.

    The relation starts as that of stage 1. A user without features has the mean key latent.
    """

    reads_history: ClassVar[bool] = False
    reads_user_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    key_scale: Tensor  # []: standardizes the key latents in the attention scores

    def __init__(self, config: HybridConfig, backbone: Backbone, key_users: Users) -> None:
        super().__init__(backbone, key_users)
        assert isinstance(self.backbone, HybridBackbone)
        assert self.backbone.relation is not None
        self.config = config
        self.relation: Relation = self.backbone.relation
        self.backbone.relation = None
        for fields in (self.backbone.user_fields, self.backbone.item_fields):
            fields.requires_grad_(False)
        self.register_buffer("key_scale", key_scale(self.key_latents[:, :-1]))

    def embed_users(self, users: Users) -> Embeddings:
        """Return [p̃ ‖ y] and no bias."""
        return self.backbone.user_tower(self._induce_latents(users), users)

    def adapted_scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the scores [M, K] of a batch and the induced vectors p̃ [B, D]."""
        latents = self._induce_latents(batch.users)
        if self.config.meta_groups and self.training:
            return self._meta_scores(batch), latents.vector
        user = self.backbone.user_tower(latents, batch.users)
        scores = self.score_embedded(user, batch.users, batch.items, batch.owner)
        return scores, latents.vector

    def _meta_scores(self, batch: Batch) -> Tensor:
        """Return the scores of a batch after a gradient step on other rows of the same users.

        Users fall into random groups and rows into two halves. The relation takes a step on one
        half of a group's rows and scores the other; the gradient passes through the step. (If the
        steps of the groups were averaged as they are, as the appendix says, the result would be the
        plain gradient of the batch.)
        """
        n, device = self.config.meta_groups, batch.items.device
        group = torch.randint(n, (len(batch.users),), device=device)[batch.owner]
        half = torch.rand(len(batch.items), device=device) < 0.5
        keys = self._sample_keys()
        plain: dict[str, Tensor] = dict(self.relation.named_parameters())
        scores = torch.zeros_like(batch.labels)
        for part in range(n):
            for is_support in (half, ~half):
                support = torch.nonzero((group == part) & is_support)[:, 0]
                query = torch.nonzero((group == part) & ~is_support)[:, 0]
                if not len(query):
                    continue
                weights = plain
                if len(support):
                    error = self._score_with(plain, keys, batch, support) - batch.labels[support]
                    step = torch.autograd.grad(
                        error.square().mean(), list(plain.values()), create_graph=True
                    )
                    rate = self.config.meta_rate
                    pairs = zip(plain.items(), step, strict=True)
                    weights = {name: p - rate * x for (name, p), x in pairs}
                scores = scores.index_put((query,), self._score_with(weights, keys, batch, query))
        return scores

    def _score_with(
        self, weights: dict[str, Tensor], keys: Tensor, batch: Batch, rows: Tensor
    ) -> Tensor:
        """Return the scores of some rows of a batch with these weights of the relation."""
        y = cast("HybridBackbone", self.backbone).embed_features(batch.users)[batch.owner[rows]]
        p = functional_call(self.relation, weights, (y, keys, self.key_scale))
        user = Embeddings(torch.cat([p, y], 1), y.new_zeros(len(y)))
        return self.score_rows(user, self.embed_items(batch.items[rows]))

    def _induce_latents(self, users: Users) -> Embeddings:
        """Return p̃ = h_w(y) and a bias of 0; the mean key latent where no feature is known."""
        mean = self.mean_key_latent[:-1].expand(len(users), -1)
        zero = mean.new_zeros(len(users))
        if users.features is None:
            return Embeddings(mean, zero)
        y = cast("HybridBackbone", self.backbone).embed_features(users)
        latent: Tensor = self.relation(y, self._sample_keys(), self.key_scale)
        is_known = users.features.any(1, keepdim=True)
        return Embeddings(torch.where(is_known, latent, mean), zero)

    def _sample_keys(self) -> Tensor:
        """Return the latents of all key users [K, D]; in training a sample per head [H, S, D]."""
        keys, n = self.key_latents[:, :-1], self.config.n_attended_users
        if not self.training or len(keys) <= n:
            return keys
        rows = torch.randint(len(keys), (len(self.relation.query), n), device=keys.device)
        return F.embedding(rows, keys)


def key_scale(keys: Tensor) -> Tensor:
    """Return the factor that gives key latents [K, D] unit variance, on average."""
    return 1 / keys.std(0, correction=0).mean().clamp(min=1e-6)
