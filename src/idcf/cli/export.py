"""`idcf export`: write a saved model as an ONNX file, for runtimes without Python."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from idcf.cli import options as o
from idcf.errors import require_extra


def export(
    model_folder: o.ModelFolder,
    onnx: Annotated[Path, o.option("FILE", "ONNX file to write.")],
    as_json: o.JsonSwitch = False,
) -> None:
    """Export a model to ONNX.

    The ONNX model takes users' histories as dense arrays of users x items.
    It returns embeddings and scores.
    """
    from idcf.files import reserve_file

    require_extra("onnx", "onnx", "onnxscript")
    from idcf.recommender import Recommender

    start = time.perf_counter()
    with reserve_file(onnx.expanduser()):
        recommender = Recommender.load(model_folder)
        path = recommender.export_onnx(onnx)
    model, n_items = recommender.config.model, recommender.manifest.domain.n_items
    n_bytes, seconds = path.stat().st_size, round(time.perf_counter() - start, 2)
    values = {"file": str(path), "model": model, "n_items": n_items}
    values |= {"n_bytes": n_bytes, "seconds": seconds}
    text = f"{model}, {n_items:,} items, {n_bytes / 1e6:.1f} MB; {seconds:.1f} s"
    o.print_result(values, f"{text}\nwritten to {path}", as_json)
