"""`idcf models`: list the models, and the options of one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.models.registry import ModelEntry

_FIELD_LINE = re.compile(r"    (?P<name>\w+): [^#]*(?:#(?P<comment>.*))?")


def models(
    name: Annotated[
        str | None, o.argument("NAME", "Model whose options are printed. Default: list all models.")
    ] = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """List the models and what they can do, or the options of one with their defaults."""
    from idcf.models.registry import MODELS, all_models, model_entry

    if name is None:
        rows = [{"model": k, "abilities": _abilities(v)} for k, v in all_models().items()]
        lines = [f"{x['model']:20} {', '.join(x['abilities'])}" for x in rows]
        lines.insert(len(MODELS), "\nof the paper, and of installed packages:")
        o.print_result(rows, "\n".join(lines), as_json)
        return
    entry = model_entry(name)
    values = {
        "model": name,
        "description": entry.summary or _first_line(entry.model_class),
        "abilities": _abilities(entry),
        "options": list(_options(name)),
    }
    o.print_result(values, _format_model(values), as_json)


def _abilities(entry: ModelEntry) -> list[str]:
    """Return what a model can do."""
    from idcf.models.registry import model_entry

    configs = [entry.config_class]
    if entry.backbone:
        configs.append(model_entry(entry.backbone).config_class)
    options = {x.name for config in configs for x in fields(config)}
    on_clicks = "clicks" + (f" (as {entry.implicit_model})" if entry.implicit_model else "")
    abilities = {
        "new users": entry.inductive,
        "ratings": not entry.implicit_only,
        on_clicks: not entry.ratings_only or entry.implicit_model is not None,
        "uncertainty": entry.has_uncertainty,
        "features": bool(options & {"user_features", "item_features"}),
        "shards": entry.sharded_solver is not None,
    }
    return [name for name, is_able in abilities.items() if is_able]


def _options(name: str) -> Iterator[dict[str, Any]]:
    """Yield the options of a model, of its backbone and of its training, with the defaults of the
    preset "clean"."""
    from idcf.models.registry import configure, model_entry
    from idcf.training.presets import split_backbone_options, stage_configs

    stages = stage_configs(name)
    for stage, stage_config in stages.items():
        entry, config = model_entry(stage), configure(stage, stage_config.options)
        for option in _fields(config):
            is_set = stage != name and not split_backbone_options(name, {option["name"]: 0})[1]
            if not is_set:  # else it is an option of the model itself, or fixed by it
                grids = _grids(entry, option["name"]) if stage == name else {}
                yield {**option, "tried_on_held_out_users": grids}
    if model_entry(name).solver is None:
        for option in _fields(stages[name].train):
            yield {**option, "name": f"train.{option['name']}", "tried_on_held_out_users": {}}


def _grids(entry: ModelEntry, option: str) -> dict[str, list[Any]]:
    """Return the values that training tries unless the option is given, by kind of feedback."""
    kinds = {"ratings": not entry.implicit_only, "clicks": not entry.ratings_only}
    grids = {kind: entry.grid_for(kind == "clicks") for kind, is_read in kinds.items() if is_read}
    return {kind: list(grid[option]) for kind, grid in grids.items() if option in grid}


def _fields(config: Any) -> Iterator[dict[str, Any]]:
    """Yield name, type, range, value and comment of each field of a config."""
    from idcf.config import range_text

    hints = get_type_hints(type(config), include_extras=True)  # those of base classes, too
    comments = _comments(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        yield {
            "name": field.name,
            "type": _type_name(hints.get(field.name, field.type)),
            "range": range_text(hints.get(field.name)),
            "default": "inf" if value == float("inf") else value,  # JSON has no infinity
            "description": comments.get(field.name, ""),
        }


def _comments(kind: type) -> dict[str, str]:
    """Return the comments beside, or else above, the fields in the source of a class."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    # "):
            above.append(line.strip("# "))
        elif match := _FIELD_LINE.fullmatch(line):
            comment = (match["comment"] or "").strip()
            comments.setdefault(match["name"], comment or " ".join(above))
            above = []
    return comments


def _type_name(kind: Any) -> str:
    """Return a type in words, such as "int or None" or "all|nearest"."""
    if get_origin(kind) is Annotated:
        return _type_name(get_args(kind)[0])
    if kind is NoneType or kind is None:
        return "None"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_type_name, get_args(kind)))
    if get_origin(kind) is tuple:
        first, *others = get_args(kind)
        if others in ([...], [first]):
            return f"{'tuple' if others == [...] else 'pair'} of {_type_name(first)}"
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _first_line(kind: type) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _format_model(values: dict[str, Any]) -> str:
    """Return the text that `idcf models NAME` prints."""
    rows = [(x["name"], x["type"], f"{x['default']}") for x in values["options"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{values['model']}: {values['description']}",
        f"reads and gives: {', '.join(values['abilities'])}",
        "options (-o NAME=VALUE), with type and default:",
    ]
    for row, option in zip(rows, values["options"], strict=True):
        grids = option["tried_on_held_out_users"].items()
        tried = [f"tries with {kind}: {', '.join(map(str, grid))}" for kind, grid in grids]
        note = "; ".join([*filter(None, [option["description"], option["range"]]), *tried])
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {'  '.join(cells)}  {note}".rstrip())
    return "\n".join(lines)
