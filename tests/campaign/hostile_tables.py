"""A generator of hostile input tables, with what is right: the rows, or where the mistake is.

A kind is a function of a folder and a random generator, which writes a file and returns a `Case`.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

Rng = np.random.Generator
Row = tuple[Any, Any, float]
HEADER = "user_id,item_id,rating"


@dataclass(frozen=True)
class Case:
    """A hostile input and what is right."""

    path: Path
    rows: list[Row] | None = None  # (user, item, rating); None: the input must be refused
    says: tuple[str, ...] = ()  # parts of the message, each with alternatives separated by |
    options: dict[str, Any] = field(default_factory=dict)  # of `read_interactions`
    unpacked_bytes: int | None = None  # limit on what a packed file may unpack to
    is_open: bool = False  # it may be refused as well as read


Kind = Callable[[Path, Rng], Case]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    """Add a function to the kinds."""
    KINDS[function.__name__.removeprefix("_")] = function
    return function


def draw_rows(rng: Rng) -> list[Row]:
    """Return 5 to 30 rows of different pairs of a user and an item."""
    n = int(rng.integers(5, 31))
    pairs = rng.permutation(8 * 9)[:n].tolist()
    ratings = rng.integers(2, 11, n) / 2
    return [(f"u{p // 9}", f"i{p % 9}", float(r)) for p, r in zip(pairs, ratings, strict=True)]


def lines_of(rows: list[Row], separator: str = ",") -> list[str]:
    """Return the lines of rows."""
    return [separator.join((u, i, f"{r:g}")) for u, i, r in rows]


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _text(rows: list[Row], end: str = "\n") -> str:
    return end.join([HEADER, *lines_of(rows)]) + end


# text that is to be read


def _accepted_text(name: str, change: Callable[[str], str | bytes], file: str = "a.csv") -> None:
    """Add a kind that writes the text of rows in another way."""

    def make(folder: Path, rng: Rng) -> Case:
        rows = draw_rows(rng)
        return Case(write(folder, change(_text(rows)), file), rows)

    KINDS[name] = make


_accepted_text("plain", lambda x: x)
_accepted_text("byte order mark", lambda x: "\ufeff" + x)
_accepted_text("CR LF", lambda x: x.replace("\n", "\r\n"))
_accepted_text("CR", lambda x: x.replace("\n", "\r"))
_accepted_text("no last line end", lambda x: x.rstrip("\n"))
_accepted_text("blank lines", lambda x: x.replace("\n", "\n\n"))
_accepted_text("blank lines at the end", lambda x: x + "\n\n\n")
_accepted_text("gzip", lambda x: gzip.compress(x.encode()), "a.csv.gz")
_accepted_text("gzip without suffix", lambda x: gzip.compress(x.encode()))
_accepted_text(
    "gzip in two parts",
    lambda x: gzip.compress(x[:30].encode()) + gzip.compress(x[30:].encode()),
    "a.csv.gz",
)
_accepted_text("capital suffix", lambda x: x, "A.CSV")
_accepted_text("tabs", lambda x: x.replace(",", "\t"), "a.tsv")
_accepted_text("quotes", lambda x: '"' + x[:-1].replace(",", '","').replace("\n", '"\n"') + '"\n')
_accepted_text(
    "RecBole",
    lambda x: x.replace(HEADER, "user_id:token,item_id:token,rating:float").replace(",", "\t"),
    "a.inter",
)
_accepted_text("odd name", lambda x: x, "a b'\"\n;é.csv")


def _accepted_ids(name: str, change: Callable[[str], Any]) -> None:
    """Add a kind whose user ids are others; a quoted field holds each."""

    def make(folder: Path, rng: Rng) -> Case:
        rows = [(change(u), i, r) for u, i, r in draw_rows(rng)]
        lines = ['"{}",{},{:g}'.format(str(u).replace('"', '""'), i, r) for u, i, r in rows]
        return Case(write(folder, "\n".join([HEADER, *lines]) + "\n"), rows)

    KINDS[f"ids: {name}"] = make


_accepted_ids("delimiter", lambda u: f"a,{u},b")
_accepted_ids("line end", lambda u: f"{u}\nb")
_accepted_ids("quote", lambda u: f'"{u}"')
_accepted_ids("other alphabets", lambda u: f"ﷺ\u202e👩‍👩‍👧 é e\u0301 {u}")
_accepted_ids("control characters", lambda u: f"\x1b[31m\x07\x7f{u}")
_accepted_ids("formula", lambda u: f"=cmd|' /C calc'!{u}")
_accepted_ids("path", lambda u: f"../../../etc/passwd\\{u}")
_accepted_ids("leading zeros", lambda u: "00" + u[1:])
_accepted_ids("negative numbers", lambda u: -1 - int(u[1:]))
_accepted_ids("19 digits", lambda u: "922337203685477580" + u[1:])
_accepted_ids("long", lambda u: u * 100_000)
_accepted_ids(
    "missing words",
    lambda u: ["NA", "null", "NaN", "None", "#N/A", "true", "", "-"][int(u[1:])] + "x",
)
_accepted_ids(
    "words for missing",
    lambda u: ["NA", "null", "NaN", "None", "nan", "N/A", "#N/A", "NULL"][int(u[1:])],
)


@kind
def _equal_pairs(folder: Path, rng: Rng) -> Case:
    """The last row of a pair counts."""
    rows = draw_rows(rng)
    again = [(u, i, float(rng.integers(1, 6))) for u, i, _ in rows[: len(rows) // 2]]
    right = again + rows[len(rows) // 2 :]
    return Case(write(folder, _text(rows + again)), right)


@kind
def _many_columns(folder: Path, rng: Rng) -> Case:
    rows = draw_rows(rng)
    names = ",".join(f"x{k}" for k in range(500))
    lines = [f"{line},{'1,' * 499}2" for line in lines_of(rows)]
    return Case(write(folder, "\n".join([f"{HEADER},{names}", *lines])), rows)


@kind
def _long_field(folder: Path, rng: Rng) -> Case:
    rows = draw_rows(rng)
    lines = [f"{line},{'x' * 300_000 if k == 2 else ''}" for k, line in enumerate(lines_of(rows))]
    return Case(write(folder, "\n".join([f"{HEADER},note", *lines])), rows)


@kind
def _other_order(folder: Path, rng: Rng) -> Case:
    rows = draw_rows(rng)
    lines = [f"{r:g},{i},{u}" for u, i, r in rows]
    return Case(write(folder, "\n".join(["rating,movieId,userId", *lines])), rows)


@kind
def _ratings_of_any_sign(folder: Path, rng: Rng) -> Case:
    rows = [
        (u, i, float(np.float32(rng.normal() * 10.0 ** rng.integers(-3, 8))))
        for u, i, _ in draw_rows(rng)
    ]
    lines = [f"{u},{i},{r!r}" for u, i, r in rows]
    return Case(write(folder, "\n".join([HEADER, *lines])), rows)


@kind
def _ratings_as_people_write(folder: Path, rng: Rng) -> Case:
    forms = [" 3", "3 ", "+3", "3.", "3.0e0", "3E0", "03", "0.3e1"]
    rows = [(u, i, 3.0) for u, i, _ in draw_rows(rng)]
    lines = [f"{u},{i},{forms[k % len(forms)]}" for k, (u, i, _) in enumerate(rows)]
    return Case(write(folder, "\n".join([HEADER, *lines])), rows)


@kind
def _no_ratings(folder: Path, rng: Rng) -> Case:
    rows = [(u, i, 1.0) for u, i, _ in draw_rows(rng)]
    lines = [f"{u},{i}" for u, i, _ in rows]
    return Case(write(folder, "\n".join(["user_id,item_id", *lines])), rows)


@kind
def _counts_of_0(folder: Path, rng: Rng) -> Case:
    rows = draw_rows(rng)
    lines = lines_of([(u, i, r if k % 3 else 0.0) for k, (u, i, r) in enumerate(rows)])
    right = [(u, i, 1.0) for k, (u, i, _) in enumerate(rows) if k % 3]
    return Case(write(folder, "\n".join([HEADER, *lines])), right, options={"implicit": True})


def _times(name: str, values: list[str]) -> None:
    """Add a kind with a column of times that can be read."""

    def make(folder: Path, rng: Rng) -> Case:
        rows = draw_rows(rng)
        lines = [f"{x},{values[k % len(values)]}" for k, x in enumerate(lines_of(rows))]
        return Case(write(folder, "\n".join([f"{HEADER},timestamp", *lines])), rows)

    KINDS[f"times: {name}"] = make


_times("numbers", ["0", "-1", "964982703", "4102444800"])
_times("fractions", ["0.5", "964982703.25", "1e9"])
_times("dates", ["2001-02-03", "1999-12-31", "1601-01-01", "2262-04-12", "9999-12-31"])
_times("dates with hours", ["2001-02-03T04:05:06", "2001-02-03 04:05:06"])
_times("dates with zones", ["2001-02-03T04:05:06+00:00", "2001-02-03T04:05:06-11:30"])


@kind
def _movielens(folder: Path, rng: Rng) -> Case:
    rows = [(int(u[1:]), int(i[1:]), r) for u, i, r in draw_rows(rng)]
    separator, name = [("\t", "u.data"), ("::", "ratings.dat")][int(rng.integers(2))]
    lines = [separator.join((str(u), str(i), f"{r:g}", "12")) for u, i, r in rows]
    return Case(write(folder, "\n".join(lines) + "\n", name), rows)


# text that is to be refused, with the line


def _refused_line(
    name: str,
    change: Callable[[str], str | bytes],
    *says: str,
    header: str = HEADER,
    options: dict[str, Any] | None = None,
) -> None:
    """Add a kind with a mistake in one line, which the message must name."""

    def make(folder: Path, rng: Rng) -> Case:
        lines: list[str | bytes] = list(lines_of(draw_rows(rng)))
        if header.endswith("timestamp"):
            lines = [f"{x!s},5" for x in lines]
        bad = int(rng.integers(len(lines)))
        lines[bad] = change(str(lines[bad]))
        content = b"\n".join(x if isinstance(x, bytes) else x.encode() for x in [header, *lines])
        path = write(folder, content + b"\n")
        return Case(path, None, (f"line {bad + 2}\\b", *says), options or {})

    KINDS[f"line: {name}"] = make


def _field(position: int, value: str) -> Callable[[str], str]:
    """Return a change of one field of a line."""

    def change(line: str) -> str:
        fields = line.split(",")
        fields[position] = value
        return ",".join(fields)

    return change


_refused_line("latin-1", lambda x: x.encode() + b"\xe9", "0xe9", "utf-8")
_refused_line("half a character", lambda x: "é".encode()[:1] + x.encode(), "utf-8")
_refused_line("surrogate", lambda x: b"\xed\xa0\x80" + x.encode(), "utf-8")
_refused_line("NUL", lambda x: x[:2] + "\0" + x[2:], "NUL")
_refused_line("too few fields", lambda x: x.rsplit(",", 1)[0], "fields")
_refused_line("too many fields", lambda x: x + ",1", "fields")
_refused_line("decimal comma", lambda x: x.partition(".")[0] + ",5", "fields")
_refused_line("other delimiter", lambda x: x.replace(",", ";"), "fields")
for _column, _position in (("user_id", 0), ("item_id", 1)):
    _refused_line(f"empty {_column}", _field(_position, ""), _column)
    _refused_line(f"blank {_column}", _field(_position, "  "), _column)
_BAD_NUMBERS = (
    "three",
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e30",
    "-3e38",
    "1e400",
    "1_0",
    "0x10",
    "５",
)
for _value in _BAD_NUMBERS:
    _refused_line(f"rating {_value!r}", _field(2, _value), "'rating'")
_BAD_TIMES = ("yesterday", "", "nan", "inf", "1e30", "-1e19", "2001-13-45", "12:30")
for _value in _BAD_TIMES:
    _header = f"{HEADER},timestamp"
    _refused_line(f"time {_value!r}", _field(3, _value), "'timestamp'", header=_header)
_refused_line("negative count", _field(2, "-1"), "negative", options={"implicit": True})


@kind
def _mistake_after_quoted_line_ends(folder: Path, rng: Rng) -> Case:
    """Lines are counted as an editor does."""
    rows = draw_rows(rng)
    text = HEADER + "\n" + '"a\nb",x,3\n' * 3 + "u,i,bad\n" + "\n".join(lines_of(rows)) + "\n"
    return Case(write(folder, text), None, ("line 8", "'rating'"))


@kind
def _mistake_after_blank_lines(folder: Path, rng: Rng) -> Case:
    text = f"{HEADER}\n\n\nu,i,3\n\nu,j,bad\n"
    return Case(write(folder, text), None, ("line 6", "'rating'"))


@kind
def _two_mistakes(folder: Path, rng: Rng) -> Case:
    return Case(write(folder, f"{HEADER}\nu,i,a\nu,j,3\nu,k,b\n"), None, ("line 2",))


@kind
def _movielens_mistake(folder: Path, rng: Rng) -> Case:
    text = "1\t2\t3\t4\n1\tx\t3\t4\n"
    return Case(write(folder, text, "u.data"), None, ("line 2", "item_id"))


@kind
def _movielens_width(folder: Path, rng: Rng) -> Case:
    return Case(write(folder, "1::2::3::4\n1::2\n", "a.dat"), None, ("line 2", "fields"))


@kind
def _open_quote(folder: Path, rng: Rng) -> Case:
    rows = lines_of(draw_rows(rng))
    return Case(write(folder, "\n".join([HEADER, rows[0], '"' + rows[1], *rows[2:]])), None)


# files that are to be refused as a whole


def _refused(
    name: str,
    content: str | bytes | Callable[[], bytes],
    *says: str,
    file: str = "a.csv",
    **rest: Any,
) -> None:
    """Add a kind of a file that is refused whatever its rows."""

    def make(folder: Path, rng: Rng) -> Case:
        made = content() if callable(content) else content
        return Case(write(folder, made, file), None, says, **rest)

    KINDS[name] = make


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.csv", f"{HEADER}\nu,i,3\n")
    return buffer.getvalue()


def parquet_bytes(table: pa.Table | None = None, **options: Any) -> bytes:
    buffer = io.BytesIO()
    table = (
        table
        if table is not None
        else pa.table({"user_id": ["u"], "item_id": ["i"], "rating": [3.0]})
    )
    parquet.write_table(table, buffer, **options)
    return buffer.getvalue()


_PLAIN = f"{HEADER}\nu,i,3\nu,j,4\n"
_refused("empty", "", "empty")
_refused("white space", " \n\t\n \n", "empty")
_refused("header only", f"{HEADER}\n", "no rows|header")
_refused("no header", "u,i,3\nu,j,4\n", "user_id")
_refused("one column", "user_id\nu\n", "line 1|item_id")
_refused("a column twice", "user_id,item_id,rating,rating\nu,i,3,4\n", "rating")
_refused("users twice", "user_id,user_id,item_id,rating\nu,v,i,3\n", "user_id")
_refused("two spellings", "userId,uid,item_id,rating\nu,v,i,3\n", "user_id")
_refused("empty column names", ",,\nu,i,3\n", "user_id|empty")
_refused("UTF-16", _PLAIN.encode("utf-16"), "line 1")
_refused("UTF-16 without mark", _PLAIN.encode("utf-16-le"), "line 1|user_id")
_refused("UTF-32", _PLAIN.encode("utf-32"), "line 1")
_refused("zeros", b"\0" * 5000)
_refused("zip", _zip)
_refused("zip named gz", _zip, file="a.csv.gz")
_refused("Parquet named csv", parquet_bytes)
_refused("csv named Parquet", _PLAIN, "Parquet", file="a.parquet")
_refused("picture", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)
_refused("pickle", b"\x80\x04\x95cos\nsystem\n", file="a.pkl")
_refused("worksheet", _zip, file="a.xlsx")
_refused("no suffix", _PLAIN, file="ratings")
_refused("JSON", '[{"user_id": 1, "item_id": 2}]', file="a.json")
_refused("JSON named csv", '[{"user_id": 1, "item_id": 2}]')
_refused("page", "<!doctype html><title>404</title>\n<p>a, b, c\n")
_refused("half a gzip", lambda: gzip.compress(_PLAIN.encode() * 99)[:-20], "gzip", file="a.csv.gz")
_refused("gzip of nothing", lambda: gzip.compress(b""), "empty", file="a.csv.gz")
_refused(
    "broken gzip",
    lambda: gzip.compress(_PLAIN.encode())[:14] + b"\xff" * 30,
    "gzip",
    file="a.csv.gz",
)
_refused(
    "gzip bomb",
    lambda: gzip.compress(HEADER.encode() + b"\nu,i,3" * 10**6),
    "IDCF_MAX_UNPACKED_BYTES",
    file="a.csv.gz",
    unpacked_bytes=100_000,
)
_refused("RecBole without types", "user_id\titem_id\nu\ti\n", "type", file="a.inter")


@kind
def _random_bytes(folder: Path, rng: Rng) -> Case:
    names = ["a.csv", "a.tsv", "a.parquet", "a.inter", "u.data", "a.dat", "a.csv.gz"]
    name = str(rng.choice(names))
    return Case(write(folder, rng.bytes(int(rng.integers(1, 3000))), name), None)


@kind
def _damaged_text(folder: Path, rng: Rng) -> Case:
    """Some bytes of a good file are others: read or refused, without a traceback."""
    content = bytearray(_text(draw_rows(rng)).encode())
    for _ in range(int(rng.integers(1, 6))):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    return Case(write(folder, bytes(content)), None, is_open=True)


@kind
def _not_a_file(folder: Path, rng: Rng) -> Case:
    path = folder / "a.csv"
    makers: list[Callable[[], object]] = [
        path.mkdir, lambda: path.symlink_to("a.csv"), lambda: path.symlink_to("absent"),
        lambda: path.symlink_to("/dev/zero"), lambda: None,
    ]  # fmt: skip
    makers[int(rng.integers(len(makers)))]()
    return Case(path, None)


@kind
def _pipe(folder: Path, rng: Rng) -> Case:
    import os

    path = folder / str(rng.choice(["a.csv", "a.parquet", "a.inter"]))
    os.mkfifo(path)
    return Case(path, None)


@kind
def _impossible_name(folder: Path, rng: Rng) -> Case:
    names = ["x" * 300 + ".csv", "a\0.csv", "a.csv/b.csv", "~nobody-of-this-name/x.csv"]
    name = str(rng.choice(names))
    return Case(Path(name) if name.startswith("~") else folder / name, None)
