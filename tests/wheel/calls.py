"""Calls of every command, and of what needs an extra: the table that the tests of a wheel run.

A call names files of the working folder that `write_table` or an earlier call wrote. `extra` is the
extra without which it ends at once with a sentence that names it; None: it works without extras.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

# extra -> modules of which one at least is missing without it
EXTRAS = {
    "plots": ("matplotlib",),
    "hdf5": ("h5py",),
    "shards": ("duckdb",),
    "ray": ("ray",),
    "tune": ("optuna",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "serve": ("fastapi", "uvicorn", "msgspec"),
    "hub": ("huggingface_hub",),
    "mcp": ("mcp",),
    "onnx": ("onnx", "onnxscript"),
}


class Call(NamedTuple):
    """The arguments of `idcf`, or a piece of Python code, and the extra that it needs."""

    text: str
    extra: str | None = None
    is_code: bool = False


COMMANDS = (
    Call("--version"),
    Call("doctor"),
    Call("models"),
    Call("models idcf-bayes"),
    Call("data list"),
    Call("data describe table.csv"),
    Call("estimate table.csv"),
    Call("estimate --users 1e6 --items 1e5 --rows 1e8"),
    Call("train table.csv --out model -o sweeps=20 -o burn_in=4"),
    Call("train table.csv --out als --model als"),
    Call("doctor model"),
    Call("recommend model --rate i1=5 --rate i2=1"),
    Call("recommend model --histories table.csv --out lists.csv"),
    Call("recommend model --histories table.csv --out lists.parquet"),
    Call("recommend model --histories table.csv --out lists.jsonl"),
    Call("embed model table.csv --out vectors.parquet"),
    Call("predict model i3 --rate i1=5"),
    Call("explain model i3 --rate i1=5"),
    Call("next-question model --rate i1=5"),
    Call("similar model i3"),
    Call("shard table.csv --out shards"),
    Call("train shards --out sharded --engine local --model als"),
    Call("train shards --out sharded2 --engine processes --workers 2 --model als"),
    Call("recommend model --histories shards --out lists"),
    Call("evaluate table.csv --models bias,als"),
    Call("evaluate table.csv --models bias,als --jobs 2"),
    Call("reproduce table2 --dry-run --results rows"),
    Call("serve model --port 0", "serve"),
    Call("serve model --port 0 --mcp", "serve"),
    Call("bench-serve model", "serve"),
    Call("mcp model", "mcp"),
    Call("push model ann/films", "hub"),
    Call("export model --onnx model.onnx", "onnx"),
    Call("tune table.csv --model als --trials 1 --storage trials.db", "tune"),
    Call("demo", "plots"),
    Call("report --results rows --out pages", "plots"),
    Call("shard --query 'SELECT 1' --out queried", "shards"),
    Call("train table.csv --out curve --model idcf-nn --tensorboard curves", "tensorboard"),
    Call("train table.csv --out run --model idcf-nn --mlflow sqlite:///runs.db", "mlflow"),
    Call("train shards --out on-ray --model als --engine ray", "ray"),
)
_LOAD = "import idcf; model = idcf.Recommender.load('model'); "
PYTHON = (
    Call(_LOAD + "print(model.recommend({'i1': 5}, return_std=True))", is_code=True),
    Call(_LOAD + "print(model.predict_interval({'i1': 5}, ['i3']))", is_code=True),
    Call("import idcf; print(idcf.evaluate('table.csv', ['als'], seeds=1))", is_code=True),
    Call("import idcf; idcf.Comparison((), {}).plot('rmse')", "plots", is_code=True),
    Call("import idcf.hub; idcf.hub.push_to_hub(None, 'a/b')", "hub", is_code=True),
    Call("import idcf.hub; idcf.hub.from_pretrained('a/b')", "hub", is_code=True),
    Call(
        "from idcf.data.datasets.formats import read_douban; read_douban('x')", "hdf5", is_code=True
    ),
    Call("import idcf.mlflow; idcf.mlflow.load_model('models:/x/1')", "mlflow", is_code=True),
)


def write_table(path: Path) -> None:
    """Write a table of ratings in two groups of taste, with timestamps."""
    rng = random.Random(0)
    lines = ["user_id,item_id,rating,timestamp"]
    for user in range(60):
        for item in rng.sample(range(30), 12):
            rating = rng.choice((4, 5)) if (user + item) % 2 else rng.choice((1, 2))
            lines.append(f"u{user},i{item},{rating},{len(lines)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
