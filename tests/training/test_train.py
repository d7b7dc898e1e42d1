"""From a name and a split to a trained model: what is used, what is not, and what comes back."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from idcf.errors import ConfigError
from idcf.models.base import Backbone, Wrapper
from idcf.models.registry import all_models
from idcf.testing import world
from idcf.training import train as train_module
from idcf.training.train import Job, train

torch.set_num_threads(1)
SPLIT, IMPLICIT = world().split, world(implicit=True).split
FAST = {"train.epochs": 2}
TRAINED = [name for name, row in all_models().items() if not (row.solver or row.implicit_only)]
SOLVED = [name for name, found in all_models().items() if found.solver]


def quick(name, split=SPLIT, options=None, **job):
    usual = {} if all_models()[name].solver else FAST
    return train(name, Job(split, **job), options={**usual, **(options or {})})


@cache
def once(name, users="new"):
    """As `quick`, for whoever only looks."""
    return quick(name, users=users)


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def other_way_round(table, users):
    """The same table, but these users say the opposite."""
    theirs = np.isin(table.user, users)
    return replace(table, rating=np.where(theirs, 6 - table.rating, table.rating))


def test_new_users_are_not_trained_on_without_ratings():
    """Whatever query users had: the same model; where they are trained on, another."""
    split = IMPLICIT
    keys = replace(split, train=split.train.of(split.key_users))
    one, two = (train("idcf-bayes", Job(s)) for s in (split, keys))
    assert same(one.model, two.model)
    one, two = (train("idcf-bayes", Job(s, users="few-shot")) for s in (split, keys))
    assert not same(one.model, two.model)
    assert one.model.own == 1


@pytest.mark.parametrize(
    "name", [n for n, found in all_models().items() if not found.implicit_only]
)
def test_new_users_are_not_trained_on(name):
    """Were they to say the opposite, or had the test rows been others: the very same model."""
    trained = once(name)
    changed = replace(
        SPLIT,
        train=other_way_round(SPLIT.train, SPLIT.query_users),
        test=other_way_round(SPLIT.test, np.arange(len(SPLIT.test.users))),
    )
    again = quick(name, changed)
    assert same(trained.model, again.model)
    assert same(trained.known, again.known)


@pytest.mark.parametrize("name", ["bias", "als", "pmf", "idcf-dot"])
def test_few_shot_users_are(name):
    trained = once(name, "few-shot")
    changed = replace(SPLIT, train=other_way_round(SPLIT.train, SPLIT.query_users))
    again = quick(name, changed, users="few-shot")
    assert not same(trained.model, again.model)
    if name == "idcf-dot":  # interpolation: the meta latents are still the key users' alone
        assert same(trained.known, again.known)
        assert len(trained.model.keys) == len(SPLIT.key_users)


@pytest.mark.parametrize(("name", "shown"), [("idcf-nn", "everybody"), ("idcf-gc", "query users")])
def test_whose_rows_interpolation_is_trained_on(name, shown, monkeypatch):
    """Key users' too where the preset wants it; held-out rows are of query users in any case."""
    seen, held = [], []

    def episodes(table, **how):
        seen.append(set(table.user.tolist()))
        return original(table, **how)

    def watch(task, seed):
        held.append(set(task.rows.user.tolist()))
        return watched(task, seed)

    original, watched = train_module.batches.episodes, train_module.watcher
    monkeypatch.setattr(train_module.batches, "episodes", episodes)
    monkeypatch.setattr(train_module, "watcher", watch)
    quick(name, users="few-shot")
    keys, query = set(SPLIT.key_users.tolist()), set(SPLIT.query_users.tolist())
    assert held[-1] <= query
    assert seen[-1] == (keys | query if shown == "everybody" else query)


@pytest.mark.parametrize("name", ["als", "nnmf", "idcf-gc"])
def test_by_seed(name):
    torch.rand(5)
    assert same(once(name).model, quick(name, seed=0).model)
    assert not same(once(name).model, quick(name, seed=4).model)


@pytest.mark.parametrize("name", TRAINED)
def test_what_comes_back(name):
    trained, found = once(name), all_models()[name]
    assert not trained.model.training
    if found.backbone:
        assert isinstance(trained.model, Wrapper)
        assert isinstance(trained.known, Backbone)
        assert list(trained.logs) == [found.backbone, name]
        assert len(trained.model.keys) == len(SPLIT.key_users)  # the held-out are back
    else:
        assert trained.known is trained.model
        assert list(trained.logs) == [name]
    assert len(trained.logs[name].records) <= 2
    assert all(np.isfinite(log.column("loss")).all() for log in trained.logs.values())


@pytest.mark.parametrize("name", [n for n in all_models() if not all_models()[n].ratings_only])
def test_without_ratings(name):
    trained = quick(name, IMPLICIT)
    assert not trained.model.rates
    for log in trained.logs.values():
        assert np.isfinite(log.column("valid")).all()


@pytest.mark.parametrize("name", ["bias", "item-mean"])
def test_ratings_only(name):
    with pytest.raises(ConfigError, match="needs ratings; use 'popularity'"):
        quick(name, IMPLICIT)


@pytest.mark.parametrize("name", ["idcf-nn", "idcf-gc"])
def test_published(name):
    trained = quick(name, preset="published")
    assert all(np.isfinite(log.column("loss")).all() for log in trained.logs.values())


@pytest.mark.parametrize("name", ["bias", "item-knn", "ease", "als"])
def test_the_grid_is_tried_and_a_given_option_is_not(name):
    grid = all_models()[name].grid
    chosen = once(name).options
    assert all(chosen[key] in values for key, values in grid.items())
    key, values = next(iter(grid.items()))
    assert quick(name, options={key: values[-1]}).options[key] == values[-1]


def test_the_folder_keeps_a_run_that_can_be_resumed(tmp_path):
    first = quick("idcf-dot", folder=tmp_path)
    files = {f.relative_to(tmp_path).as_posix() for f in tmp_path.rglob("*") if f.is_file()}
    assert any(f.endswith("idcf-dot.checkpoint") for f in files)
    assert any(f.endswith("pmf.jsonl") for f in files)
    assert not any(f.endswith(".part") for f in files)
    for file in tmp_path.rglob("idcf-dot.*"):
        file.unlink()  # killed after pretraining
    again = quick("idcf-dot", folder=tmp_path)
    assert same(first.model, again.model)
    assert same(once("idcf-dot").model, again.model)


def test_the_caller_s_random_numbers_are_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    quick("pmf")
    assert torch.equal(torch.rand(2), expected)


def test_options_are_checked_before_anything_is_done():
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        quick("idcf-nn", options={"head": 3})
    with pytest.raises(ConfigError, match="did you mean 'reg'"):
        quick("ease", options={"regg": 3.0})
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        quick("pmf", options={"train.epoch": 3})
