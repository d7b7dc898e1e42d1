"""Tables in text and Markdown, with the paper's numbers beside the measured ones."""

from __future__ import annotations

import pytest

from idcf.evaluation.results import ResultRow
from idcf.evaluation.tables import (
    CellKey,
    ReferenceNumbers,
    best_value,
    direction_arrow,
    format_interval,
    format_markdown,
    format_text,
    intervals_by_cell,
    make_tables,
)
from idcf.metrics import Interval, mean_of_seeds
from idcf.paper.table_spec import paper_numbers

PAPER = paper_numbers()


def row(model: str, metric: str, value: float, seed: int = 0, **extra: object) -> ResultRow:
    """A row of ml-100k with an interval round the value."""
    base = {
        "dataset": "ml-100k",
        "split": "u1, delta=30",
        "preset": "clean",
        "users": "new",
        "n_users": 172,
        "n_ratings": 2336,
        "seconds": 1.0,
    }
    return ResultRow(
        model=model,
        metric=metric,
        value=value,
        low=value - 0.04,
        high=value + 0.05,
        seed=seed,
        **{**base, **extra},  # type: ignore[arg-type]
    )


ROWS = [
    row("random", "ndcg", 0.82),
    row("item-mean", "rmse", 1.05),
    row("item-mean", "ndcg", 0.86),
    row("idcf-nn", "rmse", 0.988),
    row("idcf-nn", "ndcg", 0.88),
    row("idcf-nn", "ndcg@10", 0.05),
]


def test_a_table_for_a_terminal() -> None:
    lines = format_text(ROWS, PAPER).splitlines()
    assert lines[0].startswith("ml-100k: new users (absent from training")
    assert "172 users, 2,336 test rows; one seed" in lines[1]
    assert lines[2].startswith("also in the paper, rmse: nimc 1.089")
    head = next(n for n, line in enumerate(lines) if line.startswith("model"))
    assert " ".join(lines[head].split()) == "model rmse ↓ paper ndcg ↑ paper ndcg@10 ↑"
    body = lines[head + 1 :]
    assert [line.split()[0] for line in body if line[0] != "-"] == [
        "random",
        "item-mean",
        "idcf-nn",
    ]
    assert "0.988 [0.948, 1.038]*  1.078" in body[-1]  # best, and the number of the paper
    assert body[-1].index("0.880") == lines[head].index("ndcg ↑")


def test_random_order_is_never_the_best() -> None:
    rows = [row("random", "ndcg", 0.99), row("bias", "ndcg", 0.88)]
    [table] = make_tables(rows)
    assert table.baseline_lines[0][1].endswith("]")
    assert table.model_lines[0][1].endswith("]*")


def test_markdown_is_bold_where_best() -> None:
    page = format_markdown(ROWS, PAPER)
    assert "| idcf-nn | **0.988 [0.948, 1.038]** | 1.078 |" in page
    assert "bold: best in its column" in page
    assert "*" not in page.replace("**", "")


def test_each_group_of_users_has_its_table() -> None:
    rows = [*ROWS, row("bias", "rmse", 1.0, users="all")]
    assert [t.title.split(": ")[1][:3] for t in make_tables(rows)] == ["new", "all"]


@pytest.mark.parametrize(("seeds", "over"), [(1, "users"), (2, "users"), (3, "users and seeds")])
def test_seeds_are_averaged(seeds: int, over: str) -> None:
    rows = [row("bias", "rmse", 1 + 0.01 * n, seed=n) for n in range(seeds)]
    mean = intervals_by_cell(rows)["bias", "rmse"]
    assert mean.value == pytest.approx(1 + 0.005 * (seeds - 1))
    assert mean.low < mean.value - 0.0399
    assert f"interval over {over}]" in format_text(rows)


def test_another_dataset_has_no_column_of_the_paper() -> None:
    [table] = make_tables([row("bias", "rmse", 1.0, dataset="ratings.csv")], PAPER)
    assert table.header == ("model", "rmse ↓")


