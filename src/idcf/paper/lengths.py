"""Quality against how much is known of a person: histories cut to their first n rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from idcf.data.interactions import Interactions
from idcf.data.split import first
from idcf.evaluation.measure import Exam, errors
from idcf.metrics import Interval
from idcf.models.base import Model
from idcf.rng import stream
from idcf.training import new_user_curve

LENGTHS = (*new_user_curve.LENGTHS, None)  # None: all there is


def cut(table: Interactions, n: int | None) -> Interactions:
    """The first n rows of each user, in an order that chance made once."""
    return table if n is None else first(table, n, stream(0, "cut"))


def by_length(
    exam: Exam, models: Mapping[str, Model], lengths: Sequence[int | None] = LENGTHS
) -> dict[str, list[Interval]]:
    """RMSE of the same test rows at each length, for each (inductive) model."""
    known = exam.seen.of(exam.users)
    shown = [cut(known, n) for n in lengths]
    return {name: [errors(exam, model, seen) for seen in shown] for name, model in models.items()}
