"""The catalog of datasets: where files are searched and downloaded, and what is rejected."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import table_from_columns
from typer.testing import CliRunner

from idcf.cli.data import app
from idcf.data.columns import DataWarning
from idcf.data.datasets import download
from idcf.data.datasets.catalog import (
    DATASET_SOURCES,
    DatasetCounts,
    fetch_dataset,
    filter_as_published,
    find_dataset_folder,
    load_dataset,
    rows_digest,
)
from idcf.data.datasets.formats import read_movielens
from idcf.errors import ConfigError, DataError

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t10\t4\t7\n2\t20\t3\t8\n"
ITEMS = "item_id:token\tmovie_title:token_seq\trelease_year:token\n10\tA\t1995\n20\tB\t1996\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an empty cache; no data folder, and no network."""

    def unreachable(url: str, path: Path, progress: bool) -> None:
        raise DataError(f"{url} is out of reach (ConnectTimeout)")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("IDCF_DATA", raising=False)
    monkeypatch.setattr(download, "_download_file", unreachable)
    return tmp_path


@pytest.fixture
def tiny(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of MovieLens-100K with four ratings, registered in the catalog."""
    folder = root / "data" / "ml-100k"
    folder.mkdir(parents=True)
    (folder / "u.data").write_text("2\t10\t3\t7\n1\t10\t4\t8\n1\t20\t5\t9\n2\t30\t1\t9\n")
    (folder / "u1.base").write_text("1\t10\t4\t8\n1\t20\t5\t9\n2\t30\t1\t9\n")
    (folder / "u1.test").write_text("2\t10\t3\t7\n")
    titles = "".join(f"{n}|Film {n} (1990)|||{'|0' * 19}\n" for n in (10, 20, 30))
    (folder / "u.item").write_text(titles)
    row = replace(
        DATASET_SOURCES["ml-100k"], expected_counts=(DatasetCounts(2, 3, 4, 3, 1),), file_sha256={}
    )
    monkeypatch.setitem(DATASET_SOURCES, "ml-100k", row)
    monkeypatch.setenv("IDCF_DATA", str(root / "data"))
    return folder


USERS = (
    "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\ttechnician\t85711\n2\t53\tF\tother\t94043\n"
)


def write_wheel(folder: Path) -> Path:
    """A wheel that holds the files of RecBole's MovieLens-100K."""
    path = folder / "recbole-1.2.1-py3-none-any.whl"
    prefix = "recbole/dataset_example/ml-100k/ml-100k."
    with zipfile.ZipFile(path, "w") as file:
        for kind, text in {"inter": INTER, "item": ITEMS, "user": USERS}.items():
            file.writestr(prefix + kind, text)
    return path


def test_entries_of_the_catalog_are_complete() -> None:
    names = ["ml-100k", "ml-1m", "ml-1m-cold", "douban", "amazon-beauty", "amazon-books"]
    assert list(DATASET_SOURCES) == names
    for name, source in DATASET_SOURCES.items():
        assert source.name == name
        assert source.url.startswith("https://")
        assert source.license
        thresholds = {"ml-1m-cold": 1}  # cold users have no training row
        assert source.key_threshold == thresholds.get(name, 20 if source.implicit else 30)
        assert set(source.file_sets()[0]) <= set(source.remote_names)
        assert all(
            len(x) == 64 for x in [*source.file_sha256.values(), source.archive_sha256 or "0" * 64]
        )


def test_the_official_split_shares_the_vocabulary(tiny: Path) -> None:
    data = load_dataset("ml-100k")
    assert data.train is not None
    assert data.test is not None
    assert data.train.users is data.test.users is data.interactions.users
    assert data.interactions.items.ids == (10, 20, 30)
    assert (len(data.train), len(data.test)) == (3, 1)
    assert data.titles[20] == "Film 20 (1990)"
    assert data.key_threshold == 30
    assert data.note == ""


def test_wrong_counts_are_rejected(tiny: Path) -> None:
    (tiny / "u1.test").write_text("2\t10\t3\t7\n2\t30\t1\t9\n")
    with pytest.raises(DataError, match=r"rows=4, train=3, test=2\), expected .* test=1\); the"):
        load_dataset("ml-100k")


def test_a_changed_file_is_rejected(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(DATASET_SOURCES["ml-100k"], file_sha256={"u.data": "0" * 64})
    monkeypatch.setitem(DATASET_SOURCES, "ml-100k", row)
    message = r"u.data: SHA-256 is \w+, not 0000"
    with pytest.raises(DataError, match=rf"{message}.* IDCF_ACCEPT_CHANGED_FILES=1"):
        load_dataset("ml-100k")
    monkeypatch.setenv("IDCF_ACCEPT_CHANGED_FILES", "1")
    with pytest.warns(DataWarning, match=message):
        assert len(load_dataset("ml-100k").interactions) == 4


@pytest.mark.parametrize("name", DATASET_SOURCES)
def test_every_file_has_a_checksum(name: str) -> None:
    source = DATASET_SOURCES[name]
    files = {*source.remote_names, *(file for files in source.file_sets() for file in files)}
    assert files <= source.file_sha256.keys() | source.rows_sha256.keys()


def test_rows_are_compared_where_the_bytes_are_not_known(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "data" / "ml-1m"
    folder.mkdir(parents=True)
    (folder / "ratings.dat").write_text("1::10::4::7\n2::10::3::8\n")
    monkeypatch.setenv("IDCF_DATA", str(root / "data"))
    digest = rows_digest(read_movielens(folder / "ratings.dat"))
    counts = (DatasetCounts(2, 1, 2),)
    row = replace(
        DATASET_SOURCES["ml-1m"], expected_counts=counts, rows_sha256={"ratings.dat": digest}
    )
    monkeypatch.setitem(DATASET_SOURCES, "ml-1m", row)
    (folder / "ratings.dat").write_text("2::10::3::9\n1::10::4::7\n")
    assert len(load_dataset("ml-1m").interactions) == 2
    (folder / "ratings.dat").write_text("1::10::5::7\n2::10::3::8\n")
    with pytest.raises(DataError, match=r"ratings.dat: users, items or ratings are not those"):
        load_dataset("ml-1m")


@pytest.mark.accuracy
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("ml-100k", "u.user"), ("ml-100k", "u.item"), ("ml-100k", "u.data"), ("ml-1m", "users.dat"),
        ("ml-1m", "movies.dat"), ("ml-1m", "ratings.csv.gz"), ("ml-1m-cold", "melu_split.json"),
        ("douban", "training_test_dataset.mat"), ("amazon-beauty", "Beauty.txt"),
        ("amazon-books", "test.txt"),
    ],
)  # fmt: skip
def test_one_changed_byte_of_a_real_file_is_told(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_dataset_folder(name)
    if folder is None:
        pytest.skip(f"no {name} in IDCF_DATA")
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != file:
            (copy / path.name).symlink_to(path)
    content = bytearray((folder / file).read_bytes())
    content[-20] ^= 1
    (copy / file).write_bytes(content)
    monkeypatch.setenv("IDCF_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"{re.escape(file)}: SHA-256 is"):
        load_dataset(name)


def test_the_cache_is_used_where_the_folder_lacks_files(
    root: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = root / "cache" / "idcf" / "ml-100k"
    cached.parent.mkdir(parents=True)
    assert find_dataset_folder("ml-100k") == tiny
    tiny.rename(cached)
    assert fetch_dataset("ml-100k") == cached
    monkeypatch.setenv("IDCF_DATA", "")
    assert fetch_dataset("ml-100k") == cached


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no dataset named 'ml100k'; did you mean 'ml-100k'"):
        load_dataset("ml100k")


def test_an_unreachable_url_names_files_and_folder(root: Path) -> None:
    match = r"ml-1m could not be fetched .*out of reach.*put ratings.dat or .*idcf/ml-1m.*IDCF_DATA"
    with pytest.raises(DataError, match=match):
        fetch_dataset("ml-1m")
    assert list((root / "cache" / "idcf").iterdir()) == [], "no temporary files remain"


def test_an_archive_is_checked_and_unpacked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = root / "ml-1m.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ml-1m/ratings.dat", "1::10::4::7\n2::10::3::8\n")
        file.writestr("ml-1m/movies.dat", "10::A (1990)::Drama\n")
        file.writestr("ml-1m/users.dat", "1::F::1::10::48067\n")

    def get(url: str, path: Path, progress: bool) -> None:
        path.write_bytes(archive.read_bytes())

    monkeypatch.setattr(download, "_download_file", get)
    with pytest.raises(DataError, match="SHA-256 is"):
        fetch_dataset("ml-1m")
    assert find_dataset_folder("ml-1m") is None
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    row = replace(
        DATASET_SOURCES["ml-1m"],
        archive_sha256=digest,
        file_sha256={},
        rows_sha256={},
        expected_counts=(DatasetCounts(2, 1, 2),),
    )
    monkeypatch.setitem(DATASET_SOURCES, "ml-1m", row)
    data = load_dataset("ml-1m", progress=False)
    assert data.titles == {10: "A (1990)"}
    assert data.interactions.time is not None
    names = sorted(x.name for x in fetch_dataset("ml-1m").iterdir())
    assert names == ["movies.dat", "ratings.dat", "users.dat"]


def test_files_without_an_archive_are_downloaded_one_by_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = []

    def get(url: str, path: Path, progress: bool) -> None:
        urls.append(url)
        path.write_text("0 1 2\n1 2\n" if path.name == "train.txt" else "0 3\n1 1\n")

    monkeypatch.setattr(download, "_download_file", get)
    counts = (DatasetCounts(2, 3, 5, 3, 2),)
    row = replace(DATASET_SOURCES["amazon-books"], expected_counts=counts, file_sha256={})
    monkeypatch.setitem(DATASET_SOURCES, "amazon-books", row)
    data = load_dataset("amazon-books", progress=False)
    assert [x.rpartition("/")[2] for x in urls] == ["train.txt", "test.txt"]
    assert data.interactions.implicit
    assert data.test is not None
    assert data.test.items.ids == (1, 2, 3)


def test_the_fallback_extracts_from_a_wheel(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_wheel = write_wheel(root)

    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert command[-1] == "recbole==1.2.1"
        target = Path(command[command.index("--dest") + 1]) / built_wheel.name
        target.write_bytes(built_wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", pip)
    with pytest.raises(DataError, match=r"ml-100k could not be fetched .*SHA-256 is"):
        fetch_dataset("ml-100k")
    monkeypatch.setattr(download, "verify_sha256", lambda path, sha256: None)
    row = replace(
        DATASET_SOURCES["ml-100k"],
        expected_counts=(DatasetCounts(2, 2, 2, 80_000, 20_000),),
        file_sha256={},
    )
    monkeypatch.setitem(DATASET_SOURCES, "ml-100k", row)
    data = load_dataset("ml-100k")
    assert data.train is None
    assert data.test is None
    assert "no u1 split" in data.note
    assert data.titles == {10: "A (1995)", 20: "B (1996)"}
    assert data.interactions.users.ids == (1, 2)
    assert data.interactions.user_features is not None
    assert len(data.interactions.user_features) == 2


def test_a_cache_that_cannot_be_written(root: Path) -> None:
    (root / "cache").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cannot be written"):
        fetch_dataset("douban")


def test_filter_as_published_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    lengths = [5, 2, 4, 3, 4]
    user = np.repeat([3, 1, 2, 7, 9], lengths)
    item = np.concatenate([rng.permutation(30)[:n] for n in lengths])
    table = table_from_columns(user, item)
    cut = filter_as_published(table, max_dropped_rows=2)
    expected = []
    for u in (3, 1, 2, 7, 9):
        items = [i for x, i in zip(user, item, strict=True) if x == u]
        items = items if u == 3 else items[1:]
        expected += [(u, i) for i in items] if len(items) > 2 else []
    pairs = [(cut.users.ids[u], cut.items.ids[i]) for u, i in zip(cut.user, cut.item, strict=True)]
    assert pairs == expected
    assert cut.users.ids == (2, 3, 9)
    assert cut.items is table.items


def test_cli_lists_fetches_and_describes(tiny: Path) -> None:
    run = CliRunner().invoke
    listed = json.loads(run(app, ["list", "--json"]).stdout)
    assert [row["name"] for row in listed] == list(DATASET_SOURCES)
    assert listed[0]["folder"] == str(tiny)
    assert "research use" in run(app, ["list"]).stdout
    assert run(app, ["fetch", "ml-100k"]).stdout.strip() == str(tiny)
    assert json.loads(run(app, ["fetch", "ml-100k", "--json"]).stdout)["folder"] == str(tiny)
    command = ["describe", "ml-100k", "--key-threshold", "2"]
    summary = json.loads(run(app, [*command, "--json"]).stdout)
    assert summary["rating_counts"] == {"1": 1, "3": 1, "4": 1, "5": 1}
    assert (summary["n_key_users"], summary["n_query_users"]) == (1, 1)
    assert (summary["n_users_with_one_row"], summary["n_items_with_one_row"]) == (0, 2)
    assert summary["split"] == {"n_train_rows": 3, "n_test_rows": 1}
    assert summary["density"] == pytest.approx(4 / 6)
    text = run(app, command).stdout
    assert "2 users x 3 items, 4 rows" in text
    assert "key users (at least 2 training rows): 1; query users: 1" in text


def test_cli_describes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("uid,item_id,rating\n" + "".join(f"a,{n},{n / 10}\n" for n in range(1, 41)))
    command = ["describe", str(path), "--column", "user_id=uid", "--json"]
    summary = json.loads(CliRunner().invoke(app, command).stdout)
    assert summary["n_rows"] == 40
    assert len(summary["rating_counts"]) == 10, "many different ratings are counted in bins"
    assert sum(summary["rating_counts"].values()) == 40
    assert summary["history_lengths"]["50%"] == 40
    implicit = json.loads(CliRunner().invoke(app, [*command, "--implicit"]).stdout)
    assert implicit["feedback"] == "implicit"
    assert implicit["rating_counts"] == {}


def test_cli_lets_errors_through(root: Path) -> None:
    result = CliRunner().invoke(app, ["describe", "ml-100"])
    assert isinstance(result.exception, DataError)
    assert "did you mean 'ml-100k'" in str(result.exception)
