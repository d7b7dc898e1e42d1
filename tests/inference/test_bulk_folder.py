"""Folders of histories: the same bytes for every engine and after kills, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import board
from bulk_cases import DyingProcesses, digests, save_model, write_histories
from pyarrow import parquet
from shard_files import write_shards

from idcf import ConfigError, DataError, files
from idcf.data.user_chunks import HistoryFile
from idcf.errors import ArtifactError
from idcf.inference import bulk_folder
from idcf.inference.bulk import BulkWork, load_converter
from idcf.inference.bulk_folder import convert_folder, hash_ids, require_distinct_users
from idcf.training.engine import LocalEngine

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("bulk") / "model")


@pytest.fixture(scope="module")
def work(model: Path) -> BulkWork:
    return BulkWork.of_model(model, "cpu")


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_histories(tmp_path_factory.mktemp("histories") / "h", 7)


@pytest.fixture(scope="module")
def expected(work: BulkWork, histories: Path, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "out"
    report = convert_folder(work, histories, out, LocalEngine())
    assert (report["n_users"], report["n_files"], report["n_files_of_earlier_runs"]) == (280, 7, 0)
    return digests(out)


def test_a_part_has_the_rows_of_the_file_alone(
    work: BulkWork, histories: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    assert len(expected) == 7
    for name, content in expected.items():
        load_converter(work).convert(HistoryFile(histories / name), tmp_path / name)
        part = parquet.read_table(pa.BufferReader(content))
        assert part.equals(parquet.read_table(tmp_path / name))
        ids = parquet.read_table(histories / name)["user_id"]
        assert part["user_id"].equals(pa.chunked_array([ids.unique()]))


def test_processes_that_die_give_the_same_bytes(
    work: BulkWork, histories: Path, tmp_path: Path, monkeypatch
) -> None:
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    lists = replace(work, list_options={"n": 3, "return_std": True})
    convert_folder(lists, histories, tmp_path / "local", LocalEngine())
    (tmp_path / "died").mkdir()
    engine = DyingProcesses(1, tmp_path / "died")
    report = convert_folder(lists, histories, tmp_path / "out", engine)
    engine.close()
    assert report["n_users"] == 280
    assert len(list((tmp_path / "died").iterdir())) == 2
    assert not list((tmp_path / "out").glob(".*.part"))  # those of dead processes are removed
    table = parquet.read_table(tmp_path / "out")  # a folder: hidden files and _job.json are skipped
    assert table.num_rows == 3 * 280
    report = convert_folder(lists, histories, tmp_path / "out", LocalEngine())
    assert report["n_files_of_earlier_runs"] == 7
    assert digests(tmp_path / "out") == digests(tmp_path / "local")


def test_a_driver_that_is_killed_goes_on(
    work: BulkWork, histories: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
        "from pathlib import Path\n"
        "from bulk_cases import DyingDriver\n"
        "from idcf.inference.bulk import BulkWork\n"
        "from idcf.inference.bulk_folder import convert_folder\n"
        f"work = BulkWork.of_model(Path({str(work.model)!r}), 'cpu')\n"
        f"folders = Path({str(histories)!r}), Path({str(tmp_path / 'out')!r})\n"
        "convert_folder(work, *folders, DyingDriver(int(sys.argv[1])))\n"
    )
    for n_parts, n_results in ((0, 0), (2, 2), (3, 1)):
        process = subprocess.run([sys.executable, "-c", code, str(n_results)], check=False)
        assert process.returncode == -signal.SIGKILL
        assert len(list((tmp_path / "out").glob("*.parquet"))) == n_parts
    assert json.loads((tmp_path / "out" / "_job.json").read_text())["complete"] is None
    report = convert_folder(work, histories, tmp_path / "out", LocalEngine())
    assert report["n_files_of_earlier_runs"] == 3
    assert report["n_users"] == 280
    assert digests(tmp_path / "out") == expected
    complete = json.loads((tmp_path / "out" / "_job.json").read_text())["complete"]
    assert complete["n_users"] == 280


def test_a_run_that_was_killed_while_it_described_itself_goes_on(
    work: BulkWork, histories: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    name = files._temporary_path(tmp_path / "_job.json").name
    left = tmp_path / name.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    left.touch()
    convert_folder(work, histories, tmp_path, LocalEngine())
    assert digests(tmp_path) == expected
    assert not left.exists()


def test_a_changed_job_is_refused(
    work: BulkWork, model: Path, histories: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, other = tmp_path / "out", BulkWork.of_model(save_model(tmp_path / "other", 1), "cpu")
    convert_folder(work, histories, out, LocalEngine())
    lists = replace(work, list_options={"n": 3})
    more = write_histories(tmp_path / "more", 1)
    for arguments, message in (
        ((other, histories), "holds results of another run: model '"),
        ((lists, histories), "another run: options None, not {'n': 3}"),
        ((work, more), "the file part-0-001.parquet, which is missing now"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert_folder(*arguments, out, LocalEngine())
    assert digests(out) == expected
    report = convert_folder(work, more, out, LocalEngine(), overwrite=True)
    assert (report["n_files"], report["n_files_of_earlier_runs"]) == (1, 0)
    assert list(digests(out)) == ["part-0-000.parquet"]


def test_sources_may_be_added_but_not_changed(work: BulkWork, tmp_path: Path) -> None:
    folder, out = write_histories(tmp_path / "h", 2), tmp_path / "out"
    convert_folder(work, folder, out, LocalEngine())
    write_histories(folder, 1, first=1000)
    report = convert_folder(work, folder, out, LocalEngine())
    assert (report["n_users"], report["n_files_of_earlier_runs"]) == (120, 2)
    write_histories(folder, 1, n_users=39, first=1000)
    with pytest.raises(ConfigError, match=r"part-1000-000\.parquet as it was before it changed"):
        convert_folder(work, folder, out, LocalEngine())
    assert convert_folder(work, folder, out, LocalEngine(), overwrite=True)["n_users"] == 119


def test_other_folders_and_files_are_left_alone(
    work: BulkWork, histories: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").touch()
    with pytest.raises(ConfigError, match=r"holds 'letter\.txt' and no _job\.json"):
        convert_folder(work, histories, tmp_path / "out", LocalEngine(), overwrite=True)
    with pytest.raises(ConfigError, match="is a file; histories in a folder need a folder"):
        convert_folder(work, histories, tmp_path / "out" / "letter.txt", LocalEngine())


def test_a_damaged_part_is_written_again(
    work: BulkWork, histories: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    convert_folder(work, histories, tmp_path, LocalEngine())
    name = next(iter(expected))
    (tmp_path / name).write_bytes(expected[name][:-9])
    report = convert_folder(work, histories, tmp_path, LocalEngine())
    assert report["n_files_of_earlier_runs"] == 6
    assert digests(tmp_path) == expected


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("max_hashes", [7, 1000])
def test_a_user_in_two_files_is_refused(
    as_text: bool, max_hashes: int, work: BulkWork, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(bulk_folder, "_MAX_HASHES", max_hashes)
    folder = write_histories(tmp_path / "h", 2, as_text=as_text)
    write_histories(folder, 1, first=70, n_users=5, as_text=as_text)
    user = "'u00007[0-4]'" if as_text else "7[0-4]"
    message = rf"user {user} has rows in part-0-001\.parquet and in part-70-000\.parquet"
    with pytest.raises(DataError, match=message):
        convert_folder(work, folder, tmp_path / "out", LocalEngine())
    assert json.loads((tmp_path / "out" / "_job.json").read_text())["complete"] is None


def test_a_table_that_is_cut_within_a_user_is_refused_at_once(
    work: BulkWork, tmp_path: Path
) -> None:
    folder = write_histories(tmp_path / "h", 2)
    rows = parquet.read_table(folder / "part-0-000.parquet")
    parquet.write_table(rows.slice(0, 18), folder / "part-0-000.parquet", row_group_size=7)
    parquet.write_table(rows.slice(18), folder / "part-0-0000.parquet", row_group_size=7)
    message = r"user 3 has rows in part-0-000\.parquet and in part-0-0000\.parquet"
    with pytest.raises(DataError, match=message):
        convert_folder(work, folder, tmp_path / "out", LocalEngine())
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_equal_hashes_of_different_users_are_no_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bulk_folder, "hash_ids", lambda x: np.zeros(len(x), np.uint64))
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, users in zip(paths, (["a", "a", "b"], ["c", "c"]), strict=True):
        parquet.write_table(pa.table({"user_id": users}), path)
    require_distinct_users(paths, 3)
    parquet.write_table(pa.table({"user_id": ["c", "b"]}), paths[1])
    with pytest.raises(DataError, match="user 'b'"):
        require_distinct_users(paths, 4)


def test_hashes() -> None:
    ids = [f"user-{n}" for n in range(20_000)] + ["", "ä", "\x00", "\x00\x00"]
    assert len(np.unique(hash_ids(pa.array(ids)))) == len(ids)
    np.testing.assert_array_equal(
        hash_ids(pa.array(ids).slice(7, 9)), hash_ids(pa.array(ids[7:16]))
    )
    content = [x.encode() for x in ids]
    np.testing.assert_array_equal(hash_ids(pa.array(content)), hash_ids(pa.array(ids)))
    numbers = pa.array([5, -3, 2**62])
    assert len(np.unique(hash_ids(numbers))) == 3


def test_shards_are_histories(work: BulkWork, tmp_path: Path) -> None:
    table = board(50, 80, 9, 24)
    shards = write_shards(table, tmp_path / "shards", 3)
    report = convert_folder(work, tmp_path / "shards", tmp_path / "out", LocalEngine())
    assert (report["n_users"], report["n_files"], report["n_unknown_items"]) == (50, 3, 0)
    source = tmp_path / "sorted.parquet"
    rows = parquet.read_table(tmp_path / "shards.parquet").sort_by("user_id")
    parquet.write_table(rows, source)
    load_converter(work).convert(HistoryFile(source), tmp_path / "one.parquet")
    one = parquet.read_table(tmp_path / "one.parquet").combine_chunks()
    assert parquet.read_table(tmp_path / "out").combine_chunks().equals(one)
    assert len(shards.shards) == 3


def test_files_without_rows(work: BulkWork, tmp_path: Path) -> None:
    folder = write_histories(tmp_path / "h", 1)
    columns = parquet.read_table(folder / "part-0-000.parquet").slice(0, 0)
    parquet.write_table(columns, folder / "part-1.parquet")
    report = convert_folder(work, folder, tmp_path / "out", LocalEngine())
    assert (report["n_users"], report["n_files"]) == (40, 2)
    assert parquet.read_table(tmp_path / "out").num_rows == 40
    (folder / "part-0-000.parquet").unlink()
    with pytest.raises(DataError, match="the files have no rows"):
        convert_folder(work, folder, tmp_path / "none", LocalEngine())


def test_ids_of_two_types_are_refused(work: BulkWork, tmp_path: Path) -> None:
    folder = write_histories(tmp_path / "h", 1)
    write_histories(folder, 1, as_text=True, first=500)
    with pytest.raises(DataError, match="column 'user_id' is string, but int64 in part-0-000"):
        convert_folder(work, folder, tmp_path / "out", LocalEngine())


def test_a_model_that_changed_is_refused(tmp_path: Path, histories: Path) -> None:
    model = save_model(tmp_path / "model")
    work = BulkWork.of_model(model, "cpu")
    save_model(model, seed=3)
    with pytest.raises(ArtifactError, match="has changed, or is another model on this machine"):
        convert_folder(work, histories, tmp_path / "out", LocalEngine())


def test_a_source_that_changes_while_it_is_read(
    work: BulkWork, tmp_path: Path, monkeypatch
) -> None:
    folder = write_histories(tmp_path / "h", 1)
    convert = load_converter(work).convert

    def convert_and_touch(file: HistoryFile, *arguments):
        counts = convert(file, *arguments)
        os.utime(file.path, (1, 1))
        return counts

    monkeypatch.setattr(load_converter(work), "convert", convert_and_touch)
    with pytest.raises(DataError, match="has changed while it was read"):
        convert_folder(work, folder, tmp_path / "out", LocalEngine())
    assert not list((tmp_path / "out").glob("*.parquet"))
