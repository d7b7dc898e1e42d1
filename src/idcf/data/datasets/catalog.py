"""The public datasets: where they come from, under which licence, and what must come out.

A dataset whose counts are not the expected ones is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idcf.data import features
from idcf.data.datasets import formats
from idcf.data.datasets.download import cache_folder, download, fill, from_wheel, verify
from idcf.data.interactions import Interactions, Vocab
from idcf.data.readers import align, recode
from idcf.errors import ConfigError, DataError, unknown


@dataclass(frozen=True)
class Dataset:
    """All rows, the official split where there is one (of one vocabulary), and the paper's δ."""

    name: str
    interactions: Interactions
    train: Interactions | None
    test: Interactions | None
    titles: Mapping[Hashable, str]  # item id -> title; empty where there are none
    threshold: int
    note: str = ""


class Parts(NamedTuple):
    """What a parser finds in a folder."""

    interactions: Interactions
    train: Interactions | None = None
    test: Interactions | None = None
    titles: Mapping[Hashable, str] = {}
    note: str = ""
    features: Mapping[str, Any] = {}  # `user_features`, `item_features` of the table


class Counts(NamedTuple):
    users: int
    items: int
    rows: int
    train: int = 0  # rows of the official split
    test: int = 0


@dataclass(frozen=True)
class Source:
    """One row of the table of datasets."""

    name: str
    address: str  # an archive, or the folder that holds the files
    licence: str
    parser: Callable[[Path], Parts]
    counts: tuple[Counts, ...]  # of each edition that is known
    implicit: bool
    threshold: int
    remote: Mapping[str, str]  # our name of a file -> its name at the address or in the archive
    layouts: tuple[tuple[str, ...], ...]  # any of these sets of files will do
    sha256: str | None = None  # of the archive
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of files that never change
    fallback: Callable[[Path], None] | None = None  # where the address is out of reach


def load(name: str, *, progress: bool = True) -> Dataset:
    """The dataset of this name, fetched if need be, its files and counts checked."""
    source, folder = _row(name), fetch(name, progress=progress)
    for file, expected in source.files.items():
        if (folder / file).exists():
            verify(folder / file, expected)
    parts = source.parser(folder)
    sizes = [0 if x is None else len(x) for x in (parts.train, parts.test)]
    table = parts.interactions
    found = Counts(len(table.users), len(table.items), len(table), *sizes)
    if found not in [c if sizes[0] else c._replace(train=0, test=0) for c in source.counts]:
        raise DataError(
            f"{name}: {folder} holds {found}, expected {' or '.join(map(str, source.counts))}; "
            f"the files are damaged or of another edition: replace them"
        )
    table = replace(table, **parts.features)
    train, test = (
        None if x is None else replace(x, **parts.features) for x in (parts.train, parts.test)
    )
    return Dataset(name, table, train, test, parts.titles, source.threshold, parts.note)


def fetch(name: str, *, progress: bool = True) -> Path:
    """The folder that holds the raw files: of $IDCF_DATA, of the cache, or downloaded there."""
    if here := find(name):
        return here
    source, place = _row(name), cache_folder() / name
    get = partial(download, source.address, source.remote, sha256=source.sha256, progress=progress)
    tried = []
    for write in (lambda folder: get(folder), source.fallback):
        try:
            if write is not None:
                return fill(place, write)
        except DataError as error:
            tried.append(str(error))
    files = " or ".join(" + ".join(x) for x in source.layouts)
    raise DataError(
        f"{name} could not be fetched ({'; '.join(tried)}): put {files} into {place}, "
        f"or set IDCF_DATA to a folder that has them in {name}/"
    )


def find(name: str) -> Path | None:
    """The folder that holds the raw files on this machine, if there is one."""
    layouts = _row(name).layouts
    for root in (os.environ.get("IDCF_DATA"), cache_folder()):
        folder = Path(root or os.devnull).expanduser() / name
        if any(all((folder / f).is_file() for f in files) for files in layouts):
            return folder
    return None


def _row(name: str) -> Source:
    if name not in SOURCES:
        raise ConfigError(unknown("dataset", name, SOURCES))
    return SOURCES[name]


def _ml_100k(folder: Path) -> Parts:
    if not (folder / "u.data").exists():
        table = formats.from_text(*formats.atomic(folder / "ml-100k.inter"), integer=True)
        note = "from RecBole's copy, which has no u1 split: draw a random one"
        known = features.movielens(table, folder / "ml-100k.user", folder / "ml-100k.item")
        return Parts(table, None, None, _titles(folder / "ml-100k.item"), note, known)
    table = formats.movielens(folder / "u.data")
    train, test = (
        recode(formats.movielens(folder / f), table.users, table.items)
        for f in ("u1.base", "u1.test")
    )
    known = features.movielens(table, folder / "u.user", folder / "u.item")
    return Parts(table, train, test, _titles(folder / "u.item"), "", known)


