"""Options of every model, drawn from its config classes: in range, at the bounds, and of any type.

What is refused is refused before any work, in a sentence that names the option, the value and the
range. What is accepted is in its range, and a training with it, where that is quick, ends with a
finite model that can be saved and loaded, or says in a sentence why it cannot.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import hypothesis
from attack import Tally
from hypothesis import strategies as st
from small_world import board

from idcf import Recommender
from idcf.config import parse_overrides, range_text
from idcf.errors import ConfigError, IdcfError
from idcf.models.registry import all_models, model_entry
from idcf.training.loop import TrainConfig
from idcf.training.presets import check_options

N_CHECKS = 20_000  # with a share of 1
N_TRAININGS = 400
_MAX_COST = 16  # larger integers are checked, but not trained with
_TEXTS = (
    "",
    "two",
    "nan",
    "-inf",
    "1e999",
    "0x10",
    "[1, 2",
    "true",
    "{}",
    "None",
    "1,5",
    "١",
    "é\0",
)
_NUMBERS = (0, 1, -1, 2**31, 2**63, 10**30, 0.0, -0.0, 0.5, 5e-324, 1e308, math.nan, math.inf)
_OTHERS = (True, None, [], [0], [1, -1], [1.5, 2], [[1]], {"a": 1}, [1] * 100, "x" * 10_000)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a model or of its training."""

    model: str
    name: str
    kind: Any


