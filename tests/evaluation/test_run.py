"""Rows of results: what is in them, what is trained for them, and that they do not wander."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Interactions
from idcf.errors import ConfigError, DataError
from idcf.evaluation import parallel, run
from idcf.evaluation.measure import Exam, Part, chance, measure
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import Row, check_writable, write_json
from idcf.metrics import rmse
from idcf.testing.synthetic import checkerboard
from idcf.training.train import Job, Trained, train

FIELDS = (
    *("dataset", "split", "model", "preset", "users", "metric", "value", "low", "high"),
    *("n_users", "n_ratings", "seed", "seconds"),
)
RATED = ["rmse", "mae", "ndcg", "ndcg@10", "recall@20"]
PLAIN = ["auc", "auc-user", "ndcg", "ndcg@10", "recall@20"]


def world(implicit: bool = False, shift: float = 0) -> Dataset:
    rng = np.random.default_rng(0)
    table = checkerboard(60, 80, rng, few=16 if implicit else 9, many=24, implicit=implicit)
    table = replace(table, rating=table.rating + np.float32(shift))
    return Dataset("world", table, None, None, {}, 10 if implicit else 15)


def timeless(rows: list[Row]) -> list[Row]:
    return [replace(r, seconds=0.0) for r in rows]


def test_a_row_has_exactly_these_fields() -> None:
    assert tuple(f.name for f in fields(Row)) == FIELDS


def test_ratings_have_their_metrics_and_floors_come_first() -> None:
    rows = run.evaluate(run.Plan(world(), ["als", "bias"], ["new", "all"]))
    models = list(dict.fromkeys(r.model for r in rows))
    assert models == ["random", "item-mean", "popularity", "als", "bias"]
    for users in ("new", "all"):
        of = {m: [r.metric for r in rows if (r.model, r.users) == (m, users)] for m in models}
        assert of["bias"] == RATED
        assert of["popularity"] == of["random"] == RATED[2:]  # counts are no ratings
    assert all(r.low <= r.value <= r.high for r in rows)
    assert all(r.split == "random-10%-seed0, delta=15" and r.preset == "clean" for r in rows)


def test_no_lists_of_whom_a_catalogue_costs_too_much() -> None:
    options = {"train.epochs": 1, "size": 4}
    rows = run.evaluate(run.Plan(world(), ["igmc"], ["new"], options=options))
    assert [r.metric for r in rows if r.model == "igmc"] == RATED[:3]


def test_implicit_feedback_has_its_own_metrics() -> None:
    small = {
        "embedding_size": 8,
        "alpha": 10.0,
        "reg": 10.0,
    }  # 26 key users tell too little to tune
    rows = run.evaluate(run.Plan(world(implicit=True), ["als"], ["new", "few-shot"], options=small))
    assert list(dict.fromkeys(r.model for r in rows)) == ["random", "popularity", "als"]
    found = {(r.model, r.metric): r.value for r in rows if r.users == "new"}
    assert [m for model, m in found if model == "als"] == [*PLAIN, "ndcg@20"]
    assert found["random", "auc"] == 0.5
    assert found["als", "auc-user"] > 0.7
    assert found["als", "ndcg@10"] > 2 * found["random", "ndcg@10"]


def test_the_same_seeds_give_the_same_rows() -> None:
    def once() -> list[Row]:
        return timeless(run.evaluate(run.Plan(world(), ["idcf-dot"], ["new"], 2)))

    one, two = once(), once()
    assert one == two
    by_seed = [[r.value for r in one if (r.model, r.seed) == ("idcf-dot", s)] for s in (0, 1)]
    assert by_seed[0] != by_seed[1]


def test_several_processes_give_the_rows_of_one() -> None:
    kept: list[str] = []

    def rows(jobs: int) -> list[Row]:
        found = run.evaluate(
            run.Plan(world(), ["als", "pmf"], ["few-shot"]),
            jobs=jobs,
            keep=lambda model, users, seed, trained: kept.append(model),
        )
        return timeless(found)

    assert rows(1) == rows(2)
    assert kept == ["item-mean", "popularity", "als", "pmf"] * 2


def test_few_shot_and_all_share_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def spy(name: str, job: Job, **options: object) -> Trained:
        jobs.append((name, job.users, job.seed))
        return train(name, job, options=None)

    monkeypatch.setattr(run, "train", spy)
    rows = run.evaluate(run.Plan(world(), ["bias"], ["few-shot", "all", "new"], 2))
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
    rows = run.evaluate(run.Plan(world(), ["pmf"], ["new", "few-shot"]))
    assert {r.users for r in rows if r.model == "pmf"} == {"few-shot"}
    assert "note: pmf knows only the users it was trained on" in capsys.readouterr().err


def test_key_users_are_answered_by_the_backbone() -> None:
    data = world()
    split, name = standard_split(data)
    kept: list[Trained] = []
    rows = run.evaluate(
        run.Plan(data, ["idcf-dot"], ["all"]),
        split=(split, name),
        keep=lambda model, users, seed, trained: kept.append(trained),
    )
    trained, exam = kept[-1], Exam.of(split, np.arange(60))
    assert trained.known is not trained.model
    apart = [
        measure(Exam.of(split, users), [Part(model, users)])["rmse"]
        for model, users in (
            (trained.known, split.key_users),
            (trained.model, split.query_users),
        )
    ]
    pooled = sum(m.interval.value**2 * m.n_ratings for m in apart) / len(exam.rows)
    [both] = [r for r in rows if (r.model, r.metric) == ("idcf-dot", "rmse")]
    assert both.value == pytest.approx(pooled**0.5, rel=1e-6)


def test_measures_are_those_of_the_metrics() -> None:
    data = world()
    split, _ = standard_split(data)
    model = train("bias", Job(split)).model
    exam = Exam.of(split, split.query_users)
    found = measure(exam, [Part(model, split.query_users)])
    mean, bias = model.mean, model.item_bias.numpy()  # type: ignore[union-attr, operator]
    guess = []
    for user, item in zip(exam.rows.user, exam.rows.item, strict=True):
        mine = split.train.where(split.train.user == user)
        left = (mine.rating - mean - bias[mine.item]).sum() / (len(mine) + model.strength)
        guess.append(mean + bias[item] + left)
    wanted = rmse(np.array(guess), exam.rows.rating)
    assert found["rmse"].interval.value == pytest.approx(wanted, rel=1e-5)


def test_ratings_below_zero_have_gains_all_the_same() -> None:
    usual, low = (
        {(r.model, r.metric): r.value for r in run.evaluate(run.Plan(world(shift=s), ["bias"]))}
        for s in (-1, -4)  # 0..4, and -3..1
    )
    assert low["bias", "rmse"] == pytest.approx(usual["bias", "rmse"], rel=1e-4)
    assert low["random", "ndcg"] == pytest.approx(usual["random", "ndcg"], rel=1e-6)


def test_negatives_are_the_same_for_everybody() -> None:
    split, _ = standard_split(world(implicit=True))
    one, two = Exam.of(split, split.query_users), Exam.of(split, split.query_users)
    assert np.array_equal(one.asked.item, two.asked.item)
    assert len(one.asked) == 6 * len(one.rows)
    assert chance(one)["auc"].interval.value == 0.5


def test_nobody_to_ask_is_an_error() -> None:
    data = world()
    with pytest.raises(DataError, match=r"none of the 0 users.*--key-threshold"):
        run.evaluate(run.Plan(data, ["bias"]), split=standard_split(data, threshold=1))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": ["idcf-n"]}, "no model named 'idcf-n'; did you mean 'idcf-nn'"),
        ({"models": []}, "nothing to compare"),
        ({"users": ["newest"]}, "no group of users named 'newest'; did you mean 'new'"),
        ({"preset": "clear"}, "no preset named 'clear'; did you mean 'clean'"),
        ({"seeds": 0}, "give at least 1"),
        ({"models": ["idcf-nn"], "options": {"head": 2}}, "did you mean 'heads'"),
        ({"models": ["idcf-nn"], "options": {"train.epoch": 2}}, "did you mean 'epochs'"),
        ({"options": {"idcf-nn.heads": 2}}, "not among the models"),
    ],
)
def test_wrong_names_are_found_before_training(wrong: dict[str, object], says: str) -> None:
    usual = {"models": ["bias"], "users": ["new"], "seeds": 1, "preset": "clean", "options": {}}
    with pytest.raises(ConfigError, match=says):
        run.Plan(world(), **{**usual, **wrong})  # type: ignore[arg-type]


def test_models_of_ratings_refuse_implicit_feedback() -> None:
    with pytest.raises(ConfigError, match="'bias' needs ratings"):
        run.Plan(world(implicit=True), ["bias"])


def test_options_are_for_all_or_for_one() -> None:
    plan = run.Plan(world(), ["idcf-nn", "idcf-gc"], options={"heads": 2, "idcf-gc.sample": 9})
    assert plan.options_of("idcf-nn") == {"heads": 2}
    assert plan.options_of("idcf-gc") == {"heads": 2, "sample": 9}
    assert plan.options_of("popularity") == {}
    plan = run.Plan(world(), ["idcf-nn"], options={"bias": "own"})  # `bias` is a model, too
    assert plan.options_of("idcf-nn") == {"bias": "own"}


def test_rows_are_written_whole(tmp_path: Path) -> None:
    rows = run.evaluate(run.Plan(world(), ["bias"]))
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
    table: Interactions = checkerboard(40, 9, rng, few=3, many=6)
    rows = run.evaluate(run.Plan(Dataset("small", table, None, None, {}, 5), ["bias"]))
    found = {(r.model, r.metric): r.value for r in rows}
    assert found["bias", "recall@20"] == 1 == found["random", "recall@20"]


def test_what_goes_wrong_in_a_helper_is_told_here() -> None:
    with pytest.raises(ConfigError, match="loudly"):
        parallel.each(fail, {"a": ("loudly",), "b": ("loudly",)}, jobs=2)
    with pytest.raises(ConfigError, match="helper process died"):
        parallel.each(os._exit, {"a": (3,), "b": (3,)}, jobs=2)


def fail(text: str) -> None:
    raise ConfigError(text)


def test_options_of_a_backbone_go_to_it() -> None:
    """`embedding_size` is no option of the relation model; what `idcf tune` prints can be used."""
    options = {"embedding_size": 4, "train.epochs": 1}
    data = world()
    assert run.Plan(data, ["idcf-dot"], options=options).options_of("idcf-dot") == options
    with pytest.raises(ConfigError, match="embedding_size"):
        run.Plan(data, ["idcf-dot"], options={"embedding_size": "wide"})
