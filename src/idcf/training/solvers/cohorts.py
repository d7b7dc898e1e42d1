"""Cohorts of key users, by which `BayesModel` explains scores: k-means over their vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from idcf.models.bayes import N_COHORT_ITEMS, N_COHORTS, BayesModel
from idcf.models.layers.ragged import segment_sum
from idcf.rng import derive_seed
from idcf.types import Users, select_histories

MIN_COHORT_SIZE = 5
_KMEANS_ITERATIONS = 20
_COHORT_BATCH_SIZE = 1024  # users embedded at once


@torch.no_grad()
def fit_cohorts(model: BayesModel, key_users: Users, seed: int) -> None:
    """Set the model's cohorts: k-means over the key users' vectors, and their typical items."""
    key_users = key_users.to(model.device)
    rows = torch.arange(len(key_users), device=model.device)
    parts = [
        Users(key_users.ids[x], select_histories(key_users.history, x))
        for x in rows.split(_COHORT_BATCH_SIZE)  # type: ignore[no-untyped-call]
    ]
    vectors = torch.cat([model.embed_users(x).vector for x in parts])
    generator = torch.Generator().manual_seed(derive_seed(seed, "cohorts"))
    first = torch.randperm(len(vectors), generator=generator)[:N_COHORTS].to(model.device)
    centers = vectors[first]
    for _ in range(_KMEANS_ITERATIONS):
        cohort = torch.cdist(vectors, centers).argmin(1)
        centers = _cohort_means(vectors, cohort, centers)
    sizes = torch.bincount(cohort, minlength=len(centers))
    if (sizes >= MIN_COHORT_SIZE).any():  # members of smaller cohorts join the nearest larger one
        centers = centers[sizes >= MIN_COHORT_SIZE]
        cohort = torch.cdist(vectors, centers).argmin(1)
        sizes = torch.bincount(cohort, minlength=len(centers))
    large_enough = sizes >= MIN_COHORT_SIZE
    n_cohorts = len(sizes)
    model.cohort_centers[:n_cohorts] = _cohort_means(vectors, cohort, centers)
    model.cohort_sizes[:n_cohorts] = sizes * large_enough
    distance = (vectors - model.cohort_centers[cohort]).square().sum(1).mean()
    model.cohort_spread.copy_((distance / vectors.shape[1]).sqrt() * vectors.shape[1] ** 0.25)
    model.cohort_items[:n_cohorts] = _characteristic_items(model, key_users, cohort, sizes)


def _cohort_means(vectors: Tensor, cohort: Tensor, previous: Tensor) -> Tensor:
    """Return the mean vector of each cohort; that of an empty cohort is its `previous` one."""
    total = torch.zeros_like(previous).index_add(0, cohort, vectors)
    n = torch.bincount(cohort, minlength=len(previous))[:, None]
    return torch.where(n > 0, total / n.clamp(min=1), previous)


def _characteristic_items(
    model: BayesModel, key_users: Users, cohort: Tensor, sizes: Tensor
) -> Tensor:
    """Return, for each cohort, the items whose share of raters in it exceeds their share among all
    key users by most standard deviations. An item needs `MIN_COHORT_SIZE` raters in the cohort;
    -1 stands for items that are missing."""
    history = key_users.history
    cells = cohort[history.owner()] * model.n_items + history.items
    ones = torch.ones_like(history.values)
    count = segment_sum(ones, cells, len(sizes) * model.n_items).view(len(sizes), -1)
    share = (count.sum(0) / len(key_users)).clamp(1e-9, 1 - 1e-9)
    n = sizes[:, None].clamp(min=1)
    score = (count / n - share) / (share * (1 - share) / n).sqrt()
    score[count < MIN_COHORT_SIZE] = -torch.inf
    best = score.topk(min(N_COHORT_ITEMS, model.n_items), 1)
    items = best.indices.masked_fill(best.values == -torch.inf, -1)
    return torch.nn.functional.pad(items, (0, N_COHORT_ITEMS - items.shape[1]), value=-1)
