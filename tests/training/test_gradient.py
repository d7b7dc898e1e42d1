"""Gradient stages: which rows they train on, validate on and see in the graph."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import equal_states

from idcf.data.interactions import Interactions, Vocab
from idcf.data.split import Split
from idcf.testing import synthetic_world
from idcf.training import gradient
from idcf.training.checkpoint import TrainingLog
from idcf.training.gradient import StageResult, best_result, epoch_batches, fit_standalone
from idcf.training.options import TrainConfig
from idcf.training.presets import StageConfig
from idcf.training.train import TrainingJob
from idcf.training.two_stage import _stage_tables, train_two_stage

SPLIT = synthetic_world().split
IMPLICIT = synthetic_world(implicit=True).split
STAGE = StageConfig(train=TrainConfig(epochs=2, batch_size=64))
KEY_USERS, QUERY_USERS = set(SPLIT.key_users.tolist()), set(SPLIT.query_users.tolist())


def pairs(table):
    """Return the (user, item) pairs of a table, which must be distinct."""
    rows = list(zip(table.user.tolist(), table.item.tolist(), strict=True))
    assert len(rows) == len(set(rows))
    return set(rows)


def scripted_result(*valid):
    """Return a result whose epochs had these validation errors."""
    log = TrainingLog()
    for n, value in enumerate(valid):
        log.add({"epoch": n, "valid": value})
    return StageResult(STAGE, None, log, 3.0)


def small_split():
    """Return a split of 12 key users of a checkerboard of 10 items."""
    rng = np.random.default_rng(0)
    user, item = np.divmod(rng.permutation(120)[:90], 10)
    rating = np.where(user % 2 == item % 2, 5, 1).astype(np.float32)
    table = Interactions(Vocab(range(12)), Vocab(range(10)), user, item, rating)
    return Split(table, table.where(np.zeros(90, bool)), np.arange(12), np.empty(0, np.int64))


def test_the_best_result_is_the_first_with_the_lowest_error():
    results = [scripted_result(2.0, 1.5), scripted_result(1.0, 3.0), scripted_result(1.0)]
    assert best_result([lambda x=x: x for x in results]) is results[1]
    both = [scripted_result(), results[0]]
    assert best_result([lambda x=x: x for x in both]) is results[0]  # no epoch: infinity
    assert [x.n_epochs for x in results] == [2, 1, 1]


def test_each_alternative_is_tried_and_the_best_one_is_chosen(monkeypatch, tmp_path):
    jobs, rates = [], []

    def fit(name, job, config, table, **_):
        jobs.append(job)
        rates.append(config.train.learning_rate)
        return scripted_result({0.1: 3.0, 0.2: 1.0, 0.3: 2.0}[config.train.learning_rate])._replace(
            config=config
        )

    monkeypatch.setattr(gradient, "fit_standalone", fit)
    alternatives = ({"learning_rate": 0.2}, {"learning_rate": 0.3})
    config = replace(
        STAGE, train=replace(STAGE.train, learning_rate=0.1), alternatives=alternatives
    )
    job = TrainingJob(SPLIT, folder=tmp_path, stage_prefix="outer/")
    best = gradient.select_stage("pmf", job, config, SPLIT.train)
    assert rates == [0.1, 0.2, 0.3]
    assert best.config.train.learning_rate == 0.2
    assert best.config.train.epochs == 2  # other training options stay
    assert [x.stage_prefix for x in jobs] == [f"outer/try-{n}/" for n in range(3)]
    assert [x.folder for x in jobs] == [tmp_path / f"try-{n}" for n in range(3)]
    jobs.clear()
    gradient.select_stage("pmf", job, replace(config, validation=0.0), SPLIT.train)
    assert [x.stage_prefix for x in jobs] == ["outer/"]  # nothing to compare alternatives on


@pytest.mark.parametrize("name", ["pmf", "idcf-nn"])
def test_the_batches_of_an_epoch_depend_on_seed_and_number_only(name):
    model = train_small(name).model
    config = replace(STAGE, history_lengths=(1, 4), targets_per_episode=2)

    def items(seed, number):
        epoch = epoch_batches(name, TrainingJob(SPLIT, seed=seed), config, SPLIT.train, model)
        return [batch.items.tolist() for batch in epoch(number)]

    torch.rand(2)
    assert items(0, 0) == items(0, 0)
    assert items(0, 0) != items(0, 1)
    assert items(0, 0) != items(1, 0)


def train_small(name, **changes):
    """Train a model on twelve users."""
    config = replace(STAGE, validation=0.25, **changes)
    job = TrainingJob(small_split())
    if name.startswith("idcf"):
        return train_two_stage(name, "pmf" if name == "idcf-dot" else "nnmf", job, config, config)
    return fit_standalone(name, job, config, job.training_table())


def test_an_epoch_of_rows_has_every_row_once():
    model, table = train_small("pmf").model, small_split().train
    batches = list(epoch_batches("pmf", TrainingJob(SPLIT), STAGE, table, model)(0))
    assert [len(x.items) for x in batches] == [64, 26]
    seen = [
        (int(user), int(item))
        for batch in batches
        for user, item in zip(batch.users.ids[batch.owner], batch.items[:, 0], strict=True)
    ]
    assert sorted(seen) == sorted(pairs(table))
    assert all(len(batch.users.history.items) == 0 for batch in batches)  # pmf reads no history


def test_several_processes_share_a_larger_batch():
    job = TrainingJob(SPLIT)
    job = replace(job, runtime=replace(job.runtime, world_size=2))
    model, table = train_small("pmf").model, small_split().train
    sizes = [len(x.items) for x in epoch_batches("pmf", job, STAGE, table, model)(0)]
    assert sizes == [90]


def test_implicit_feedback_has_negatives_and_ratings_have_none():
    model = train_small("pmf").model
    for table, width in ((SPLIT.train, 1), (IMPLICIT.train, 1 + STAGE.train.negatives)):
        batch = next(epoch_batches("pmf", TrainingJob(SPLIT), STAGE, table, model)(0))
        assert batch.items.shape[1] == width
        if width > 1:
            assert (batch.labels[:, 0] == 1).all()
            assert (batch.labels[:, 1:] == 0).all()


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_validation_rows_are_not_trained_on(share, monkeypatch):
    trained, validated = [], []
    rows, metric = gradient.batches.row_batches, gradient.validation_metric

    def row_batches(table, *args, **options):
        trained.append(pairs(table))
        return rows(table, *args, **options)

    def validation_metric(task, seed):
        validated.append(pairs(task.target_table))
        return metric(task, seed)

    monkeypatch.setattr(gradient.batches, "row_batches", row_batches)
    monkeypatch.setattr(gradient, "validation_metric", validation_metric)
    table = small_split().train
    config = replace(STAGE, validation=share)
    result = fit_standalone("pmf", TrainingJob(small_split()), config, table)
    assert len(result.log.column("valid")) == (2 if share else 0)
    if not share:
        assert trained[0] == pairs(table)
        assert not validated
        return
    assert not trained[0] & validated[0]
    assert trained[0] | validated[0] == pairs(table)
    assert len(validated[0]) == pytest.approx(share / 2 * len(table), abs=1.5)
    trained.clear()
    fit_standalone("pmf", TrainingJob(small_split()), config, table, n_epochs=1)
    assert trained == [pairs(table)]  # with the number of epochs known, on all rows


def test_the_graph_of_a_model_sees_query_users_only_if_the_preset_says_so():
    for includes in (False, True):
        config = replace(STAGE, validation=0.0, graph_includes_query_users=includes)
        job = TrainingJob(SPLIT)
        result = fit_standalone("gcmc", job, config, job.training_table(), n_epochs=1)
        expected = SPLIT.train if includes else job.training_table()
        assert result.mean_rating == pytest.approx(expected.mean_rating)


def test_centered_ratings_are_trained_without_user_biases():
    start = replace(STAGE, validation=0.0, start_from_biases=False)
    plain, centered = (
        fit_standalone(
            "pmf", TrainingJob(SPLIT), replace(start, center_users=center), SPLIT.train, n_epochs=2
        ).model
        for center in (False, True)
    )
    assert not equal_states(plain.state_dict(), centered.state_dict())


def test_a_backbone_starts_from_the_ridge_biases_if_wanted():
    """With no epochs, the biases are those of the start."""
    for starts in (False, True):
        config = replace(STAGE, start_from_biases=starts, validation=0.0)
        model = fit_standalone("pmf", TrainingJob(SPLIT), config, SPLIT.train, n_epochs=0).model
        assert bool(model.item_table.bias.any()) is starts


def test_stage_names_tell_the_search_from_the_final_training():
    stages = []
    job = TrainingJob(small_split(), callback=lambda stage, record: stages.append(stage))
    config = replace(STAGE, validation=0.25)
    train_two_stage("idcf-dot", "pmf", job, config, config)
    assert list(dict.fromkeys(stages)) == [
        "search/pmf",
        "search/idcf-dot",
        "final/pmf",
        "final/idcf-dot",
    ]


def test_without_validation_or_refitting_there_is_no_final_training():
    for changes in ({"validation": 0.0}, {"validation": 0.25, "refit_on_all": False}):
        stages = []
        job = TrainingJob(small_split(), callback=lambda stage, _, to=stages: to.append(stage))
        config = replace(STAGE, **changes)
        train_two_stage("idcf-dot", "pmf", job, config, config)
        assert set(stages) == {"search/pmf", "search/idcf-dot"}, changes


def test_new_users_are_validated_on_whole_held_out_key_users():
    config = replace(STAGE, validation=0.2)
    full, search = _stage_tables("idcf-nn", TrainingJob(SPLIT), config)
    assert set(full.key_rows.user) == set(full.adaption_rows.user) == KEY_USERS
    held_out = set(search.task.target_table.user.tolist())
    assert held_out <= KEY_USERS
    assert not held_out & set(search.key_rows.user.tolist())
    assert not pairs(search.task.history_table) & pairs(search.task.target_table)
    assert len(held_out) == pytest.approx(0.2 * len(KEY_USERS), abs=1)
    assert full.task is None


def test_new_users_may_be_validated_on_rows_of_key_users():
    """As the public code does where it stops early."""
    config = replace(STAGE, validation=0.2, validate_on="rows")
    full, search = _stage_tables("idcf-nn", TrainingJob(SPLIT), config)
    targets = pairs(search.task.target_table)
    assert set(search.adaption_rows.user.tolist()) == KEY_USERS
    assert len(targets) == pytest.approx(0.2 * len(full.key_rows), abs=1)
    assert not targets & pairs(search.adaption_rows)
    assert targets | pairs(search.adaption_rows) == pairs(full.key_rows)
    assert pairs(search.task.history_table) == pairs(search.key_rows) == pairs(search.adaption_rows)


@pytest.mark.parametrize("all_users", [False, True])
def test_few_shot_users_are_validated_on_their_own_rows(all_users):
    config = replace(STAGE, validation=0.2, train_on_all_users=all_users)
    job = TrainingJob(SPLIT, query_user_mode="few-shot")
    full, search = _stage_tables("idcf-nn", job, config)
    targets = pairs(search.task.target_table)
    assert {user for user, _ in targets} <= QUERY_USERS
    assert not targets & pairs(search.adaption_rows)
    assert (
        pairs(search.key_rows)
        == pairs(full.key_rows)
        == pairs(SPLIT.train.for_users(SPLIT.key_users))
    )
    expected = KEY_USERS | QUERY_USERS if all_users else QUERY_USERS
    assert set(full.adaption_rows.user.tolist()) == expected
    assert pairs(full.adaption_rows) == targets | pairs(search.adaption_rows)


@pytest.mark.parametrize("mode", ["new", "few-shot"])
def test_without_validation_both_tables_are_the_same(mode):
    config = replace(STAGE, validation=0.0)
    full, search = _stage_tables("idcf-nn", TrainingJob(SPLIT, query_user_mode=mode), config)
    assert search.task is None
    assert pairs(full.adaption_rows) == pairs(search.adaption_rows)
    assert pairs(full.key_rows) == pairs(search.key_rows)


def test_the_contrast_is_for_new_users_only(monkeypatch):
    from idcf.training import two_stage

    weights = []
    original = two_stage.adaption_objective

    def adaption_objective(contrast, runtime, contrast_over):
        weights.append(contrast)
        return original(contrast, runtime, contrast_over)

    monkeypatch.setattr(two_stage, "adaption_objective", adaption_objective)
    config = replace(STAGE, validation=0.0, train=replace(STAGE.train, epochs=1, contrast=0.5))
    for mode in ("new", "few-shot"):
        job = TrainingJob(SPLIT, query_user_mode=mode)
        train_two_stage("idcf-nn", "nnmf", job, config, config)
    assert weights == [0.5, 0.0]
