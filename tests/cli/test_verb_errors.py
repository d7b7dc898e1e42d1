"""Errors and edge cases of every verb: one line, the exit code, and nothing written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import write_file
from calls import OPTIONS, call, call_with_error
from typer.testing import CliRunner

from idcf import ArtifactError, ConfigError, Recommender
from idcf.cli import app
from idcf.cli import options as o
from idcf.cli.train import _format_summary
from idcf.evaluation import DEFAULT_MODELS
from idcf.inference.manifest import NewUserCurve, NewUserCurvePoint
from idcf.models.registry import all_models

BAD_TRAINING = {
    "--model idcf-byes": "no model named 'idcf-byes'; did you mean 'idcf-bayes'",
    "--preset cleen": "no preset named 'cleen'; did you mean 'clean'",
    "-o embeding_size=3": "did you mean 'embedding_size'",
    "-o embedding_size=many": "embedding_size",
    "-o embedding_size": "an override is written name=value, got 'embedding_size'",
    "-o key_threshold=3": "use --key-threshold instead",
    "-o seed=3": "seed is no option of a model; use --seed instead",
    "--key-threshold 900": "900",
    "--key-users best": "no choice of key users named 'best'",
    "--n-key-users 5": "--n-key-users 5 needs --key-users informative, got 'threshold'",
    "--device gpu": "device must be auto, cpu or cuda",
    "--items none.csv": "none.csv",
    "--user-features none.csv": "none.csv",
    "--column item_id=film": "film",
    "--seed x": "--seed",
    "--threads 0": "--threads",
}


@pytest.mark.parametrize("text", BAD_TRAINING)
def test_train_rejects(
    text: str, ratings_file: Callable[..., Path], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    out = tmp_path / "m"
    arguments = ["train", str(ratings_file()), "--out", str(out), "--model", "als", *text.split()]
    code, output = call_with_error(monkeypatch, capsys, *arguments, "--no-card-metrics")
    assert code == 2
    assert BAD_TRAINING[text] in output
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        (["train"], "DATASET"),
        (["train", "x.csv"], "--out"),
        (["tune", "x.csv", "--storage", "t.db"], "--model"),
        (["tune", "x.csv", "--model", "als"], "--storage"),
        (["embed", "m"], "HISTORIES"),
        (["export", "m"], "--onnx"),
        (["recommend"], "MODEL_FOLDER"),
        (["serve"], "MODEL_FOLDER"),
        (["evaluate"], "DATASET"),
        (["serve", "m", "--port", "70000"], "--port"),
        (["serve", "m", "--max-delay-ms", "-1"], "--max-delay-ms"),
        (["evaluate", "x.csv", "--seeds", "0"], "--seeds"),
        (["demo", "--jobs", "0"], "--jobs"),
        (["report", "--chek"], "--check"),
        (["trian"], "trian"),
    ],
)
def test_a_wrong_or_missing_argument_is_named(
    arguments: list[str], parameter: str, monkeypatch: Any, capsys: Any
) -> None:
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert parameter in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("user_id,item_id,rating\n", "no rows"),
        ("user_id,stars\na,3\n", "item_id"),
        ("user_id,item_id,rating\na,x,good\n", "'good'"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "evaluate", "tune"])
def test_a_bad_file_of_ratings(
    verb: str, text: str, message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    options = {
        "train": ["--out", str(tmp_path / "m")],
        "evaluate": [],
        "tune": ["--model", "als", "--storage", str(tmp_path / "t.db")],
    }
    path = write_file(tmp_path, "r.csv", text)
    code, output = call_with_error(monkeypatch, capsys, verb, str(path), *options[verb])
    assert code == 2
    assert output.startswith("error: ")
    assert output.count("\n") == 1
    assert "r.csv" in output
    assert message in output
    assert [x.name for x in tmp_path.iterdir()] == ["r.csv"]


def test_train_replaces_its_own_folder_and_no_other(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "m"
    arguments = ["train", str(ratings_file()), "--out", str(out), *OPTIONS, "--no-card-metrics"]
    call(*arguments, "--seed", "1")
    summary = json.loads(call(*arguments, "--seed", "2", "--json"))
    assert (summary["seed"], Recommender.load(out).manifest.seed) == (2, 2)
    assert summary["card_metrics"] is None
    write_file(out, "notes.txt", "mine")
    with pytest.raises(ArtifactError, match=r"notes\.txt"):
        call(*arguments)
    assert (out / "notes.txt").read_text() == "mine"


def test_the_summary_of_a_training_as_text_and_json(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    arguments = ["train", str(ratings_file()), "--out", str(tmp_path / "m"), *OPTIONS]
    summary = json.loads(call(*arguments, "--json"))
    assert list(summary) == [
        *("folder", "model", "n_items", "n_rows", "n_users", "n_key_users", "key_threshold"),
        *("key_user_choice", "seed", "card_metrics", "seconds"),
    ]
    assert summary["card_metrics"] is None  # too few key users to hold some out
    assert len(call(*arguments).splitlines()) == 2


def test_the_quality_for_new_users_is_that_of_the_longest_history() -> None:
    point = {"low": 0.8, "high": 1.0}
    points = (
        NewUserCurvePoint(history_length=1, value=0.99, baseline=1.01, **point),
        NewUserCurvePoint(history_length=12, value=0.9, baseline=0.95, **point),
    )
    curve = NewUserCurve(metric="rmse", baseline="bias", n_users=1234, n_rows=5, points=points)
    names = ("n_rows", "n_users", "n_key_users", "key_threshold", "n_items", "seconds")
    values = dict.fromkeys(names, 1000) | {"model": "als", "folder": "m"}
    first, second, third = _format_summary({**values, "key_user_choice": 9}, curve).splitlines()
    assert first.startswith("als: 1,000 rows of 1,000 users")
    assert "at least 1000 rows, chosen by 9), 1,000 items" in first
    assert second == (
        "quality for new users with 12 interactions (1,234 key users were held out): rmse 0.900 "
        "(bias: 0.950)"
    )
    assert third == "saved in m"


def test_a_model_that_is_named_twice_is_trained_once(ratings_file: Callable[..., Path]) -> None:
    arguments = ["evaluate", str(ratings_file()), "--key-threshold", "15", "--device", "cpu"]
    rows = json.loads(call(*arguments, "--models", "bias, bias,", "--json"))
    assert sum(x["model"] == "bias" and x["metric"] == "rmse" for x in rows) == 1
    assert {x["model"] for x in rows} == {"random", "item-mean", "popularity", "bias"}
    with pytest.raises(ConfigError, match="name at least one model"):
        call(*arguments, "--models", " , ")


def test_the_default_models_exist_and_are_shown() -> None:
    assert set(DEFAULT_MODELS) <= set(all_models())
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["evaluate", "--help"]).stdout
    assert ",".join(DEFAULT_MODELS) in text


def test_the_split_seed_changes_the_split_alone(ratings_file: Callable[..., Path]) -> None:
    arguments = ["evaluate", str(ratings_file()), "--models", "bias", "--key-threshold", "15"]
    runs = [
        json.loads(call(*arguments, "--split-seed", seed, "--device", "cpu", "--json"))
        for seed in ("0", "0", "1")
    ]
    values = [[x["value"] for x in rows if x["model"] == "bias"] for rows in runs]
    assert values[0] == values[1] != values[2]
    assert {x["split"] for x in runs[2]} == {"random-10%-seed1, delta=15"}


def test_tune_writes_options_and_continues(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    storage = tmp_path / "trials" / "t.db"
    arguments = ["tune", str(ratings_file()), "--model", "als", "--storage", str(storage)]
    arguments += ["--device", "cpu", "-o", "embedding_size=4"]  # nobody has 30 rows
    result = json.loads(call(*arguments, "--trials", "1", "--json"))
    assert (result["model"], result["n_trials"]) == ("als", 1)
    assert result["best_trial"] == result["default_trial"]
    assert result["file"] == str(storage.with_suffix(".toml"))
    out = tmp_path / "best.toml"
    text = call(*arguments, "--trials", "2", "--out", str(out))
    assert "of 2 (default options: " in text
    assert text.endswith(f"written to {out}\n")
    assert tomllib.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "asl"], "no model named 'asl'; did you mean 'als'"),
        (["--model", "als", "--trials", "0"], "--trials"),
        (["--model", "als", "--out", "."], "is a folder"),
        (["--model", "als", "-o", "regg=1"], "did you mean 'reg'"),
        (["--model", "popularity"], "popularity"),
    ],
)
def test_tune_rejects(
    options: list[str],
    message: str,
    ratings_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
) -> None:
    arguments = ["tune", str(ratings_file()), "--storage", str(tmp_path / "t.db")]
    arguments += ["--key-threshold", "15", *options]
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "table5"], "no table named 'table5'"),
        (["reproduce", "table2", "--models", "idcf-mm", "--dry-run"], "idcf-mm"),
        (["reproduce", "table2", "--datasets", "ml-10m", "--dry-run"], "ml-10m"),
        (["reproduce", "table2", "--presets", "best", "--dry-run"], "best"),
        (["reproduce", "--merge", "nowhere"], "nowhere"),
        (["report", "--results", "nowhere"], "nowhere"),
    ],
)
def test_reproduce_and_report_reject(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in output
    assert not list(tmp_path.iterdir())


def test_a_dry_run_lists_the_missing_experiments(tmp_path: Path) -> None:
    arguments = ["reproduce", "table2", "--datasets", "ml-100k", "--models", "idcf-nn"]
    arguments += ["--presets", "clean", "--seeds", "2", "--results", str(tmp_path), "--dry-run"]
    values = json.loads(call(*arguments, "--json"))
    assert values["n_runs"] == len(values["missing"]) > 0
    first, table, *lines = call(*arguments).splitlines()
    assert first == f"{values['n_runs']} runs, 0 of them done"
    assert table == f"table2: 0 of {values['n_runs']} runs done"
    assert lines == [f"  missing: {x}" for x in values["missing"]]
    assert values["tables"]["table2"]["missing"] == values["missing"]
    every = json.loads(call("reproduce", "all", *arguments[2:], "--json"))
    assert {"table2", "table4", "splits"} <= every["tables"].keys()
    assert every["tables"]["splits"]["n_runs"] == 2 * 10  # seeds on each draw
    reason = call("reproduce", "table4", "--models", "igmc", "--presets", "published", "--dry-run")
    assert "douban delta=30: igmc (published), new, seed 0 (98,000 steps)" in reason
    more = json.loads(call(*arguments, "--seeds", "4", "--json"))
    assert more["n_runs"] == 2 * values["n_runs"]
    assert not list(tmp_path.iterdir())


def test_export_of_a_missing_model(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    arguments = ["export", str(tmp_path / "none"), "--onnx", str(tmp_path / "x.onnx")]
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 3
    assert str(tmp_path / "none") in output
    assert not list(tmp_path.iterdir())


def test_doctor_reports_a_model_that_is_missing(tmp_path: Path) -> None:
    result = json.loads(call("doctor", str(tmp_path / "none"), "--json", code=1))
    assert not result["ok"]
    (check,) = [x for x in result["checks"] if x["name"] == "model"]
    assert check["status"] == "problem"
    assert str(tmp_path / "none") in check["message"]


def test_recommend_with_no_item_left_and_with_reasons(model: Path) -> None:
    arguments = ["recommend", str(model), "-n", "2"]
    items = Recommender.load(model).predictor.item_ids
    exclude = [x for item in items for x in ("--exclude", str(item))]
    assert call(*arguments, *exclude) == "no items to recommend\n"
    nothing = {"items": [], "unknown_items": [], "basis": "popularity"}
    assert json.loads(call(*arguments, *exclude, "--json")) == nothing
    rated = ["--rate", "i2=5", "--rate", "i4=1"]
    values = json.loads(call(*arguments, *rated, "--explain", "--json"))["items"]
    assert {x["item_id"] for x in values[0]["reasons"]} <= {"i2", "i4"}
    lines = call(*arguments, *rated, "--explain").splitlines()
    assert len(lines) == 2 + sum(len(x["reasons"]) for x in values)
    plain = call(*arguments, *rated).splitlines()
    assert plain == [x for x in lines if not x.startswith(" " * 12)]
    assert len(call(*arguments, "-n", "1000").splitlines()) == len(items) + 1  # and the basis


def test_names_between_commas() -> None:
    assert o.split_commas(" a, b ,,c,") == ["a", "b", "c"]
    assert o.split_commas("") == []


@pytest.mark.parametrize("choice", o.KEY_USER_CHOICES)
def test_key_users(choice: str) -> None:
    assert o.parse_key_users(choice, None) == choice
    if choice == "informative":
        assert o.parse_key_users(choice, 7) == 7
    else:
        with pytest.raises(ConfigError, match="--n-key-users 7 needs --key-users informative"):
            o.parse_key_users(choice, 7)


def test_json_keeps_letters_and_order(capsys: pytest.CaptureFixture[str]) -> None:
    o.print_result({"b": "Amélie", "a": None}, "text", as_json=True)
    output = capsys.readouterr().out
    assert "Amélie" in output
    assert list(json.loads(output)) == ["b", "a"]
    o.print_result({}, "text", as_json=False)
    assert capsys.readouterr().out == "text\n"
