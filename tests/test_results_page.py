"""Every figure in the tables of docs/results/README.md is that of a committed row.

python tests/test_results_page.py --write      # write the cells that differ, from the rows
"""

from __future__ import annotations

import sys

import pytest
import results_page as page

TABLES = page.page_tables(page.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("table", TABLES, ids=lambda t: f"{t.section}, {t.header[0]}")
def test_the_cells_are_those_of_the_rows(table: page.PageTable) -> None:
    if page.is_of_an_audit(table):
        pytest.skip("the page says that these are an audit's figures")
    if page.NO_ROWS in table.text_before:
        with pytest.raises(FileNotFoundError):  # else the page is to say what the rows say
            page.expected_cells(table)
        return
    expected = page.expected_cells(table)
    assert {(row, column) for row, column in expected} <= {(r, c) for r, c, _ in table.cells()}
    shown = {(row, column): text for row, column, text in page.figures(table)}
    without_row = shown.keys() - expected.keys()
    if expected:
        assert not without_row, [(table.rows[r][0], shown[r, c]) for r, c in without_row]
    cells = {(row, column): text for row, column, text in table.cells()}
    differing = {
        f"{table.rows[row][0]}, {table.header[column]}": (cells[row, column], text)
        for (row, column), text in expected.items()
        if cells[row, column] != text
    }
    assert not differing, f"{differing}: run python tests/test_results_page.py --write"


def test_a_table_without_a_function_fails() -> None:
    table = page.PageTable("No such section", ["x", "y"], [["a", "1.0"]], 0, "")
    with pytest.raises(AssertionError, match="no function gives the figures"):
        page.expected_cells(table)


def test_tables_are_read_with_their_sections() -> None:
    tables = "| x | y |\n|---|--:|\n| **b** | .5 |\n", "  | z |\n  |---|\n  | 1 |\n"
    text = "# A\n\nwords\n\n{}\n## B\n\n{}".format(*tables)
    first, second = page.page_tables(text)
    assert (first.section, first.header, first.rows) == ("A", ["x", "y"], [["**b**", ".5"]])
    assert "words" in first.text_before
    assert list(first.cells()) == [(0, 0, "b"), (0, 1, ".5")]
    assert (second.section, second.header, second.rows) == ("B", ["z"], [["1"]])
    assert text.split("\n")[second.first_line] == "  | 1 |"


def test_numbers_are_written_as_on_the_page() -> None:
    assert page.number(0.7) == ".700"
    assert page.number(1.0006) == "1.001"
    assert page.number(-0.0204, sign="+") == "−.020"
    assert page.number(0.0204, sign="+") == "+.020"
    assert page.interval_text(page.Interval(0.7, 0.68, 0.72)) == ".700 [.680, .720]"


def test_a_verdict_follows_the_rule_of_the_page() -> None:
    seeds = [0.70, 0.71, 0.72]
    assert page.verdict(seeds, 0.7204) == "yes"
    assert page.verdict(seeds, 0.7206) == "open"
    assert page.verdict(seeds, 0.659) == "no"  # 5 sd away


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(f"usage: {sys.argv[0]} --write")
    print(f"{page.write_page()} cells were written")
