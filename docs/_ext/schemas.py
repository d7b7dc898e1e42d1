"""JSON Schemas of the configuration files, for editors and for programs that write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from generated_reference import openapi_document
from pydantic import TypeAdapter
from sphinx.application import Sphinx

from idcf.models.registry import all_models, model_entry
from idcf.paper.table_spec import TableSpec
from idcf.training.presets import DATASET_KEY, DEFAULT_KEY, FEW_SHOT, StageConfig

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{}"


def write_schemas(folder: Path) -> None:
    """Write each schema into a folder; unchanged files are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in schemas().items():
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def schemas() -> dict[str, Any]:
    """Return all documents by the name of their file."""
    return {
        "openapi.json": openapi_document(),
        "model-options.schema.json": model_options(),
        "presets.schema.json": presets(),
        "table.schema.json": table(),
    }


def model_options() -> dict[str, Any]:
    """Return the schema of {model: its options}."""
    definitions: dict[str, Any] = {}
    models = {}
    for name, entry in all_models().items():
        options = add_type(entry.config_class, definitions)
        models[name] = with_defaults(options, entry.defaults)
    return document("Options of the models of idcf, by model", definitions, closed(models))


def presets() -> dict[str, Any]:
    """Return the schema of a TOML file of presets: preset, model, row."""
    definitions: dict[str, Any] = {}
    stage = definitions_of(StageConfig, definitions).pop("StageConfig")["properties"]
    stage["alternatives"]["items"] = {"$ref": _REF.format("TrainConfig")}
    fields = definitions["TrainConfig"]["properties"]
    train = {f"train.{name}": field for name, field in fields.items()}
    rows = {}
    for name in all_models():
        properties = {**stage, "options": add_type(model_entry(name).config_class, definitions)}
        backbone = model_entry(name).backbone
        if backbone:
            config_class = model_entry(backbone).config_class
            options = definitions_of(config_class, definitions)[config_class.__name__]
            properties["backbone"] = closed({**options["properties"], **train})
        part = closed({**properties, FEW_SHOT: closed(properties)})
        row = closed({**part["properties"], DEFAULT_KEY: part})
        row["properties"][DATASET_KEY] = {"type": "object", "additionalProperties": part}
        rows[name] = row
    root = {"type": "object", "additionalProperties": closed(rows)}
    return document("A file of presets of idcf", definitions, root)


def table() -> dict[str, Any]:
    """Return the schema of a TOML file that describes a table of results."""
    definitions: dict[str, Any] = {}
    root = definitions_of(TableSpec, definitions).pop("TableSpec")
    del root["properties"]["name"]  # the stem of the file
    root["required"] = [x for x in root["required"] if x != "name"]
    return document("A table of results of idcf", definitions, root)


def document(title: str, definitions: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete schema."""
    schema = {"$schema": _DIALECT, "title": title, **root, "$defs": dict(definitions)}
    complete: dict[str, Any] = without_infinity(schema)
    return complete


def add_type(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Add a dataclass and those in it to the definitions, and return a reference to it."""
    definitions_of(kind, definitions)
    return {"$ref": _REF.format(kind.__name__)}


def definitions_of(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Add the schemas of a dataclass, and of those in it, to the definitions, and return these."""
    schema = TypeAdapter(kind).json_schema()
    nested = schema.pop("$defs", {})
    for name, value in {**nested, kind.__name__: schema}.items():
        definitions[name] = strict(value)
    return definitions


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass that refuses unknown keys, without docstrings as texts."""
    values = {k: v for k, v in schema.items() if k != "description"}
    return {**values, "additionalProperties": False}


def without_infinity(value: Any) -> Any:
    """Return a schema without the infinite defaults, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {
            k: without_infinity(v)
            for k, v in value.items()
            if not (isinstance(v, float) and not isfinite(v))
        }
    return [without_infinity(x) for x in value] if isinstance(value, list) else value


def closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def with_defaults(reference: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reference to a type, with the defaults that a row of the registry changes."""
    return {**reference, "default": dict(defaults)} if defaults else reference


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the schemas before Sphinx copies the static files."""
    app.connect(
        "config-inited", lambda app, config: write_schemas(Path(app.srcdir, "_static", "schemas"))
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
