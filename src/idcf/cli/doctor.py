"""`idcf doctor`: is everything here that the other commands need? Exit code 1 where it is not."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from idcf.cli import options as o
from idcf.errors import IdcfError

NEEDED = ("numpy", "scipy", "torch", "narwhals", "pyarrow", "pydantic", "safetensors", "typer")
EXTRAS = {
    "serve": ("fastapi", "uvicorn", "msgspec"),
    "plots": ("matplotlib",),
    "tune": ("optuna",),
    "tensorboard": ("tensorboard",),
    "hdf5": ("h5py",),
}


class Finding(NamedTuple):
    what: str
    state: str  # fine, note or bad
    text: str


def doctor(
    folder: Annotated[
        Path | None, typer.Argument(help="A saved model to look at, too.", show_default=False)
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Look at this installation, its data and, if asked, a saved model."""
    found = [*_python(), *_packages(), *_extras(), *_machine(), *_data(), *_model(folder)]
    bad = sum(x.state == "bad" for x in found)
    if as_json:
        typer.echo(
            json.dumps({"fine": not bad, "findings": [x._asdict() for x in found]}, indent=2)
        )
    else:
        marks = {"fine": "ok", "note": "--", "bad": "!!"}
        for x in found:
            typer.echo(f"{marks[x.state]} {x.what:12} {x.text}")
        typer.echo("everything is in place" if not bad else f"{bad} things need attention")
    if bad:
        raise typer.Exit(1)


def _python() -> Iterator[Finding]:
    state = "fine" if sys.version_info >= (3, 11) else "bad"
    yield Finding("python", state, f"{platform.python_version()}, {sys.executable}")


def _packages() -> Iterator[Finding]:
    for name in NEEDED:
        try:
            yield Finding(name, "fine", version(name))
        except PackageNotFoundError:
            yield Finding(name, "bad", f"is not installed; pip install {name}")


def _extras() -> Iterator[Finding]:
    for extra, names in EXTRAS.items():
        try:
            yield Finding(f"[{extra}]", "fine", ", ".join(f"{x} {version(x)}" for x in names))
        except PackageNotFoundError as error:
            text = f"{error.name} is not installed; pip install 'idcf[{extra}]' if you want it"
            yield Finding(f"[{extra}]", "note", text)


def _machine() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cpu", "fine", f"{cores} cores, {torch.get_num_threads()} threads of torch")
    if not torch.cuda.is_available():
        yield Finding("gpu", "note", "none that torch can use; everything runs without one")
        return
    try:
        torch.ones(2, device="cuda").sum().item()
        yield Finding("gpu", "fine", torch.cuda.get_device_name())
    except RuntimeError as error:
        yield Finding("gpu", "bad", f"torch sees one but cannot use it: {error!s:.100}")


def _data() -> Iterator[Finding]:
    from idcf.data.datasets.catalog import SOURCES, find

    told = os.environ.get("IDCF_DATA")
    if told and not Path(told).is_dir():
        yield Finding("IDCF_DATA", "bad", f"{told} is no folder")
    here = [name for name in SOURCES if find(name) is not None]
    text = ", ".join(here) or "none yet; `idcf data fetch ml-100k` gets one"
    yield Finding("datasets", "fine" if here else "note", text)


def _model(folder: Path | None) -> Iterator[Finding]:
    """Load it and let it answer."""
    if folder is None:
        return
    from idcf.recommender import Recommender

    try:
        recommender = Recommender.load(folder)
        best = recommender.recommend(n=1)
    except IdcfError as error:
        yield Finding("model", "bad", str(error))
        return
    first = f"answers, first of all {best[0].title or best[0].item_id}" if best else "is empty"
    yield Finding("model", "fine", f"{recommender!r} {first}")
