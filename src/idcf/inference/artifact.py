"""A trained model as a folder: config.json, weights.safetensors, items.parquet, card.md.

It carries data, never code, and nobody's history. It is written whole or not at all, and it is
read only where every byte is as it was written.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import idcf
from idcf.config import plain, read
from idcf.data.interactions import Vocab
from idcf.errors import ArtifactError, IdcfError
from idcf.files import write_folder
from idcf.inference.manifest import Manifest
from idcf.inference.model_card import card
from idcf.models.base import Backbone, Model
from idcf.models.registry import configure, model_entry, resolve_model
from idcf.types import History, Users

FORMAT = 1
_CONFIG, _WEIGHTS, _ITEMS, _CARD = "config.json", "weights.safetensors", "items.parquet", "card.md"
_FILES = (_WEIGHTS, _ITEMS, _CARD)


@dataclass(frozen=True)
class Artifact:
    manifest: Manifest
    model: Model
    items: Vocab
    titles: tuple[str | None, ...]  # of each item


def versions() -> dict[str, str]:
    found = {"idcf": idcf.__version__, "python": platform.python_version()}
    return {**found, "torch": torch.__version__, "numpy": np.__version__}


def save(artifact: Artifact, folder: str | Path) -> Path:
    """Write the folder in one step: whoever is killed leaves the old one, the new one or none."""
    target = Path(folder).expanduser().resolve()
    write_folder(target, lambda fresh: _write(artifact, fresh), instead_of=(*_FILES, _CONFIG))
    return target


def load(folder: str | Path) -> Artifact:
    """Read a folder back, or say what is wrong with it. Scores are the same to the last bit."""
    path = Path(folder).expanduser()
    values = _checked(path)
    try:
        manifest = read(Manifest, values, f"{path / _CONFIG}")
        model = build(manifest)
        tensors = {k: v.clone() for k, v in load_file(path / _WEIGHTS).items()}  # not the file's
        items, titles = _read_items(path / _ITEMS)
    except (IdcfError, SafetensorError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from None
    assign(model, tensors, path)
    if len(items) != manifest.domain.n_items:
        expected = manifest.domain.n_items
        raise ArtifactError(f"{path / _ITEMS}: {len(items)} items, but the model has {expected}")
    return Artifact(manifest, model.eval(), items, titles)


def settle(model: Model) -> Model:
    """Lay the tensors out as a loaded model has them: sums then round the same way."""
    state = model.state_dict()
    assign(
        model,
        {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in state.items()},
    )
    return model


def build(manifest: Manifest) -> Model:
    """The model of a manifest, with room for its tensors but not their values."""
    row = resolve_model(manifest.model, manifest.domain.implicit)
    found, domain = model_entry(row), manifest.domain.domain()
    config = configure(row, manifest.options)
    with torch.random.fork_rng(devices=[]):
        if not found.backbone:
            return found.model_class(config, domain)
        name = manifest.backbone or found.backbone
        backbone = model_entry(name).model_class(configure(name, manifest.backbone_options), domain)
        if not isinstance(backbone, Backbone):
            raise ArtifactError(f"{name!r} cannot be the backbone of {manifest.model!r}")
        return found.model_class(config, backbone, Users(torch.arange(2), History.empty(2)))


def assign(model: Model, tensors: Mapping[str, Tensor], where: Path = Path()) -> None:
    """Put the tensors in, whatever their lengths: these depend on the data. Names must match."""
    room = model.state_dict()
    for name in sorted(room.keys() ^ tensors.keys()):
        what = "lacks" if name in room else "has, unknown to this version,"
        raise ArtifactError(f"{where / _WEIGHTS} {what} the tensor {name!r}")
    for name, value in tensors.items():
        old = room[name]
        if value.dtype != old.dtype or value.ndim != old.ndim:
            got, want = (f"{x.dtype} of {x.ndim} dimensions" for x in (value, old))
            raise ArtifactError(f"{where / _WEIGHTS}: tensor {name!r} is {got}, not {want}")
        path, _, leaf = name.rpartition(".")
        part = model.get_submodule(path)
        is_parameter = isinstance(getattr(part, leaf), nn.Parameter)
        setattr(part, leaf, nn.Parameter(value, requires_grad=False) if is_parameter else value)


def _write(artifact: Artifact, folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    state = artifact.model.state_dict()
    save_file(
        {k: v.detach().cpu().contiguous().clone() for k, v in state.items()}, folder / _WEIGHTS
    )
    titles = pa.array(artifact.titles, pa.string())
    table = pa.table({"item_id": pa.array(artifact.items.ids), "title": titles})
    parquet.write_table(table, folder / _ITEMS)
    (folder / _CARD).write_text(card(artifact.manifest), encoding="utf-8")
    values = {"format": FORMAT, **plain(artifact.manifest)}
    values["files"] = {name: _seal(folder / name) for name in _FILES}
    values["digest"] = _digest(values)
    text = json.dumps(_strict(values), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")


def _checked(path: Path) -> dict[str, Any]:
    """The values of config.json, once all that they say of the folder has proved true."""
    config = path / _CONFIG
    if not config.is_file():
        raise ArtifactError(f"no saved model at {path}: there is no {_CONFIG} in it")
    try:
        values = json.loads(config.read_bytes())
        version, files = values.pop("format"), values.pop("files")
        digest = values.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{config} is truncated or no artifact's ({error!r:.100})") from None
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise ArtifactError(
            f"{config}: format {version!r:.20} is newer than {FORMAT}, the newest that idcf "
            f"{idcf.__version__} reads; upgrade idcf"
        )
    if digest != _digest({"format": version, **values, "files": files}):
        raise ArtifactError(f"{config} was changed after it was written (its digest differs)")
    for name in _FILES:
        _check_file(path / name, files.get(name))
    return dict(values)


def _check_file(path: Path, seal: Any) -> None:
    if not path.is_file() or not isinstance(seal, dict):
        raise ArtifactError(f"{path} is missing; copy the whole folder again")
    size, expected = path.stat().st_size, seal.get("bytes")
    if size != expected:
        what = "truncated" if size < int(expected or 0) else "changed after it was written"
        raise ArtifactError(f"{path} is {what}: {size} bytes instead of {expected}")
    if _seal(path) != seal:
        raise ArtifactError(f"{path} was changed after it was written (its SHA-256 differs)")


def _read_items(path: Path) -> tuple[Vocab, tuple[str | None, ...]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        return Vocab(table["item_id"].to_pylist()), tuple(table["title"].to_pylist())
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ArtifactError(f"{path}: {error}") from None


def _seal(path: Path) -> dict[str, Any]:
    with path.open("rb") as f:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(f, "sha256").hexdigest(),
        }


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(_strict(values), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _strict(value: Any) -> Any:
    """JSON has no infinity; a number that is read back from text is the same number."""
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value
