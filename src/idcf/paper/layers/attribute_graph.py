"""The attribute graph of AGNN: similar nodes, interaction of features, gates and a generator."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SIMILARITY_DIGITS = 4  # ties of equal features are ties, whatever the rounding of a batch


class NeighborCandidates(NamedTuple):
    """The nodes most similar to each of R nodes."""

    rows: Tensor  # int64 [R, C]
    weights: Tensor  # [R, C]: similarity, not below a small positive number


def most_similar(similarity: Tensor, n_candidates: int) -> NeighborCandidates:
    """Return the nodes of the highest similarities [R, N] of each row; ties go to the first."""
    factor = 10**_SIMILARITY_DIGITS
    ranked = (similarity * factor).round().sort(dim=1, descending=True, stable=True)
    rows, values = (x[:, :n_candidates] for x in (ranked.indices, ranked.values / factor))
    return NeighborCandidates(rows.contiguous(), values.clamp(min=1e-3).contiguous())


def cosine_similarity(rows: Tensor, others: Tensor) -> Tensor:
    """Return the cosines of rows [R, D] with others [N, D]; 0 where a vector is 0."""
    return F.normalize(rows, dim=1) @ F.normalize(others, dim=1).T


class BiInteraction(nn.Module):
    """LReLU(W₁ ½((Σ x_f v_f)² - Σ (x_f v_f)²)) + LReLU(W₂ Σ x_f v_f) of features x [R, F]."""

    def __init__(self, n_features: int, size: int, std: float) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(n_features, size) * std)  # v
        self.pairs = nn.Linear(size, size)
        self.sums = nn.Linear(size, size)

    def forward(self, features: Tensor) -> Tensor:
        """Return the attribute embeddings: [R, size]."""
        total = features @ self.vectors
        squares = features.square() @ self.vectors.square()
        pairs = F.leaky_relu(self.pairs((total.square() - squares) / 2))
        return pairs + F.leaky_relu(self.sums(total))


class GatedNeighbors(nn.Module):
    """LReLU(x ⊙ (1 - σ(W_f[x ‖ mean n])) + mean_k n_k ⊙ σ(W_a[x ‖ n_k])), n_k the neighbors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.aggregate = nn.Linear(2 * size, size)
        self.filter = nn.Linear(2 * size, size)

    def forward(self, node: Tensor, neighbors: Tensor) -> Tensor:
        """Return nodes [R, D] with what their neighbors [R, n, D] say: [R, D]."""
        repeated = node[:, None].expand_as(neighbors)
        gate = torch.sigmoid(self.aggregate(torch.cat([repeated, neighbors], -1)))
        dropped = torch.sigmoid(self.filter(torch.cat([node, neighbors.mean(1)], -1)))
        return F.leaky_relu(node * (1 - dropped) + (neighbors * gate).mean(1))


class AttributeVAE(nn.Module):
    """A variational autoencoder from attributes to embeddings of ids: P(z), z ~ N(m, s²)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean = nn.Linear(size, size)
        self.log_variance = nn.Linear(size, size)
        self.decoder = nn.Sequential(nn.Linear(size, size), nn.LeakyReLU(), nn.Linear(size, size))

    def forward(self, attributes: Tensor) -> Tensor:
        """Return P(m): the id embedding that attributes [R, D] suggest."""
        out: Tensor = self.decoder(self.mean(attributes))
        return out

    def losses(self, attributes: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return ‖P(z) - id‖² for a draw of z, and the KL divergence from N(0, I): [R] and [R]."""
        mean, log_variance = self.mean(attributes), self.log_variance(attributes)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return (self.decoder(z) - ids).square().sum(1), kl_from_standard_normal(mean, log_variance)


def kl_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(m, s²) ‖ N(0, I)) = ½ Σ (s² + m² - 1 - log s²) of each row: [R]."""
    return (log_variance.exp() + mean.square() - 1 - log_variance).sum(-1) / 2
