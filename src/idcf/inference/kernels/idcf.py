"""Kernels of IDCF with dot attention: the projections of the relation are multiplied in advance."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels.linalg import MatrixVectorProduct, to_float32_array
from idcf.models.idcf import IDCF, POOLING_POWER, split_latents
from idcf.models.layers.heads import DotHead
from idcf.models.matrix_factorization import MatrixFactorization
from idcf.types import Embeddings, EncodedHistory, Users


def idcf_batch_embedder(model: IDCF) -> IDCFBatchEmbedder | None:
    """Return the kernel of an IDCF, or None unless it attends to all key users by dot products."""
    has_kernel = model.relation.attention == "dot" and model.meta_path is None
    return IDCFBatchEmbedder(model) if has_kernel else None


def idcf_single_user_scorer(embedder: IDCFBatchEmbedder) -> IDCFSingleUserScorer | None:
    """Return the kernel of an IDCF, or None unless the item vectors of its backbone are a table."""
    has_table = isinstance(embedder.model.backbone, MatrixFactorization)
    return IDCFSingleUserScorer(embedder) if has_table else None


class IDCFBatchEmbedder:
    """`IDCF.embed_users` as one fused attention of B·H queries over the key users."""

    def __init__(self, model: IDCF) -> None:
        self.model = model
        relation = model.relation
        self.n_heads, _, self.key_size = relation.query.shape
        query_key, value_out = relation.fold()
        query_key = query_key * (relation.scale * model.key_scale) / model.query_std[:, None]
        self.query_key = query_key.transpose(0, 1).flatten(1).contiguous()
        self.value_out = value_out.flatten(0, 1)

    def embed_users(self, users: Users) -> Embeddings:
        """Return the embeddings of the users: vectors [B, D] and biases [B]."""
        history, shrinkage = users.history, self.model.config.bias_shrinkage
        n, query = history.lengths(), self.model.raw_query(history)
        bias_scale = 1 / (n + shrinkage).clamp(min=1e-9)
        encoded = EncodedHistory(query, history.owner(), bias_scale, None)
        latents = split_latents(self._induce_latents(query, n))
        return self.model.embed_latents(latents, users, encoded)

    def _induce_latents(self, query: Tensor, history_lengths: Tensor) -> Tensor:
        """Return p̃ [B, D + 1], as `IDCF.induce_latents` does."""
        projected = (query - self.model.query_mean) @ self.query_key
        keys = self.model.key_latents[None, None]
        attended = F.scaled_dot_product_attention(
            projected.view(1, 1, -1, self.key_size), keys, keys, scale=1.0
        )
        latent = attended.view(-1, self.n_heads * self.key_size) @ self.value_out
        is_empty = (history_lengths == 0)[:, None]
        return torch.where(is_empty, self.model.mean_key_latent, latent)


class IDCFSingleUserScorer:
    """Score the catalogue for one new user with NumPy, for an IDCF whose backbone has item vectors.

    A call takes the item rows and values of a history, and returns the score of every item [I].
    All items are scored without the user bias first; the residuals of the history are among these
    scores, and they give the bias.
    """

    def __init__(self, embedder: IDCFBatchEmbedder) -> None:
        model, config = embedder.model, embedder.model.config
        items = model.backbone.item_table
        self.item_vectors = to_float32_array(items.vector)
        self.query_mean = to_float32_array(model.query_mean)
        self.query_key = to_float32_array(embedder.query_key)
        self.value_out = to_float32_array(embedder.value_out)
        self.key_latents = model.key_latents.cpu().T.contiguous()  # laid out for the longer product
        self.n_heads, self.key_size = embedder.n_heads, embedder.key_size
        self.pooling_power = POOLING_POWER[config.pooling]
        expected = to_float32_array(items.bias + model.mean + model.mean_key_latent[-1])
        self.expected_ratings = expected if config.query == "ratings" else None
        self.item_offsets = to_float32_array(items.bias + model.mean)
        # with biases as parameters of the training users, a new user has bias 0
        self.adds_expected_bias = not model.has_user_parameters
        infers_bias = model.predicts_ratings and self.adds_expected_bias
        self.bias_shrinkage = config.bias_shrinkage if infers_bias else None
        self.catalog_product = MatrixVectorProduct(self.item_vectors)
        self.head = None if isinstance(model.head, DotHead) else model.head
        self.item_tensor, self.device = items.vector, model.device

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""
        latent = self.embed(item_rows, values)
        vector, expected_bias = latent[:-1], latent[-1]
        if self.head is None:
            scores = self.catalog_product(vector)
        else:
            user = torch.from_numpy(np.ascontiguousarray(vector))[None].to(self.device)
            scores = self.head.score_all_pairs(user, self.item_tensor)[0].cpu().numpy()
        scores += self.item_offsets
        if self.adds_expected_bias:
            scores += expected_bias
        if self.bias_shrinkage is not None:
            residuals = values - scores[item_rows]
            scores += residuals.sum() / (len(item_rows) + self.bias_shrinkage)
        return scores

    def embed(self, item_rows: Ints, values: Floats) -> Floats:
        """Return p̃ and the expected bias of a user with a history: [D + 1]."""
        vectors = self.item_vectors.take(item_rows, 0)
        query = np.empty(vectors.shape[1] + 1, np.float32)
        np.add.reduce(vectors, 0, out=query[:-1])
        query[:-1] /= len(item_rows) ** self.pooling_power
        query[-1] = np.log1p(len(item_rows))
        if self.expected_ratings is not None:
            residuals = values - self.expected_ratings[item_rows]
            query = np.concatenate([query, residuals @ vectors / len(item_rows) ** 0.5])
        projected = (query - self.query_mean) @ self.query_key
        queries = torch.from_numpy(projected.reshape(self.n_heads, self.key_size))
        attended = torch.softmax(queries @ self.key_latents, 1) @ self.key_latents.T
        latent: Floats = attended.numpy().reshape(-1) @ self.value_out
        return latent
