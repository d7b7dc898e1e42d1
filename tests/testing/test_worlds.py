"""Synthetic worlds, and that the shared checks notice a broken model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from idcf.models.base import Model
from idcf.models.registry import model_entry
from idcf.testing import checks, synthetic_world, trained_in_world


@pytest.mark.parametrize("implicit", [False, True])
def test_the_ratings_of_a_world_are_its_taste(implicit: bool) -> None:
    for shared in (False, True):
        world = synthetic_world(implicit=implicit, shared_taste=shared)
        split = world.split
        assert (len(split.train.users), len(split.train.items)) == (80 if shared else 160, 40)
        assert not set(split.key_users) & set(split.query_users)
        liked = world.likes(split.train.user, split.train.item)
        assert liked.all() if implicit else np.array_equal(liked, split.train.rating == 5)


def test_a_trained_model_is_cached_and_ranks_liked_items_first() -> None:
    assert trained_in_world("ease") is trained_in_world("ease")
    world = synthetic_world()
    users = world.split.query_users
    assert (
        checks.liked_items_auc(world, trained_in_world("ease").model, users) > 0.8
    )  # the bound of `check_learns`
    popularity = trained_in_world("popularity").model  # equal for even and odd users
    assert checks.liked_items_auc(world, popularity, np.arange(160)) == pytest.approx(0.5, abs=0.05)


def spoil(model: Model, value: float) -> None:
    model.get_buffer("item_weights.values").mul_(value)


def make_strided(model: Model) -> None:
    model.popularity = model.popularity.repeat(2)[::2]


@pytest.mark.parametrize(
    ("check", "damage", "message"),
    [
        (checks.check_scores_are_finite_and_shaped, lambda m: spoil(m, np.nan), None),
        (checks.check_learns, lambda m: spoil(m, -1.0), "AUC .* of liked items, not above"),
        (checks.check_weights_are_contiguous, make_strided, "popularity not contiguous"),
    ],
)
def test_a_check_notices_a_broken_model(
    check: Callable[[str, bool], None],
    damage: Callable[[Model], None],
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = trained_in_world("ease")
    check("ease", False)
    broken = deepcopy(trained.model)
    damage(broken)
    result = replace(trained, model=broken, key_user_model=broken)
    monkeypatch.setattr(checks, "trained_for_checks", lambda name, implicit: result)
    with pytest.raises(AssertionError, match=message):
        check("ease", False)


def test_checks_follow_what_a_model_declares() -> None:
    def names(model: str) -> set[str]:
        return {check.func.__name__ for check in checks.model_checks(model)}  # type: ignore[attr-defined]

    assert "check_raises_for_unknown_users" in names("pmf") - names("ease")
    assert "check_identity_does_not_leak" in names("ease") - names("pmf")
    assert "check_gradients_reach_every_parameter" in names("pmf") - names("ease")
    assert "check_refuses_unsupported_feedback" in names("bias") - names("pmf")
    assert checks.implicit_settings(model_entry("bias")) == (False,)


def test_scores_are_equal_up_to_rounding_or_exactly() -> None:
    scores = torch.tensor([100.0, 1.0])
    checks.assert_scores_equal(scores + 1e-4, scores, "rounded")
    with pytest.raises(AssertionError, match=r"rounded: scores differ by 1\.0"):
        checks.assert_scores_equal(scores + 1e-4, scores, "rounded", exact=True)
    with pytest.raises(AssertionError, match="shifted"):
        checks.assert_scores_equal(scores + 0.1, scores, "shifted")
