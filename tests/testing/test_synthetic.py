"""The synthetic datasets have the documented properties, on which other tests rely."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from idcf.data.interactions import Interactions
from idcf.errors import DataError
from idcf.testing.synthetic import checkerboard, clusters, long_tailed, low_rank


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


DATASETS: dict[str, Callable[[int, bool], Interactions]] = {
    "checkerboard": lambda s, i: checkerboard(50, 40, rng(s), implicit=i),
    "low_rank": lambda s, i: low_rank(50, 40, 2, rng(s), density=0.3, implicit=i).interactions,
    "clusters": lambda s, i: clusters(50, 40, 3, rng(s), implicit=i).interactions,
    "long_tailed": lambda s, i: long_tailed(2_000, rng(s), implicit=i),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("implicit", [False, True])
def test_every_dataset_is_a_valid_table(name: str, implicit: bool) -> None:
    table = DATASETS[name](0, implicit)
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


@pytest.mark.parametrize("name", DATASETS)
def test_the_seed_decides(name: str) -> None:
    first, second, other = (DATASETS[name](s, False) for s in (3, 3, 4))
    assert first.item.tolist() == second.item.tolist()
    assert first.rating.tolist() == second.rating.tolist()
    assert first.item.tolist() != other.item.tolist()


def test_even_users_like_even_items() -> None:
    table = checkerboard(90, 80, rng())
    liked = table.user % 2 == table.item % 2
    assert set(table.rating[liked].tolist()) == {5.0}
    assert set(table.rating[~liked].tolist()) == {1.0}
    assert 0.7 < liked.mean() < 0.95, "users mostly rate what they like"
    counts = table.user_counts()
    assert (counts <= 10).sum() == 30, "a third are light users"
    assert counts.min() >= 6
    assert (counts >= 38).sum() == 60


def test_a_checkerboard_drawn_in_blocks_has_the_same_taste() -> None:
    table = checkerboard(2_001, 5_003, rng(), rows_per_light_user=4, rows_per_heavy_user=6)
    liked = table.user % 2 == table.item % 2
    assert set(table.rating[liked].tolist()) == {5.0}
    assert table.user_counts().min() >= 2


def test_implicit_checkerboard_holds_liked_pairs_only() -> None:
    table = checkerboard(30, 40, rng(), implicit=True)
    assert (table.user % 2 == table.item % 2).all()


def test_low_rank_ratings_are_the_truth_plus_noise() -> None:
    world = low_rank(80, 60, 3, rng(), density=0.5, noise=0.2)
    table = world.interactions
    assert len(table) == 2_400
    error = table.rating - world.true_rating(table.user, table.item)
    assert error.std() == pytest.approx(0.2, rel=0.1)
    user, item = np.divmod(np.arange(80 * 60), 60)
    dense = world.true_rating(user, item).reshape(80, 60)
    centered = dense - dense.mean(1, keepdims=True) - dense.mean(0) + dense.mean()
    assert np.linalg.matrix_rank(centered, tol=1e-3) == 3


def test_low_rank_without_noise_and_rounded() -> None:
    world = low_rank(40, 30, 2, rng(), density=1.0, noise=0.0)
    table = world.interactions
    assert len(table) == 1_200
    np.testing.assert_allclose(table.rating, world.true_rating(table.user, table.item), rtol=1e-6)
    rounded = low_rank(40, 30, 2, rng(), round_ratings=True).interactions
    assert set(rounded.rating.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}


def test_implicit_low_rank_prefers_what_is_liked() -> None:
    world = low_rank(80, 60, 3, rng(), density=0.1, implicit=True)
    table = world.interactions
    assert len(table) == 480
    assert world.true_rating(table.user, table.item).mean() > 4


def test_clusters_rate_items_of_their_group_high() -> None:
    world = clusters(60, 50, 5, rng())
    table = world.interactions
    in_group = world.user_group[table.user] == world.item_group[table.item]
    assert 0.6 < in_group.mean() < 0.95
    assert table.rating[in_group].min() > 3 > table.rating[~in_group].max()
    with pytest.raises(DataError, match="9 groups need as many users and items"):
        clusters(60, 8, 9, rng())


def test_long_tailed_has_exactly_n_rows_and_long_tails() -> None:
    table = long_tailed(100_000, rng())
    assert len(table) == 100_000
    counts = np.sort(table.item_counts())[::-1]
    assert counts[: len(counts) // 10].sum() > 0.3 * len(table)
    assert len(long_tailed(1_000, rng(), n_users=300, n_items=200).users) == 300
    with pytest.raises(DataError, match="1,000 rows are too many for 30 users x 20 items"):
        long_tailed(1_000, rng(), n_users=30, n_items=20)
