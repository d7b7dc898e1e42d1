"""The table of interactions against slow, obvious references."""

from __future__ import annotations

import numpy as np
import pytest
from builders import random_table, table_from_columns
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.interactions import (
    Interactions,
    Vocab,
    align_vocabularies,
    encode_ids,
    group_rows_by_key,
    offsets_from_lengths,
    recode_ids,
    slice_index,
)
from idcf.errors import DataError

SEEDS = st.integers(0, 2**32 - 1)


def small(seed: int) -> Interactions:
    """A table in random row order; some users may have no row at all."""
    return random_table(seed, 5, 7)


@given(SEEDS)
def test_history_equals_a_loop_over_rows(seed: int) -> None:
    table = small(seed)
    users = np.array([3, 0, -1, 3, 4])
    history = table.history(users)
    offsets = history.offsets.tolist()
    for n, user in enumerate(users.tolist()):
        rows = [r for r in range(len(table)) if table.user[r] == user]
        entries = slice(offsets[n], offsets[n + 1])
        assert history.items[entries].tolist() == table.item[rows].tolist()
        assert history.values[entries].tolist() == table.rating[rows].tolist()


@given(SEEDS)
def test_domain_lists_the_raters_of_each_item(seed: int) -> None:
    table = small(seed)
    domain = table.domain()
    offsets = domain.raters.offsets.tolist()
    for item in range(domain.n_items):
        expected = [u for u, i in zip(table.user, table.item, strict=True) if i == item]
        assert domain.raters.indices[offsets[item] : offsets[item + 1]].tolist() == expected
    assert domain.mean == pytest.approx(sum(table.rating.tolist()) / len(table))
    assert domain.levels == tuple(sorted(set(table.rating.tolist())))


@given(SEEDS)
def test_counts_and_selection(seed: int) -> None:
    table = small(seed)
    assert table.user_counts().tolist() == [sum(table.user == u) for u in range(5)]
    assert table.item_counts().tolist() == [sum(table.item == i) for i in range(7)]
    selected = table.for_users(np.array([1, 2]))
    assert set(selected.user.tolist()) <= {1, 2}
    assert len(selected) == sum(np.isin(table.user, [1, 2]))
    others = table.where(~np.isin(table.user, [1, 2]))
    assert sorted(selected.concat(others).item.tolist()) == sorted(table.item.tolist())


def test_implicit_domain_has_one_level_and_no_mean() -> None:
    table = table_from_columns(np.array(["b", "a"]), np.array([2, 1]))
    assert table.implicit
    assert table.domain().levels == (1.0,)
    assert table.domain().mean == 0
    assert table.rating.tolist() == [1, 1]


def test_encode_sorts_so_file_order_does_not_matter() -> None:
    vocab, rows = encode_ids(np.array(["b", "a", "b"]))
    assert vocab.ids == ("a", "b")
    assert rows.tolist() == [1, 0, 1]
    assert vocab.row("b") == 1
    assert vocab.row("x") == -1
    assert vocab.rows(["b", "x"]).tolist() == [1, -1]


def test_vocab_rejects_duplicates_and_compares_by_ids() -> None:
    with pytest.raises(DataError, match="1 duplicate ids"):
        Vocab(["a", "a"])
    assert Vocab([1, 2]) == Vocab((1, 2))
    assert Vocab([1, 2]) != Vocab([2, 1])
    assert hash(Vocab([1])) == hash(Vocab([1]))


def test_joining_tables_of_two_vocabularies_is_an_error() -> None:
    with pytest.raises(DataError, match="one vocabulary"):
        small(0).concat(small(0))


def test_vocabularies_that_do_not_fit_are_rejected() -> None:
    with_text = table_from_columns(np.array(["a"]), np.array([1]))
    with_integers = table_from_columns(np.array([1]), np.array([1]))
    with pytest.raises(DataError, match="user ids are strings in one table and integers"):
        align_vocabularies(with_text, with_integers)
    with pytest.raises(DataError, match="user 'a' is not in the vocabulary"):
        recode_ids(with_text, with_integers.users, with_integers.items)


def test_repr_says_what_it_is() -> None:
    assert repr(small(0)).startswith("<Interactions 5 users x 7 items, ")


@given(st.lists(st.integers(0, 3), max_size=20))
def test_group_is_a_stable_sort(keys: list[int]) -> None:
    order, start = group_rows_by_key(np.array(keys, np.int64), 4)
    assert order.tolist() == sorted(range(len(keys)), key=lambda r: keys[r])
    assert np.diff(start).tolist() == [keys.count(k) for k in range(4)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=8))
def test_slice_index_lays_slices_end_to_end(slices: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in slices], np.int64)
    length = np.array([n for _, n in slices], np.int64)
    index, offsets = slice_index(start, length)
    assert index.tolist() == [a + k for a, n in slices for k in range(n)]
    assert offsets.tolist() == [0, *np.cumsum(length).tolist()]


def test_offsets_of_no_rows_are_one_zero() -> None:
    assert offsets_from_lengths([]).tolist() == [0]
    assert offsets_from_lengths([2, 0, 3]).tolist() == [0, 2, 2, 5]
