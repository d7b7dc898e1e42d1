"""`idcf embed` and `idcf recommend --histories` over a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from calls import call, call_with_error
from pyarrow import parquet


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("h") / "h", np.random.default_rng(0)
    folder.mkdir()
    for number in range(3):
        users = [f"u{number}{n:03}" for n in range(20) for _ in range(4)]
        items = [f"i{n}" for n in rng.integers(0, 90, 80)]
        columns = {"user_id": users, "item_id": items, "rating": rng.integers(1, 6, 80)}
        parquet.write_table(pa.table(columns), folder / f"p{number}.parquet")
    return folder


@pytest.mark.parametrize("engine", [(), ("--engine", "processes", "--workers", "1")])
def test_embed_a_folder(
    engine: tuple[str, ...], model: Path, histories: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("embed", str(model), str(histories), "--out", str(out), *engine)
    report = json.loads(call(*arguments, "--json"))
    assert (report["n_users"], report["n_files"], report["embedding_size"]) == (60, 3, 5)
    assert report["folder"] == str(out)
    one = tmp_path / "one.parquet"
    call("embed", str(model), str(histories / "p1.parquet"), "--out", str(one))
    assert parquet.read_table(out / "p1.parquet").equals(parquet.read_table(one))
    text = call(*arguments)
    assert "60 users, embedding size 5" in text
    assert f"3 files in {out}, 3 of them from an earlier run" in text


def test_recommend_to_a_folder(
    model: Path, histories: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    out = tmp_path / "out"
    arguments = ("recommend", str(model), "--histories", str(histories), "--out", str(out))
    options = ("-n", "4", "--exclude", "Film 7, The (1917)")
    report = json.loads(call(*arguments, *options, "--json"))
    assert (report["n_users"], report["n"]) == (60, 4)
    lists = parquet.read_table(out)
    assert lists["rank"].to_pylist() == [1, 2, 3, 4] * 60
    assert "i7" not in lists["item_id"].to_pylist()
    code, output = call_with_error(monkeypatch, capsys, *arguments, "-n", "5")
    assert code == 2
    assert "holds results of another run: options" in output
    assert "5 items each" in call(*arguments, "-n", "5", "--overwrite")
    assert parquet.read_table(out).num_rows == 300


def test_a_gpu_that_is_not_there(
    model: Path, histories: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for path in (histories, histories / "p0.parquet"):
        out = tmp_path / ("out" if path.is_dir() else "out.parquet")
        arguments = ("embed", str(model), str(path), "--out", str(out))
        code, output = call_with_error(monkeypatch, capsys, *arguments, "--device", "cuda")
        assert code == 2
        assert "device 'cuda' was given, but no GPU is visible" in output
        assert not out.exists()