def run(folder: Path, seed: int, share: float) -> Tally:
    """Check many options, and train with those that are accepted and cheap."""
    tally, rng = Tally(), random.Random(f"hostile options {seed}")
    options = [x for name in sorted(all_models()) for x in options_of(name)]
    accepted: list[tuple[Option, Any]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max(1, round(share * N_CHECKS)),
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def check_examples(data: st.DataObject) -> None:
        """Check one option with one value."""
        option = data.draw(st.sampled_from(options))
        value = data.draw(values_for(option.kind))
        if check(option, value, f"seed {seed}", tally):
            accepted.append((option, value))

    check_examples()
    n = max(1, round(share * N_TRAININGS))
    tally.left_out["training with compile"] = "takes minutes; the option is only checked"
    cheap = [(o, x) for o, x in accepted if cost(x) <= _MAX_COST and o.name != "compile"]
    begin, slowest = time.process_time(), 0.0
    for option, value in rng.sample(cheap, min(n, len(cheap))):
        train_with(option, value, folder / "model", f"seed {seed}", tally)
        begin, seconds = time.process_time(), time.process_time() - begin
        slowest = max(slowest, seconds)
    tally.measured["slowest_cpu_s"] = round(slowest, 1)
    return tally


def options_of(model: str) -> list[Option]:
    """Return the options of a model and, if it is trained by epochs, of its training."""
    entry = model_entry(model)
    kinds = [entry.config_class, *([TrainConfig] if entry.solver is None else [])]
    hints = {
        name: x for kind in kinds for name, x in get_type_hints(kind, None, None, True).items()
    }
    return [
        Option(model, name, kind) for name, kind in hints.items() if get_origin(kind) is not Any
    ]


def values_for(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of any type, most of them at the bounds of a type."""
    near = [x for bound in bounds(kind) for x in around(bound)] or [0]
    return st.one_of(
        st.sampled_from(near),
        st.sampled_from([*near, *_NUMBERS]),
        st.sampled_from(_OTHERS),
        st.sampled_from(_TEXTS),
        st.sampled_from(choices(kind) or [0]),
        st.integers(-3, 40),
        st.floats(),
        st.lists(st.integers(-2, 12), max_size=4),
        st.text(max_size=12),
    )


def limits(kind: Any) -> dict[str, float]:
    """Return the limits of a type by name: gt, ge, le."""
    found: dict[str, float] = {}
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        for mark in (mark for x in metadata for mark in getattr(x, "metadata", ())):
            found |= {key: getattr(mark, key) for key in ("gt", "ge", "le") if hasattr(mark, key)}
        return found or limits(inner)
    for inner in get_args(kind):
        if found := limits(inner):
            return found
    return found


def bounds(kind: Any) -> list[float]:
    """Return the bounds of the numbers of a type."""
    return list(limits(kind).values())


def choices(kind: Any) -> list[Any]:
    """Return the words of a type of some words."""
    return [x for x in get_args(kind) if isinstance(x, str | bool | int)]


def around(bound: float) -> list[Any]:
    """Return numbers at a bound and close to it, as integers and as floats."""
    numbers = [bound, bound - 1, bound + 1, math.nextafter(bound, -math.inf), -bound]
    return [*numbers, math.nextafter(bound, math.inf), int(bound), float(bound), str(bound)]


def check(option: Option, value: Any, case: str, tally: Tally) -> bool:
    """Check an option as the command line does; return whether it is accepted."""
    case = f"{case}, {option.model}, {option.name}={value!r:.80}"
    try:
        given = as_given(option.name, value)
    except IdcfError:
        tally.count("no text of the command line")
        return False
    try:
        Recommender(option.model, **given)
        check_options(option.model, given)
    except ConfigError as error:
        tally.count("refused")
        text, shown = str(error), repr(given[option.name])
        is_named = option.name in text and (shown in text or len(shown) > 60 or nested(shown))
        wants_range = "must be" in text or "valid" in text or "input should" in text
        if not is_named or not (wants_range or range_text(option.kind) in text):
            tally.fail("message", case, text)
        return False
    except Exception:
        tally.fail("traceback of the check", case, traceback.format_exc()[-1000:])
        return False
    tally.count("accepted")
    if not in_range(given[option.name], limits(option.kind)):
        tally.fail("accepted out of range", case, range_text(option.kind))
    return True


def as_given(name: str, value: Any) -> dict[str, Any]:
    """Return an option as `--option NAME=VALUE` gives it: text that is read as TOML."""
    text = value if isinstance(value, str) else json.dumps(value)
    for word, toml in (("NaN", "nan"), ("Infinity", "inf")):
        text = text.replace(word, toml) if not isinstance(value, str) else text
    return parse_overrides([f"{name}={text}"])


def nested(shown: str) -> bool:
    """Return whether a message may show a part of a value instead of the value."""
    return shown[0] in "[{"


def in_range(value: Any, limits_of_type: dict[str, float]) -> bool:
    """Return whether all numbers in a value are within the limits."""
    if isinstance(value, list | tuple):
        return all(in_range(x, limits_of_type) for x in value)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return True  # a word
    if not isinstance(value, int | float):
        return True
    low, above = limits_of_type.get("ge", -math.inf), limits_of_type.get("gt")
    is_above = above is None or value > above
    return low <= value <= limits_of_type.get("le", math.inf) and is_above


def cost(value: Any) -> float:
    """Return the largest number in a value: of epochs, of sweeps, or the size of a layer."""
    if isinstance(value, list | tuple):
        return max(map(cost, value), default=0)
    try:
        return abs(float(value))
    except (TypeError, ValueError):
        return 0


def train_with(option: Option, value: Any, folder: Path, case: str, tally: Tally) -> None:
    """Train a small model with an accepted value, and save and load it."""
    case = f"{case}, training of {option.model}, {option.name}={value!r:.80}"
    entry = model_entry(option.model)
    options = {**entry.check_options, **({} if entry.solver else {"epochs": 2})}
    options |= {
        x: 3 for x in ("sweeps", "burn_in") if x in {y.name for y in options_of(option.model)}
    }
    options |= {"sweeps": 8} if "sweeps" in options else {}
    options |= as_given(option.name, value)
    table = board(n_users=24, n_items=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = table.as_implicit() if entry.implicit_only else table
            model = Recommender(option.model, key_threshold=5, device="cpu", **options)
            model.fit(table).save(folder, allow_training_rows=True)
            Recommender.load(folder)
        except IdcfError as error:
            tally.count("training refused")
            if not str(error).strip() or "\n" in str(error):
                tally.fail("message of a training", case, repr(error))
        except Exception:
            tally.fail("traceback of a training", case, traceback.format_exc()[-1500:])
        else:
            tally.count("trained")
