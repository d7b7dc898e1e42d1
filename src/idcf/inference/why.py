"""Why an item, and what to ask next, in the words of the catalogue. `reasons` has the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from idcf.data.history_reader import Read, as_users
from idcf.errors import ConfigError
from idcf.inference.explain import cohorts, gains, leave_one_out
from idcf.inference.predictor import NEVER, Desk, no_posterior
from idcf.inference.topk import best_of
from idcf.models.bayes import Bayes
from idcf.results import Cohort, Explanation, Question, Reason
from idcf.types import Users

_COHORTS = 3  # that are named in an explanation


def explain(desk: Desk, read: Read, row: int) -> Explanation:
    """Which of their own items, and which key users, a score comes from."""
    model = desk.index.model
    if not model.inductive:
        raise ConfigError(f"{type(model).__name__} knows no newcomers: there is nothing to explain")
    score, effects = leave_one_out(model, read.rows, read.values, row, read.features)
    own = zip(read.rows.tolist(), read.values.tolist(), effects, strict=True)
    reasons = [Reason(desk.ids[r], desk.titles[r], v, e) for r, v, e in own]
    reasons.sort(key=lambda x: -abs(x.effect))
    users, std = as_users([read]), None
    groups: tuple[Cohort, ...] = ()
    if desk.posterior is not None:
        std = float(desk.deviations(users, np.array([[row]]))[0, 0])
    if isinstance(model, Bayes):
        groups = _cohorts(desk, model, users)
    return Explanation(desk.ids[row], desk.titles[row], score, std, tuple(reasons), groups)


def _cohorts(desk: Desk, model: Bayes, users: Users) -> tuple[Cohort, ...]:
    weight = cohorts(model, users.to(model.device))[0]
    best = weight.argsort(descending=True)[:_COHORTS].tolist()

    def likes(cohort: int) -> tuple[str, ...]:
        return tuple(desk.titles[r] or str(desk.ids[r]) for r in model.likes[cohort].tolist())

    return tuple(
        Cohort(int(model.sizes[c]), float(weight[c]), likes(c)) for c in best if model.sizes[c] > 0
    )


def questions(
    desk: Desk, read: Read, n: int, candidates: Iterable[Any] | None = None
) -> list[Question]:
    """The items whose answer would tell most, without those that they have told of already. Only
    of candidates they are taken to know all."""
    model = desk.index.model
    if not isinstance(model, Bayes):
        raise ConfigError(no_posterior("next_question", desk.source))
    users = as_users([read]).to(model.device)
    gain = gains(model, users, known=candidates is not None)[0].cpu().numpy()
    if candidates is not None:
        others = np.ones(len(gain), bool)
        others[desk.reader.rows(candidates, "candidates")] = False
        gain[others] = NEVER
    gain[read.rows] = NEVER
    rows = best_of(gain, n).tolist()
    return [Question(desk.ids[r], desk.titles[r], float(gain[r])) for r in rows]
