"""Ways to change the folder of a saved model: bytes, names, config.json, tensors, items.

A change is a function of a folder and a random generator, which changes the folder and says what it
did.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from safetensors.torch import load, save
from torch import Tensor

from idcf.inference import artifact
from idcf.models.registry import all_models

Rng = np.random.Generator
Change = Callable[[Path, Rng], str]
CONFIG, WEIGHTS, ITEMS, CARD = "config.json", "weights.safetensors", "items.parquet", "card.md"
NAMES = (CONFIG, WEIGHTS, ITEMS, CARD)
_DELETE = object()
_ADD = object()
_VALUES: tuple[Any, ...] = (
    *(_DELETE, _ADD, None, True, False, 0, -1, 1, 2, 3, 7, 10**5, 10**6, 10**12),
    *(2**31, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e-320, 1e30, 3e38, 1e308),
    *("nan", "inf", "-inf", "", "x", "1", "../../etc/passwd", "\0", "\ud800", "é" * 100_000),
    *([], [[]], {}, {"a": 1}, [None], [1.0], [1.0, 5.0], [5.0, 1.0], [-1e30, 1e30], ["nan"]),
    [float(n) for n in range(3000)],
)
_DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
_DTYPES = (*_DTYPES, torch.bool, torch.float32, torch.int16)
_FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30, 1e-40, 0.0, -1.0)
_INTEGERS = (-1, 0, 1, 10**6, 2**31, 2**62, -(2**62))


def reseal(folder: Path) -> None:
    """Bring the checksums and the digest of config.json up to date, as a forger would."""
    values = json.loads((folder / CONFIG).read_text())
    values.pop("digest", None)
    values["files"] = {x: artifact._file_checksum(folder / x) for x in NAMES[1:]}
    values["digest"] = artifact._digest(values)
    (folder / CONFIG).write_text(json.dumps(values))


# bytes


def flip_bits(folder: Path, rng: Rng) -> str:
    """Flip one to three bits of a file."""
    path = folder / str(rng.choice(NAMES))
    content = bytearray(path.read_bytes())
    places = [
        (int(rng.integers(len(content))), int(rng.integers(8))) for _ in range(rng.integers(1, 4))
    ]
    for byte, bit in places:
        content[byte] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}, byte and bit {places}"


def truncate(folder: Path, rng: Rng) -> str:
    """Cut off the end of a file."""
    path = folder / str(rng.choice(NAMES))
    size = int(rng.integers(path.stat().st_size))
    os.truncate(path, size)
    return f"{path.name} after {size} bytes"


def append(folder: Path, rng: Rng) -> str:
    """Add bytes to the end of a file."""
    path = folder / str(rng.choice(NAMES))
    tail = [b"\0", b"\n", b" " * 1000, b"{}", b"\xff" * 7, path.read_bytes(), rng.bytes(99)]
    choice = int(rng.integers(len(tail)))
    path.write_bytes(path.read_bytes() + tail[choice])
    return f"{path.name}, tail {choice}"


# names


def replace_file(folder: Path, rng: Rng) -> str:
    """Put something else into the place of a file."""
    path = folder / str(rng.choice(NAMES))
    others = [folder / x for x in NAMES if x != path.name]
    kinds: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "an empty file": path.touch,
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to nothing": lambda: path.symlink_to("absent"),
        "a link to zeros": lambda: path.symlink_to("/dev/zero"),
        "a link to memory": lambda: path.symlink_to("/proc/self/mem"),
        "a link to a folder": lambda: path.symlink_to("."),
        "a link to another file": lambda: path.symlink_to(others[0].name),
        "another file": lambda: path.write_bytes(others[-1].read_bytes()),
        "a hole of 3 GB": lambda: (path.touch(), os.truncate(path, 3 << 30)),
        "noise": lambda: path.write_bytes(rng.bytes(5000)),
        "a link to the same bytes": lambda: _link(path, content),
    }
    kind = str(rng.choice(list(kinds)))
    content = path.read_bytes()
    path.unlink()
    kinds[kind]()
    return f"{path.name} is {kind}"


def _link(path: Path, content: bytes) -> None:
    """Make a link to a file of this content beside the folder."""
    target = path.parent.parent / f"target-{path.name}"
    target.write_bytes(content)
    path.symlink_to(target)


def mix_models(other: dict[str, bytes]) -> Change:
    """Return a change that takes some files from another model."""

    def change(folder: Path, rng: Rng) -> str:
        names = [x for x in NAMES if rng.random() < 0.5] or [WEIGHTS]
        for name in names:
            (folder / name).write_bytes(other[name])
        return f"{', '.join(names)} of another model"

    return change


def add_files(folder: Path, rng: Rng) -> str:
    """Put files that do not belong there into the folder."""
    (folder / str(rng.choice(["extra", ".config.json.part", "model.pkl", "config.json~"]))).touch()
    return "another file"


# config.json


def paths_of(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key of nested values; of lists the first entry."""
    if path:
        yield path
    if isinstance(values, dict):
        for key, x in values.items():
            yield from paths_of(x, (*path, key))
    elif isinstance(values, list) and values:
        yield from paths_of(values[0], (*path, 0))


