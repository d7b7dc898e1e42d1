"""IDCF: induce the latents of any user from those of a trained backbone's key users.

p̃_u' = h_w(d_u'), r̂ = f_θ(p̃_u', q_i): Wu et al., "Towards Open-World Recommendation", ICML 2021.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Backbone, BackboneWrapper, UserData
from idcf.models.layers.meta_path import MetaPathNeighbors
from idcf.models.layers.ragged import segment_sum, sum_pool
from idcf.models.layers.relation import Relation
from idcf.models.options import IDCFConfig
from idcf.types import Batch, Embeddings, EncodedHistory, History, Users

_MIN_STD = 1e-6  # a query feature that varies less over the key users is not scaled
POOLING_POWER = {"mean": 1.0, "sum": 0.0, "root": 0.5}  # Σq / n^power over a history of length n


class IDCF(BackboneWrapper):
    """The relation model around a backbone: IDCF-dot, IDCF-NN and IDCF-GC differ in the backbone.

    The trained backbone is copied; `key_users` have ids of its table, and their histories.
    """

    key_latents: Tensor  # [K, D + 1]; [K, D] without `relate_bias`
    mean_key_latent: Tensor  # [D + 1] or [D]
    query_mean: Tensor  # [Q]: standardizes `raw_query`
    query_std: Tensor  # [Q]
    key_scale: Tensor  # []: standardizes the key latents in the attention scores

    def __init__(self, config: IDCFConfig, backbone: Backbone, key_users: Users) -> None:
        super().__init__(backbone, key_users)
        self.config = config
        if not config.relate_bias:
            self.key_latents = self.key_latents[:, :-1].clone()
            self.mean_key_latent = self.mean_key_latent[:-1].clone()
        with torch.no_grad():
            query = self.raw_query(key_users.history)
            mean = query.mean(0)
            std = query.std(0, correction=0)
            std = torch.where(std > _MIN_STD, std, 1.0)  # log(1 + n), if all have n ratings
            key_std = self.split_latents(self.key_latents).vector.std(0, correction=0)
            scale = 1 / key_std.mean().clamp(min=1e-6)
            if not config.standardize:
                mean, std, scale = torch.zeros_like(mean), torch.ones_like(std), scale.new_ones(())
            self.register_buffer("query_mean", mean)
            self.register_buffer("query_std", std)
            self.register_buffer("key_scale", scale)
        size = self.key_latents.shape[-1]
        self.relation = Relation(
            query.shape[-1],
            size,
            config.heads,
            config.attention,
            config.scaled,
            start=config.relation_start,
            values_of_keys=config.values_of_keys,
        )
        self.has_user_parameters = config.bias == "own"
        self.backbone.user_table.bias.requires_grad_(self.has_user_parameters)
        uses_meta_path = config.neighbor_scope == "meta-path"
        self.meta_path = MetaPathNeighbors(self.n_items, key_users) if uses_meta_path else None

    @classmethod
    def user_data_with(cls, config: IDCFConfig) -> UserData:
        """Return "rows" with meta-paths, which need to know who has each item."""
        return "rows" if config.neighbor_scope == "meta-path" else cls.user_data

    def index_problem(self) -> str:
        """Return what is wrong with indices of the backbone; "" if they can be used."""
        return self.backbone.index_problem()

    def embed_users(self, users: Users) -> Embeddings:
        """Return the user tower of the induced latents."""
        encoded = self.encode_history(users.history)
        latents = self.split_latents(self.induce_latents(users.history, encoded, users.ids))
        return self.embed_latents(latents, users, encoded)

    def adapted_scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the scores [M, K] of a batch and the induced vectors p̃ [B, D]."""
        users = batch.users
        encoded = self.encode_history(users.history)
        latents = self.split_latents(self.induce_latents(users.history, encoded, users.ids))
        scores = self.score_latents(latents, users, encoded, batch.items, batch.owner)
        return scores, latents.vector

    def induce_latents(
        self, history: History, encoded: EncodedHistory, user_ids: Tensor | None = None
    ) -> Tensor:
        """Return the latents p̃_u' with the expected bias last [B, D + 1], or without it [B, D]; the
        mean key latent for a user without history or neighbors. In training, a key user is no
        meta-path neighbor of itself."""
        query, is_isolated = encoded.query, encoded.empty_history
        mask = self._neighbor_mask(history, user_ids if self.training else None)
        if mask is not None:
            is_isolated = ~mask.any(1, keepdim=True)
            mask = mask | is_isolated  # a softmax over no neighbor would be undefined
        keys = self.key_latents
        if self.training and self.meta_path is None:
            if self.config.key_sample == "user":
                mask = self._draw_key_counts(len(query))
            else:
                keys = self._sample_key_latents()
        latent: Tensor = self.relation(query, keys, self.key_scale, mask)
        if is_isolated is None:
            return latent
        return torch.where(is_isolated, self.mean_key_latent, latent)

    def _neighbor_mask(
        self, history: History, exclude_users: Tensor | None = None
    ) -> Tensor | None:
        """Return the key users that each user may attend to, bool [B, K]; None: all of them.

        See `MetaPathNeighbors.neighbor_mask`; `exclude_users` [B] are the ids of the users
        themselves.
        """
        if self.meta_path is None:
            return None
        return self.meta_path.neighbor_mask(history, self.config.n_attended_users, exclude_users)

    def embed_latents(
        self, latents: Embeddings, users: Users, encoded: EncodedHistory
    ) -> Embeddings:
        """Return the user tower of induced latents, with the bias that `config.bias` asks for."""
        if self.has_user_parameters:
            bias = self.backbone.user_table.bias.index_select(0, users.ids.clamp(min=0))
            latents = Embeddings(latents.vector, bias * (users.ids >= 0))
            return self.backbone.user_tower(latents, users)
        user = self.backbone.user_tower(latents, users)
        if not self.predicts_ratings:
            return user
        predicted = self.score_embedded(user, users, users.history.items, encoded.owner)
        return user._replace(bias=user.bias + self._infer_bias(predicted, users.history, encoded))

    def score_latents(
        self,
        latents: Embeddings,
        users: Users,
        encoded: EncodedHistory,
        items: Tensor,
        owner: Tensor,
    ) -> Tensor:
        """Score `items` [M, K] for users with induced latents: `score_embedded` of `embed_latents`,
        [M, K].

        With one item per row, history and items pass through the head in one call, and the inferred
        bias is added to the scores afterwards.
        """
        if self.has_user_parameters or not self.predicts_ratings or items.shape[1] > 1:
            embeddings = self.embed_latents(latents, users, encoded)
            return self.score_embedded(embeddings, users, items, owner)
        user, history = self.backbone.user_tower(latents, users), users.history
        all_items = torch.cat([history.items, items[:, 0]])
        all_owners = torch.cat([encoded.owner, owner])
        all_scores = self.score_embedded(user, users, all_items, all_owners)
        sizes = [encoded.owner.shape[0], owner.shape[0]]
        predicted, score = all_scores.split_with_sizes(sizes)
        bias = self._infer_bias(predicted, history, encoded)
        return (score + bias.index_select(0, owner))[:, None]

    def _infer_bias(self, predicted: Tensor, history: History, encoded: EncodedHistory) -> Tensor:
        """Return Σ (r - predicted) / (n + shrinkage) over each history: [B]."""
        residuals = history.values - predicted
        n_users = encoded.bias_scale.shape[0]
        return segment_sum(residuals, encoded.owner, n_users) * encoded.bias_scale

    def attention_weights(self, users: Users) -> Tensor:
        """Return the weight of each key user in each head: [H, B, key users]."""
        query = self.encode_history(users.history).query
        mask = self._neighbor_mask(users.history)
        return self.relation.attention_weights(query, self.key_latents, self.key_scale, mask)

    def split_latents(self, latents: Tensor) -> Embeddings:
        """Split latents [B, D + 1] into vectors [B, D] and biases [B], which are 0 if the latents
        hold none."""
        if not self.config.relate_bias:
            return Embeddings(latents, latents.new_zeros(len(latents)))
        vector, bias = latents.split_with_sizes([latents.shape[1] - 1, 1], 1)
        return Embeddings(vector, bias.squeeze(1))

    @property
    def mean_key_bias(self) -> Tensor | float:
        """The mean bias of the key users, 0 if the key latents hold none."""
        return self.mean_key_latent[-1] if self.config.relate_bias else 0.0

    def _sample_key_latents(self) -> Tensor:
        """Return a random sample of `n_attended_users` key latents for each head [H, S, D + 1]; all
        of them [K, D + 1] if there are no more."""
        n_key_users, n_attended = self.key_latents.shape[0], self.config.n_attended_users
        if n_key_users <= n_attended:
            return self.key_latents
        shape = (self.config.heads, n_attended)
        rows = torch.randint(n_key_users, shape, device=self.key_latents.device)
        return F.embedding(rows, self.key_latents)

    def _draw_key_counts(self, n_users: int) -> Tensor:
        """Draw `n_attended_users` key users with replacement for each head and user, and return how
        often each was drawn: [H, B, K]. Attention to the sample is attention to all with these
        multiplicities, and no sample of latents is gathered."""
        shape = (self.config.heads, n_users, self.config.n_attended_users)
        n_key_users, device = self.key_latents.shape[0], self.key_latents.device
        rows = torch.randint(n_key_users, shape, device=device)
        counts = torch.zeros(*shape[:2], n_key_users, device=device)
        return counts.scatter_add_(2, rows, torch.ones_like(rows, dtype=counts.dtype))

    def encode_history(self, history: History) -> EncodedHistory:
        """Return the standardized query d_u', and the shape and scale of the inferred bias: what
        depends on the histories and on no trained weight."""
        n = history.lengths()
        is_empty = n[:, None] == 0
        return EncodedHistory(
            (self.raw_query(history) - self.query_mean) / self.query_std,
            history.owner(),
            1 / (n + self.config.bias_shrinkage).clamp(min=1e-9),
            is_empty if bool(is_empty.any()) else None,
        )

    def raw_query(self, history: History) -> Tensor:
        """Return d_u' before standardization: pooled item vectors [B, D], log(1 + n) [B, 1] with
        `config.query_length`, and pooled ratings [B, D] where `config.query` is "ratings"."""
        table = self.backbone.item_table.vector
        n = history.lengths().clamp(min=1)[:, None]
        power = POOLING_POWER[self.config.pooling]
        parts = [sum_pool(table, history) / n**power]
        if self.config.query_length:
            parts.append(n.log1p())
        if self.config.query == "ratings":
            residuals = self._rating_residuals(history) - self.mean_key_bias
            parts.append(sum_pool(table, history, residuals) / n**0.5)
        return torch.cat(parts, -1)

    def _rating_residuals(self, history: History) -> Tensor:
        """Return r - μ - b_i of each entry: [N]."""
        return history.values - self.mean - self.backbone.item_table.bias[history.items]
