"""The catalog of public datasets: source, license, files, parser and expected counts of each.

A dataset whose counts differ from the expected ones is rejected.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idcf.data.columns import warn_about_data
from idcf.data.datasets import cold_start, formats, side_features
from idcf.data.datasets.download import (
    cache_folder,
    download_files,
    extract_from_wheel,
    fill_folder,
    verify_sha256,
)
from idcf.data.interactions import Interactions, Vocab, align_vocabularies, recode_ids
from idcf.data.split import PredictionTask
from idcf.errors import ConfigError, DataError, unknown_name_message

_ACCEPT_CHANGED = "IDCF_ACCEPT_CHANGED_FILES"  # environment variable


@dataclass(frozen=True)
class Dataset:
    """A loaded dataset: all interactions, the official split if there is one, titles and more."""

    name: str  # a name of `DATASET_SOURCES`, or the path of a file
    interactions: Interactions  # all rows, those of the official split included
    train: Interactions | None  # the official split; it shares the vocabularies of `interactions`
    test: Interactions | None  # None exactly if `train` is None
    titles: Mapping[Hashable, str]  # by item id; empty if the dataset has none
    key_threshold: int  # the paper's δ: training rows that make a user a key user
    note: str = ""  # remark on the split
    attributes: Mapping[str, Mapping[Hashable, Any]] = field(default_factory=dict)  # by item id
    tasks: Mapping[str, PredictionTask] = field(default_factory=dict)  # `Split.tasks`


class ParsedDataset(NamedTuple):
    """Content of a dataset folder, as its parser returns it."""

    interactions: Interactions  # all rows
    train: Interactions | None = None  # the official split; None if there is none
    test: Interactions | None = None  # None exactly if `train` is None
    titles: Mapping[Hashable, str] = {}  # by item id
    note: str = ""  # remark on the split
    features: Mapping[str, Any] = {}  # the fields of `Interactions` that describe features
    attributes: Mapping[str, Mapping[Hashable, Any]] = {}  # such as genres, by item id
    tasks: Mapping[str, PredictionTask] = {}  # `Split.tasks`


class DatasetCounts(NamedTuple):
    """Expected size of a dataset."""

    users: int
    items: int
    rows: int  # all rows, those of both parts of the split
    train: int = 0  # rows of the official split, 0 if there is none
    test: int = 0


@dataclass(frozen=True)
class DatasetSource:
    """Catalog entry of a dataset: where its files come from and how they are read."""

    name: str
    url: str  # of an archive, or of the folder that holds the files
    parser: Callable[[Path], ParsedDataset]  # reads a folder of downloaded files
    expected_counts: tuple[DatasetCounts, ...]  # one for each accepted edition
    remote_names: Mapping[str, str]  # local file name -> name under the URL or in the archive
    license: str = "not stated; research use"
    implicit: bool = False  # whether the feedback is implicit
    key_threshold: int = 30  # the paper's δ
    layouts: tuple[tuple[str, ...], ...] = ()  # sets of files that each suffice; (): all of them
    archive_sha256: str | None = None  # None: it is not checked
    file_sha256: Mapping[str, str] = field(default_factory=dict)  # by local file name
    rows_sha256: Mapping[str, str] = field(default_factory=dict)  # `rows_digest` of other files
    fallback: Callable[[Path], None] | None = None  # writes the files if the URL is unreachable
    folder: str = ""  # of the files, if it is not `name`

    def file_sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of file names, each of which is sufficient."""
        return self.layouts or (tuple(self.remote_names),)


def load_dataset(name: str, *, progress: bool = True) -> Dataset:
    """Load a dataset of `DATASET_SOURCES`, downloading it if it is not on this machine. Raises
    ConfigError for an unknown name, and DataError if the files cannot be fetched, or their
    checksums or counts are not the expected ones."""
    source, folder = _get_source(name), fetch_dataset(name, progress=progress)
    _check_files(source, folder)
    parsed = source.parser(folder)
    _check_counts(source, parsed, folder)
    features: dict[str, Any] = {**parsed.features}
    table = replace(parsed.interactions, **features)
    train, test = (
        None if x is None else replace(x, **features) for x in (parsed.train, parsed.test)
    )
    return Dataset(
        name,
        table,
        train,
        test,
        parsed.titles,
        source.key_threshold,
        parsed.note,
        parsed.attributes,
        {
            group: PredictionTask(
                *(replace(x, **features) for x in (task.history_table, task.target_table))
            )
            for group, task in parsed.tasks.items()
        },
    )


