"""Manifests: what they describe, and the model card that is written from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import board, random_table
from hypothesis import given
from hypothesis import strategies as st

from idcf.config import dataclass_from_dict, dataclass_to_dict
from idcf.data.features import FeatureEncoder
from idcf.data.interactions import Interactions, Vocab
from idcf.data.split import Split
from idcf.inference.manifest import (
    DomainInfo,
    Manifest,
    NewUserCurve,
    NewUserCurvePoint,
    RecommenderConfig,
    TrainingData,
)
from idcf.inference.model_card import render_model_card

DOMAIN = DomainInfo(n_users=9, n_items=1234, mean=3.5, levels=(1.0, 2.5, 5.0), implicit=False)
DATA = TrainingData(sha256="ab12", n_rows=98765, n_users=4321, n_key_users=1111, key_threshold=30)
CURVE = NewUserCurve(
    metric="rmse",
    baseline="item-mean",
    n_users=2000,
    n_rows=34567,
    points=(
        NewUserCurvePoint(history_length=0, value=1.0, low=0.9, high=1.1, baseline=1.25),
        NewUserCurvePoint(history_length=10, value=0.9, low=0.8, high=0.95, baseline=1.2),
    ),
    cover90=0.912,
)


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "model": "als",
        "options": {},
        "domain": DOMAIN,
        "training_data": DATA,
    }
    return Manifest(**values | changes)


def split_of(table: Interactions) -> Split:
    """Return a split in which all users are key users."""
    nothing = table.where(np.zeros(len(table), bool))
    return Split(table, nothing, np.arange(len(table.users)), np.empty(0, np.int64))


def checksum(table: Interactions) -> str:
    return TrainingData.from_split(split_of(table), 1).sha256


def test_a_domain_describes_a_table_of_ratings() -> None:
    table = random_table(3, min_rows=20)
    domain = DomainInfo.from_table(table, 2.5)
    assert (domain.n_users, domain.n_items, domain.mean, domain.implicit) == (6, 9, 2.5, False)
    assert domain.levels == tuple(sorted(set(table.rating.tolist())))
    assert all(type(x) is float for x in domain.levels)


def test_implicit_feedback_has_one_level() -> None:
    table = board(40, 24, 6, 14, implicit=True)
    assert DomainInfo.from_table(table, 0.0).levels == (1.0,)


@pytest.mark.parametrize("n_users", [0, 1, 5])
def test_a_model_can_be_built_for_any_number_of_users(n_users: int) -> None:
    domain = replace(DOMAIN, n_users=n_users).placeholder_domain()
    assert domain.n_users == max(2, n_users)
    assert domain.n_items == len(domain.raters.lengths()) == 1234
    assert len(domain.raters.indices) == 0
    assert (domain.mean, domain.levels, domain.implicit) == (3.5, (1.0, 2.5, 5.0), False)


@given(st.integers(0, 10**6), st.data())
def test_the_checksum_covers_rows_ratings_and_ids(seed: int, data: st.DataObject) -> None:
    table = random_table(seed)
    assert checksum(table) == checksum(random_table(seed))
    row = data.draw(st.integers(0, len(table) - 1))
    for column, other in (("user", 7), ("item", 8), ("rating", 9.5)):
        values = getattr(table, column).copy()
        values[row] = other if values[row] != other else other - 1
        if column == "user":
            values[row] = (table.user[row] + 1) % 6
        assert checksum(replace(table, **{column: values})) != checksum(table)
    renamed = Vocab([str(x) for x in table.items.ids])
    assert checksum(replace(table, items=renamed)) != checksum(table)
    assert checksum(replace(table, users=Vocab(range(1, 7)))) != checksum(table)


def test_the_description_of_the_training_data() -> None:
    table = random_table(0, min_rows=10)
    split = replace(split_of(table), key_users=np.array([1, 4]))
    data = TrainingData.from_split(split, 7, 30)
    assert (data.n_rows, data.n_users, data.n_key_users) == (len(table), 6, 2)
    assert (data.key_threshold, data.key_user_rule) == (7, 30)


def test_a_manifest_gives_the_configuration_that_trains_it_again() -> None:
    data = replace(DATA, key_threshold=12, key_user_rule=50)
    config = manifest(options={"reg": 2.0}, training_data=data, preset="p", seed=4).config("cpu")
    assert config == RecommenderConfig("als", {"reg": 2.0}, 12, 50, "p", 4, "cpu")
    assert not config.card_metrics


def test_default_options_do_not_replace_given_ones() -> None:
    config = RecommenderConfig("als", {"reg": 2.0}, seed=3)
    merged = config.with_default_options({"reg": 1.0, "alpha": 5.0})
    assert merged.options == {"reg": 2.0, "alpha": 5.0}
    assert merged.seed == 3
    assert config.options == {"reg": 2.0}


@pytest.mark.parametrize("curve", [None, CURVE])
def test_a_manifest_survives_plain_values(curve: NewUserCurve | None) -> None:
    columns = {"age": [20, 30, 40, None, 60], "job": ["a", "a|b", "a", "b", "b"]}
    for encoder in (None, FeatureEncoder.fit(columns, np.ones(5, bool))):
        original = manifest(new_user_curve=curve, user_encoder=encoder, seed=7)
        assert dataclass_from_dict(Manifest, dataclass_to_dict(original)) == original
    assert "interactions and features (age" in render_model_card(original)


def test_the_card_has_the_numbers_of_the_training() -> None:
    card = render_model_card(
        manifest(options={"reg": 2.0, "alpha": 3}, versions={"idcf": "1.2", "torch": "9"}, seed=8)
    )
    assert card.startswith("# als\n")
    for text in (
        "98,765 interactions (ratings from 1 to 5) of 4,321 users",
        "The 1,111 users with at least\n  30 interactions are the key users",
        "`ab12`",
        "options: reg=2.0, alpha=3.",
        "1,234 items.",
        "idcf 1.2, torch 9",
        "preset `clean`, seed 8",
        "Accuracy was not measured in\n  training",
    ):
        assert text in card, text
    assert "## Accuracy" not in card


def test_the_card_without_options_says_so() -> None:
    assert "options: none." in render_model_card(manifest())


def test_the_card_of_implicit_feedback_has_no_scale() -> None:
    domain = replace(DOMAIN, implicit=True, levels=(1.0,), mean=0.0)
    card = render_model_card(manifest(domain=domain))
    assert "(implicit feedback)" in card
    assert "ratings from" not in card


def test_the_card_names_another_choice_of_key_users() -> None:
    card = render_model_card(manifest(training_data=replace(DATA, key_user_rule=50)))
    assert "The 1,111 users (`key_users=50`) among those with at least" in card


def test_the_card_names_the_backbone() -> None:
    card = render_model_card(
        manifest(model="idcf-nn", backbone="nnmf", backbone_options={"embedding_size": 3})
    )
    assert "`idcf-nn` around `nnmf` {'embedding_size': 3}" in card


@pytest.mark.parametrize(
    ("n_users", "prior"),
    [(0, "a ridge penalty"), (77, "a prior fitted to the 77 users of that training")],
)
def test_the_card_of_given_factors(n_users: int, prior: str) -> None:
    card = render_model_card(manifest(training_data=replace(DATA, n_rows=0, n_users=n_users)))
    assert "the item factors were given (ratings from 1 to 5)" in card
    assert f"is solved for, with {prior}; options: none." in card
    assert "key users are" not in card


def test_the_card_has_a_row_for_every_history_length() -> None:
    card = render_model_card(manifest(new_user_curve=CURVE))
    assert "| 0 | 1.000 [0.900, 1.100] | 1.250 |\n| 10 | 0.900 [0.800, 0.950] | 1.200 |\n" in card
    assert "trained without 2,000 of the key users" in card
    assert "predicted 34,567 others\n(rmse: less is better" in card
    assert "91.2% of the ratings were in the 90 % intervals." in card
    assert "| history length | `als` | `item-mean` |" in card
    assert "The accuracy for new users is given below." in card


def test_the_card_of_another_metric_says_which_direction_is_better() -> None:
    card = render_model_card(
        manifest(new_user_curve=replace(CURVE, metric="ndcg@20", cover90=None))
    )
    assert "(ndcg@20: more is better" in card
    assert "intervals." not in card.split("## Accuracy")[1]
