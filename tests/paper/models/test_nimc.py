"""NIMC against plain loops, and users known by their features alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import table_from_columns

from idcf import Recommender
from idcf.data.interactions import Interactions
from idcf.data.split import hold_out_rows, split_by_threshold
from idcf.inference.scoring import rmse_on
from idcf.models.registry import configure, model_entry
from idcf.paper.models.nimc import Nimc
from idcf.training import gradient
from idcf.training.train import TrainingJob, train
from idcf.types import History, Users

FAST = {
    "embedding_size": 16,
    "user_scale": 1.0,
    "init_std": 0.1,
    "train.epochs": 30,
    "train.patience": 10,
    "train.learning_rate": 0.02,
    "train.weight_decay": 0.01,
}


def two_kinds_table(n_users: int = 120, n_items: int = 24) -> Interactions:
    """Two kinds of users and of items, given by features; a user likes items of their kind."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((n_users, n_items)) < 0.5)
    likes = (user % 2 == item % 2).astype(float)
    rating = 2 + 2 * likes + rng.integers(0, 2, len(user))
    table = table_from_columns(user, item, rating)
    user_kind = np.arange(n_users)[:, None] % 2 * 2.0 - 1
    noise = rng.normal(size=(n_users, 2))
    item_kind = np.arange(n_items)[:, None] % 2 * 2.0 - 1
    return replace(
        table,
        user_features=np.hstack([user_kind, noise]).astype(np.float32),
        item_features=item_kind.astype(np.float32),
    )


def build_model(table: Interactions, **options) -> Nimc:
    """Untrained, with random weights everywhere."""
    torch.manual_seed(0)
    model = model_entry("nimc").build(configure("nimc", options), table.domain())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def build_users(table: Interactions, users: list[int]) -> Users:
    return table.build_users(np.array(users))


def test_plain_loops_give_the_same_number():
    table = two_kinds_table()
    model = build_model(table, embedding_size=3, user_scale=0.5)
    users = build_users(table, [4, 7])
    with torch.no_grad():
        scores = model.score_catalog(users)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    user_weights, item_weights = state["user_feature_weights"], state["item_feature_weights"]
    for row in range(2):
        for item in range(5):
            total = model.mean
            for unit in range(3):
                features = (users.features[row, f].item() * user_weights[f, unit] for f in range(3))
                p = state["user_constant"][unit] + 0.5 * sum(features)
                q = state["item_constant"][unit] + state["items"][item, unit]
                q += float(table.item_features[item, 0]) * item_weights[0, unit]
                total += np.tanh(p) * np.tanh(q)
            assert scores[row, item].item() == pytest.approx(total, abs=1e-5)


def test_a_user_without_features_is_the_average_user():
    table = two_kinds_table()
    model = build_model(table)
    no_features = Users(torch.tensor([-1, 3]), build_users(table, [1, 2]).history)
    zero_features = Users(no_features.ids, no_features.history, torch.zeros(2, 3))
    with torch.no_grad():
        scores = model.score_catalog(no_features)
        zero_scores = model.score_catalog(zero_features)
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores, zero_scores)
    assert not torch.equal(
        model.score_catalog(build_users(table, [1])), model.score_catalog(build_users(table, [2]))
    )


def test_new_users_are_known_by_features_alone():
    """Without features nothing distinguishes new users."""
    table = two_kinds_table()
    rows, test = hold_out_rows(table, 0.2, np.random.default_rng(1))
    split = split_by_threshold(rows, test, 10)
    assert len(split.query_users) > 10
    model = train("nimc", TrainingJob(split, dataset="ml-100k"), options=FAST).model
    new_users = split.test.for_users(split.query_users)
    no_rows = rows.where(np.zeros(len(rows), bool))
    assert rmse_on(model, new_users, no_rows) < 0.6
    without_features = replace(new_users, user_features=None)
    assert rmse_on(model, without_features, replace(no_rows, user_features=None)) > 0.9


