"""A trained model as a folder: config.json, weights.safetensors, items.parquet, card.md.

The folder holds data, never code. A model that needs rows of its training table is saved only with
`allow_training_rows`; the folder of any other model holds no user histories. Writing is atomic: a
crash leaves the old or the new folder. Loading checks the size and the SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

import idcf
from idcf.config import dataclass_from_dict, dataclass_to_dict
from idcf.data.attributes import ItemAttributes
from idcf.data.interactions import Vocab
from idcf.data.parquet_limits import read_limited_table
from idcf.errors import ArtifactError, ConfigError, DataError, IdcfError
from idcf.files import check_folder_writable, write_folder
from idcf.inference.manifest import Manifest
from idcf.inference.model_card import render_model_card
from idcf.models.base import Backbone, Model, UserData
from idcf.models.registry import configure, model_entry
from idcf.types import History, Users

# 6 had no arguments of the fit, 5 had tables of users that nothing read, 4 no interval ratios,
# 3 another take-up model, 2 none; before 2, options had other names
FORMAT = 7
_CONFIG, _WEIGHTS, _ITEMS, _CARD = "config.json", "weights.safetensors", "items.parquet", "card.md"
_FILES = (_WEIGHTS, _ITEMS, _CARD)
_ALL_FILES = (*_FILES, _CONFIG)
_TAKE_UP_PREFIX = "take_up_model."
_MAX_READS = 20  # of a folder that is replaced again and again while it is read
_MAX_CONFIG_BYTES = 1 << 26
_MAX_NUMBER = 1e25  # of tensors: products of larger ones leave the range of single precision
_MAX_ITEMS_BYTES = 1 << 32  # unpacked


@dataclass(frozen=True)
class Artifact:
    """A trained model with its manifest, and ids, titles and attributes of its items."""

    manifest: Manifest
    model: Model
    items: Vocab  # the catalogue, in row order
    titles: tuple[str | None, ...]  # one per item
    take_up_model: Model | None = None  # says how likely an item is taken up
    attributes: ItemAttributes | None = None  # by which lists can be restricted

    def __post_init__(self) -> None:
        """Raise ArtifactError if a number in the model is not finite."""
        self.require_finite()

    def require_finite(self) -> None:
        """Raise ArtifactError if a tensor of a model, or a number of the domain, is not finite."""
        for model in filter(None, (self.model, self.take_up_model)):
            if tensor := model.nonfinite_tensor():
                raise ArtifactError(
                    f"the model cannot be used: its tensor {tensor!r} is not finite; train again, "
                    "with a lower learning_rate or without outliers"
                )
            if tensor := model.nonfinite_tensor(_MAX_NUMBER):
                raise ArtifactError(
                    f"the model cannot be used: its tensor {tensor!r} holds numbers beyond "
                    f"{_MAX_NUMBER:g}, whose sums are not finite; train again"
                )
        domain = self.manifest.domain
        if not all(map(isfinite, (domain.mean, domain.std, *domain.levels))):
            raise ArtifactError("the model cannot be used: its ratings are not finite; train again")
        if not domain.levels:
            raise ArtifactError("the model cannot be used: it knows no rating; train again")

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of both models by name; those of the take-up model have a prefix."""
        state = dict(self.model.state_dict())
        if self.take_up_model is not None:
            take_up = self.take_up_model.state_dict()
            state.update({_TAKE_UP_PREFIX + name: x for name, x in take_up.items()})
        return state