def _ml_1m(folder: Path) -> Parts:
    official = folder / "ratings.dat"
    table = formats.movielens(official if official.exists() else folder / "ratings.csv.gz")
    note = "no official split: the paper draws 90/10 at random"
    known = features.movielens(table, folder / "users.dat", folder / "movies.dat")
    return Parts(table, None, None, _titles(folder / "movies.dat"), note, known)


def _titles(path: Path) -> Mapping[Hashable, str]:
    return formats.titles(path) if path.exists() else {}


def _douban(folder: Path) -> Parts:
    file = folder / "training_test_dataset.mat"
    train, test = formats.douban(file)
    friends = formats.douban_friends(file)
    known = {} if friends is None else {"user_features": features.neighbours(friends)}
    return Parts(train.plus(test), train, test, features=known)


def _beauty(folder: Path) -> Parts:
    note = "the paper's cut; its test part is 10 random rows of each user, the rest is training"
    return Parts(paper_cut(formats.pairs(folder / "Beauty.txt")), note=note)


def paper_cut(table: Interactions, longest_dropped: int = 15) -> Interactions:
    """The published preparation: every user but the first of the file loses the first row, then
    short users go. All items stay, as the paper draws its negatives from all of them."""
    first = np.unique(table.user, return_index=True)[1]
    keep = np.ones(len(table), bool)
    keep[first[first > 0]] = False
    left = table.where(keep)
    stay = left.counts() > longest_dropped
    left = left.where(stay[left.user])
    users = Vocab([table.users.ids[n] for n in np.flatnonzero(stay)])
    return replace(left, users=users, user=np.cumsum(stay)[left.user] - 1)


def _books(folder: Path) -> Parts:
    train, test = align(*(formats.adjacency(folder / f"{x}.txt") for x in ("train", "test")))
    return Parts(train.plus(test), train, test)


_GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
_RESEARCH = "GroupLens: research use, no redistribution"
_RAW = "https://raw.githubusercontent.com/"
_UNSTATED = "not stated; research use"
_ML_100K = ("u.data", "u1.base", "u1.test", "u.item", "u.user")
_RECBOLE = "recbole/dataset_example/ml-100k/"
_NGCF = "xiangwang1223/neural_graph_collaborative_filtering/master/Data/amazon-book/"

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="ml-100k",
            address=_GROUPLENS + "ml-100k.zip",
            licence=_RESEARCH,
            parser=_ml_100k,
            counts=(Counts(943, 1_682, 100_000, 80_000, 20_000),),
            implicit=False,
            threshold=30,
            remote={f: f"ml-100k/{f}" for f in _ML_100K},
            layouts=(_ML_100K[:3], ("ml-100k.inter",)),
            sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            files={
                "u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
                "u1.base": "ce253ec86c448b44fb3ba9a30d12dcfc2e9210cbde71efada3730c22e9ac212a",
                "u1.test": "18c6014a4b2c7324f250a63f8904a7b16b2b19f911129e346141507b0cbac950",
                "u.item": "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701",
            },
            fallback=partial(
                from_wheel,
                "recbole==1.2.1",
                "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
                {f"ml-100k.{x}": f"{_RECBOLE}ml-100k.{x}" for x in ("inter", "item", "user")},
            ),
        ),
        Source(
            name="ml-1m",
            address=_GROUPLENS + "ml-1m.zip",
            licence=_RESEARCH,
            parser=_ml_1m,
            counts=(Counts(6_040, 3_706, 1_000_209),),
            implicit=False,
            threshold=30,
            remote={f: f"ml-1m/{f}" for f in ("ratings.dat", "movies.dat", "users.dat")},
            layouts=(("ratings.dat",), ("ratings.csv.gz",)),
            sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        ),
        Source(
            name="douban",
            address=_RAW + "fmonti/mgcnn/master/Data/douban/",
            licence=_UNSTATED,
            parser=_douban,
            counts=(Counts(3_000, 3_000, 136_891, 123_202, 13_689),),
            implicit=False,
            threshold=30,
            remote={"training_test_dataset.mat": "training_test_dataset.mat"},
            layouts=(("training_test_dataset.mat",),),
            files={
                "training_test_dataset.mat": (
                    "1f4476321cbfe0f606e7e35d0695ca15447a1b0b2c811df130109b6cb9a067ae"
                )
            },
        ),
        Source(
            name="amazon-beauty",
            address=_RAW + "FeiSun/BERT4Rec/master/data/",
            licence=_UNSTATED,
            parser=_beauty,
            counts=(Counts(2_944, 54_542, 82_904),),
            implicit=True,
            threshold=20,
            remote={"Beauty.txt": "beauty.txt"},
            layouts=(("Beauty.txt",),),
        ),
        Source(
            name="amazon-books",
            address=_RAW + _NGCF,
            licence=_UNSTATED,
            parser=_books,
            counts=(  # a quarter of the users, and all of them
                Counts(13_159, 90_239, 746_912, 595_901, 151_011),
                Counts(52_643, 91_599, 2_984_108, 2_380_730, 603_378),
            ),
            implicit=True,
            threshold=20,
            remote={"train.txt": "train.txt", "test.txt": "test.txt"},
            layouts=(("train.txt", "test.txt"),),
        ),
    )
}