def edit_config(folder: Path, rng: Rng) -> str:
    """Give a hostile value to one key of config.json."""
    values = json.loads((folder / CONFIG).read_text())
    paths = list(paths_of(values))
    path = paths[int(rng.integers(len(paths)))]
    models = [["model"], ["take_up_model"], ["backbone"]]
    value: Any = _VALUES[int(rng.integers(len(_VALUES)))]
    if list(path) in models and rng.random() < 0.7:
        value = str(rng.choice(sorted(all_models())))
    parent = values
    for key in path[:-1]:
        parent = parent[key]
    if value is _DELETE:
        del parent[path[-1]]
    elif value is _ADD:
        parent[path[-1]] = [parent[path[-1]], "added"]
    else:
        parent[path[-1]] = deepcopy(value)
    (folder / CONFIG).write_text(json.dumps(values))
    label = {id(_DELETE): "deleted", id(_ADD): "in a list"}.get(id(value), repr(value)[:60])
    return f"{'.'.join(map(str, path))}: {label}"


def swap_values(folder: Path, rng: Rng) -> str:
    """Exchange the values of two keys of config.json."""
    values = json.loads((folder / CONFIG).read_text())
    paths = [x for x in paths_of(values) if len(x) > 1]
    first, second = (paths[int(k)] for k in rng.integers(len(paths), size=2))
    x, y = (deepcopy(_at(values, path)) for path in (first, second))
    for path, value in ((first, y), (second, x)):
        try:
            _at(values, path[:-1])[path[-1]] = value
        except (KeyError, IndexError, TypeError):  # one path was inside the other
            break
    (folder / CONFIG).write_text(json.dumps(values))
    return f"{'.'.join(map(str, first))} with {'.'.join(map(str, second))}"


