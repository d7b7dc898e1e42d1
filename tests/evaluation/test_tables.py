"""Tables in text and Markdown, with the paper's numbers beside the measured ones."""

from __future__ import annotations

import pytest

from idcf.evaluation.results import ResultRow
from idcf.evaluation.tables import (
    CellKey,
    best_value,
    direction_arrow,
    format_markdown,
    format_text,
    intervals_by_cell,
    make_tables,
)
from idcf.paper.published_numbers import paper_numbers

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
    assert PAPER.numbers.get(CellKey("ml-1m", "few-shot", "rmse", "trans-user")) == 0.992
    assert PAPER.numbers.get(CellKey("ml-1m", "new", "ndcg", "meta-path")) == 0.892
    assert PAPER.numbers.get(CellKey("ml-100k", "new", "rmse", "bias")) is None
    assert min(PAPER.numbers_by_model("douban", "all", "rmse").values()) == 0.721
    ablations = 2 * (3 * 4 - 2)  # IDCF-GC is in other tables too
    assert len(PAPER.numbers) == 9 * 12 - 9 - 6 + 7 * 6 - 3 + 2 * (8 * 4 - 12) + ablations
