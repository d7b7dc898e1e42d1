"""Items of a history that count more the later they are: an option, off by default."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import board
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.columns import DataWarning
from idcf.errors import ConfigError, DataError
from idcf.inference.recency import recency_weights, stacked_recency_weights
from idcf.recommender import Recommender

SMALL = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
RATED = [("i2", 5.0), ("i7", 4.0), ("i4", 5.0), ("i9", 2.0), ("i1", 4.0)]  # oldest first
KINDS = ("ratings", "clicks", "many clicks")


@cache
def fitted(kind: str = "ratings", *, has_times: bool = True) -> Recommender:
    table = board(120, 40, 6, 20, implicit=kind != "ratings")
    if has_times:
        time = np.random.default_rng(1).permutation(len(table)).astype(np.int64)
        table = replace(table, time=time)
    name = "idcf-takeup" if kind == "many clicks" else "idcf-bayes"
    options = SMALL if kind == "ratings" else {}
    return Recommender(name, key_threshold=12, device="cpu", **options).fit(table)


def history(kind: str) -> list[Any]:
    return RATED if kind == "ratings" else [x for x, _ in RATED]


def rows(kind: str, given: Any, **options: Any) -> list[tuple[Any, float]]:
    result = fitted(kind).recommend(given, n=40, **options)
    return [(x.item_id, x.score) for x in result]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), recency=st.floats(0, 0.99))
def test_weights_are_their_definition(seed: int, recency: float) -> None:
    rng = np.random.default_rng(seed)
    histories = [rng.permutation(n) for n in rng.integers(0, 9, 6)]
    expected = []
    for n_later in histories:
        powers = [(1 + int(x)) ** -recency for x in n_later]
        expected += [x * len(powers) / sum(powers) for x in powers]
    lengths = [len(x) for x in histories]
    weights = stacked_recency_weights(np.concatenate(histories), lengths, [recency] * 6)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    for n_later in histories[:2]:
        if len(n_later):
            assert recency_weights(n_later, recency).mean() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 999))
def test_by_default_the_order_of_a_history_does_not_matter(kind: str, seed: int) -> None:
    shuffled = history(kind).copy()
    random.Random(seed).shuffle(shuffled)
    assert rows(kind, shuffled) == rows(kind, history(kind))
    assert rows(kind, history(kind), recency=0) == rows(kind, history(kind))
    timed = [(x, 5.0 if kind != "ratings" else dict(RATED)[x], t) for t, (x, _) in enumerate(RATED)]
    assert rows(kind, timed) == rows(kind, history(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_later_items_count_more(kind: str) -> None:
    """The even users of the world like even items."""

    def even_share(given: list[Any], recency: float) -> float:
        top = rows(kind, given, recency=recency, **({"quality": 0.0} if kind == "ratings" else {}))
        return float(np.mean([int(x[1:]) % 2 == 0 for x, _ in top[:15]]))

    odd, even = [f"i{n}" for n in (1, 3, 5, 7)], [f"i{n}" for n in (0, 2, 4, 6)]
    last_even: list[Any] = odd + even
    last_odd: list[Any] = even + odd
    if kind == "ratings":
        last_even, last_odd = ([(x, 5.0) for x in items] for items in (last_even, last_odd))
    assert even_share(last_even, 0.0) == even_share(last_odd, 0.0)
    assert even_share(last_even, 0.9) > even_share(last_even, 0.0) > even_share(last_odd, 0.9)


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_by_time_is_that_by_position(kind: str) -> None:
    timed = [(x, r, 1000 + 10 * k) for k, (x, r) in enumerate(RATED)]
    if kind != "ratings":
        timed = [(x, 1.0, t) for x, _, t in timed]
    expected = rows(kind, history(kind), recency=0.3)
    assert expected != rows(kind, history(kind))
    random.Random(0).shuffle(timed)
    assert rows(kind, timed, recency=0.3) == expected
    dates = [(x, r, datetime.fromtimestamp(t, UTC)) for x, r, t in timed]
    assert rows(kind, dates, recency=0.3) == expected
    texts = [(x, r, d.isoformat()) for x, r, d in dates]
    assert rows(kind, texts, recency=0.3) == expected
    columns = ["item_id", "rating", "timestamp"]
    for entries in (timed, dates):
        table = pd.DataFrame(entries, columns=columns)
        assert rows(kind, table, recency=0.3) == expected
    if kind == "ratings":
        assert rows(kind, dict(RATED), recency=0.3) == expected
    repeated = [history(kind)[0], *history(kind)[1:3], *history(kind)]  # the last ones count
    assert rows(kind, repeated, recency=0.3) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_training_users(kind: str) -> None:
    """A batch, in which every user has an order of their own, gives the lists of single users."""
    recommender, table = fitted(kind), fitted(kind).predictor.training_table
    assert table is not None
    users = [table.users.ids[u] for u in np.flatnonzero(table.user_counts() >= 12)[:12]]
    histories = []
    for user in users:
        mask = np.flatnonzero(table.user == table.users.row(user))
        mask = mask[np.argsort(table.time[mask])]
        ids = [table.items.ids[i] for i in table.item[mask]]
        rated = list(zip(ids, table.rating[mask].tolist(), strict=True))
        histories.append(rated if kind == "ratings" else ids)
    single = [recommender.recommend(x, n=40, recency=0.3) for x in histories]
    for batch in (
        recommender.recommend(histories, n=40, recency=0.3),
        recommender.recommend(users=users, n=40, recency=0.3),
    ):
        for one, several in zip(single, batch, strict=True):
            scores = {x.item_id: x.score for x in several}
            assert scores == pytest.approx({x.item_id: x.score for x in one}, rel=1e-3, abs=1e-6)
    assert recommender.recommend(users=users[:1]) != recommender.recommend(
        users=users[:1], recency=0.3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_is_of_the_score_of_the_list(kind: str) -> None:
    recommender, given = fitted(kind), history(kind)
    best = recommender.recommend(given, recency=0.4)[0]
    explanation = recommender.explain(given, best.item_id, recency=0.4)
    assert explanation.score == pytest.approx(best.score, rel=1e-4)
    for reason in explanation.reasons:
        rest = [x for x in given if (x[0] if kind == "ratings" else x) != reason.item_id]
        score = dict(rows(kind, rest, recency=0.4))[best.item_id]
        effect = explanation.score - score
        assert reason.effect == pytest.approx(effect, rel=1e-3, abs=2e-5 * best.score)


def test_predictions_of_ratings_do_not_change() -> None:
    items = ["i0", "i5", "i11"]
    timed = [(x, r, -k) for k, (x, r) in enumerate(RATED)]
    expected = fitted().predict(dict(RATED), items).tolist()
    assert fitted().predict(timed, items).tolist() == expected
    plain = {x.item_id: x.rating for x in fitted().recommend(RATED, n=40)}
    later = {x.item_id: x.rating for x in fitted().recommend(RATED, n=40, recency=0.5)}
    assert later == pytest.approx(plain)


def test_the_fitted_value() -> None:
    recommender = fitted()
    value = recommender.manifest.fitted_recency
    assert value == recommender.manifest.details["idcf-takeup"]["recency"] == 0.0
    assert rows("ratings", RATED, recency="fitted") == rows("ratings", RATED)
    details = {"idcf-takeup": {"recency": 0.2}}
    artifact = replace(
        recommender.artifact, manifest=replace(recommender.manifest, details=details)
    )
    other = Recommender.from_artifact(artifact)
    assert other.recommend(RATED, recency="fitted") == other.recommend(RATED, recency=0.2)


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, float("nan"), "fited", None])
def test_a_recency_out_of_range(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"recency must be a number from 0 to below 1, or 'fi"):
        fitted().recommend(RATED, recency=value)


def test_what_lacks_an_order_or_a_weight() -> None:
    with pytest.raises(ConfigError, match="fitted without timestamps, so that no value was chosen"):
        fitted(has_times=False).recommend(RATED, recency="fitted")
    with pytest.raises(DataError, match="needs the times of their rows, and the table of fit has"):
        fitted(has_times=False).recommend(users="u1", recency=0.2)
    clicks = {x for x, _ in RATED}
    assert fitted("clicks").recommend(clicks) == fitted("clicks").recommend(list(clicks))
    with pytest.raises(DataError, match="needs the order of the history, which is not known"):
        fitted("clicks").recommend(clicks, recency=0.2)
    als = Recommender("als", key_threshold=12, device="cpu").fit(board(120, 40, 6, 20))
    with pytest.raises(ConfigError, match="FoldInModel cannot: fit 'idcf-bayes' or, for implicit"):
        als.recommend(RATED, recency=0.2)
    assert als.recommend(RATED, recency=0) == als.recommend(RATED)
    with pytest.warns(DataWarning, match="user 'nobody' is not in the table"):
        assert fitted().recommend(users="nobody", recency=0.2) == fitted().recommend()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("i2", 5, 1), ("i4", 5)], "mixes ids, pairs and triples"),
        ([("i2", 5, "soon"), ("i4", 5, 3)], "'soon' is neither seconds nor an ISO date"),
        ([("i2", 5, None), ("i4", 5, 3)], "nan is not a time"),
    ],
)
def test_times_that_cannot_be_used(given: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fitted().recommend(given)