def _check_files(source: DatasetSource, folder: Path) -> None:
    """Raise DataError for a file that is not the expected one; with `_ACCEPT_CHANGED`, warn."""
    try:
        for file, expected in source.file_sha256.items():
            if (folder / file).exists():
                verify_sha256(folder / file, expected)
        for file, expected in source.rows_sha256.items():
            if not (folder / file).exists():
                continue
            digest = rows_digest(formats.read_movielens(folder / file))
            if digest != expected:
                raise DataError(
                    f"{folder / file}: users, items or ratings are not those expected (SHA-256 "
                    f"{digest}); download or copy it again"
                )
    except DataError as error:
        if os.environ.get(_ACCEPT_CHANGED) != "1":
            raise DataError(f"{error}, or accept changed files with {_ACCEPT_CHANGED}=1") from None
        warn_about_data(f"{error}; used because {_ACCEPT_CHANGED} is 1")


def rows_digest(table: Interactions) -> str:
    """Return the SHA-256 of users, items and ratings, whatever the order of the rows and times."""
    users, items = (np.array(x.ids, np.int64) for x in (table.users, table.items))
    columns = users[table.user], items[table.item], table.rating.astype(np.float32)
    order = np.lexsort((columns[1], columns[0]))
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column[order]).tobytes())
    return digest.hexdigest()


def _check_counts(source: DatasetSource, parsed: ParsedDataset, folder: Path) -> None:
    """Raise DataError unless the counts are those of an accepted edition."""
    table = parsed.interactions
    n_train, n_test = (0 if x is None else len(x) for x in (parsed.train, parsed.test))
    counts = DatasetCounts(len(table.users), len(table.items), len(table), n_train, n_test)
    accepted = source.expected_counts
    if not n_train:  # RecBole's copy of ML-100K has no official split
        accepted = tuple(x._replace(train=0, test=0) for x in accepted)
    if counts not in accepted:
        expected = " or ".join(map(str, source.expected_counts))
        raise DataError(
            f"{source.name}: {folder} holds {counts}, expected {expected}; "
            "the files are damaged or of another edition: replace them"
        )


def fetch_dataset(name: str, *, progress: bool = True) -> Path:
    """Folder of the raw files of a dataset, which are downloaded into the cache if need be."""
    if local_folder := find_dataset_folder(name):
        return local_folder
    source = _get_source(name)
    target = cache_folder() / (source.folder or name)
    download = partial(
        download_files,
        source.url,
        source.remote_names,
        sha256=source.archive_sha256,
        progress=progress,
    )
    reasons = []
    for write_files in (download, source.fallback):
        try:
            if write_files is not None:
                return fill_folder(target, write_files)
        except DataError as error:
            reasons.append(str(error))
    files = " or ".join(" + ".join(x) for x in source.file_sets())
    raise DataError(
        f"{name} could not be fetched ({'; '.join(reasons)}): put {files} into {target}, "
        f"or set IDCF_DATA to a folder that has them in {target.name}/"
    )


def find_dataset_folder(name: str) -> Path | None:
    """Folder of the raw files in $IDCF_DATA or in the cache; None if neither has them."""
    source = _get_source(name)
    for root in (os.environ.get("IDCF_DATA"), cache_folder()):
        folder = Path(root or os.devnull).expanduser() / (source.folder or name)
        if any(all((folder / f).is_file() for f in files) for files in source.file_sets()):
            return folder
    return None


def _get_source(name: str) -> DatasetSource:
    """Return the entry of a dataset; raise ConfigError for an unknown name."""
    if name not in DATASET_SOURCES:
        raise ConfigError(unknown_name_message("dataset", name, DATASET_SOURCES))
    return DATASET_SOURCES[name]


def _parse_ml_100k(folder: Path) -> ParsedDataset:
    """Read ML-100K with its u1 split, or RecBole's copy where u.data is missing."""
    if not (folder / "u.data").exists():
        columns, origin = formats.read_recbole(folder / "ml-100k.inter")
        table = formats.interactions_from_text(columns, origin, integer_ids=True)
        note = "from RecBole's copy, which has no u1 split: draw a random one"
        parsed = ParsedDataset(table, note=note)
        return _add_movielens_files(parsed, folder / "ml-100k.user", folder / "ml-100k.item")
    table = formats.read_movielens(folder / "u.data")
    train, test = (
        recode_ids(formats.read_movielens(folder / f), table.users, table.items)
        for f in ("u1.base", "u1.test")
    )
    parsed = ParsedDataset(table, train, test)
    return _add_movielens_files(parsed, folder / "u.user", folder / "u.item")