@pytest.mark.parametrize(
    ("split", "warned"),
    [("u1, delta=30", False), ("u1, delta=20", True), ("random-20%-seed0, delta=30", True)],
)
def test_another_split_than_the_papers_has_a_note(split: str, warned: bool) -> None:
    text = format_text([row("idcf-nn", "rmse", 1.0, split=split)], PAPER)
    assert ("another split" in text) is warned


def test_the_best_value_follows_the_metric() -> None:
    values = [0.7, 0.88, 0.95]
    assert [best_value(m, values) for m in ("rmse", "ndcg", "cover90")] == [0.7, 0.95, 0.88]
    assert [direction_arrow(m) for m in ("rmse", "ndcg", "cover90")] == ["↓", "↑", "→ 0.9"]


def test_the_papers_numbers() -> None:
    assert PAPER.numbers.get(CellKey("ml-100k", "new", "rmse", "idcf-nn")) == 1.078
    assert PAPER.numbers.get(CellKey("ml-100k", "new", "rmse", "idcf-gc")) == 1.011
    assert PAPER.numbers.get(CellKey("douban", "few-shot", "rmse", "nnmf")) == 0.705
    assert PAPER.numbers.get(CellKey("ml-1m", "all", "rmse", "gcmc")) == 0.837
    assert PAPER.numbers.get(CellKey("ml-1m", "new", "ndcg", "idcf-gc")) == 0.942
    assert PAPER.numbers.get(CellKey("amazon-beauty", "new", "auc", "idcf-gc")) == 0.791
    assert PAPER.numbers.get(CellKey("amazon-beauty", "few-shot", "ndcg", "idcf-nn")) == 0.783
    assert PAPER.numbers.get(CellKey("ml-1m", "few-shot", "rmse", "trans-user-gc")) == 0.992
    assert PAPER.numbers.get(CellKey("ml-1m", "new", "ndcg", "meta-path-gc")) == 0.892
    assert PAPER.numbers.get(CellKey("ml-100k", "new", "rmse", "bias")) is None
    assert min(PAPER.numbers_by_model("douban", "all", "rmse").values()) == 0.721
    ablations = 2 * (3 * 4 - 2)  # IDCF-GC is in other tables too
    assert len(PAPER.numbers) == 9 * 12 - 9 - 6 + 7 * 6 - 3 + 2 * (8 * 4 - 12) + ablations


