"""Items added after training: their posterior, the unchanged rest of the model, and errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from idcf import ColdUserError, ConfigError, DataError, Recommender
from idcf.inference.predictor import Predictor
from idcf.models.bayes import BayesModel, infer_item_moments, with_items
from idcf.testing.synthetic import LowRankRatings, low_rank
from idcf.types import Ragged, Users

NEW = [f"i{n}" for n in range(0, 60, 10)]
OPTIONS: dict[str, Any] = {
    "key_threshold": 1,
    "device": "cpu",
    "embedding_size": 3,
    "blocks": 2,
    "sweeps": 40,
    "burn_in": 20,
    "rank": 4,
}


@cache
def world() -> tuple[LowRankRatings, pd.DataFrame]:
    """Return ratings of low rank, and their rows as a table."""
    ratings = low_rank(250, 60, 2, np.random.default_rng(0), density=0.4, noise=0.3)
    table = ratings.interactions
    columns = {
        "user_id": [f"u{n}" for n in table.user],
        "item_id": [f"i{n}" for n in table.item],
        "rating": table.rating,
    }
    return ratings, pd.DataFrame(columns)


def old_rows() -> pd.DataFrame:
    return world()[1][~world()[1].item_id.isin(NEW)]


def new_rows(n: int, skip: int = 0) -> pd.DataFrame:
    """Return n ratings of each held-out item, after the first `skip` of them."""
    rows = world()[1][world()[1].item_id.isin(NEW)]
    return rows.groupby("item_id").nth(range(skip, skip + n))


def trained() -> Recommender:
    """Return a recommender that was trained without the new items."""
    recommender = Recommender("idcf-bayes", **OPTIONS)
    recommender._set_state(trained_once().artifact, trained_once().training_table)
    return recommender


@cache
def trained_once() -> Predictor:
    return Recommender("idcf-bayes", **OPTIONS).fit(old_rows()).predictor


def histories(users: list[str]) -> dict[str, dict[str, float]]:
    """Return the old ratings of users."""
    rows = old_rows()
    return {
        user: dict(zip(group.item_id, group.rating, strict=True))
        for user, group in rows[rows.user_id.isin(users)].groupby("user_id")
    }


def rmse(recommender: Recommender) -> float:
    """Return the RMSE against the true ratings of the new items, for the last 50 users."""
    ratings, errors = world()[0], []
    item_rows = np.array([int(x[1:]) for x in NEW])
    for user, history in histories([f"u{n}" for n in range(200, 250)]).items():
        expected = ratings.true_rating(np.full(len(NEW), int(user[1:])), item_rows)
        errors.append(recommender.predict(history, NEW) - expected)
    return float(np.sqrt(np.mean(np.square(errors))))


def test_a_few_raters_come_near_to_training_with_the_item() -> None:
    whole = rmse(Recommender("idcf-bayes", **OPTIONS).fit(world()[1]))
    errors = [rmse(trained().partial_fit_items(new_rows(n))) for n in (1, 10, 30)]
    assert errors[0] > errors[1] > errors[2] > 0.9 * whole
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.35
    assert errors[2] < 1.5 * whole


def test_item_by_item_or_together_and_in_two_steps() -> None:
    """The stored moments of a known item are the prior of further ratings."""
    at_once = rmse(trained().partial_fit_items(new_rows(20)))
    recommender = trained().partial_fit_items(new_rows(10)).partial_fit_items(new_rows(10, skip=10))
    assert len(recommender.artifact.items) == 60
    assert rmse(recommender) == pytest.approx(at_once, rel=0.1)
    together, one_by_one = trained().partial_fit_items(new_rows(10)), trained()
    for item in NEW:
        one_by_one.partial_fit_items(
            new_rows(10).query(f"item_id == '{item}'"), histories=all_histories()
        )
    history = histories(["u3"])["u3"]
    np.testing.assert_allclose(
        one_by_one.predict(history, NEW), together.predict(history, NEW), atol=1e-5
    )


def all_histories() -> dict[str, dict[str, float]]:
    """Return the old ratings of all users."""
    return histories([f"u{n}" for n in range(250)])


def test_other_items_and_the_old_model_do_not_change() -> None:
    recommender = trained()
    old_predictor = recommender.predictor
    before = old_predictor.artifact
    tensors = {k: v.clone() for k, v in before.model.state_dict().items()}
    history, old = histories(["u3"])["u3"], sorted(set(old_rows().item_id))
    results = (
        recommender.predict(history, old),
        recommender.predict({}, old),
        recommender.embed(history),
    )
    recommender.partial_fit_items(new_rows(5), titles={"i10": "Ten"})
    after = (
        recommender.predict(history, old),
        recommender.predict({}, old),
        recommender.embed(history),
    )
    for expected, result in zip(results, after, strict=True):
        np.testing.assert_allclose(expected, result, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(tensors[k], v) for k, v in before.model.state_dict().items())
    assert len(before.items) == len(old_predictor.item_ids) == 54
    assert set(NEW) <= {x.item_id for x in recommender.recommend(history, n=60)}
    assert {x.item_id: x.title for x in recommender.recommend(n=60)}["i10"] == "Ten"
    assert recommender.predict({**history, "i10": 5.0}, ["i11"]).shape == (
        1,
    )  # a new item may be in a history


def test_saved_and_loaded(tmp_path: Path) -> None:
    recommender = trained().partial_fit_items(new_rows(8), titles={"i0": "Zero"})
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    history = histories(["u3"])["u3"]
    assert loaded.recommend(history, n=60) == recommender.recommend(history, n=60)
    further = new_rows(4, skip=8)
    with pytest.raises(
        ColdUserError, match=r"the history of user 'u\d+' is not known; pass histories"
    ):
        loaded.partial_fit_items(further)
    raters = old_rows()[old_rows().user_id.isin(further.user_id)]
    loaded.partial_fit_items(further, histories=raters)
    assert rmse(loaded) == pytest.approx(rmse(recommender.partial_fit_items(further)), rel=0.05)


def test_new_ratings_become_part_of_training_histories() -> None:
    recommender, rows = trained(), new_rows(5)
    recommender.partial_fit_items(rows)
    user, item = rows.user_id.iloc[0], rows.item_id.iloc[0]
    assert item not in {x.item_id for x in recommender.recommend(users=user, n=60)}
    with pytest.raises(DataError, match=f"{user!r} has rated item .* in training already"):
        recommender.partial_fit_items(rows[:1])


def test_the_posterior_of_an_item_equals_a_slow_computation() -> None:
    """Sum the expected normal equations over raters, one by one."""
    model, table = trained_once().artifact.model, trained_once().training_table
    assert isinstance(model, BayesModel)
    assert table is not None
    users = Users(torch.full((9,), -1), table.history(np.arange(9)))
    raters = Ragged(torch.arange(9), torch.linspace(1, 5, 9), torch.tensor([0, 9]))
    moments = infer_item_moments(model, users, raters, torch.tensor([-1]))
    mean, cholesky = model.posterior(users)
    covariance = torch.cholesky_inverse(cholesky)
    selection = model.selection_offset(users.history.lengths())
    size = mean.shape[-1]
    for t in range(2):
        matrix, rhs = model.item_precision[t].clone(), model.item_prior_information[t].clone()
        for u in range(9):
            p, b = mean[u, t, :-1], mean[u, t, -1]
            outer = torch.ones(size, size)
            outer[:-1, :-1] = covariance[u, t, :-1, :-1] + p[:, None] * p
            outer[-1, :-1] = outer[:-1, -1] = p
            r = raters.values[u] - model.mean - selection[u]
            matrix += model.noise_precision[t] * outer
            cross = covariance[u, t, :-1, -1] + b * p
            rhs += model.noise_precision[t] * torch.cat([r * p - cross, (r - b)[None]])
        torch.testing.assert_close(
            moments.means[0, t], torch.linalg.solve(matrix, rhs), rtol=1e-3, atol=1e-4
        )
    new = with_items(model, moments, torch.tensor([model.n_items]), torch.zeros(1), torch.ones(1))
    spread = new.predictive_std(users, torch.tensor([[model.n_items]]), torch.tensor([0]))
    assert spread.isfinite().all()


def test_errors() -> None:
    recommender, rows = trained(), new_rows(2)
    with pytest.raises(ConfigError, match=r"needs the uncertainty of items, which 'bias'"):
        Recommender("bias", key_threshold=1, device="cpu").fit(old_rows()).partial_fit_items(rows)
    with pytest.raises(DataError, match="no column named 'rating'"):
        recommender.partial_fit_items(rows.drop(columns="rating"))
    with pytest.raises(DataError, match="rating 900 of item 'i0' is outside"):
        recommender.partial_fit_items(rows.assign(rating=900.0))
    with pytest.raises(DataError, match="histories has no user ids"):
        recommender.partial_fit_items(rows, histories=[{"i1": 3.0}])
    with pytest.raises(ConfigError, match="not fitted"):
        Recommender("idcf-bayes").partial_fit_items(rows)
    assert len(recommender.artifact.items) == 54


def test_integer_ids_stay_integers() -> None:
    rows = world()[1].assign(item_id=lambda x: x.item_id.str[1:].astype(int))
    old, new = rows[rows.item_id > 0], rows[rows.item_id == 0][:10]
    recommender = Recommender("idcf-bayes", **OPTIONS).fit(old)
    recommender.partial_fit_items(new.assign(item_id="0"))
    assert all(isinstance(x.item_id, int) for x in recommender.recommend(n=60))
    with pytest.raises(DataError, match="'zero' is a string, but those of the model are integers"):
        recommender.partial_fit_items(new.assign(item_id="zero"))


def test_recommendations_in_other_threads_while_items_are_added() -> None:
    recommender, history = trained(), histories(["u3"])["u3"]
    before = [x.item_id for x in recommender.recommend(history, n=60)]

    def old_items_are_unchanged(_: int) -> bool:
        item_ids = [x.item_id for x in recommender.recommend(history, n=60)]
        return [x for x in item_ids if x not in NEW] == before

    with ThreadPoolExecutor(4) as pool:
        results = pool.map(old_items_are_unchanged, range(60))
        updates = [
            pool.submit(recommender.partial_fit_items, new_rows(3).query(f"item_id == '{x}'"))
            for x in NEW
        ]
        assert all(results)
        for update in updates:
            update.result()
    assert len(recommender.artifact.items) == 60  # no update was lost
