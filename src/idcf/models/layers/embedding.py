"""Embedding tables: a vector and a bias for every user or item of the training data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idcf.types import Embeddings, RaggedRows


class EmbeddingTable(nn.Module):
    """Trainable vectors [n_rows, D], drawn with standard deviation `init_std`, and biases [n_rows],
    which start at 0."""

    def __init__(self, n_rows: int, size: int, init_std: float = 0.1) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(n_rows, size) * init_std)
        self.bias = nn.Parameter(torch.zeros(n_rows))

    def forward(self, rows: Tensor) -> Embeddings:
        """Return the embeddings of `rows`, an int64 tensor of any shape without -1."""
        if rows.ndim > 1:
            flat: Embeddings = self(rows.flatten())
            return flat.view(rows.shape)
        # index_select has the fastest backward pass of all lookups
        return Embeddings(self.vector.index_select(0, rows), self.bias.index_select(0, rows))


def log_relative_popularity(raters: RaggedRows) -> Tensor:
    """Return log((n + 1) / (mean n + 1)) of each item's number of raters n: [I].

    As initial item biases they make an untrained model rank by popularity.
    """
    n = raters.lengths().to(torch.float32)
    return ((n + 1) / (n.mean() + 1)).log()
