"""Result types: lists with their notes, the tables that are printed, and dataframes."""

from __future__ import annotations

import math
import pickle
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from idcf.errors import ConfigError
from idcf.results import (
    MAX_LINES,
    Cohort,
    Explanation,
    PredictionInterval,
    Question,
    Questions,
    Reason,
    Recommendation,
    RecommendationBatch,
    Recommendations,
)

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


REASONS = (Reason("a", "Alpha", 5.0, 0.25), Reason("b", None, 1.0, -0.125))
EXPLANATION = Explanation(
    "c", "Gamma", 4.25, 0.5, REASONS, (Cohort(7, 0.5, tuple("pqrs")),), ("x",)
)
INTERVAL = PredictionInterval(*(np.float32([x, 2 * x]) for x in (1.5, 0.25, 1.0, 2.0)))
QUESTIONS = Questions([Question("a", "Alpha", 0.5), Question("b", None, 0.25)])
LIST = Recommendations([FIRST, SECOND], ["x"], user_id="u1")
RESULTS = [LIST, RecommendationBatch([LIST]), EXPLANATION, QUESTIONS, INTERVAL]


def test_a_list_is_printed_as_an_aligned_table():
    rows = [
        Recommendation("a", 4.5, 1, "Alpha", 0.25, "posterior", 0.375, 4.125),
        Recommendation("b", 3.0, 2, None, 0.5, "posterior", 0.0625, 3.0),
    ]
    text = """\
Recommendations for user 'u1': 2 items
rank  item_id  title  score  probability       rating
   1  a        Alpha  4.500        37.5%  4.12 ± 0.25
   2  b               3.000         6.2%  3.00 ± 0.50
not known to the model: 'x', 7"""
    assert str(Recommendations(rows, ["x", 7], "u1")) == text
    # without ratings, titles and users: only the columns that have something in them
    assert repr(Recommendations([SECOND])).splitlines() == [
        "Recommendations: 1 item",
        "rank  item_id  score",
        "   2  b        3.000",
    ]
    popular = Recommendations([SECOND, SECOND._replace(source="popular")])
    assert "popular" in str(popular)
    assert str(Recommendations()) == "Recommendations: 0 items"


def test_long_lists_are_cut_and_say_so():
    rows = [Recommendation(f"i{n}", 100.0 - n, n + 1) for n in range(100)]
    lines = str(Recommendations(rows)).splitlines()
    assert len(lines) == 2 + MAX_LINES + 1
    assert lines[-1] == "… and 90 more"
    assert lines[-2].split() == ["10", "i9", "91.00"]
    assert "more" not in str(Recommendations(rows[:MAX_LINES]))
    batch = str(RecommendationBatch([Recommendations(rows)] * 12)).splitlines()
    assert batch[2].split(maxsplit=2) == ["0", "100", "i0, i1, i2, …"]
    assert batch[-1] == "… and 2 more"


def test_columns_stay_aligned_whatever_a_title_holds():
    """Wide letters take two columns, accents none; line breaks and escapes are no letters."""
    titles = ["日本", "e\u0301te\u0301", "two\nlines", "\x1b[31mred", "x" * 99]
    rows = [Recommendation(n, 0.5, n, title) for n, title in enumerate(titles, 1)]
    text = str(Recommendations(rows))
    assert not {"\x1b", "\r"} & set(text)
    lines = text.splitlines()[1:]
    assert len(lines) == 6
    padding = {"日本": -2, "e\u0301te\u0301": 2}  # letters less columns
    widths = [len(x) - padding.get(title, 0) for x, title in zip(lines, ["", *titles], strict=True)]
    assert len(set(widths)) == 1
    assert "x" * 39 + "… " in lines[-1]


def test_an_explanation_is_printed_with_reasons_and_cohorts():
    assert str(EXPLANATION).splitlines() == [
        "Explanation of 'c' (Gamma): score 4.250, standard deviation of the rating 0.50",
        "item_id  title  rating  effect",
        "a        Alpha       5  +0.250",
        "b                    1  -0.125",
        "not known to the model: 'x'",
        "similar key users",
        "size  weight  liked",
        "   7     50%  p, q, r, …",
    ]
    assert str(Explanation("c", None, 0.5)) == "Explanation of 'c': score 0.500"