def grid(text: str) -> list[list[str]]:
    """The cells of a Markdown table, header first, without the rule."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[x.strip() for x in line.strip("|").split(" | ")] for line in (lines[0], *lines[2:])]


def test_rules_are_below_the_header_and_below_the_baselines() -> None:
    lines = format_text(ROWS).splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("model"))
    first_words = [line.split()[0] for line in lines[head:]]
    rule = first_words[1]
    assert set(rule) == {"-"}
    assert first_words == ["model", rule, "random", "item-mean", rule, "idcf-nn"]
    only_models = format_text(ROWS[3:]).splitlines()
    assert [line.split()[0] for line in only_models[-3:]] == ["model", rule[:7], "idcf-nn"]


def test_columns_are_aligned() -> None:
    lines = format_text(ROWS).splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("model"))
    starts = [
        n
        for n, (a, b) in enumerate(zip(" " + lines[head + 1], lines[head + 1], strict=False))
        if a < b
    ]
    for line in lines[head:]:
        for start in starts:
            assert line[start - 2 : start].strip() == "", line
        assert line == line.rstrip()


def test_a_missing_number_is_a_dash_and_a_small_one_has_four_digits() -> None:
    header, *lines = grid(format_markdown(ROWS))
    assert header == ["model", "rmse ↓", "ndcg ↑", "ndcg@10 ↑"]
    cells = {line[0]: line[1:] for line in lines}
    assert list(cells) == ["random", "item-mean", "idcf-nn"]
    assert cells["random"] == ["-", "0.820 [0.780, 0.870]", "-"]
    assert cells["item-mean"] == ["1.050 [1.010, 1.100]", "0.860 [0.820, 0.910]", "-"]
    assert cells["idcf-nn"] == [
        "**0.988 [0.948, 1.038]**",
        "**0.880 [0.840, 0.930]**",
        "**0.0500 [0.0100, 0.1000]**",
    ]


def test_equal_values_are_both_the_best_and_coverage_is_best_near_its_level() -> None:
    rows = [row("a", "rmse", 1.0), row("b", "rmse", 1.0), row("c", "rmse", 2.0)]
    rows += [row("a", "cover90", 0.99), row("b", "cover90", 0.88), row("c", "cover90", 0.95)]
    (table,) = make_tables(rows)
    assert table.header == ("model", "rmse ↓", "cover90 → 0.9")
    is_best = [[cell.endswith("*") for cell in line[1:]] for line in table.model_lines]
    assert is_best == [[True, False], [True, True], [False, False]]


def test_metrics_have_the_order_of_the_model_with_most_of_them() -> None:
    rows = [row("a", "ndcg", 0.5), row("b", "rmse", 1.0), row("b", "mae", 1.0)]
    rows += [row("b", "ndcg", 0.6), row("a", "auc", 0.7)]
    (table,) = make_tables(rows)
    assert [name.split()[0] for name in table.header] == ["model", "rmse", "mae", "ndcg", "auc"]


def test_presets_splits_and_datasets_have_tables_of_their_own() -> None:
    changes = [{}, {"preset": "published"}, {"split": "u2"}, {"dataset": "x"}, {"users": "all"}]
    rows = [row("a", "rmse", 1.0 + n, **change) for n, change in enumerate(changes)]
    tables = make_tables([*rows, row("b", "rmse", 9.0)])
    assert len(tables) == len(changes)
    assert [len(table.model_lines) for table in tables] == [2, 1, 1, 1, 1]
    assert "preset published" in tables[1].notes[0]
    assert tables[3].title.startswith("x: new users")
    assert tables[4].title == "ml-100k: all users (every test row)"


def test_a_published_number_stands_beside_its_model_only() -> None:
    reference = ReferenceNumbers(
        {
            CellKey("ml-100k", "new", "rmse", "a"): 0.95,
            CellKey("ml-100k", "new", "rmse", "rival"): 0.9,
            CellKey("ml-100k", "all", "rmse", "b"): 0.1,
            CellKey("ml-100k", "new", "mae", "b"): 0.2,
        },
        lambda dataset, split: split == "u1, delta=30",
    )
    rows = [row("a", "rmse", 1.0), row("b", "rmse", 1.1)]
    (table,) = make_tables(rows, reference)
    assert table.header == ("model", "rmse ↓", "paper")
    assert [line[2] for line in table.model_lines] == ["0.950", ""]
    assert table.notes[1:] == ("also in the paper, rmse: rival 0.900",)
    (table,) = make_tables([row("a", "rmse", 1.0, split="other")], reference)
    assert table.notes[1] == "the paper's numbers are for another split than this one"


@pytest.mark.parametrize(
    ("interval", "digits", "sign", "text"),
    [
        (Interval(1.0, 0.25, 2.0), 2, "", "1.00 [0.25, 2.00]"),
        (Interval(0.1, -0.2, 0.0), 1, "+", "+0.1 [-0.2, +0.0]"),
        (Interval(12345.678, 0.0, float("inf")), 0, "", "12346 [0, inf]"),
    ],
)
def test_an_interval_as_text(interval: Interval, digits: int, sign: str, text: str) -> None:
    assert format_interval(interval, digits, sign=sign) == text


def test_no_rows_make_no_table() -> None:
    assert make_tables([]) == []
    assert format_text([]) == format_markdown([]) == ""


def test_the_interval_over_seeds_is_that_of_the_metrics() -> None:
    rows = [row("a", "rmse", 1.0 + 0.1 * seed, seed) for seed in range(3)]
    cells = intervals_by_cell([*rows, row("b", "rmse", 3.0)])
    assert cells["a", "rmse"] == mean_of_seeds([r.interval for r in rows])
    assert cells["b", "rmse"] == rows[0].interval._replace(value=3.0, low=2.96, high=3.05)


def test_random_order_alone_makes_a_table_without_a_best() -> None:
    (table,) = make_tables([row("random", "ndcg", 0.8), row("random", "ndcg@10", 0.001)])
    assert table.baseline_lines == (("random", "0.800 [0.760, 0.850]", "0.0010 [-0.0390, 0.0510]"),)
    assert table.model_lines == ()