def _parse_ml_1m(folder: Path) -> ParsedDataset:
    """Read ML-1M, from ratings.dat or else from ratings.csv.gz."""
    official = folder / "ratings.dat"
    table = formats.read_movielens(official if official.exists() else folder / "ratings.csv.gz")
    parsed = ParsedDataset(table, note="no official split: the paper draws 90/10 at random")
    return _add_movielens_files(parsed, folder / "users.dat", folder / "movies.dat")


def _parse_ml_1m_cold(folder: Path) -> ParsedDataset:
    """Read ML-1M with the cold-start split, and features with one group of columns per feature."""
    parsed = _parse_ml_1m(folder)
    split = cold_start.split_cold_users(parsed.interactions, folder / cold_start.SPLIT_FILE)
    return parsed._replace(
        interactions=split.train.concat(split.test),
        train=split.train,
        test=split.test,
        features=cold_start.read_features(split.train, folder),
        note="the rows of warm items: warm users are trained on, cold users are new",
        tasks=split.tasks,
    )


def _add_movielens_files(parsed: ParsedDataset, users: Path, items: Path) -> ParsedDataset:
    """Add features, and titles and attributes of items, from the files that exist."""
    table, features = parsed.interactions, {}
    if users.is_file():
        features["user_features"] = side_features.movielens_user_features(table.users, users)
    if not items.is_file():
        return parsed._replace(features=features)
    features["item_features"] = side_features.movielens_item_features(table.items, items)
    return parsed._replace(
        titles=formats.read_titles(items),
        features=features,
        attributes=side_features.movielens_attributes(items),
    )


def _parse_douban(folder: Path) -> ParsedDataset:
    """Read Douban with its official split, and features of its friend graph if the file has one."""
    file = folder / _DOUBAN_FILE
    train, test = formats.read_douban(file)
    friends = formats.read_douban_friends(file)
    features = {}
    if friends is not None:
        features["user_features"] = side_features.friend_graph_features(friends)
    return ParsedDataset(train.concat(test), train, test, features=features)


def _parse_beauty(folder: Path) -> ParsedDataset:
    """Read Amazon-Beauty, filtered as the paper does."""
    table = filter_as_published(formats.read_user_item_pairs(folder / "Beauty.txt"))
    note = "the paper's cut; its test part is 10 random rows of each user, the rest is training"
    return ParsedDataset(table, note=note)


def filter_as_published(table: Interactions, max_dropped_rows: int = 15) -> Interactions:
    """Select rows and users of Amazon Beauty as the published code does. The first row of every
    user but the first of the file is dropped, then the users who have `max_dropped_rows` rows or
    fewer. The item vocabulary stays whole, because the paper draws negatives from all items."""
    first_row = np.unique(table.user, return_index=True)[1]
    row_mask = np.ones(len(table), bool)
    row_mask[first_row[first_row > 0]] = False
    table = table.where(row_mask)
    user_mask = table.user_counts() > max_dropped_rows
    table = table.where(user_mask[table.user])
    users = Vocab([table.users.ids[n] for n in np.flatnonzero(user_mask)])
    return replace(table, users=users, user=np.cumsum(user_mask)[table.user] - 1)


def _parse_books(folder: Path) -> ParsedDataset:
    """Read Amazon-Books with its official split, as implicit feedback."""
    train, test = align_vocabularies(
        *(formats.read_adjacency(folder / f"{x}.txt") for x in ("train", "test"))
    )
    return ParsedDataset(train.concat(test), train, test)


_GROUPLENS_URL = "https://files.grouplens.org/datasets/movielens/"
_GROUPLENS_LICENSE = "GroupLens: research use, no redistribution"
_GITHUB_RAW_URL = "https://raw.githubusercontent.com/"
_ML_100K_FILES = ("u.data", "u1.base", "u1.test", "u.item", "u.user")
_ML_1M_SIDE_FILES = ("users.dat", "movies.dat", cold_start.SPLIT_FILE)  # that file: not in the zip
_RECBOLE_PATH = "recbole/dataset_example/ml-100k/"
_DOUBAN_FILE = "training_test_dataset.mat"
_NGCF_PATH = "xiangwang1223/neural_graph_collaborative_filtering/master/Data/amazon-book/"
_ML_1M_SHA256 = {
    "ratings.csv.gz": "ae1397d04728d79a113c39338ea021bf7d4ef94233a1a0d1629fb9afc8a98d4d",
    "movies.dat": "0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9",
    "users.dat": "1dc3a95300cb19f7c10e027daf29b8cdf1d908dab65b5edfb45950aa389a10a3",
    cold_start.SPLIT_FILE: "7a420da4067774a05104de36095f812dc36e8d498f4ae49bdbd03a52f5d6ab99",
}
_ML_1M_ROWS_SHA256 = "97d0ec2baaaa45c034bdc428a3ed43ce075600bd97b57a319002d67f1fb639b6"

