"""Groups of key users who are alike, for explanations: never fewer than five people in one."""

from __future__ import annotations

import torch
from torch import Tensor

from idcf.models.bayes import COHORTS, LIKES, Bayes
from idcf.models.layers.ragged import segment_sum
from idcf.rng import derive
from idcf.types import Users, pick

LEAST = 5
_ROUNDS, _AT_ONCE = 20, 1024


@torch.no_grad()
def gather(model: Bayes, people: Users, seed: int) -> None:
    """k-means over the vectors of the key users, and what each group has that others have not."""
    people = people.to(model.device)
    rows = torch.arange(len(people), device=model.device)
    parts = [Users(people.ids[x], pick(people.history, x)) for x in rows.split(_AT_ONCE)]  # type: ignore[no-untyped-call]
    vectors = torch.cat([model.embed_users(x).vector for x in parts])
    draw = torch.Generator().manual_seed(derive(seed, "cohorts"))
    first = torch.randperm(len(vectors), generator=draw)[:COHORTS].to(model.device)
    centers = vectors[first]
    for _ in range(_ROUNDS):
        group = torch.cdist(vectors, centers).argmin(1)
        centers = _means(vectors, group, centers)
    sizes = torch.bincount(group, minlength=len(centers))
    if (sizes >= LEAST).any():  # who is in too small a group joins the nearest that is large enough
        centers = centers[sizes >= LEAST]
        group = torch.cdist(vectors, centers).argmin(1)
        sizes = torch.bincount(group, minlength=len(centers))
    kept = sizes >= LEAST
    model.centers[: len(kept)] = _means(vectors, group, centers)
    model.sizes[: len(kept)] = sizes * kept
    off = (vectors - model.centers[group]).square().sum(1).mean()
    model.spread.copy_((off / vectors.shape[1]).sqrt() * vectors.shape[1] ** 0.25)
    model.likes[: len(kept)] = _likes(model, people, group, sizes)


def _means(vectors: Tensor, group: Tensor, old: Tensor) -> Tensor:
    """Of each group; an empty one stays where it was."""
    total = torch.zeros_like(old).index_add(0, group, vectors)
    n = torch.bincount(group, minlength=len(old))[:, None]
    return torch.where(n > 0, total / n.clamp(min=1), old)


def _likes(model: Bayes, people: Users, group: Tensor, sizes: Tensor) -> Tensor:
    """Items whose share of raters stands out most, in standard deviations; five rated each."""
    owner, history = group[people.history.owner()], people.history
    cells = owner * model.n_items + history.items
    ones = torch.ones_like(history.values)
    count = segment_sum(ones, cells, len(sizes) * model.n_items).view(len(sizes), -1)
    usual = (count.sum(0) / len(people)).clamp(1e-9, 1 - 1e-9)
    n = sizes[:, None].clamp(min=1)
    score = (count / n - usual) / (usual * (1 - usual) / n).sqrt()
    score[count < LEAST] = -torch.inf
    return score.topk(min(LIKES, model.n_items), 1).indices