def test_user_centering_corrects_items_for_harsh_raters():
    """Harsh users mostly rate the better items, whose means are therefore the lower ones. For new
    users ratings are centered by user; for known users they are predicted as they are."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(np.ones((200, 60), bool))
    harsh, good = user < 100, item < 30
    observed = rng.random(len(user)) < np.where(harsh == good, 0.9, 0.3)
    rating = 3.0 + 0.5 * good - 1.5 * harsh + 0.25 * rng.normal(size=len(user))
    table = table_from_columns(user[observed], item[observed], rating[observed])
    rows, test = hold_out_rows(table, 0.2, rng)
    split = split_by_threshold(rows, test, 20)
    assert len(split.key_users) > 150
    options = {**FAST, "user_features": False, "item_features": False}
    gaps = {}
    for group in ("new", "few-shot"):
        model = train("nimc", TrainingJob(split, group, dataset="ml-100k"), options=options).model
        with torch.no_grad():
            (scores,) = model.score_catalog(Users(torch.tensor([-1]), History.empty(1))).numpy()
        better = np.array([int(i) < 30 for i in table.items.ids])
        gaps[group] = scores[better].mean() - scores[~better].mean()
    assert gaps["new"] > 0.3  # the truth is 0.5
    assert gaps["few-shot"] < -0.2


def test_a_feature_that_no_training_user_has_has_no_effect():
    """As on Douban, where each user has a column of their own."""
    table = two_kinds_table(60)
    table = replace(table, user_features=np.eye(60, dtype=np.float32), item_features=None)
    rows, test = hold_out_rows(table, 0.2, np.random.default_rng(1))
    split = split_by_threshold(rows, test, 10)
    model = train(
        "nimc", TrainingJob(split, dataset="ml-100k"), options={**FAST, "train.epochs": 3}
    ).model
    assert not model.user_feature_weights[torch.from_numpy(split.query_users)].any()
    assert model.user_feature_weights[torch.from_numpy(split.key_users)].all(1).any()
    with torch.no_grad():
        scores = model.score_catalog(rows.build_users(split.query_users).anonymous())
        average = model.score_catalog(Users(torch.tensor([-1]), History.empty(1)))
    assert (scores - average).abs().max() < 1e-5


def test_only_models_that_read_features_get_them(monkeypatch):
    """Features may be wide: on Douban three thousand numbers for each user of a batch."""
    has_features = {}

    def record(table, *args, **kwargs):
        has_features[name] = table.user_features is not None
        return row_batches(table, *args, **kwargs)

    row_batches = gradient.batches.row_batches
    monkeypatch.setattr(gradient.batches, "row_batches", record)
    rows, test = hold_out_rows(two_kinds_table(40), 0.2, np.random.default_rng(1))
    job = TrainingJob(split_by_threshold(rows, test, 5))
    for name in ("nimc", "pmf"):
        train(name, job, options={"train.epochs": 1})
    assert has_features == {"nimc": True, "pmf": False}


def test_a_saved_model_reads_features_after_loading(tmp_path):
    import pandas as pd

    table = two_kinds_table()
    rows = pd.DataFrame({"user_id": table.user, "item_id": table.item, "rating": table.rating})
    users = pd.DataFrame({"user_id": range(120), "kind": [f"k{n % 2}" for n in range(120)]})
    items = pd.DataFrame({"item_id": range(24), "side": [f"s{n % 2}" for n in range(24)]})
    options = {k.removeprefix("train."): v for k, v in FAST.items()}
    model = Recommender("nimc", key_threshold=8, device="cpu", **options)
    model.fit(rows, users=users, items=items)
    loaded = Recommender.load(model.save(tmp_path / "model"))
    for kind in (0, 1):
        features = {"kind": f"k{kind}"}
        expected = model.recommend({}, n=6, features=features)
        recommended = loaded.recommend({}, n=6, features=features)
        assert {x.item_id % 2 for x in expected} == {kind}
        assert [(x.item_id, x.score) for x in recommended] == [
            (x.item_id, x.score) for x in expected
        ]
    assert len(loaded.recommend({3: 5.0}, n=4)) == 4
