"""The systems that `list_baselines.py` compares, and the options that are tried for each of them.

A search has stages. A stage tries every combination of its values, with the best options of the
stages before it. The measure is the same for every system: see `list_baselines.py`.

The values were widened after a first run on ML-100K (seed 0): where light key users preferred a
value at the edge, further values were added (item-knn, slim, both other libraries; for ease after a
run on ML-1M), and for the sake of time some of mult-vae were dropped. The test figures of these
runs were in sight; none of them decided. When the histories of light key users became those of the
present version, 128 factors were added to the ALS of both other libraries. Best values at the edge
remain, such as 300 neighbors of slim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

Options = dict[str, Any]
Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class System:
    """A system of the comparison."""

    model: str  # a name of the registry, or the class of another library
    stages: tuple[Grid, ...] = ()  # of the search; none: there is nothing to choose from outside
    fixed: Mapping[str, Any] = field(default_factory=dict)  # options that are not searched
    library: Literal["idcf", "implicit", "irspack"] = "idcf"
    reads_ratings: bool = False  # trained on the ratings, where the others see implicit feedback
    max_dense_items: int | None = None  # above, its dense item-item matrix is too large here
    max_items: int | None = None  # above, a trial takes too long here


def stage_options(grid: Grid, best: Options) -> list[Options]:
    """Return the options of a stage's trials, which refine the best options so far."""
    return [{**best, **dict(zip(grid, values, strict=True))} for values in product(*grid.values())]


_EASE_REG = (30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)
_ALS_GRID = {"alpha": (1.0, 10.0), "reg": (1.0, 10.0, 100.0)}
_MULT_VAE = {
    "init_std": 0.01,
    "dropout": 0.5,
    "anneal": 300,
    "embedding_size": 32,
    "hidden": 256,
    "train.epochs": 30,
    "train.learning_rate": 0.003,
    "train.schedule": "constant",
    "train.coupled_decay": 0.0,
    "train.negatives": 0,
    "train.batch_size": 1024,
}

SYSTEMS: dict[str, System] = {
    # chooses its penalties inside the fit, on key users that it holds out itself
    "idcf-takeup": System("idcf-takeup"),
    "idcf-odds": System("idcf-odds", ({"reg": (30.0, 100.0, 300.0)},)),
    "popularity": System("popularity"),
    "item-knn": System("item-knn", ({"neighbors": (50, 200, 1000), "reg": (0.0, 3.0, 30.0)},)),
    "ease": System("ease", ({"reg": _EASE_REG},), {"neighbors": 500}),
    "ease-ratings": System(
        "ease",
        ({"reg": _EASE_REG},),
        {"neighbors": 500, "ratings": "scaled"},
        reads_ratings=True,
    ),
    "slim": System(
        "slim",
        ({"l1_reg": (0.1, 3.0), "reg": (10.0, 100.0, 1000.0, 5000.0)}, {"neighbors": (100, 300)}),
    ),
    "als+popularity": System(
        "als",
        (
            {"embedding_size": (16, 64), **_ALS_GRID},
            {"popularity_weight": (0.0, 0.003, 0.01, 0.03, 0.1)},
        ),
    ),
    "mult-vae": System(
        "mult-vae",
        ({"beta": (0.02, 0.2)}, {"train.epochs": (30, 90)}),
        _MULT_VAE,
        max_items=20_000,
    ),
    "implicit ALS": System(
        "AlternatingLeastSquares",
        ({"factors": (16, 64, 128), "alpha": (1.0, 10.0), "regularization": _ALS_GRID["reg"]},),
        library="implicit",
    ),
    "implicit cosine": System("CosineRecommender", ({"K": (50, 200, 1000)},), library="implicit"),
    "implicit BM25": System(
        "BM25Recommender",
        ({"K": (100, 1000), "K1": (0.4, 1.2, 4.0), "B": (0.5, 1.0)},),
        library="implicit",
    ),
    "irspack iALS": System(
        "IALSRecommender",
        ({"n_components": (16, 64, 128), "alpha0": (0.1, 0.3, 1.0), "reg": (0.001, 0.01, 0.03)},),
        library="irspack",
    ),
    "irspack RP3beta": System(
        "RP3betaRecommender",
        ({"beta": (0.0, 0.2, 0.4, 0.6), "top_k": (100, 500, 1500)},),
        library="irspack",
    ),
    "irspack SLIM": System(
        "SLIMRecommender",
        ({"alpha": (0.1, 1.0, 5.0), "l1_ratio": (0.001, 0.01, 0.1)},),
        library="irspack",
        max_items=20_000,
    ),
    "irspack EDLAE": System(
        "EDLAERecommender",
        ({"reg": (10.0, 100.0, 1000.0), "dropout_p": (0.3, 0.5, 0.75)},),
        library="irspack",
        max_dense_items=6000,
    ),
}
