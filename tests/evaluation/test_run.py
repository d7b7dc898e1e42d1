"""Result rows: their fields, the training runs behind them, and that they are reproducible."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from builders import board

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Interactions
from idcf.errors import ConfigError, DataError
from idcf.evaluation import parallel, run
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import (
    ModelAssignment,
    compute_metrics,
    expected_random_metrics,
)
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import ResultRow, write_json
from idcf.files import check_writable
from idcf.metrics import rmse
from idcf.testing.synthetic import checkerboard
from idcf.training.train import TrainingJob, TrainingResult, train

FIELDS = (
    *("dataset", "split", "model", "preset", "users", "metric", "value", "low", "high"),
    *("n_users", "n_ratings", "seed", "seconds", "quality", "commit"),
)
RATING_METRICS = ["rmse", "mae", "ndcg", "ndcg@10", "recall@20"]
IMPLICIT_METRICS = ["auc", "auc-user", "ndcg", "ndcg@10", "recall@20"]


def make_dataset(implicit: bool = False, shift: float = 0) -> Dataset:
    """A checkerboard with light and heavy users; `shift` is added to the ratings."""
    table = board(60, 80, 16 if implicit else 9, 24, implicit=implicit)
    table = replace(table, rating=table.rating + np.float32(shift))
    return Dataset("world", table, None, None, {}, 10 if implicit else 15)


def without_seconds(rows: list[ResultRow]) -> list[ResultRow]:
    """Set the time of training to 0, so that rows of two calls can be compared."""
    return [replace(r, seconds=0.0) for r in rows]


def test_a_row_has_exactly_these_fields() -> None:
    assert tuple(f.name for f in fields(ResultRow)) == FIELDS


def test_ratings_have_their_metrics_and_trivial_baselines_come_first() -> None:
    rows = run.evaluate(run.EvaluationPlan(make_dataset(), ["als", "bias"], ["new", "all"]))
    models = list(dict.fromkeys(r.model for r in rows))
    assert models == ["random", "item-mean", "popularity", "als", "bias"]
    for users in ("new", "all"):
        metrics = {m: [r.metric for r in rows if (r.model, r.users) == (m, users)] for m in models}
        assert metrics["bias"] == RATING_METRICS
        # popularity does not predict ratings
        assert metrics["popularity"] == metrics["random"] == RATING_METRICS[2:]
    assert all(r.low <= r.value <= r.high for r in rows)
    assert all(r.split == "random-10%-seed0, delta=15" and r.preset == "clean" for r in rows)


def test_a_model_that_cannot_rank_the_catalogue_has_no_catalogue_metrics() -> None:
    options = {"train.epochs": 1, "size": 4}
    rows = run.evaluate(run.EvaluationPlan(make_dataset(), ["igmc"], ["new"], options=options))
    assert [r.metric for r in rows if r.model == "igmc"] == RATING_METRICS[:3]


def test_implicit_feedback_has_its_own_metrics() -> None:
    # fixed: 26 key users are too few for a grid search
    options = {"embedding_size": 8, "alpha": 10.0, "reg": 10.0}
    rows = run.evaluate(
        run.EvaluationPlan(
            make_dataset(implicit=True), ["als"], ["new", "few-shot"], options=options
        )
    )
    assert list(dict.fromkeys(r.model for r in rows)) == ["random", "popularity", "als"]
    values = {(r.model, r.metric): r.value for r in rows if r.users == "new"}
    assert [m for model, m in values if model == "als"] == [*IMPLICIT_METRICS, "ndcg@20"]
    assert values["random", "auc"] == 0.5
    assert values["als", "auc-user"] > 0.7
    assert values["als", "ndcg@10"] > 2 * values["random", "ndcg@10"]


def test_the_same_seeds_give_the_same_rows() -> None:
    def evaluate_once() -> list[ResultRow]:
        return without_seconds(
            run.evaluate(run.EvaluationPlan(make_dataset(), ["idcf-dot"], ["new"], 2))
        )

    first, second = evaluate_once(), evaluate_once()
    assert first == second
    by_seed = [[r.value for r in first if (r.model, r.seed) == ("idcf-dot", s)] for s in (0, 1)]
    assert by_seed[0] != by_seed[1]


def test_several_processes_give_the_rows_of_one() -> None:
    trained_models: list[str] = []

    def rows(jobs: int) -> list[ResultRow]:
        result = run.evaluate(
            run.EvaluationPlan(make_dataset(), ["als", "pmf"], ["few-shot"]),
            n_jobs=jobs,
            on_trained=lambda model, users, seed, trained: trained_models.append(model),
        )
        return without_seconds(result)

    assert rows(1) == rows(2)
    assert trained_models == ["item-mean", "popularity", "als", "pmf"] * 2


def test_few_shot_and_all_share_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def spy(name: str, job: TrainingJob, **options: object) -> TrainingResult:
        jobs.append((name, job.query_user_mode, job.seed))
        return train(name, job, options=None)

    monkeypatch.setattr(run, "train", spy)
    rows = run.evaluate(run.EvaluationPlan(make_dataset(), ["bias"], ["few-shot", "all", "new"], 2))
    assert [j for j in jobs if j[0] == "bias"] == [
        ("bias", "few-shot", 0),
        ("bias", "few-shot", 1),
        ("bias", "new", 0),
        ("bias", "new", 1),
    ]
    assert {(r.users, r.seed) for r in rows if r.model == "bias"} == {
        (u, s) for u in ("few-shot", "all", "new") for s in (0, 1)
    }


def test_transductive_models_have_no_rows_for_new_users(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = run.evaluate(run.EvaluationPlan(make_dataset(), ["pmf"], ["new", "few-shot"]))
    assert {r.users for r in rows if r.model == "pmf"} == {"few-shot"}
    assert "note: pmf knows only the users it was trained on" in capsys.readouterr().err


def test_key_users_are_scored_by_the_backbone() -> None:
    data = make_dataset()
    split, name = standard_split(data)
    results: list[TrainingResult] = []
    rows = run.evaluate(
        run.EvaluationPlan(data, ["idcf-dot"], ["all"]),
        split=(split, name),
        on_trained=lambda model, users, seed, trained: results.append(trained),
    )
    trained, evaluation_set = results[-1], EvaluationSet.from_split(split, np.arange(60))
    assert trained.key_user_model is not trained.model
    separate = [
        compute_metrics(EvaluationSet.from_split(split, users), [ModelAssignment(model, users)])[
            "rmse"
        ]
        for model, users in (
            (trained.key_user_model, split.key_users),
            (trained.model, split.query_users),
        )
    ]
    pooled = sum(m.interval.value**2 * m.n_ratings for m in separate) / len(
        evaluation_set.test_rows
    )
    [row] = [r for r in rows if (r.model, r.metric) == ("idcf-dot", "rmse")]
    assert row.value == pytest.approx(pooled**0.5, rel=1e-6)


def test_rmse_is_that_of_the_formula_of_the_bias_model() -> None:
    data = make_dataset()
    split, _ = standard_split(data)
    model = train("bias", TrainingJob(split)).model
    evaluation_set = EvaluationSet.from_split(split, split.query_users)
    results = compute_metrics(evaluation_set, [ModelAssignment(model, split.query_users)])
    rows = evaluation_set.test_rows
    mean, bias = model.mean, model.item_bias.numpy()  # type: ignore[union-attr, operator]
    predictions = []
    for user, item in zip(rows.user, rows.item, strict=True):
        history = split.train.where(split.train.user == user)
        residuals = history.rating - mean - bias[history.item]
        user_bias = residuals.sum() / (len(history) + model.shrinkage)
        predictions.append(mean + bias[item] + user_bias)
    expected = rmse(np.array(predictions), rows.rating)
    assert results["rmse"].interval.value == pytest.approx(expected, rel=1e-5)


def test_ratings_below_zero_are_shifted_for_gains() -> None:
    nonnegative, negative = (
        {
            (r.model, r.metric): r.value
            for r in run.evaluate(run.EvaluationPlan(make_dataset(shift=s), ["bias"]))
        }
        for s in (-1, -4)  # 0..4, and -3..1
    )
    for cell, tolerance in ((("bias", "rmse"), 1e-4), (("random", "ndcg"), 1e-6)):
        assert negative[cell] == pytest.approx(nonnegative[cell], rel=tolerance)


def test_negatives_are_the_same_in_every_evaluation_set() -> None:
    split, _ = standard_split(make_dataset(implicit=True))
    first, second = (EvaluationSet.from_split(split, split.query_users) for _ in range(2))
    assert np.array_equal(first.scored_rows.item, second.scored_rows.item)
    assert len(first.scored_rows) == 6 * len(first.test_rows)
    assert expected_random_metrics(first)["auc"].interval.value == 0.5


def test_a_group_without_test_rows_is_an_error() -> None:
    data = make_dataset()
    with pytest.raises(DataError, match=r"none of the 0 users.*--key-threshold"):
        run.evaluate(run.EvaluationPlan(data, ["bias"]), split=standard_split(data, threshold=1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"models": ["idcf-n"]}, "no model named 'idcf-n'; did you mean 'idcf-nn'"),
        ({"models": []}, "nothing to compare"),
        ({"groups": ["newest"]}, "no group of users named 'newest'; did you mean 'new'"),
        ({"preset": "clear"}, "no preset named 'clear'; did you mean 'clean'"),
        ({"n_seeds": 0}, "give at least 1"),
        ({"models": ["idcf-nn"], "options": {"head": 2}}, "did you mean 'heads'"),
        ({"models": ["idcf-nn"], "options": {"train.epoch": 2}}, "did you mean 'epochs'"),
        ({"options": {"idcf-nn.heads": 2}}, "not among the models"),
    ],
)
def test_wrong_names_are_errors_before_training(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run.EvaluationPlan(make_dataset(), **{"models": ["bias"], **wrong})  # type: ignore[arg-type]


def test_models_of_ratings_refuse_implicit_feedback() -> None:
    with pytest.raises(ConfigError, match="'bias' needs ratings"):
        run.EvaluationPlan(make_dataset(implicit=True), ["bias"])


def test_options_are_for_all_or_for_one() -> None:
    plan = run.EvaluationPlan(
        make_dataset(), ["idcf-nn", "idcf-gc"], options={"heads": 2, "idcf-gc.n_attended_users": 9}
    )
    assert plan.options_of("idcf-nn") == {"heads": 2}
    assert plan.options_of("idcf-gc") == {"heads": 2, "n_attended_users": 9}
    assert plan.options_of("popularity") == {}
    # `bias` is the name of a model and of an option
    plan = run.EvaluationPlan(make_dataset(), ["idcf-nn"], options={"bias": "own"})
    assert plan.options_of("idcf-nn") == {"bias": "own"}


def test_rows_are_written_atomically(tmp_path: Path) -> None:
    rows = run.evaluate(run.EvaluationPlan(make_dataset(), ["bias"]))
    path = tmp_path / "new" / "rows.json"
    write_json(rows, path)
    assert json.loads(path.read_text()) == [asdict(r) for r in rows]
    assert [p.name for p in path.parent.iterdir()] == ["rows.json"]
    with pytest.raises(ConfigError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(path / "below.json")


def test_a_small_catalogue_is_ranked_whole(ratings_file: Callable[..., Path]) -> None:
    rng = np.random.default_rng(1)
    table: Interactions = checkerboard(40, 9, rng, rows_per_light_user=3, rows_per_heavy_user=6)
    rows = run.evaluate(run.EvaluationPlan(Dataset("small", table, None, None, {}, 5), ["bias"]))
    values = {(r.model, r.metric): r.value for r in rows}
    assert values["bias", "recall@20"] == 1 == values["random", "recall@20"]


def test_an_error_in_a_worker_process_is_raised_here() -> None:
    with pytest.raises(ConfigError, match="loudly"):
        parallel.run_all(fail, {"a": ("loudly",), "b": ("loudly",)}, n_jobs=2)
    with pytest.raises(ConfigError, match="worker process died"):
        parallel.run_all(os._exit, {"a": (3,), "b": (3,)}, n_jobs=2)


def fail(text: str) -> None:
    raise ConfigError(text)


def test_options_of_a_backbone_are_accepted() -> None:
    """`embedding_size` is an option of the backbone; `idcf tune` prints it for the whole model."""
    options = {"embedding_size": 4, "train.epochs": 1}
    data = make_dataset()
    assert run.EvaluationPlan(data, ["idcf-dot"], options=options).options_of("idcf-dot") == options
    with pytest.raises(ConfigError, match="embedding_size"):
        run.EvaluationPlan(data, ["idcf-dot"], options={"embedding_size": "wide"})
