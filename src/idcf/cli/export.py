"""`idcf export`: a saved model for a runtime without Python."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o


def export(
    folder: o.Folder,
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    as_json: o.Json = False,
) -> None:
    """One ONNX file: `rated` and `ratings` [people, items] in, `vector` and `scores` out."""
    from idcf.recommender import Recommender

    began = time.perf_counter()
    recommender = Recommender.load(folder)
    path = recommender.export_onnx(onnx)
    name, items = recommender.wish.model, recommender.about.domain.n_items
    size, seconds = path.stat().st_size, round(time.perf_counter() - began, 2)
    found = {"file": str(path), "model": name, "items": items, "bytes": size, "seconds": seconds}
    text = f"{name}, {items:,} items, {size / 1e6:.1f} MB; {seconds:.1f} s\nwritten to {path}"
    typer.echo(json.dumps(found) if as_json else text)
