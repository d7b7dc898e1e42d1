"""The main table of README.md and the sentence below it, computed from the committed rows.

A dataset is shown by its means over the draws of the table `splits` once all systems of the README
have rows of all draws, and by its standard split until then.
"""

from __future__ import annotations

from functools import cache

from results_page import DATASETS, RESULTS, interval_text, number, paper, rows_of

from idcf.metrics import mean_of_seeds
from idcf.paper import split_comparisons
from idcf.paper.paired_differences import SIMPLE_SYSTEMS
from idcf.paper.results_store import PairedDifference, SplitDifference, read_lines
from idcf.paper.split_pages import SplitResults
from idcf.paper.table_spec import find_table

NAMES = ("Douban", "ML-100K", "ML-1M")
LABELS = {
    "item-mean": "item mean",
    "bias": "`bias`: item mean and shrunk user bias",
    "item-knn": "`item-knn`",
    "als": "`als` with fold-in",
    "idcf-nn": "`idcf-nn`",
    "paper": "IDCF-GC, as printed in the paper",
    "idcf-bayes": "**`idcf-bayes`**",
}
SPLITS = find_table("splits")


@cache
def split_results() -> SplitResults:
    """Return the rows of the table of splits."""
    return SplitResults.load(RESULTS, SPLITS)


def n_draws(name: str) -> int:
    """Return over how many draws a dataset is shown; 0: its standard split."""
    dataset = DATASETS[name]
    repeats = SPLITS.repeats[dataset]
    models = [model for model in LABELS if model != "paper"]
    counts = [len(split_results().rows(dataset, (model, "new", "rmse"))) for model in models]
    return repeats.draws if repeats.draws and min(counts) == repeats.draws else 0


def cell(model: str, name: str) -> str:
    """Return a cell: the mean with its interval, or the number that the paper printed."""
    dataset = DATASETS[name]
    if model == "paper":
        return number(paper("table4", dataset, "idcf-gc", "new", "rmse"))
    if n_draws(name):
        interval = split_results().mean(dataset, (model, "new", "rmse"))
        assert interval is not None
    else:
        rows = rows_of(dataset, model, "new", "rmse")
        interval = mean_of_seeds([row.interval for row in rows])
    return interval_text(interval)


def header(name: str) -> str:
    """Return the head of a column, with the number of draws."""
    return f"{name}, {n_draws(name)} draws" if n_draws(name) else name


def main_table() -> str:
    """Return the table as Markdown."""
    lines = [
        (label, *(f"**{x}**" if model == "idcf-bayes" else x for x in cells))
        for model, label in LABELS.items()
        for cells in [[cell(model, name) for name in NAMES]]
    ]
    head = f"| | {' | '.join(map(header, NAMES))} |"
    return "\n".join([head, "|---|---:|---:|---:|", *(f"| {' | '.join(x)} |" for x in lines)])


def lead(name: str) -> str:
    """Return by how much idcf-bayes is ahead of the best simple system, paired; for means over
    draws with the p-value after Holm's correction."""
    dataset = DATASETS[name]
    if not n_draws(name):
        key = (dataset, find_table("table4").split_name(dataset, ""), "idcf-bayes")
        lines = read_lines(RESULTS, PairedDifference, dataset)
        return number(-lines[(*key, "clean", "new", "rmse")].difference)
    results = split_results()
    cells = [
        (model, "new", "rmse")
        for model in SIMPLE_SYSTEMS
        if (dataset, (model, "new", "rmse")) in results.differences
    ]
    best = min(cells, key=lambda x: results.mean(dataset, x).value)  # type: ignore[union-attr]
    line: SplitDifference = results.differences[dataset, best]
    reference = results.cells[dataset][SPLITS.reference, "new", "rmse"]
    assert split_comparisons.is_current(line, reference, results.cells[dataset][best])
    p_value = results.corrected_p_values[dataset, best]
    shown = "p < .001" if p_value < 0.001 else f"p = {number(p_value)}"
    return f"{number(-line.difference)} ({shown})"