def _at(values: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


def rewrite_config(folder: Path, rng: Rng) -> str:
    """Write config.json in another way, or something that is none."""
    path = folder / CONFIG
    text = path.read_text()
    values = json.loads(text)
    texts = {
        "other white space": json.dumps(values, indent=7).encode(),
        "other order": json.dumps(dict(reversed(values.items()))).encode(),
        "CR LF": text.replace("\n", "\r\n").encode(),
        "byte order mark": b"\xef\xbb\xbf" + text.encode(),
        "UTF-16": text.encode("utf-16"),
        "not UTF-8": text.replace("idcf", "id\xe9f").encode("latin-1", "replace") + b"\xff",
        "twice": (text + text).encode(),
        "a key twice": text.replace("{", '{"format": 1,', 1).encode(),
        "NaN": text.replace('"mean": ', '"mean": NaN, "x": ', 1).encode(),
        "many digits": text.replace('"seed": 0', '"seed": 1' + "0" * 5000).encode(),
        "deep": ("[" * 100_000).encode(),
        "deep value": text.replace('"options": {', '"options": {"a":' + '{"a":' * 3000, 1).encode(),
        "null": b"null",
        "a list": b"[]",
        "a text": b'"idcf"',
        "a number": b"6",
        "nothing in it": b"{}",
        "white space": b" \n",
        "65 MiB": b" " * (65 << 20),
    }
    kind = str(rng.choice(list(texts)))
    path.write_bytes(texts[kind])
    return kind


# weights.safetensors


def change_tensor(folder: Path, rng: Rng) -> str:
    """Change the type, the shape or numbers of one tensor."""
    path = folder / WEIGHTS
    tensors = load(path.read_bytes())
    name = sorted(tensors)[int(rng.integers(len(tensors)))]
    old = tensors[name]
    label, new = _changed(old, rng)
    tensors[name] = new.contiguous()
    path.write_bytes(save(tensors))
    return f"{name} {tuple(old.shape)}: {label}"


def _changed(x: Tensor, rng: Rng) -> tuple[str, Tensor]:
    """Return a changed tensor and what was done."""
    kind = str(
        rng.choice(["type", "shape", "number", "number", "numbers", "all", "order", "noise"])
    )
    if kind == "type":
        dtype = _DTYPES[int(rng.integers(len(_DTYPES)))]
        return f"{dtype}", x.to(dtype)
    if kind == "shape":
        shapes = {
            "one dimension more": x[None],
            "flat": x.reshape(-1),
            "reversed": x.permute(*reversed(range(x.ndim))) if x.ndim else x[None],
            "no rows": x[:0] if x.ndim else x.reshape(1)[:0],
            "one row less": x[:-1] if x.ndim else x.reshape(1),
            "one row more": torch.cat([x, x[:1]]) if x.ndim else x.reshape(1),
            "one column less": x[..., :-1] if x.ndim else x.reshape(1),
            "twice the columns": torch.cat([x, x], -1) if x.ndim else x.reshape(1),
            "a million rows": torch.zeros(10**6, dtype=x.dtype),
        }
        label = str(rng.choice(list(shapes)))
        return label, shapes[label]
    flat = x.clone().reshape(-1)
    if not len(flat):
        return "a row of an empty tensor", torch.zeros(1, *x.shape[1:], dtype=x.dtype)
    if kind == "order":
        return "other order", flat[torch.from_numpy(rng.permutation(len(flat)))].reshape(x.shape)
    if kind == "noise":
        raw = np.frombuffer(rng.bytes(flat.numel() * flat.element_size()), np.uint8).copy()
        if x.dtype == torch.bool:
            raw &= 1
        return "noise", torch.from_numpy(raw).view(x.dtype).reshape(x.shape)
    choices: tuple[Any, ...] = _FLOATS if x.is_floating_point() else _INTEGERS
    if x.dtype == torch.bool:
        choices = (True, False)
    limits = (-np.inf, np.inf) if x.is_floating_point() else (0, 1)
    if not x.is_floating_point() and x.dtype != torch.bool:
        info = torch.iinfo(x.dtype)
        limits = (info.min, info.max)
    value = choices[int(rng.integers(len(choices)))]
    value = min(max(value, limits[0]), limits[1]) if value == value else value
    if kind == "all":
        return f"all {value}", torch.full_like(x, value)
    n = 1 if kind == "number" else max(len(flat) // 3, 1)
    if n:
        flat[torch.from_numpy(rng.integers(len(flat), size=n))] = value
    return f"{n} times {value}", flat.reshape(x.shape)


def change_names(folder: Path, rng: Rng) -> str:
    """Leave out, add, rename or exchange tensors."""
    path = folder / WEIGHTS
    tensors = load(path.read_bytes())
    first, second = (sorted(tensors)[int(k)] for k in rng.integers(len(tensors), size=2))
    kind = str(rng.choice(["out", "new", "name", "exchange", "none", "long name"]))
    if kind == "out":
        del tensors[first]
    elif kind == "new":
        tensors[str(rng.choice(["x", "__class__", "users.vector", "forward"]))] = torch.ones(3)
    elif kind == "name":
        tensors[first + "_"] = tensors.pop(first)
    elif kind == "exchange":
        tensors[first], tensors[second] = tensors[second].clone(), tensors[first].clone()
    elif kind == "long name":
        tensors["x" * 100_000] = torch.ones(1)
    else:
        tensors = {}
    path.write_bytes(save(tensors))
    return f"{kind}: {first}, {second}"


def edit_header(folder: Path, rng: Rng) -> str:
    """Change the header of the file of tensors, which says where each tensor is."""
    path = folder / WEIGHTS
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    names = sorted(x for x in header if x != "__metadata__")
    entry = header[names[int(rng.integers(len(names)))]]
    big = int(rng.choice([2**31, 2**40, 2**62]))
    edits: dict[str, Callable[[], object]] = {
        "a large shape": lambda: entry.update(shape=[big, big]),
        "a shape of 0": lambda: entry.update(shape=[0]),
        "a negative shape": lambda: entry.update(shape=[-1]),
        "many dimensions": lambda: entry.update(shape=[1] * 100),
        "an unknown type": lambda: entry.update(dtype="F1024"),
        "offsets beyond the end": lambda: entry.update(data_offsets=[0, big]),
        "offsets backwards": lambda: entry.update(data_offsets=[8, 0]),
        "all at the start": lambda: [header[x].update(data_offsets=[0, 4]) for x in names],
        "metadata": lambda: header.update(__metadata__={"a": "b" * 10_000}),
        "no entry": lambda: header.update({names[0]: None}),
        "a list": lambda: header.update({names[0]: []}),
        "a long header": lambda: None,
        "a header without end": lambda: None,
        "an empty header": header.clear,
    }
    kind = str(rng.choice(list(edits)))
    edits[kind]()
    text = json.dumps(header).encode()
    length = {"a long header": 2**60, "a header without end": len(text) + 5}.get(kind, len(text))
    path.write_bytes(struct.pack("<Q", length) + text + data)
    return kind


# items.parquet


def edit_items(folder: Path, rng: Rng) -> str:
    """Change the table of items."""
    path = folder / ITEMS
    table = parquet.read_table(path)
    n = len(table)
    ids = table["item_id"].to_pylist()
    some = int(rng.integers(n))

    def put(name: str, column: Any) -> pa.Table:
        if name in table.column_names:
            return table.set_column(table.column_names.index(name), name, column)
        return table.append_column(name, column)

    def with_id(value: Any) -> pa.Table:
        return put("item_id", pa.array([value if k == some else x for k, x in enumerate(ids)]))

    large = "x" * (1 << 20)
    edits: dict[str, Callable[[], pa.Table]] = {
        "no ids": lambda: table.drop_columns(["item_id"]),
        "no titles": lambda: table.drop_columns(["title"]),
        "a missing id": lambda: with_id(None),
        "an id twice": lambda: with_id(ids[some - 1]),
        "an empty id": lambda: with_id("") if isinstance(ids[0], str) else with_id(-1),
        "a long id": lambda: with_id(large if isinstance(ids[0], str) else 2**62),
        "ids as numbers": lambda: put("item_id", pa.array(range(n))),
        "ids as floats": lambda: put("item_id", pa.array([k + 0.5 for k in range(n)])),
        "ids as not a number": lambda: put("item_id", pa.array([float("nan")] * n)),
        "ids as text": lambda: put("item_id", pa.array([f"t{k}" for k in range(n)])),
        "ids as bytes": lambda: put("item_id", pa.array([b"%d\xff" % k for k in range(n)])),
        "ids as lists": lambda: put("item_id", pa.array([[k] for k in range(n)])),
        "ids as truth": lambda: put("item_id", pa.array([k % 2 == 0 for k in range(n)])),
        "ids as dates": lambda: put("item_id", pa.array(range(n), pa.date32())),
        "ids above 64 bits": lambda: put(
            "item_id", pa.array([2**63 + k for k in range(n)], pa.uint64())
        ),
        "titles as numbers": lambda: put("title", pa.array(range(n))),
        "titles as bytes": lambda: put("title", pa.array([b"\xff"] * n)),
        "titles as lists": lambda: put("title", pa.array([["a"]] * n)),
        "titles missing": lambda: put("title", pa.nulls(n)),
        "titles with control characters": lambda: put(
            "title", pa.array(["\0\x1b[31m\n\u202e"] * n)
        ),
        "a long title": lambda: put("title", pa.array([large] + ["a"] * (n - 1))),
        "long titles, held once": lambda: put("title", _repeated(n, stored_once=True)),
        "long titles, compressed": lambda: put("title", _repeated(n, stored_once=False)),
        "two columns of titles": lambda: pa.Table.from_arrays(
            [*table.columns, table["title"]], [*table.column_names, "title"]
        ),
        "an attribute of numbers": lambda: put("x", pa.array(range(n))),
        "an attribute of words": lambda: put("x", pa.array([["a", "b"]] * n)),
        "an attribute with gaps": lambda: put(
            "x", pa.array([None, ["a", None]] + [[]] * (n - 2), pa.list_(pa.string()))
        ),
        "an attribute without a name": lambda: put("", pa.array([["a"]] * n)),
        "300 attributes": lambda: pa.table(
            {
                **dict(zip(table.column_names, table.columns, strict=True)),
                **{f"x{k}": pa.array([["a"]] * n) for k in range(300)},
            }
        ),
        "other order": lambda: table.take(pa.array(rng.permutation(n))),
        "one row less": lambda: table.slice(1),
        "one row more": lambda: pa.concat_tables([table, table.slice(0, 1)]),
        "no rows": lambda: table.slice(0, 0),
        "200 million rows": lambda: pa.table({"item_id": pa.nulls(200_000_000)}),
    }
    kind = str(rng.choice(list(edits)))
    buffer = io.BytesIO()
    if kind == "200 million rows":
        table = pa.table({"item_id": pa.nulls(1_000_000, pa.int8()), "title": pa.nulls(1_000_000)})
        with parquet.ParquetWriter(buffer, table.schema) as writer:
            for _ in range(200):
                writer.write_table(table)
    else:
        parquet.write_table(edits[kind](), buffer)
    path.write_bytes(buffer.getvalue())
    return kind


def _repeated(n: int, *, stored_once: bool) -> Any:
    """Return n equal titles of 4 MiB in all, or of 256 MiB each that a file holds once."""
    if not stored_once:
        return pa.array(["x" * ((1 << 22) // n)] * n)
    return pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int32()), ["x" * (1 << 28)])


def any_card(folder: Path, rng: Rng) -> str:
    """Put anything into the model card, which nothing reads."""
    contents = [b"", b"\xff\xfe", b"<script>alert(1)</script>", b"x" * (1 << 20)]
    choice = int(rng.integers(len(contents)))
    (folder / CARD).write_bytes(contents[choice])
    return f"content {choice}"


def move_bytes(folder: Path, rng: Rng) -> str:
    """Change bytes of the tensors or the items, which a new seal then covers."""
    path = folder / str(rng.choice([WEIGHTS, ITEMS]))
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    length = int(rng.integers(1, 9))
    content[start : start + length] = rng.bytes(length)
    path.write_bytes(content)
    return f"{path.name}, {length} bytes from {start}"