def test_questions_and_intervals_are_printed():
    assert str(QUESTIONS).splitlines()[1:] == [
        "item_id  title  expected_gain",
        "a        Alpha          0.500",
        "b                       0.250",
    ]
    assert str(INTERVAL).splitlines() == [
        "PredictionInterval: 2 items",
        "score   std   low  high",
        " 1.50  0.25  1.00  2.00",
        " 3.00  0.50  2.00  4.00",
    ]
    of_items = INTERVAL._replace(item_ids=("a", "b"), titles=("Alpha", None))
    assert str(of_items).splitlines()[1:3] == [
        "item_id  title  score   std   low  high",
        "a        Alpha   1.50  0.25  1.00  2.00",
    ]
    assert of_items.to_arrow().to_pylist()[1] == {
        **{"item_id": "b", "title": None},
        **{"score": 3.0, "std": 0.5, "low": 2.0, "high": 4.0},
    }


def test_results_are_still_lists_and_tuples():
    assert LIST == [FIRST, SECOND]
    assert LIST[1] is SECOND
    assert QUESTIONS == [("a", "Alpha", 0.5), ("b", None, 0.25)]
    item_id, title, *_ = EXPLANATION
    assert (item_id, title, EXPLANATION.score) == ("c", "Gamma", EXPLANATION[2])
    assert EXPLANATION._replace(score=1.0)._asdict() == {**EXPLANATION._asdict(), "score": 1.0}
    assert isinstance(EXPLANATION._replace(score=1.0), Explanation)
    assert INTERVAL[3] is INTERVAL.high
    for result in RESULTS[:4]:
        assert pickle.loads(pickle.dumps(result)) == result
        assert not hasattr(result, "__dict__") or isinstance(result, list)


def test_a_slice_is_printed_as_a_table_too():
    part = LIST[:1]
    assert (type(part), part) == (Recommendations, [FIRST])
    assert str(part).splitlines()[0] == "Recommendations for user 'u1': 1 item"
    assert part.unknown_items == ("x",)
    assert len(LIST) == 2
    assert QUESTIONS[::-1] == [*reversed(QUESTIONS)]
    assert isinstance(RecommendationBatch([LIST])[1:], RecommendationBatch)
    assert LIST[-1] is SECOND


class Cells(HTMLParser):
    """Reads the texts of the cells, and fails at anything but a table."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"p", "b", "table", "thead", "tbody", "tr", "th", "td"}
        assert {k for k, _ in attrs} <= {"style"}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("result", RESULTS, ids=lambda x: type(x).__name__)
def test_html_holds_the_words_of_the_text(result):
    reader = Cells()
    reader.feed(result._repr_html_())
    reader.close()
    assert " ".join(reader.texts).split() == str(result).split()


def test_html_is_escaped():
    bad = "<script>alert(1)</script>"
    rows = [Recommendation(bad, 1.0, 1, bad)]
    html = Recommendations(rows, [bad], user_id=bad)._repr_html_()
    html += Explanation(
        bad, bad, 1.0, None, (Reason(bad, bad, 1.0, 1.0),), (Cohort(5, 1.0, (bad,)),)
    )._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 9


@pytest.mark.parametrize("result", RESULTS, ids=lambda x: type(x).__name__)
def test_dataframes_have_the_columns_of_the_arrow_table(result):
    table = result.to_arrow()
    assert table.num_rows == 2
    assert result.to_pandas().columns.tolist() == table.column_names
    assert result.to_polars().to_dicts() == table.to_pylist()


def test_the_arrow_tables_hold_the_fields():
    assert LIST.to_arrow().to_pylist() == [FIRST._asdict(), SECOND._asdict()]
    batch = RecommendationBatch([LIST])
    assert batch.to_arrow().to_pylist()[1] == {"user_id": "u1", **SECOND._asdict()}
    assert batch.to_table().column_names == [
        x for x in batch.to_arrow().column_names if x != "title"
    ]
    assert EXPLANATION.to_arrow().to_pylist() == [x._asdict() for x in REASONS]
    assert QUESTIONS.to_arrow().to_pylist() == [x._asdict() for x in QUESTIONS]
    assert INTERVAL.to_arrow()["high"].to_pylist() == [2.0, 4.0]
    assert Recommendations().to_arrow().num_rows == 0


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_package_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"{name}, which is missing; pip install {name}"):
        getattr(LIST, f"to_{name}")()