_SOURCES = (
    DatasetSource(
        "ml-100k",
        _GROUPLENS_URL + "ml-100k.zip",
        _parse_ml_100k,
        (DatasetCounts(943, 1_682, 100_000, 80_000, 20_000),),
        {f: f"ml-100k/{f}" for f in _ML_100K_FILES},
        _GROUPLENS_LICENSE,
        layouts=(_ML_100K_FILES[:3], ("ml-100k.inter",)),
        archive_sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        file_sha256={
            "u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
            "u1.base": "ce253ec86c448b44fb3ba9a30d12dcfc2e9210cbde71efada3730c22e9ac212a",
            "u1.test": "18c6014a4b2c7324f250a63f8904a7b16b2b19f911129e346141507b0cbac950",
            "u.item": "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701",
            "u.user": "f120e114da2e8cf314fd28f99417c94ae9ddf1cb6db8ce0e4b5995d40e90e62c",
            "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
            "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
            "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
        },
        fallback=partial(
            extract_from_wheel,
            "recbole==1.2.1",
            "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
            {f"ml-100k.{x}": f"{_RECBOLE_PATH}ml-100k.{x}" for x in ("inter", "item", "user")},
        ),
    ),
    DatasetSource(
        "ml-1m",
        _GROUPLENS_URL + "ml-1m.zip",
        _parse_ml_1m,
        (DatasetCounts(6_040, 3_706, 1_000_209),),
        {f: f"ml-1m/{f}" for f in ("ratings.dat", "movies.dat", "users.dat")},
        _GROUPLENS_LICENSE,
        layouts=(("ratings.dat",), ("ratings.csv.gz",)),
        archive_sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        file_sha256=_ML_1M_SHA256,
        rows_sha256={"ratings.dat": _ML_1M_ROWS_SHA256},
    ),
    DatasetSource(
        "ml-1m-cold",
        _GROUPLENS_URL + "ml-1m.zip",
        _parse_ml_1m_cold,
        (DatasetCounts(6_040, 3_704, 804_150, 640_448, 163_702),),
        {f: f"ml-1m/{f}" for f in ("ratings.dat", *_ML_1M_SIDE_FILES)},
        _GROUPLENS_LICENSE,
        key_threshold=1,
        layouts=tuple((x, *_ML_1M_SIDE_FILES) for x in ("ratings.dat", "ratings.csv.gz")),
        archive_sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        file_sha256=_ML_1M_SHA256,
        rows_sha256={"ratings.dat": _ML_1M_ROWS_SHA256},
        folder="ml-1m",
    ),
    DatasetSource(
        "douban",
        _GITHUB_RAW_URL + "fmonti/mgcnn/master/Data/douban/",
        _parse_douban,
        (DatasetCounts(3_000, 3_000, 136_891, 123_202, 13_689),),
        {_DOUBAN_FILE: _DOUBAN_FILE},
        file_sha256={
            _DOUBAN_FILE: "1f4476321cbfe0f606e7e35d0695ca15447a1b0b2c811df130109b6cb9a067ae"
        },
    ),
    DatasetSource(
        "amazon-beauty",
        _GITHUB_RAW_URL + "FeiSun/BERT4Rec/master/data/",
        _parse_beauty,
        (DatasetCounts(2_944, 54_542, 82_904),),
        {"Beauty.txt": "beauty.txt"},
        file_sha256={
            "Beauty.txt": "f480b7a7403852342ffd8f9809bb30697dd669be31813d0e204b698fec86ef49"
        },
        implicit=True,
        key_threshold=20,
    ),
    DatasetSource(
        "amazon-books",
        _GITHUB_RAW_URL + _NGCF_PATH,
        _parse_books,
        (  # a quarter of the users, and all of them
            DatasetCounts(13_159, 90_239, 746_912, 595_901, 151_011),
            DatasetCounts(52_643, 91_599, 2_984_108, 2_380_730, 603_378),
        ),
        {"train.txt": "train.txt", "test.txt": "test.txt"},
        file_sha256={
            "train.txt": "aa66cb7b0406ec6c0eb56da5a4b167da7f21cb85f93f372e321f56a43b1568f5",
            "test.txt": "15382118350ce4932fae3ad00b08f1c04e0cd21a9dc35e4165bb0b381665601a",
        },
        implicit=True,
        key_threshold=20,
    ),
)
DATASET_SOURCES = {source.name: source for source in _SOURCES}
