"""Hostile tables of items, of users and of histories, beside a good table of interactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hostile_tables import Rng, parquet_bytes, write

N = 9
ITEMS = [f"i{k}" for k in range(N)]
USERS = [f"u{k}" for k in range(8)]


@dataclass(frozen=True)
class SideCase:
    """A hostile side table and what is right."""

    path: Path
    role: str  # "items" or "users"
    titles: dict[str, str] | None = None  # by item; None: the table must be refused
    says: tuple[str, ...] = ()
    is_open: bool = False


SIDES: dict[str, Callable[[Path, Rng], SideCase]] = {}


def _add(
    name: str,
    content: Callable[[Rng], str | bytes],
    titles: dict[str, str] | None = None,
    *says: str,
    role: str = "items",
    file: str = "side.csv",
    is_open: bool = False,
) -> None:
    """Add a kind of side table."""

    def make(folder: Path, rng: Rng) -> SideCase:
        return SideCase(write(folder, content(rng), file), role, titles, says, is_open)

    SIDES[name] = make


def _lines(header: str, cells: Callable[[int], str], ids: list[str] = ITEMS) -> str:
    return "\n".join([header, *(f"{x},{cells(k)}" for k, x in enumerate(ids))]) + "\n"


def _column(
    values: list[Any], name: str = "title", ids: list[str] = ITEMS, key: str = "item_id"
) -> bytes:
    return parquet_bytes(pa.table({key: ids, name: values}))


_TITLES = {x: f"Film {k}" for k, x in enumerate(ITEMS)}
_GOOD = _lines("item_id,title", lambda k: f"Film {k}")
_HOSTILE = ["<script>", "\u202egnp", "a\tb", "‘", "'; DROP", "{{7*7}}", "\x1b[31m", "é" * 999, "💥"]

_add("titles", lambda _: _GOOD, _TITLES)
_add("titles with a mark", lambda _: "\ufeff" + _GOOD, _TITLES)
_add("titles with CR", lambda _: _GOOD.replace("\n", "\r"), _TITLES)
_add("titles in tabs", lambda _: _GOOD.replace(",", "\t"), _TITLES, file="side.tsv")
_add("titles in Parquet", lambda _: _column(list(_TITLES.values())), _TITLES, file="side.parquet")
_add(
    "hostile titles",
    lambda _: _lines("item_id,title", lambda k: f'"{_HOSTILE[k]}"'),
    dict(zip(ITEMS, _HOSTILE, strict=True)),
)
_add(
    "long titles",
    lambda _: _lines("item_id,title", lambda k: "x" * 300_000),
    dict.fromkeys(ITEMS, "x" * 300_000),
)
_add("titles of unknown items", lambda _: _GOOD + "unknown,Film\n", {**_TITLES, "unknown": "Film"})
_add(
    "titles and a genre",
    lambda _: _lines("item_id,title,genre", lambda k: f"Film {k},{'ab'[k % 2]}"),
    _TITLES,
)
_add(
    "titles and 300 columns",
    lambda _: _lines(
        "item_id,title," + ",".join(f"x{k}" for k in range(300)),
        lambda k: f"Film {k}," + ",".join(str((k * j) % 7) for j in range(300)),
    ),
    _TITLES,
)
_add(
    "titles in latin-1", lambda _: _GOOD.encode() + b"x,Caf\xe9\n", None, f"line {N + 2}\\b", "0xe9"
)
_add("titles with NUL", lambda _: _GOOD + "x,a\0b\n", None, f"line {N + 2}\\b", "NUL")
_add("a line too long", lambda _: _GOOD + "x,a,b\n", None, f"line {N + 2}\\b", "fields")
_add("a line too short", lambda _: _GOOD + "x\n", None, f"line {N + 2}\\b", "fields")
_add("an item twice", lambda _: _GOOD + "i3,other\n", None, "'i3'", "two rows")
_add("no ids", lambda _: "title,genre\na,b\n", None, "item_id")
_add(
    "two columns of ids", lambda _: "item_id,item_id,title\ni1,i1,a\n", None, "item_id|column names"
)
_add(
    "two columns of a name",
    lambda _: _lines("item_id,x,x", lambda k: f"{k},{k}"),
    None,
    "x|column names",
)
_add("no items", lambda _: "item_id,title\n", None, "no rows|header|empty")
_add("nothing", lambda _: "", None, "empty")
_add("titles in UTF-16", lambda _: _GOOD.encode("utf-16"), None, "line 1")
_add("no Parquet", lambda _: _GOOD, None, "Parquet", file="side.parquet")
_add("titles that are bytes", lambda _: _column([b"\xff"] * N), None, "title", file="side.parquet")
_add("titles that are lists", lambda _: _column([["a"]] * N), None, "title", file="side.parquet")
_add(
    "titles that are structs", lambda _: _column([{"a": 1}] * N), None, "title", file="side.parquet"
)
_add(
    "titles that are numbers",
    lambda _: _column(list(range(N))),
    {x: str(k) for k, x in enumerate(ITEMS)},
    file="side.parquet",
)
_add(
    "missing titles",
    lambda _: _column([None, "b", *[""] * (N - 2)]),
    None,
    file="side.parquet",
    is_open=True,
)
_add(
    "missing ids of items",
    lambda _: _column(["a"] * N, ids=[None, *ITEMS[1:]]),
    None,
    "missing|without|None",
    file="side.parquet",
)  # type: ignore[list-item]
_add(
    "ids of another type",
    lambda _: parquet_bytes(pa.table({"item_id": range(N), "x": range(N)})),
    None,
    "none of the",
    file="side.parquet",
)
_add(
    "ids that are lists",
    lambda _: parquet_bytes(pa.table({"item_id": [["a"]] * N, "x": range(N)})),
    None,
    "item_id|ids",
    file="side.parquet",
)
_add(
    "ids that are structs",
    lambda _: parquet_bytes(pa.table({"item_id": [{"a": k} for k in range(N)], "x": range(N)})),
    None,
    "item_id|ids",
    file="side.parquet",
)
_add(
    "structs of features",
    lambda _: _column([{"a": k} for k in range(N)], "x"),
    None,
    "'x'|x",
    file="side.parquet",
    is_open=True,
)
_add(
    "bytes of features",
    lambda _: _column([b"\xff%d" % (k % 3) for k in range(N)], "x"),
    None,
    file="side.parquet",
    is_open=True,
)
_add(
    "lists of lists",
    lambda _: _column([[[k]] for k in range(N)], "x"),
    None,
    file="side.parquet",
    is_open=True,
)
_add(
    "features that are constant",
    lambda _: _lines("item_id,x", lambda k: "5"),
    None,
    "tells|distinguishes|from another",
)

_USER = {"role": "users"}
for _name, _values in {
    "numbers": [20.0 + k for k in range(8)],
    "a gap": [None, *[float(k) for k in range(7)]],
    "huge numbers": [1e300 * (-1) ** k for k in range(8)],
    "tiny numbers": [1e-300 * k for k in range(8)],
    "infinity": [float("inf"), *[float(k) for k in range(7)]],
    "no number": [float("nan"), *[float(k) for k in range(7)]],
    "integers of 64 bits": [2**62 + k for k in range(8)],
    "truth": [k % 2 == 0 for k in range(8)],
}.items():
    _add(
        f"ages: {_name}", lambda _, v=_values: _column(v, "age", USERS, "user_id"), None,
        role="users", file="side.parquet", is_open=True,
    )  # fmt: skip


def random_side(folder: Path, rng: np.random.Generator) -> SideCase:
    """Write a good table of titles with some bytes changed."""
    content = bytearray(_GOOD.encode())
    for _ in range(int(rng.integers(1, 6))):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    return SideCase(write(folder, bytes(content), "side.csv"), "items", None, is_open=True)


SIDES["damaged titles"] = random_side
