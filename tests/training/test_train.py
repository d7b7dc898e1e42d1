"""`train`: the rows it uses for each kind of user, the options it chooses and its result."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from idcf.errors import ConfigError
from idcf.models.base import Backbone, BackboneWrapper
from idcf.models.registry import all_models
from idcf.testing import synthetic_world
from idcf.training import gradient, two_stage
from idcf.training.train import TrainingJob, train

SPLIT, IMPLICIT = synthetic_world().split, synthetic_world(implicit=True).split
FAST = {"train.epochs": 2}
TRAINED = [name for name, row in all_models().items() if not (row.solver or row.implicit_only)]


def train_fast(name, split=SPLIT, options=None, **job):
    """Train for two epochs, or solve."""
    defaults = {} if all_models()[name].solver else FAST
    return train(name, TrainingJob(split, **job), options={**defaults, **(options or {})})


@cache
def trained_once(name, query_user_mode="new"):
    """Return a cached result, for tests that do not change it."""
    return train_fast(name, query_user_mode=query_user_mode)


def same_weights(a, b):
    """Return whether two models are equal to the bit."""
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def invert_ratings(table, users):
    """Return the table with the ratings r of these users replaced by 6 - r."""
    rows = np.isin(table.user, users)
    return replace(table, rating=np.where(rows, 6 - table.rating, table.rating))


def test_new_users_are_not_trained_on_without_ratings():
    """Rows of query users change the model for few-shot users only."""
    full = IMPLICIT
    without = replace(full, train=full.train.for_users(full.key_users))

    def models(mode):
        jobs = (TrainingJob(split, query_user_mode=mode) for split in (full, without))
        return [train("idcf-odds", job).model for job in jobs]

    assert same_weights(*models("new"))
    few_shot = models("few-shot")
    assert not same_weights(*few_shot)
    assert few_shot[0].exclude_self == 1


def test_the_list_model_reads_of_new_users_how_many_rows_they_have_and_no_more():
    """Other items of the query users change nothing; without their rows, lengths are drawn."""
    table, n_items = IMPLICIT.train, len(IMPLICIT.train.items)
    is_query = table.user_mask(IMPLICIT.query_users)[table.user]
    moved = replace(table, item=np.where(is_query, (table.item + 1) % n_items, table.item))
    jobs = [TrainingJob(split) for split in (IMPLICIT, replace(IMPLICIT, train=moved))]
    assert same_weights(*(train("idcf-takeup", job).model for job in jobs))
    np.testing.assert_array_equal(jobs[0].new_user_lengths(), jobs[1].new_user_lengths())
    assert len(jobs[0].new_user_lengths()) > 0


@pytest.mark.parametrize(
    "name", [n for n, entry in all_models().items() if not entry.implicit_only]
)
def test_new_users_are_not_trained_on(name):
    """The model does not depend on the ratings of query users, nor on the test rows."""
    trained = trained_once(name)
    changed = replace(
        SPLIT,
        train=invert_ratings(SPLIT.train, SPLIT.query_users),
        test=invert_ratings(SPLIT.test, np.arange(len(SPLIT.test.users))),
    )
    retrained = train_fast(name, changed)
    assert same_weights(trained.model, retrained.model)
    assert same_weights(trained.key_user_model, retrained.key_user_model)


@pytest.mark.parametrize("name", ["bias", "als", "pmf", "idcf-dot"])
def test_few_shot_users_are_trained_on(name):
    trained = trained_once(name, "few-shot")
    changed = replace(SPLIT, train=invert_ratings(SPLIT.train, SPLIT.query_users))
    retrained = train_fast(name, changed, query_user_mode="few-shot")
    assert not same_weights(trained.model, retrained.model)
    if name == "idcf-dot":  # interpolation: only key users have meta latents
        assert same_weights(trained.key_user_model, retrained.key_user_model)
        assert len(trained.model.key_latents) == len(SPLIT.key_users)


@pytest.mark.parametrize(("name", "users"), [("idcf-nn", "all"), ("idcf-gc", "query users")])
def test_users_whose_rows_interpolation_is_trained_on(name, users, monkeypatch):
    """Key users are trained on if the preset says so; validation rows are of query users only."""
    trained_users, validated_users = [], []
    original_episodes = gradient.batches.episode_batches
    original_metric = two_stage.validation_metric

    def episode_batches(table, **options):
        trained_users.append(set(table.user.tolist()))
        return original_episodes(table, **options)

    def validation_metric(task, seed):
        validated_users.append(set(task.target_table.user.tolist()))
        return original_metric(task, seed)

    monkeypatch.setattr(gradient.batches, "episode_batches", episode_batches)
    monkeypatch.setattr(two_stage, "validation_metric", validation_metric)
    train_fast(name, query_user_mode="few-shot")
    key_users, query_users = set(SPLIT.key_users.tolist()), set(SPLIT.query_users.tolist())
    assert validated_users[-1] <= query_users
    assert trained_users[-1] == (key_users | query_users if users == "all" else query_users)


@pytest.mark.parametrize("name", ["als", "nnmf", "idcf-gc"])
def test_the_seed_determines_the_model(name):
    torch.rand(5)  # draws before the training must not matter
    assert same_weights(trained_once(name).model, train_fast(name, seed=0).model)
    assert not same_weights(trained_once(name).model, train_fast(name, seed=4).model)


@pytest.mark.parametrize("name", TRAINED)
def test_the_result_of_gradient_training(name):
    trained, entry = trained_once(name), all_models()[name]
    assert not trained.model.training
    if entry.backbone:
        assert isinstance(trained.model, BackboneWrapper)
        assert isinstance(trained.key_user_model, Backbone)
        assert list(trained.logs) == [entry.backbone, name]
        assert len(trained.model.key_latents) == len(SPLIT.key_users)  # with the held-out users
    else:
        assert trained.key_user_model is trained.model
        assert list(trained.logs) == [name]
    assert len(trained.logs[name].records) <= 2
    assert all(np.isfinite(log.column("loss")).all() for log in trained.logs.values())


@pytest.mark.parametrize("name", [n for n in all_models() if not all_models()[n].ratings_only])
def test_training_on_implicit_feedback(name):
    trained = train_fast(name, IMPLICIT)
    assert not trained.model.predicts_ratings
    for log in trained.logs.values():
        assert np.isfinite(log.column("valid")).all()


@pytest.mark.parametrize("name", ["bias", "item-mean"])
def test_a_model_that_needs_ratings_refuses_implicit_feedback(name):
    with pytest.raises(ConfigError, match="needs ratings; use 'popularity'"):
        train_fast(name, IMPLICIT)


@pytest.mark.parametrize("name", ["idcf-nn", "idcf-gc"])
def test_the_published_preset_trains(name):
    trained = train_fast(name, preset="published")
    assert all(np.isfinite(log.column("loss")).all() for log in trained.logs.values())


@pytest.mark.parametrize("name", ["bias", "item-knn", "ease", "als"])
def test_the_grid_is_searched_but_for_given_options(name):
    grid = all_models()[name].grid
    chosen = trained_once(name).options
    assert all(chosen[key] in values for key, values in grid.items())
    key, values = next(iter(grid.items()))
    assert train_fast(name, options={key: values[-1]}).options[key] == values[-1]


def test_the_grid_of_a_model_that_orders_lists_is_searched_by_ndcg(monkeypatch):
    """On ratings too: an RMSE of scores that are no ratings would say nothing."""
    monkeypatch.setattr("idcf.training.validation.rmse_on", None)
    options = train_fast("ease", options={"ratings": "scaled"}).options
    assert options["reg"] in all_models()["ease"].grid["reg"]


def test_a_training_is_resumed_from_its_folder(tmp_path):
    first = train_fast("idcf-dot", folder=tmp_path)
    files = {f.relative_to(tmp_path).as_posix() for f in tmp_path.rglob("*") if f.is_file()}
    assert any(f.endswith("idcf-dot.checkpoint") for f in files)
    assert any(f.endswith("pmf.jsonl") for f in files)
    assert not any(f.endswith(".part") for f in files)
    for file in tmp_path.rglob("idcf-dot.*"):
        file.unlink()  # as if killed after pretraining
    retrained = train_fast("idcf-dot", folder=tmp_path)
    assert same_weights(first.model, retrained.model)
    assert same_weights(trained_once("idcf-dot").model, retrained.model)


def test_the_global_random_state_is_unchanged():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    train_fast("pmf")
    assert torch.equal(torch.rand(2), expected)


def test_options_are_checked_before_anything_is_done():
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        train_fast("idcf-nn", options={"head": 3})
    with pytest.raises(ConfigError, match="did you mean 'reg'"):
        train_fast("ease", options={"regg": 3.0})
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        train_fast("pmf", options={"train.epoch": 3})
