"""Result rows: one number of one system, with everything that is needed to read it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from idcf.files import check_writable, write_text
from idcf.metrics import Interval

# metrics; of the others, higher is better
LOWER_IS_BETTER = frozenset({"rmse", "mae", "nll", "low-hits", "gini@20"})
NOMINAL_VALUES = {"cover90": 0.9}  # metrics that should be close to a value
SIMPLE_BASELINES = ("item-mean", "popularity", "bias", "item-knn", "ease", "als")
TRIVIAL_BASELINES = ("random", "item-mean", "popularity")  # in every evaluation, printed first


@dataclass(frozen=True)
class RunKey:
    """The identity of one training run."""

    dataset: str
    split: str  # the name that `protocol.make_split` returns
    model: str  # a name of the registry
    preset: str  # clean or published
    seed: int


@dataclass(frozen=True)
class ResultRow:
    """One metric of one run over one group of users."""

    dataset: str
    split: str
    model: str
    preset: str
    users: str  # the group, one of `groups.USER_GROUPS`
    metric: str  # one of `measure.metric_names`
    value: float
    low: float  # bounds of the 95 % interval over users
    high: float
    n_users: int  # users and test rows that the metric averages
    n_ratings: int
    seed: int
    seconds: float  # wall-clock time of the training run
    # of the lists that the metric reads, see `idcf.inference.benefit`; None: the metric reads no
    # lists, or they are ordered by the scores of the model alone
    quality: float | None = field(default=None, kw_only=True)
    # of the code that made the row; None: there was no git checkout, or rows had no commit yet
    commit: str | None = field(default=None, kw_only=True)

    @property
    def interval(self) -> Interval:
        """The value and its bounds."""
        return Interval(self.value, self.low, self.high)


def write_json(rows: Iterable[ResultRow], path: Path) -> None:
    """Write rows atomically as a JSON list of objects or, if the path ends in .jsonl, as a line of
    JSON for each."""
    check_writable(path)
    objects = [asdict(row) for row in rows]
    if path.suffix == ".jsonl":
        write_text(path, "".join(json.dumps(values) + "\n" for values in objects))
    else:
        write_text(path, json.dumps(objects, indent=1) + "\n")
