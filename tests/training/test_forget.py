"""A model that forgets users is that of a fit on a table which never had them, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import board, write_csv
from pyarrow import csv

from idcf import ConfigError, DataError, Recommender
from idcf.data.columns import DataWarning
from idcf.data.shard_writer import write_shards

FORGOTTEN = ["u1", "u40"]  # with few rows, and with many


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a table, one without two users and an item of theirs alone, and side tables."""
    folder = tmp_path_factory.mktemp("forget")
    whole = write_csv(board(60, 40, 9, 20), folder / "whole.csv")
    lines = [*whole.read_text().splitlines(), "u40,only,4"]
    whole.write_text("\n".join(lines) + "\n")
    rest = folder / "rest.csv"
    kept = [x for x in lines if x.partition(",")[0] not in FORGOTTEN]
    rest.write_text("\n".join(kept) + "\n")
    users = pa.table({"user_id": [f"u{n}" for n in range(60)], "age": [n % 7 for n in range(60)]})
    csv.write_csv(users, folder / "users.csv")
    items = {"item_id": [f"i{n}" for n in range(40)], "kind": ["abcd"[n % 4] for n in range(40)]}
    csv.write_csv(pa.table(items), folder / "items.csv")
    return {x.stem: x for x in folder.iterdir()}


def content(model: Recommender, folder: Path) -> dict[str, bytes]:
    """Save a model and return what is in the files."""
    saved = model.save(folder, allow_training_rows=True)
    return {x.name: x.read_bytes() for x in saved.iterdir()}


@pytest.mark.parametrize(
    ("name", "options", "arguments"),
    [
        ("idcf-bayes", {"sweeps": 6, "burn_in": 2}, ["users", "items"]),
        ("idcf-nn", {"epochs": 2, "seed": 3, "key_users": "informative"}, []),
        ("als", {}, []),
        ("ease", {}, []),
        ("item-knn", {}, []),
        ("popularity", {}, []),
    ],
)
def test_the_model_is_that_of_a_table_without_the_users(
    name: str,
    options: dict[str, Any],
    arguments: list[str],
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    tables = {x: files[x] for x in arguments}
    fitted = Recommender(name, device="cpu", **options).fit(files["whole"], **tables)
    fitted.save(tmp_path / "old", allow_training_rows=True)
    fresh = Recommender(name, device="cpu", **options).fit(files["rest"], **tables)
    loaded = Recommender.load(tmp_path / "old").forget(files["whole"], FORGOTTEN, **tables)
    assert content(loaded, tmp_path / "new") == content(fresh, tmp_path / "fresh")
    assert content(loaded, tmp_path / "new") != content(fitted, tmp_path / "old")


def test_columns_implicit_feedback_and_new_defaults(files: dict[str, Path], tmp_path: Path) -> None:
    columns = {"user_id": "customer", "item_id": "product"}
    folder, models = tmp_path / "t", {}
    folder.mkdir()
    for name in ("whole", "rest"):
        table = csv.read_csv(files[name]).rename_columns(["customer", "product", "rating"])
        csv.write_csv(table, folder / f"{name}.csv")
        model = Recommender("idcf-takeup", device="cpu")
        models[name] = model.fit(folder / f"{name}.csv", columns=columns, implicit=True)
    models["whole"].forget(folder / "whole.csv", FORGOTTEN)
    expected = content(models["rest"], tmp_path / "fresh")
    assert content(models["whole"], tmp_path / "new") == expected


def test_shards_lose_the_users_too(files: dict[str, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"block_users": 16, "n_shards": 2}
    whole, _ = write_shards(files["whole"], tmp_path / "whole", **options)
    rest, _ = write_shards(files["rest"], tmp_path / "rest", **options)
    model = Recommender("bias", device="cpu").fit(tmp_path / "whole", engine="local")
    model.forget(tmp_path / "whole", FORGOTTEN)
    fresh = Recommender("bias", device="cpu").fit(tmp_path / "rest", engine="local")
    assert content(model, tmp_path / "new") == content(fresh, tmp_path / "fresh")
    assert whole.n_users == rest.n_users + 2
    names = {x.name for x in (tmp_path / "rest").iterdir()}
    assert {x.name for x in (tmp_path / "whole").iterdir()} == names
    for name in names - {"manifest.json"}:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "rest" / name).read_bytes()
    assert not list(tmp_path.glob(".whole*"))


def test_users_who_are_not_in_the_table_are_counted_not_named(files: dict[str, Path]) -> None:
    model = Recommender("bias", device="cpu").fit(files["whole"])
    with pytest.raises(DataError, match="1 of the 2 users to forget have no rows there") as error:
        model.forget(files["whole"], ["u1", "secret"])
    assert "secret" not in str(error.value)


def test_another_table_is_noticed(files: dict[str, Path]) -> None:
    model = Recommender("bias", device="cpu").fit(files["whole"])
    with pytest.warns(DataWarning, match="not the one that the model was fitted to"):
        model.forget(files["rest"], ["u2"])


def test_what_cannot_be_made_again(files: dict[str, Path]) -> None:
    factors = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
    with pytest.raises(ConfigError, match="not made by fit alone"):
        factors.forget(files["whole"], ["u1"])
    model = Recommender("bias", device="cpu").fit(files["whole"])
    with pytest.raises(ConfigError, match=r"with other tables .*: none; now items given"):
        model.forget(files["whole"], ["u1"], items=files["items"])
    with pytest.raises(ConfigError, match="no engine fitted the model"):
        model.forget(files["whole"], ["u1"], engine="local")
    with pytest.raises(ConfigError, match="no argument of forget named 'item'; did you mean"):
        model.forget(files["whole"], ["u1"], item=files["items"])
    with pytest.raises(ConfigError, match="no user to forget"):
        model.forget(files["whole"], [])
