"""The worlds are what they say, so that tests may lean on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from idcf.data.interactions import Interactions
from idcf.errors import DataError
from idcf.testing.synthetic import at_scale, checkerboard, clusters, low_rank


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


WORLDS: dict[str, Callable[[int, bool], Interactions]] = {
    "checkerboard": lambda s, i: checkerboard(50, 40, rng(s), implicit=i),
    "low_rank": lambda s, i: low_rank(50, 40, 2, rng(s), density=0.3, implicit=i).interactions,
    "clusters": lambda s, i: clusters(50, 40, 3, rng(s), implicit=i).interactions,
    "at_scale": lambda s, i: at_scale(2_000, rng(s), implicit=i),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("implicit", [False, True])
def test_every_world_is_a_sound_table(name: str, implicit: bool) -> None:
    table = WORLDS[name](0, implicit)
    pairs = table.user * len(table.items) + table.item
    assert len(set(pairs.tolist())) == len(table), "no pair twice"
    assert table.implicit is implicit
    assert table.users.ids[:2] == ("u0", "u1")
    assert table.items.ids[-1] == f"i{len(table.items) - 1}"
    assert table.rating.dtype == np.float32
    assert table.user.dtype == table.item.dtype == np.int64
    assert not implicit or set(table.rating.tolist()) == {1.0}
    assert table.user.max() < len(table.users)
    assert table.item.max() < len(table.items)


@pytest.mark.parametrize("name", WORLDS)
def test_the_seed_decides(name: str) -> None:
    one, two, other = (WORLDS[name](s, False) for s in (3, 3, 4))
    assert one.item.tolist() == two.item.tolist()
    assert one.rating.tolist() == two.rating.tolist()
    assert one.item.tolist() != other.item.tolist()


def test_even_users_love_even_items() -> None:
    table = checkerboard(90, 80, rng())
    loved = table.user % 2 == table.item % 2
    assert set(table.rating[loved].tolist()) == {5.0}
    assert set(table.rating[~loved].tolist()) == {1.0}
    assert 0.7 < loved.mean() < 0.95, "people mostly rate what they like"
    counts = table.counts()
    assert (counts <= 10).sum() == 30, "a third are light users"
    assert counts.min() >= 6
    assert (counts >= 38).sum() == 60


def test_a_checkerboard_drawn_in_blocks_is_one_too() -> None:
    table = checkerboard(2_001, 5_003, rng(), few=4, many=6)
    loved = table.user % 2 == table.item % 2
    assert set(table.rating[loved].tolist()) == {5.0}
    assert table.counts().min() >= 2


def test_implicit_checkerboard_holds_only_what_was_loved() -> None:
    table = checkerboard(30, 40, rng(), implicit=True)
    assert (table.user % 2 == table.item % 2).all()


def test_low_rank_ratings_are_the_truth_plus_noise() -> None:
    world = low_rank(80, 60, 3, rng(), density=0.5, noise=0.2)
    table = world.interactions
    assert len(table) == 2_400
    error = table.rating - world.truth(table.user, table.item)
    assert error.std() == pytest.approx(0.2, rel=0.1)
    user, item = np.divmod(np.arange(80 * 60), 60)
    dense = world.truth(user, item).reshape(80, 60)
    centred = dense - dense.mean(1, keepdims=True) - dense.mean(0) + dense.mean()
    assert np.linalg.matrix_rank(centred, tol=1e-3) == 3


def test_low_rank_without_noise_and_rounded() -> None:
    world = low_rank(40, 30, 2, rng(), density=1.0, noise=0.0)
    table = world.interactions
    assert len(table) == 1_200
    np.testing.assert_allclose(table.rating, world.truth(table.user, table.item), rtol=1e-6)
    whole = low_rank(40, 30, 2, rng(), whole=True).interactions
    assert set(whole.rating.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}


def test_implicit_low_rank_prefers_what_is_liked() -> None:
    world = low_rank(80, 60, 3, rng(), density=0.1, implicit=True)
    table = world.interactions
    assert len(table) == 480
    assert world.truth(table.user, table.item).mean() > 4


def test_clusters_rate_their_own_items_high() -> None:
    world = clusters(60, 50, 5, rng())
    table = world.interactions
    own = world.user_group[table.user] == world.item_group[table.item]
    assert 0.6 < own.mean() < 0.95
    assert table.rating[own].min() > 3 > table.rating[~own].max()
    with pytest.raises(DataError, match="9 groups need as many users and items"):
        clusters(60, 8, 9, rng())


def test_scale_has_exactly_the_rows_asked_for_and_long_tails() -> None:
    table = at_scale(100_000, rng())
    assert len(table) == 100_000
    counts = np.sort(table.item_counts())[::-1]
    assert counts[: len(counts) // 10].sum() > 0.3 * len(table)
    assert len(at_scale(1_000, rng(), users=300, items=200).users) == 300
    with pytest.raises(DataError, match="1,000 rows are too many for 30 users x 20 items"):
        at_scale(1_000, rng(), users=30, items=20)
