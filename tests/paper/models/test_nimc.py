"""NIMC against plain loops, and what it can and cannot know of people."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from idcf import Recommender
from idcf.data.interactions import Interactions
from idcf.data.split import by_threshold, hold_out
from idcf.inference.scoring import rmse_on
from idcf.models.registry import configure, model_entry
from idcf.paper.models.nimc import Nimc
from idcf.training import train as train_module
from idcf.training.train import Job, train
from idcf.types import History, Users

torch.set_num_threads(1)
FAST = {
    "embedding_size": 16,
    "user_scale": 1.0,
    "scale": 0.1,
    "train.epochs": 30,
    "train.patience": 10,
    "train.learning_rate": 0.02,
    "train.weight_decay": 0.01,
}


def world(n: int = 120, items: int = 24) -> Interactions:
    """Two kinds of people and two kinds of items, both known by features; opposites dislike."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((n, items)) < 0.5)
    like = (user % 2 == item % 2).astype(float)
    rating = 2 + 2 * like + rng.integers(0, 2, len(user))
    table = Interactions.from_columns(user, item, rating)
    kind = np.arange(n)[:, None] % 2 * 2.0 - 1
    noise = rng.normal(size=(n, 2))
    of_items = np.arange(items)[:, None] % 2 * 2.0 - 1
    return replace(
        table,
        user_features=np.hstack([kind, noise]).astype(np.float32),
        item_features=of_items.astype(np.float32),
    )


def build(table: Interactions, **options) -> Nimc:
    torch.manual_seed(0)
    model = model_entry("nimc").model_class(configure("nimc", options), table.domain())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def told(table: Interactions, who: list[int]) -> Users:
    return table.people(np.array(who))


def test_plain_loops_give_the_same_number():
    table = world()
    model = build(table, embedding_size=3, user_scale=0.5)
    users = told(table, [4, 7])
    with torch.no_grad():
        ranked = model.rank(users)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    w, v = state["by_user"], state["by_item"]
    for row in range(2):
        for item in range(5):
            total = model.mean
            for unit in range(3):
                p = state["user_constant"][unit]
                p += sum(users.features[row, f].item() * w[f, unit] for f in range(3)) * 0.5
                q = state["item_constant"][unit] + state["items"][item, unit]
                q += float(table.item_features[item, 0]) * v[0, unit]
                total += np.tanh(p) * np.tanh(q)
            assert ranked[row, item].item() == pytest.approx(total, abs=1e-5)


def test_somebody_of_whom_nothing_is_told_is_the_average_person():
    table = world()
    model = build(table)
    alike = Users(torch.tensor([-1, 3]), told(table, [1, 2]).history)
    zero = Users(alike.ids, alike.history, torch.zeros(2, 3))
    with torch.no_grad():
        one, other = model.rank(alike), model.rank(zero)
    assert torch.equal(one[0], one[1])
    assert torch.equal(one, other)
    assert not torch.equal(model.rank(told(table, [1])), model.rank(told(table, [2])))


def test_newcomers_are_known_by_features_alone():
    """Of people never trained on; without features there is nothing to tell them apart by."""
    table = world()
    rows, test = hold_out(table, 0.2, np.random.default_rng(1))
    split = by_threshold(rows, test, 10)
    assert len(split.query_users) > 10
    model = train("nimc", Job(split, dataset="ml-100k"), options=FAST).model
    newcomers = split.test.of(split.query_users)
    nothing = rows.where(np.zeros(len(rows), bool))
    assert rmse_on(model, newcomers, nothing) < 0.6
    bare = replace(newcomers, user_features=None)
    assert rmse_on(model, bare, replace(nothing, user_features=None)) > 0.9


def test_an_item_is_not_blamed_for_who_rates_it():
    """Harsh people mostly rate the better items, whose means are therefore the lower ones. For
    newcomers the raters are levelled; known people are asked about as they rated."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(np.ones((200, 60), bool))
    harsh, good = user < 100, item < 30
    kept = rng.random(len(user)) < np.where(harsh == good, 0.9, 0.3)
    rating = 3.0 + 0.5 * good - 1.5 * harsh + 0.25 * rng.normal(size=len(user))
    table = Interactions.from_columns(user[kept], item[kept], rating[kept])
    rows, test = hold_out(table, 0.2, rng)
    split = by_threshold(rows, test, 20)
    assert len(split.key_users) > 150
    options = {**FAST, "user_features": False, "item_features": False}
    gaps = {}
    for who in ("new", "few-shot"):
        model = train("nimc", Job(split, who, dataset="ml-100k"), options=options).model
        with torch.no_grad():
            (score,) = model.rank(Users(torch.tensor([-1]), History.empty(1))).numpy()
        better = np.array([int(i) < 30 for i in table.items.ids])
        gaps[who] = score[better].mean() - score[~better].mean()
    assert gaps["new"] > 0.3  # the truth is 0.5
    assert gaps["few-shot"] < -0.2


def test_a_column_that_nobody_had_says_nothing():
    """As on Douban, where each user has a column of their own."""
    table = world(60)
    table = replace(table, user_features=np.eye(60, dtype=np.float32), item_features=None)
    rows, test = hold_out(table, 0.2, np.random.default_rng(1))
    split = by_threshold(rows, test, 10)
    model = train("nimc", Job(split, dataset="ml-100k"), options={**FAST, "train.epochs": 3}).model
    new, old = split.query_users, split.key_users
    assert not model.by_user[torch.from_numpy(new)].any()
    assert model.by_user[torch.from_numpy(old)].all(1).any()
    with torch.no_grad():
        ranked = model.rank(rows.people(new).anonymous())
        average = model.rank(Users(torch.tensor([-1]), History.empty(1)))
    assert (ranked - average).abs().max() < 1e-5


def test_only_who_reads_features_is_given_them(monkeypatch):
    """They may be wide: on Douban three thousand numbers for each user of a batch."""
    seen = {}

    def spy(table, *args, **kwargs):
        seen[name] = table.user_features is not None
        return original(table, *args, **kwargs)

    original = train_module.batches.rows
    monkeypatch.setattr(train_module.batches, "rows", spy)
    rows, test = hold_out(world(40), 0.2, np.random.default_rng(1))
    job = Job(by_threshold(rows, test, 5))
    for name in ("nimc", "pmf"):
        train(name, job, options={"train.epochs": 1})
    assert seen == {"nimc": True, "pmf": False}


def test_what_was_saved_reads_features_again(tmp_path):
    import pandas as pd

    table = world()
    rows = pd.DataFrame({"user_id": table.user, "item_id": table.item, "rating": table.rating})
    people = pd.DataFrame({"user_id": range(120), "kind": [f"k{n % 2}" for n in range(120)]})
    items = pd.DataFrame({"item_id": range(24), "side": [f"s{n % 2}" for n in range(24)]})
    options = {k.removeprefix("train."): v for k, v in FAST.items()}
    model = Recommender("nimc", key_threshold=8, device="cpu", **options)
    model.fit(rows, users=people, items=items)
    loaded = Recommender.load(model.save(tmp_path / "model"))
    for kind in (0, 1):
        best, again = (x.recommend({}, n=6, features={"kind": f"k{kind}"}) for x in (model, loaded))
        assert {x.item_id % 2 for x in best} == {kind}
        assert [(x.item_id, x.score) for x in best] == [(x.item_id, x.score) for x in again]
    assert len(loaded.recommend({3: 5.0}, n=4)) == 4
