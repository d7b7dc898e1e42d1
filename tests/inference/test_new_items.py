"""Items that came after training: the mirrored posterior, what it leaves alone, what it refuses."""

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
from idcf.models.bayes import Bayes, meet, with_items
from idcf.testing.synthetic import LowRank, low_rank
from idcf.types import History, Users

torch.set_num_threads(1)
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
def world() -> tuple[LowRank, pd.DataFrame]:
    made = low_rank(250, 60, 2, np.random.default_rng(0), density=0.4, noise=0.3)
    t = made.interactions
    columns = {"user_id": t.user, "item_id": t.item, "rating": t.rating}
    frame = pd.DataFrame(columns)
    frame["user_id"], frame["item_id"] = (
        "u" + frame.user_id.astype(str),
        "i" + frame.item_id.astype(str),
    )
    return made, frame


def old_rows() -> pd.DataFrame:
    return world()[1][~world()[1].item_id.isin(NEW)]


def new_rows(n: int, skip: int = 0) -> pd.DataFrame:
    """The ratings of some of the raters of each item that was held out."""
    rows = world()[1][world()[1].item_id.isin(NEW)]
    return rows.groupby("item_id").nth(range(skip, skip + n))


def trained() -> Recommender:
    """Without the new items."""
    made = Recommender("idcf-bayes", **OPTIONS)
    made._use(*_kept()[::2])
    return made


@cache
def _kept() -> Any:
    return Recommender("idcf-bayes", **OPTIONS).fit(old_rows())._work()


def histories(users: list[str]) -> dict[str, dict[str, float]]:
    rows = old_rows()
    return {
        u: dict(zip(mine.item_id, mine.rating, strict=True))
        for u, mine in rows[rows.user_id.isin(users)].groupby("user_id")
    }


def error(made: Recommender) -> float:
    """RMSE against the truth, over the new items and people who did not rate them."""
    truth, off = world()[0], []
    for user, told in histories([f"u{n}" for n in range(200, 250)]).items():
        who = np.full(len(NEW), int(user[1:]))
        right = truth.truth(who, np.array([int(x[1:]) for x in NEW]))
        off.append(made.predict(told, NEW) - right)
    return float(np.sqrt(np.mean(np.square(off))))


def test_a_few_raters_come_near_to_training_with_the_item() -> None:
    whole = error(Recommender("idcf-bayes", **OPTIONS).fit(world()[1]))
    errors = [error(trained().partial_fit_items(new_rows(n))) for n in (1, 10, 30)]
    assert errors[0] > errors[1] > errors[2] > 0.9 * whole
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.35
    assert errors[2] < 1.5 * whole


def test_item_by_item_or_together_and_in_two_steps() -> None:
    """More raters of a known item: what is believed of it is the prior."""
    at_once = error(trained().partial_fit_items(new_rows(20)))
    made = trained().partial_fit_items(new_rows(10)).partial_fit_items(new_rows(10, skip=10))
    assert len(made._fitted().items) == 60
    assert error(made) == pytest.approx(at_once, rel=0.1)
    together, each = trained().partial_fit_items(new_rows(10)), trained()
    for item in NEW:
        each.partial_fit_items(
            new_rows(10).query(f"item_id == '{item}'"), histories=new_histories()
        )
    told = histories(["u3"])["u3"]
    np.testing.assert_allclose(each.predict(told, NEW), together.predict(told, NEW), atol=1e-5)


def new_histories() -> dict[str, dict[str, float]]:
    """Of everybody, as it was in training."""
    return histories([f"u{n}" for n in range(250)])


def test_all_else_stays_as_it_was() -> None:
    made = trained()
    before, work = made._fitted(), made._work()
    kept = {k: v.clone() for k, v in before.model.state_dict().items()}
    told, old = histories(["u3"])["u3"], sorted(set(old_rows().item_id))
    said = made.predict(told, old), made.predict({}, old), made.embed(told)
    made.partial_fit_items(new_rows(5), titles={"i10": "Ten"})
    after = made.predict(told, old), made.predict({}, old), made.embed(told)
    for one, two in zip(said, after, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(kept[k], v) for k, v in before.model.state_dict().items())
    assert len(before.items) == 54  # the old model, whoever still has it
    assert len(work.desk.ids) == 54
    assert set(NEW) <= {x.item_id for x in made.recommend(told, n=60)}
    assert {x.item_id: x.title for x in made.recommend(n=60)}["i10"] == "Ten"
    assert made.predict({**told, "i10": 5.0}, ["i11"]).shape == (1,)  # it can be told, too


