"""Every option that is a number has a range, and what lies outside is refused in one sentence."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args, get_type_hints

import pytest

from idcf.config import dataclass_from_dict, range_text
from idcf.errors import ConfigError
from idcf.models.registry import all_models, configure
from idcf.training.options import TrainConfig

CONFIGS = sorted({x.config_class for x in all_models().values()} | {TrainConfig}, key=str)
NUMBERS = [
    (kind, field.name)
    for kind in CONFIGS
    for field in dataclasses.fields(kind)
    if isinstance(field.default, int | float) and not isinstance(field.default, bool)
]
# infinity has a meaning
OPEN_ENDED = {"shrinkage", "item_shrinkage", "bias_shrinkage", "prior", "noise_dof"}


@pytest.mark.parametrize(("kind", "option"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, -1, -math.inf, 1e12, math.inf])
def test_a_number_out_of_range_is_refused(kind: type, option: str, value: float) -> None:
    if value > 0 and option in OPEN_ENDED:
        return
    with pytest.raises(ConfigError) as caught:
        dataclass_from_dict(kind, {option: value}, "model 'x'")
    text = str(caught.value)
    assert text.startswith(f"model 'x': option {option!r} is {value!r}: ")
    assert "it must be " in text or "valid integer" in text or "finite number" in text


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_number_has_a_range(kind: type) -> None:
    hints, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if {int, float} & {plain[field.name], *get_args(plain[field.name])}:
            assert range_text(hints[field.name]), field.name


@pytest.mark.parametrize("name", all_models())
def test_options_of_the_registry_are_in_range(name: str) -> None:
    entry = all_models()[name]
    for implicit in (False, True):
        for options in entry.expand_grid(dict(entry.check_options), implicit):
            configure(name, options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("idcf-bayes", {"blocks": 0}, "option 'blocks' is 0: it must be from 1 to 64"),
        ("als", {"reg": 0}, r"option 'reg' is 0: it must be above 0 to 1000000000"),
        ("idcf-nn", {"heads": 0}, "option 'heads' is 0: it must be from 1 to 64"),
        ("bias", {"shrinkage": -5}, "option 'shrinkage' is -5: it must be from 0"),
        ("pmf", {"hidden": [8, 0]}, r"option 'hidden\.1' is 0: it must be from 1 to 10000"),
        ("pmf", {"embedding_size": 1e40}, r"'embedding_size' is 1e\+40: it must be from 1 to"),
        (
            "idcf-odds",
            {"history_lengths": [7]},
            r"option 'history_lengths' is \[7\]: a value is missing; each must be from 0 to",
        ),
        (
            "idcf-bayes",
            {"history_lengths": [9, 2]},
            "the first length must not be above the second",
        ),
    ],
)
def test_the_sentence_names_option_value_and_range(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(name, options)
