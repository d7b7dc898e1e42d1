"""Slow references for the fast paths of tables and splits, and the edges of every reader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from builders import table_from_columns
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.features import FeatureEncoder, fit_feature_encoder
from idcf.data.history_reader import HistoryReader, as_users, has_many_users
from idcf.data.interactions import (
    Interactions,
    Vocab,
    align_vocabularies,
    recode_ids,
    row_lookup,
    slice_index,
    titles_by_row,
)
from idcf.data.readers import read_interactions
from idcf.data.side_tables import add_side_tables
from idcf.data.split import (
    hold_out_last_rows,
    hold_out_rows,
    hold_out_users,
    least_active_users,
    sample_rows_per_user,
    select_informative_users,
    split_at_random,
    split_by_key_users,
)
from idcf.errors import ConfigError, DataError
from idcf.types import History, Ragged, select_histories, select_rows

PAIRS = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 8)), min_size=1, max_size=40)


def table_of(pairs: set[tuple[int, int]], seed: int = 0) -> Interactions:
    """Interactions of (user, item) pairs in a random order, with ratings of 1 to 5 and times."""
    rng = np.random.default_rng(seed)
    user, item = np.array(sorted(pairs))[rng.permutation(len(pairs))].T
    rating = rng.integers(1, 6, len(user)).astype(float)
    return table_from_columns(user, item, rating, rng.integers(100, size=len(user)))


def pairs_of(table: Interactions) -> list[tuple[Any, Any]]:
    """(user id, item id) of each row."""
    users, items = table.users.ids, table.items.ids
    return [(users[u], items[i]) for u, i in zip(table.user, table.item, strict=True)]


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.lists(st.integers(-1, 6), max_size=5))
def test_histories_are_the_rows_of_each_user(pairs: set[tuple[int, int]], users: list[int]) -> None:
    table = table_of(pairs)
    rows = np.array([u if u < len(table.users) else -1 for u in users], np.int64)
    history = table.history(rows)
    for n, row in enumerate(rows):
        start, end = history.offsets[n : n + 2].tolist()
        mask = table.user == row
        assert history.items[start:end].tolist() == table.item[mask].tolist()
        assert history.values[start:end].tolist() == table.rating[mask].tolist()
    expected_owner = [n for n, row in enumerate(rows) for _ in range((table.user == row).sum())]
    assert history.owner().tolist() == expected_owner


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.data())
def test_selected_rows_are_those_of_a_loop(pairs: set[tuple[int, int]], data: Any) -> None:
    history = table_of(pairs).history(np.arange(len({u for u, _ in pairs})))
    n_users = len(history.offsets) - 1
    rows = torch.tensor(data.draw(st.lists(st.integers(0, n_users - 1))), dtype=torch.int64)
    bounds = history.offsets.tolist()
    expected = [history.items[bounds[r] : bounds[r + 1]].tolist() for r in rows.tolist()]
    n_entries = sum(map(len, expected))
    selections = [
        select_histories(history, rows),
        select_histories(history, rows, n_entries),
        select_rows(history.as_ragged(), rows),
    ]
    for selection in selections:
        assert selection.indices.tolist() == [x for part in expected for x in part]
        assert selection.lengths().tolist() == [len(x) for x in expected]
    without_values = select_rows(Ragged(history.items, None, history.offsets), rows)
    assert without_values.values is None
    assert without_values.indices.tolist() == selections[0].indices.tolist()


def test_empty_histories_and_ragged_rows() -> None:
    for empty in (History.empty(3), Ragged.empty(3)):
        assert empty.lengths().tolist() == [0, 0, 0]
        assert empty.owner().tolist() == []
        assert empty.indices.dtype == torch.int64


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=8))
def test_slice_index_lays_slices_end_to_end(slices: list[tuple[int, int]]) -> None:
    start, length = np.array(slices, np.int64).reshape(-1, 2).T
    index, offsets = slice_index(start, length)
    assert index.tolist() == [s + k for s, n in slices for k in range(n)]
    assert offsets.tolist() == np.cumsum([0, *length]).tolist()


@settings(max_examples=30, deadline=None)
@given(PAIRS, PAIRS)
def test_aligned_tables_keep_their_rows(
    first: set[tuple[int, int]], second: set[tuple[int, int]]
) -> None:
    tables = [table_of(first), table_of(second, seed=1)]
    aligned = align_vocabularies(*tables)
    assert [pairs_of(x) for x in aligned] == [pairs_of(x) for x in tables]
    assert aligned[0].users is aligned[1].users
    assert aligned[0].items.ids == tuple(sorted({i for _, i in first | second}))
    joined = aligned[0].concat(aligned[1])
    assert pairs_of(joined) == pairs_of(tables[0]) + pairs_of(tables[1])


def test_tables_that_do_not_fit_together() -> None:
    table = table_of({(0, 0), (1, 1)})
    text = table_from_columns(np.array(["a"]), np.array([0]), np.array([3.0]))
    with pytest.raises(DataError, match="user ids are strings in one table and integers"):
        align_vocabularies(table, text)
    with pytest.raises(DataError, match="only tables of one vocabulary can be joined"):
        table.concat(text)
    with pytest.raises(DataError, match="item 1 is not in the vocabulary it must be in"):
        recode_ids(table, table.users, Vocab([0]))
    with pytest.raises(DataError, match="1 duplicate ids"):
        Vocab(["a", "b", "a"])


def test_a_table_without_times_joins_one_with_times() -> None:
    table = table_of({(0, 0), (1, 1)})
    timeless = Interactions(table.users, table.items, table.user, table.item, table.rating)
    assert table.concat(timeless).time is None
    assert len(table.concat(timeless)) == 4


def test_ids_are_looked_up_as_text_and_as_numbers() -> None:
    lookup = row_lookup(Vocab(["7", "007", "-3", "x", "9" * 25]))
    assert lookup[7] == lookup["7"] == 0
    assert lookup["007"] == 1
    assert lookup[-3] == 2
    assert int("9" * 25) not in lookup
    assert row_lookup(Vocab([7, 8]))["8"] == 1
    assert titles_by_row(Vocab([7, 8]), {"8": "Acht", 8.5: "none"}) == (None, "Acht")
    assert titles_by_row(Vocab([]), {"8": "Acht"}) == ()


@settings(max_examples=30, deadline=None)
@given(PAIRS, st.integers(1, 4), st.booleans())
def test_the_last_rows_are_those_of_a_loop(
    pairs: set[tuple[int, int]], n: int, has_time: bool
) -> None:
    table = table_of(pairs)
    if not has_time:
        table = Interactions(table.users, table.items, table.user, table.item, table.rating)
    train, test = hold_out_last_rows(table, n)
    times = np.arange(len(table)) if table.time is None else table.time
    expected = []
    for user in range(len(table.users)):
        rows = sorted(np.flatnonzero(table.user == user), key=lambda r: (times[r], r))
        expected += rows[-n:] if len(rows) > n else []
    assert pairs_of(test) == [pairs_of(table)[r] for r in sorted(expected)]
    assert sorted(pairs_of(train) + pairs_of(test)) == sorted(pairs_of(table))


@settings(max_examples=30, deadline=None)
@given(PAIRS, st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))
def test_held_out_users_leave_training_and_keep_a_target(
    pairs: set[tuple[int, int]], low: int, extra: int, seed: int
) -> None:
    table = table_of(pairs)
    users = np.array([0])
    train, task = hold_out_users(table, users, (low, low + extra), np.random.default_rng(seed))
    history, target = task.history_table, task.target_table
    assert 0 not in train.user
    assert set(history.user) | set(target.user) <= {0}
    assert len(target) >= 1
    n_rows = int((table.user == 0).sum())
    assert min(low, n_rows - 1) <= len(history) <= min(low + extra, n_rows - 1)
    assert sorted(pairs_of(train) + pairs_of(history) + pairs_of(target)) == sorted(pairs)


@settings(max_examples=20, deadline=None)
@given(PAIRS, st.integers(0, 99))
def test_samples_of_rows_are_nested(pairs: set[tuple[int, int]], seed: int) -> None:
    table = table_of(pairs)
    samples = [sample_rows_per_user(table, n, np.random.default_rng(seed)) for n in range(4)]
    for n, sample in enumerate(samples):
        assert sample.user_counts().tolist() == np.minimum(table.user_counts(), n).tolist()
        assert n == 0 or set(pairs_of(samples[n - 1])) <= set(pairs_of(sample))


def test_the_least_active_users_have_the_fewest_rows() -> None:
    table = table_of({(u, i) for u in range(6) for i in range(u + 1)})
    assert least_active_users(table, 0.5, np.random.default_rng(0)).tolist() == [0, 1, 2]
    without = table.where(table.user > 0)
    assert least_active_users(without, 0.4, np.random.default_rng(0)).tolist() == [1, 2]


def test_informative_users_are_chosen_one_by_one_as_a_loop_does() -> None:
    rng = np.random.default_rng(3)
    table = table_of({(int(u), int(i)) for u, i in rng.integers(12, size=(60, 2))})
    users = np.arange(len(table.users))
    demand, n_raters, expected = table.item_counts(), np.zeros(len(table.items)), set()
    for _ in range(4):
        gain = {
            u: sum(
                demand[i] / (n_raters[i] + 5) - demand[i] / (n_raters[i] + 6)
                for i in table.item[table.user == u]
            )
            for u in users.tolist()
            if u not in expected
        }
        best = max(gain, key=lambda u: (round(gain[u], 12), -u))
        expected.add(best)
        n_raters[table.item[table.user == best]] += 1
    assert select_informative_users(table, users, 4).tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        (lambda t, g: split_at_random(t, t, 1.0, g), DataError, "gamma must lie .* got 1.0"),
        (lambda t, g: hold_out_rows(t, 0.0, g), DataError, "share to hold out .* got 0.0"),
        (lambda t, g: hold_out_last_rows(t, 0), DataError, "must be positive, got 0"),
        (lambda t, g: hold_out_users(t, t.user, (2, 1), g), DataError, r"got \(2, 1\)"),
        (lambda t, g: split_by_key_users(t, t, 9, "threshold"), DataError, "no key user: .* 2"),
        (lambda t, g: split_by_key_users(t, t, 1, 7), DataError, "key_users is 7, but 2 users"),
        (lambda t, g: split_by_key_users(t, t, 1, "randm"), ConfigError, "did you mean 'random'"),
        (lambda t, g: split_by_key_users(t, t, 1, True), ConfigError, "'True'.* or give a number"),
    ],
)  # fmt: skip
def test_splits_say_what_is_wrong(split: Any, error: type[Exception], message: str) -> None:
    table = table_of({(0, 0), (0, 1), (1, 1)})
    with pytest.raises(error, match=message):
        split(table, np.random.default_rng(0))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(0, 5), st.sampled_from([1.0, 2.0, 5.0])), st.randoms())
def test_the_order_and_the_form_of_a_history_do_not_matter(
    history: dict[int, float], random: Any
) -> None:
    reader = HistoryReader(Vocab(range(6)), implicit=False, levels=(1, 5))
    shuffled = list(history.items())
    random.shuffle(shuffled)
    columns = {"item_id": [x for x, _ in shuffled], "rating": [float(v) for _, v in shuffled]}
    forms: list[Any] = [history, shuffled, {str(k): v for k, v in history.items()}]
    forms += [pa.table(columns)] if history else []
    for form in forms:
        new_user = reader.read_history(form)
        assert new_user.item_rows.tolist() == sorted(history)
        assert new_user.values.tolist() == [history[k] for k in sorted(history)]
    assert not has_many_users(shuffled)


BAD_HISTORIES = [
    ({0: None}, "item 0 has no rating"),
    ({0: "good"}, "rating 'good' of item 0 is not a number"),
    ({0: float("nan")}, "rating nan of item 0 is not finite"),
    ({0: 10**400}, "of item 0 is not a number"),
    ({0: 50}, "rating 50 of item 0 is outside the scale"),
    ([0, 1], "ratings are needed with the items"),
    ([0, (1, 2)], "mixes ids, pairs and triples"),
    ([([0], 1)], r"item id \[0\] is of type list"),
    (pa.table({"item_i": [0]}), "history: no column named 'item_id'; did you mean 'item_i'"),
    (3.5, "cannot read float as a history; a history is a dict"),
]


@pytest.mark.parametrize(("history", "message"), BAD_HISTORIES)
def test_bad_histories_say_what_is_wrong(history: Any, message: str) -> None:
    titles = ("Heat", None)
    reader = HistoryReader(Vocab([0, 1]), implicit=False, levels=(1, 5), titles=titles)
    with pytest.raises(DataError, match=message):
        reader.read_history(history)


def test_items_are_named_by_argument_where_they_are_unknown() -> None:
    reader = HistoryReader(Vocab([0, 1]), implicit=True)
    assert reader.rating_limits == (0.0, float("inf"))
    assert reader.item_rows(["1", 0, 0, 9], "candidates").tolist() == [0, 1]
    assert reader.item_rows([9], "exclude", strict=False).tolist() == []
    for ids in ("01", 5, [[1]]):
        with pytest.raises(DataError, match="candidates must be a list of item ids"):
            reader.item_rows(ids, "candidates")  # type: ignore[arg-type]
    for item in (9, [1]):
        assert not reader.knows_item(item)
        with pytest.raises(DataError, match=f"item: '{re.escape(str(item))}' is not known"):
            reader.item_row(item)


def test_an_implicit_history_drops_counts_of_zero() -> None:
    reader = HistoryReader(Vocab([0, 1, 2]), implicit=True)
    new_user = reader.read_history({2: 3, 0: 1, 1: 0})
    assert new_user.item_rows.tolist() == [0, 2]
    assert new_user.values.tolist() == [1.0, 1.0]


def test_users_with_and_without_features_share_a_batch() -> None:
    reader = HistoryReader(Vocab([0, 1]), implicit=True)
    first = reader.read_history([1])
    second = first._replace(features=np.array([0.5, -1], np.float32))
    features = as_users([first, second]).features
    assert features is not None
    assert features.tolist() == [[0, 0], [0.5, -1]]
    assert as_users([first]).features is None
    assert len(as_users([])) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=20))
def test_features_are_standardized_and_missing_ones_are_average(values: list[float]) -> None:
    ids = list(range(len(values)))
    words = ["odd|all" if x % 2 else "even|all" for x in ids]
    columns = {"x": values, "word": words}
    features, encoder = fit_feature_encoder(Vocab(ids), ids, columns)
    assert np.allclose(features.mean(0), 0, atol=1e-3)
    is_spread = np.array(encoder.std)[np.array(encoder.std) > 0] > 1e-6
    assert np.allclose(features.std(0)[is_spread], 1, atol=1e-2)
    assert not encoder.transform_one({}).any()
    assert not encoder.transform_one({"word": None}).any()
    one = encoder.transform_one({"x": values[0], "word": words[0]})
    assert np.allclose(one, features[0], atol=1e-4)


def test_constant_columns_are_no_features() -> None:
    columns = {"same": ["a"] * 4, "empty": [None] * 4, "age": [1, 2, 3, None]}
    encoder = FeatureEncoder.fit(columns, np.ones(4, bool))
    assert encoder.feature_names == ["age"]
    assert FeatureEncoder.fit({}, np.ones(4, bool)).transform({}).shape == (0, 0)
    with pytest.raises(DataError, match="column 'x' has 1 rows, not 2"):
        fit_feature_encoder(Vocab([1, 2]), [1, 2], {"x": [1]})
    for features, message in (
        ({"agee": 1}, "no feature named 'agee'; did you mean 'age'"),
        ({"age": "old"}, "feature 'age' is a number, got 'old'"),
        ({"age": 1e9}, "feature 'age' is 1000000000.0, far outside .*mean 2"),
        ([1], "features must be a dict"),
    ):
        with pytest.raises(DataError, match=message):
            encoder.transform_one(features)  # type: ignore[arg-type]


def test_no_side_tables_leave_the_table_as_it_is() -> None:
    table = table_of({(0, 0), (1, 1)})
    enriched = add_side_tables(table, None, None)
    assert enriched.interactions is table
    assert (enriched.feature_fields, enriched.user_encoder, enriched.titles) == ((), None, None)
    titles_only = add_side_tables(table, None, pa.table({"item_id": [0, 1], "title": ["A", None]}))
    assert titles_only.titles == {0: "A"}
    assert titles_only.feature_fields == ()


@settings(max_examples=25, deadline=None)
@given(PAIRS)
def test_a_table_survives_every_file_format(pairs: set[tuple[int, int]]) -> None:
    import tempfile

    from pyarrow import csv, parquet

    table = table_of(pairs)
    columns = pa.table(
        {
            "user_id": [u for u, _ in pairs_of(table)],
            "item_id": [i for _, i in pairs_of(table)],
            "rating": table.rating,
            "timestamp": table.time,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        csv.write_csv(columns, f"{folder}/x.csv")
        parquet.write_table(columns, f"{folder}/x.parquet")
        lines = ("\t".join(f"{x:g}" for x in row.values()) for row in columns.to_pylist())
        Path(folder, "u.data").write_text("\n".join(lines))
        for source in (columns, *(f"{folder}/{x}" for x in ("x.csv", "x.parquet", "u.data"))):
            copy = read_interactions(source)
            assert pairs_of(copy) == pairs_of(table)
            assert copy.rating.tolist() == table.rating.tolist()
            assert copy.time is not None
            assert copy.time.tolist() == table.time.tolist()  # type: ignore[union-attr]
            assert copy.users == table.users


def test_a_parquet_file_of_counts_becomes_implicit(tmp_path: Path) -> None:
    from pyarrow import parquet

    columns = {"who": ["a", "b"], "item_id": [1, 2], "n": [3, 1]}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    names = {"user_id": "who", "rating": "n"}
    table = read_interactions(tmp_path / "x.parquet", columns=names, implicit=True)
    assert table.implicit
    assert pairs_of(table) == [("a", 1), ("b", 2)]
    with pytest.raises(DataError, match=r"x.parquet: no column named 'rating'"):
        read_interactions(tmp_path / "x.parquet", columns={"user_id": "who"}, implicit=False)