def test_saved_and_loaded(tmp_path: Path) -> None:
    made = trained().partial_fit_items(new_rows(8), titles={"i0": "Zero"})
    again = Recommender.load(made.save(tmp_path / "model"))
    told = histories(["u3"])["u3"]
    assert again.recommend(told, n=60) == made.recommend(told, n=60)
    more = new_rows(4, skip=8)
    with pytest.raises(
        ColdUserError, match=r"nothing is known of the rater 'u\d+'; pass histories"
    ):
        again.partial_fit_items(more)
    people = old_rows()[old_rows().user_id.isin(more.user_id)]
    again.partial_fit_items(more, histories=people)
    assert error(again) == pytest.approx(error(made.partial_fit_items(more)), rel=0.05)


def test_known_users_have_told_what_they_told() -> None:
    made, rows = trained(), new_rows(5)
    made.partial_fit_items(rows)
    user, item = rows.user_id.iloc[0], rows.item_id.iloc[0]
    assert item not in {x.item_id for x in made.recommend(users=user, n=60)}
    with pytest.raises(DataError, match=f"{user!r} has rated item .* in training already"):
        made.partial_fit_items(rows[:1])


def test_it_is_the_mirror_of_a_newcomer() -> None:
    """Raters who are known exactly: the ridge solution, as for anybody."""
    work = _kept()
    model = work.found.model
    assert isinstance(model, Bayes)
    people = Users(torch.full((9,), -1), work.table.history(np.arange(9)))
    told = History(torch.arange(9), torch.linspace(1, 5, 9), torch.tensor([0, 9]))
    found = meet(model, people, told, torch.tensor([-1]))
    mean, factor = model.posterior(people)
    cover = torch.cholesky_inverse(factor)
    size = mean.shape[-1]
    for t in range(2):
        left, right = model.item_precision[t].clone(), model.item_link[t].clone()
        for u in range(9):
            p, b = mean[u, t, :-1], mean[u, t, -1]
            outer = torch.ones(size, size)
            outer[:-1, :-1] = cover[u, t, :-1, :-1] + p[:, None] * p
            outer[-1, :-1] = outer[:-1, -1] = p
            r = told.values[u] - model.mean - model.offset(people.history.lengths())[u]
            left += model.noise[t] * outer
            cross = cover[u, t, :-1, -1] + b * p
            right += model.noise[t] * torch.cat([r * p - cross, (r - b)[None]])
        torch.testing.assert_close(
            found.means[0, t], torch.linalg.solve(left, right), rtol=1e-3, atol=1e-4
        )
    new = with_items(model, found, torch.tensor([model.n_items]), torch.zeros(1), torch.ones(1))
    spread = new.deviation(people, torch.tensor([[model.n_items]]), torch.tensor([0]))
    assert spread.isfinite().all()


def test_what_is_refused() -> None:
    made, rows = trained(), new_rows(2)
    with pytest.raises(ConfigError, match=r"needs a model that keeps how sure it is.*'bias'"):
        Recommender("bias", key_threshold=1, device="cpu").fit(old_rows()).partial_fit_items(rows)
    with pytest.raises(DataError, match="no column named 'rating'"):
        made.partial_fit_items(rows.drop(columns="rating"))
    with pytest.raises(DataError, match="rating 900 of item 'i0' is far outside"):
        made.partial_fit_items(rows.assign(rating=900.0))
    with pytest.raises(DataError, match="whose they are"):
        made.partial_fit_items(rows, histories=[{"i1": 3.0}])
    with pytest.raises(ConfigError, match="not fitted"):
        Recommender("idcf-bayes").partial_fit_items(rows)
    assert len(made._fitted().items) == 54


def test_integer_ids_stay_integers() -> None:
    rows = world()[1].assign(item_id=lambda x: x.item_id.str[1:].astype(int))
    known, new = rows[rows.item_id > 0], rows[rows.item_id == 0][:10]
    made = Recommender("idcf-bayes", **OPTIONS).fit(known)
    made.partial_fit_items(new.assign(item_id="0"))
    assert all(isinstance(x.item_id, int) for x in made.recommend(n=60))
    with pytest.raises(DataError, match="'zero' is a string, but those of the model are integers"):
        made.partial_fit_items(new.assign(item_id="zero"))


def test_answers_go_on_while_items_come() -> None:
    made, told = trained(), histories(["u3"])["u3"]
    before = [x.item_id for x in made.recommend(told, n=60)]

    def ask(_: int) -> bool:
        found = [x.item_id for x in made.recommend(told, n=60)]
        return [x for x in found if x not in NEW] == before

    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(ask, range(60))
        added = [
            pool.submit(made.partial_fit_items, new_rows(3).query(f"item_id == '{x}'")) for x in NEW
        ]
        assert all(asked)
        for x in added:
            x.result()
    assert len(made._fitted().items) == 60  # nobody's items were lost