def library_versions() -> dict[str, str]:
    """Return the versions that training depends on, by name."""
    return {
        "idcf": idcf.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def save_artifact(
    artifact: Artifact, folder: str | Path, *, allow_training_rows: bool = False
) -> Path:
    """Write an artifact into a folder atomically, and return the folder.

    ArtifactError: the folder holds anything but a saved model. ConfigError: the model holds rows of
    its training table, and `allow_training_rows` is False.
    """
    require_training_rows_allowed(
        artifact.manifest.model, artifact.manifest.user_data, allow_training_rows
    )
    artifact.require_finite()
    target = Path(folder).expanduser().resolve()
    try:
        write_folder(
            target, lambda fresh: _write_files(artifact, fresh), replaceable_names=_ALL_FILES
        )
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(f"{target} cannot be written ({reason}); choose another") from None
    return target


def check_save_folder(folder: str | Path) -> None:
    """Raise an error if a model could not be saved in a folder; called before it is trained."""
    check_folder_writable(Path(folder).expanduser().resolve(), _ALL_FILES)


def require_training_rows_allowed(name: str, user_data: UserData, allowed: bool) -> None:
    """Raise ConfigError if a model holds rows of its training table and these are not allowed."""
    if user_data == "rows" and not allowed:
        raise ConfigError(
            f"model {name!r} reads the rows that it was trained on, so that its folder would hold "
            "what every key user rated; allow it with save(folder, allow_training_rows=True) or "
            "--allow-training-rows and protect the folder as the table, or train a model that "
            "holds none, such as 'idcf-bayes' or 'idcf-nn'"
        )


def load_artifact(folder: str | Path) -> Artifact:
    """Read the folder of a saved model; its scores are the same to the last bit.

    What is checked is what is read, so that a folder which is replaced meanwhile gives the old
    model or the new one. ArtifactError: the folder is missing, damaged or of another format, or the
    model gives scores that are not finite.
    """
    path = Path(folder).expanduser()
    files = _read_files(path)
    try:
        manifest = dataclass_from_dict(Manifest, files.values, f"{path / _CONFIG}")
        _check_item_columns(path / _ITEMS, files.contents[_ITEMS])
        items, titles, attributes = _read_items(
            path / _ITEMS, files.contents[_ITEMS], manifest.domain.n_items
        )
        tensors = load(files.contents[_WEIGHTS])
        models = _Models.of(manifest, tensors, path)
        artifact = Artifact(manifest, models.model, items, titles, models.take_up_model, attributes)
    except (IdcfError, SafetensorError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]  # that of a native reader may have several lines
        raise ArtifactError(f"{path} cannot be read: {reason}") from None
    return check_scores(artifact, f"{path} cannot be used")


@torch.no_grad()
def check_scores(artifact: Artifact, label: str = "the model cannot be used") -> Artifact:
    """Return an artifact whose scores for a new user are finite.

    ArtifactError, which begins with `label`: they are not, or the model cannot score.

    Models that score no new users, or no whole catalogue in a reasonable time, are not tried.
    """
    domain = artifact.manifest.domain
    for model in filter(None, (artifact.model, artifact.take_up_model)):
        if not (model.inductive and model.can_rank_catalog):
            continue
        n = min(domain.n_items, 3)
        values = torch.full((n,), domain.levels[-1])
        history = History(torch.arange(n), values, torch.tensor([0, 0, n]))
        was_training = model.training
        try:
            model.eval()
            users = Users(torch.tensor([-1, -1]), history).to(model.device)
            scores = model.score_catalog(users)
        except (ArithmeticError, IndexError, RuntimeError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise ArtifactError(f"{label}: it scores no new user ({reason:.100})") from None
        finally:
            model.train(was_training)
        if not bool(scores.isfinite().all()):
            raise ArtifactError(f"{label}: the scores of a new user are not finite; train again")
    return artifact


class _Models(NamedTuple):
    """The models of a folder."""

    model: Model
    take_up_model: Model | None

    @classmethod
    def of(cls, manifest: Manifest, tensors: dict[str, Tensor], folder: Path) -> Self:
        """Build the models of a manifest and give them these tensors.

        The shapes are compared before anything is allocated that the manifest alone asks for.
        """
        try:
            with torch.device("meta"):
                shapes = build_model(manifest), _build_take_up_model(manifest)
        except (RuntimeError, TypeError):  # a model whose constructor computes with its data
            shapes = build_model(manifest), _build_take_up_model(manifest)
        options = ("user_features", "item_features")
        given = {**manifest.backbone_options, **manifest.options}
        reads_features = any(given.get(x) for x in options)
        names = [x for x in tensors if x.startswith(_TAKE_UP_PREFIX)] if shapes[1] else []
        parts = tensors, {x.removeprefix(_TAKE_UP_PREFIX): tensors.pop(x) for x in names}
        for model, part in zip(shapes, parts, strict=True):
            if model is not None:
                _check_shapes(model, part, folder, reads_features)
        models = cls(build_model(manifest), _build_take_up_model(manifest))
        for model, part in zip(models, parts, strict=True):
            if model is not None:
                assign_tensors(model.eval(), part, folder)
                if problem := model.index_problem():
                    raise ArtifactError(f"{folder / _WEIGHTS}: {problem}; copy the folder again")
        return models


def make_contiguous(model: Model) -> Model:
    """Make all tensors of a model contiguous, as after loading, and return the model.

    Sums then round alike, so that scores are the same before `save_artifact` and after.
    """
    tensors = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
    assign_tensors(model, tensors)
    return model


def build_model(manifest: Manifest) -> Model:
    """Build the model of a manifest with meaningless weights, for `assign_tensors`."""
    model_name = manifest.fitted_model
    entry, domain = model_entry(model_name), manifest.domain.placeholder_domain()
    config = configure(model_name, manifest.options)
    with torch.random.fork_rng(devices=[]):
        if not entry.backbone:
            return entry.build(config, domain)
        name = manifest.backbone or entry.backbone
        backbone = model_entry(name).build(configure(name, manifest.backbone_options), domain)
        if not isinstance(backbone, Backbone):
            raise ArtifactError(f"{name!r} cannot be the backbone of {manifest.model!r}")
        n = max(manifest.training_data.n_key_users, 1)
        model = entry.build_around(config, backbone, Users(torch.arange(n), History.empty(n)))
    model.discard_training_state()
    return model


def _build_take_up_model(manifest: Manifest) -> Model | None:
    """Build the take-up model of a manifest with meaningless weights, if there is one."""
    name = manifest.take_up_model
    if name is None:
        return None
    domain = replace(manifest.domain, implicit=True).placeholder_domain()
    entry = model_entry(name)
    if entry.backbone:
        raise ArtifactError(f"{name!r} cannot say how likely an item is taken up")
    return entry.build(configure(name, manifest.take_up_options), domain)


def assign_tensors(model: Model, tensors: Mapping[str, Tensor], folder: Path = Path()) -> None:
    """Replace all tensors of a model by those of the same names; an error names `folder`.

    Types and numbers of dimensions must match, else ArtifactError. Lengths may differ, because
    they depend on the data.
    """
    state = model.state_dict()
    _check_names(state, tensors, folder)
    for name, value in tensors.items():
        old = state[name]
        if value.dtype != old.dtype or value.ndim != old.ndim:
            got, want = (f"{x.dtype} of {x.ndim} dimensions" for x in (value, old))
            raise ArtifactError(f"{folder / _WEIGHTS}: tensor {name!r} is {got}, not {want}")
        module_name, _, attribute = name.rpartition(".")
        module = model.get_submodule(module_name)
        is_parameter = isinstance(getattr(module, attribute), nn.Parameter)
        setattr(
            module, attribute, nn.Parameter(value, requires_grad=False) if is_parameter else value
        )


def _check_names(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise ArtifactError unless the tensors are those of a model's state."""
    for name in sorted(state.keys() ^ tensors.keys()):
        problem = "lacks" if name in state else "has, unknown to this version,"
        raise ArtifactError(f"{folder / _WEIGHTS} {problem} the tensor {name!r:.100}")


def _check_shapes(
    model: Model, tensors: Mapping[str, Tensor], folder: Path, reads_features: bool
) -> None:
    """Raise ArtifactError unless tensors have the shapes of a model of the manifest.

    Where the model that is built without data has a length of 0, it depends on the data. So do,
    with features, all lengths but the number of items.
    """
    state = model.state_dict()
    _check_names(state, tensors, folder)
    for name, value in tensors.items():
        expected = state[name].shape
        if len(expected) == value.ndim and all(
            want in (0, size) or (reads_features and want != model.n_items)
            for want, size in zip(expected, value.shape, strict=True)
        ):
            continue
        raise ArtifactError(
            f"{folder / _WEIGHTS}: tensor {name!r} has the shape {tuple(value.shape)}, but the "
            f"model of {_CONFIG} has {tuple(expected)}"
        )


def _write_files(artifact: Artifact, folder: Path) -> None:
    """Write the four files; config.json is last, because it holds the checksums of the others."""
    import pyarrow as pa
    from pyarrow import parquet

    state = artifact.tensors()
    save_file(
        {k: v.detach().cpu().contiguous().clone() for k, v in state.items()}, folder / _WEIGHTS
    )
    titles = pa.array(artifact.titles, pa.string())
    columns = {"item_id": pa.array(artifact.items.ids), "title": titles}
    for name, column in artifact.attributes.columns.items() if artifact.attributes else ():
        columns[name] = pa.array(column.cells(len(titles)), pa.list_(pa.string()))
    parquet.write_table(pa.table(columns), folder / _ITEMS)
    (folder / _CARD).write_text(render_model_card(artifact.manifest), encoding="utf-8")
    shutil.copymode(folder / _CARD, folder / _WEIGHTS)  # that of safetensors hides it from others
    values = {"format": FORMAT, **dataclass_to_dict(artifact.manifest)}
    values["files"] = {name: _file_checksum(folder / name) for name in _FILES}
    values["digest"] = _digest(values)
    text = json.dumps(_to_json_value(values), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")


class _Files(NamedTuple):
    """The verified content of a folder."""

    values: dict[str, Any]  # of config.json, without format, checksums and digest
    contents: dict[str, bytes]  # of the other files, by name


def _read_files(path: Path) -> _Files:
    """Return the content of a folder, each file read once, after checking format and checksums.

    If the folder is replaced while it is read, it is read again.
    """
    for _ in range(_MAX_READS - 1):
        identity = _identity(path / _CONFIG)
        try:
            return _read_files_once(path)
        except ArtifactError:
            if _identity(path / _CONFIG) == identity:
                raise
    return _read_files_once(path)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced; None: there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_files_once(path: Path) -> _Files:
    """Return the content of a folder; the files are verified as they were read."""
    values, checksums = _parse_config(path / _CONFIG)
    contents = {name: _read_checked(path / name, checksums.get(name)) for name in _FILES}
    return _Files(values, contents)


def _parse_config(config: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of config.json and the checksums in it, after checking the digest."""
    if not config.is_file():
        raise ArtifactError(f"no saved model at {config.parent}: there is no {_CONFIG} in it")
    text = _read_file(config, _MAX_CONFIG_BYTES)
    try:
        values = json.loads(text)
        json.dumps(values, ensure_ascii=False).encode()  # raises where a text is no Unicode
        version, files = values.pop("format"), dict(values.pop("files"))
        digest = values.pop("digest")
        expected_digest = _digest({"format": version, **values, "files": files})
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{config} is truncated or not that of an idcf model ({error!r:.100})"
        ) from None
    _check_format(version, config)
    if digest != expected_digest:
        raise ArtifactError(f"{config} was changed after it was written (its digest differs)")
    return dict(values), files


def _read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file; ArtifactError: it cannot be read, or is larger than that."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error.strerror})") from None
    if len(content) > max_bytes:
        raise ArtifactError(f"{path} is larger than {max_bytes:,} bytes; copy the folder again")
    return content


def _check_format(version: Any, config: Path) -> None:
    """Raise ArtifactError unless the format is the one that this version reads."""
    if type(version) is not int or version < 1:
        raise ArtifactError(f"{config}: format {version!r:.20} is not a format of idcf")
    if version != FORMAT:
        age, way_out = ("older", "train again") if version < FORMAT else ("newer", "upgrade idcf")
        raise ArtifactError(
            f"{config}: format {version} is {age} than {FORMAT}, which idcf {idcf.__version__} "
            f"reads; {way_out}"
        )


def _read_checked(path: Path, checksum: Any) -> bytes:
    """Return the content of a file; ArtifactError: it is missing, truncated or changed."""
    if not path.is_file() or not isinstance(checksum, dict):
        raise ArtifactError(f"{path} is missing; copy the whole folder again")
    size, expected = path.stat().st_size, checksum.get("bytes")
    content = _read_file(path, size) if size == expected else b""
    if size != expected or len(content) != expected:
        is_shorter = isinstance(expected, int) and size < expected
        problem = "truncated" if is_shorter else "changed after it was written"
        raise ArtifactError(f"{path} is {problem}: {size} bytes instead of {expected}")
    if hashlib.sha256(content).hexdigest() != checksum.get("sha256"):
        raise ArtifactError(f"{path} was changed after it was written (its SHA-256 differs)")
    return content


def _read_items(
    path: Path, content: bytes, n_items: int
) -> tuple[Vocab, tuple[str | None, ...], ItemAttributes | None]:
    """Read item ids, titles (None if missing) and attributes, which are all other columns."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        n_rows = parquet.read_metadata(pa.BufferReader(content)).num_rows
        if n_rows != n_items:
            raise ArtifactError(f"{path}: {n_rows} items, but the model has {n_items}")
        try:
            table = read_limited_table(path, content, limit=_MAX_ITEMS_BYTES)
        except DataError:
            reason = f"unpacks to more than {_MAX_ITEMS_BYTES:,} bytes"
            raise ArtifactError(f"{path} {reason}") from None
        ids = table["item_id"]
        if ids.null_count:
            raise ArtifactError(f"{path}: {ids.null_count} items have no id")
        items, titles = Vocab(ids.to_pylist()), tuple(table["title"].to_pylist())
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    names = [x for x in table.column_names if x not in ("item_id", "title")]
    for name in names:
        kind = table.schema.field(name).type
        if not (pa.types.is_list(kind) and pa.types.is_string(kind.value_type)):
            raise ArtifactError(f"{path}: column {name!r} does not hold lists of words")
    cells = {name: table[name].to_pylist() for name in names}
    return items, titles, ItemAttributes.from_cells(cells) if names else None


def _check_item_columns(path: Path, content: bytes) -> None:
    """Raise ArtifactError unless ids are texts or integers, titles texts, and attributes lists."""
    import pyarrow as pa
    from pyarrow import parquet, types

    try:
        schema = parquet.read_schema(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    for name in ("item_id", "title"):
        if schema.names.count(name) != 1:
            raise ArtifactError(f"{path}: there must be one column {name!r}")
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_right = types.is_list(kind) and types.is_string(kind.value_type)
        if name == "item_id":
            is_right = types.is_string(kind) or types.is_signed_integer(kind)
        elif name == "title":
            is_right = types.is_string(kind) or types.is_null(kind)
        if not is_right:
            raise ArtifactError(f"{path}: column {name!r:.80} cannot hold values of type {kind}")


def _file_checksum(path: Path) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file."""
    with path.open("rb") as f:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(f, "sha256").hexdigest(),
        }


def _digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of values, in whatever order their keys are."""
    text = json.dumps(
        _to_json_value(values), sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _to_json_value(value: Any) -> Any:
    """Return a value with infinite numbers as text, which JSON lacks and pydantic reads back."""
    if isinstance(value, Mapping):
        return {str(k): _to_json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(v) for v in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value
