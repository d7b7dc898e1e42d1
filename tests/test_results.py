"""Result types: lists with their notes, and the table of a batch."""

from __future__ import annotations

import math
import pickle

import pytest

from idcf.results import Recommendation, RecommendationBatch, Recommendations

FIRST = Recommendation("a", 4.5, 1, "Alpha", 0.25, "posterior")
SECOND = Recommendation("b", 3.0, 2)


def test_a_list_remembers_what_was_ignored():
    plain = Recommendations()
    assert (plain, plain.unknown_items, plain.user_id) == ([], (), None)
    full = Recommendations([FIRST, SECOND], ["x", 7], user_id="u1")
    assert list(full) == [FIRST, SECOND]
    assert full.unknown_items == ("x", 7)
    assert full.user_id == "u1"
    assert (SECOND.title, SECOND.std, SECOND.source) == (None, None, "relation")


def test_a_list_survives_pickling_with_its_notes():
    copy = pickle.loads(pickle.dumps(Recommendations([FIRST], ["x"], user_id=3)))
    assert (copy, copy.unknown_items, copy.user_id) == ([FIRST], ("x",), 3)


def test_the_table_has_a_row_per_item_in_the_order_of_users_and_ranks():
    batch = RecommendationBatch(
        [Recommendations([FIRST, SECOND], user_id="u9"), Recommendations([SECOND], user_id="u1")]
    )
    columns = batch.to_table().to_pydict()
    expected = {
        "user_id": ["u9", "u9", "u1"],
        "item_id": ["a", "b", "b"],
        "score": [4.5, 3.0, 3.0],
        "rank": [1, 2, 2],
        "std": [0.25, None, None],
        "source": ["posterior", "relation", "relation"],
    }
    assert {k: columns[k] for k in expected} == expected
    assert {len(x) for x in columns.values()} == {3}


def test_users_without_an_id_are_numbered_even_after_an_empty_list():
    batch = RecommendationBatch([Recommendations([SECOND]), Recommendations()])
    batch.append(Recommendations([SECOND, SECOND]))
    assert batch.to_table()["user_id"].to_pylist() == [0, 2, 2]


def test_an_id_of_zero_or_of_no_letters_is_an_id():
    for ids in ([5, 0], ["x", ""]):
        lists = [Recommendations([SECOND], user_id=x) for x in ids]
        assert RecommendationBatch(lists).to_table()["user_id"].to_pylist() == ids


def test_an_empty_batch_is_a_table_without_rows():
    table = RecommendationBatch().to_table()
    assert table.num_rows == 0
    assert table.column_names[:4] == ["user_id", "item_id", "score", "rank"]


@pytest.mark.parametrize("ids", [[1, 2], ["1", "2"], [2**40, -1]])
def test_the_table_keeps_the_type_of_the_ids(ids):
    rows = [Recommendation(x, 0.5, n) for n, x in enumerate(ids, 1)]
    table = RecommendationBatch([Recommendations(rows, user_id=ids[0])]).to_table()
    assert table["item_id"].to_pylist() == ids
    assert table["user_id"].to_pylist() == [ids[0]] * 2


def test_infinite_and_missing_numbers_stay_in_the_table():
    rows = [Recommendation("a", math.inf, 1), Recommendation("b", -1e30, 2, None, 0.0)]
    table = RecommendationBatch([Recommendations(rows)]).to_table()
    assert table["score"].to_pylist()[0] == math.inf
    assert table["std"].to_pylist() == [None, 0.0]
