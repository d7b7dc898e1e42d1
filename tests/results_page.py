"""The figures of docs/results/README.md, computed from the committed rows.

Every table of the page has a function here that gives the text of its cells. The page and the
functions are compared by test_results_page.py, which also writes the cells that differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy import stats

from idcf.evaluation.groups import USER_GROUPS
from idcf.metrics import Interval, mean_of_seeds
from idcf.paper import results_store
from idcf.paper.results_store import PairedDifference, StoredRow
from idcf.paper.run_plan import settings_fingerprint
from idcf.paper.split_comparisons import is_current
from idcf.paper.split_pages import SplitResults
from idcf.paper.table_spec import TableColumn, find_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "README.md"
RESULTS = ROOT / "experiments" / "results"
REPORTS = ROOT / "benchmarks" / "reports"
CELL_ROWS = RESULTS / "differing-cells.jsonl"

DATASETS = {
    "Douban": "douban",
    "ML-100K": "ml-100k",
    "ML-1M": "ml-1m",
    "Beauty": "amazon-beauty",
    "Books": "amazon-books",
}
GROUPS = {"New": "new", "FS": "few-shot", "Query": "few-shot", "All": "all"}
SYSTEMS = {  # how a label begins -> model
    "item mean": "item-mean",
    "GC-MC with a softmax": "gcmc-softmax",
    "GC-MC": "gcmc",
    "NNMF": "nnmf",
    "PMF": "pmf",
    "IDCF-NN": "idcf-nn",
    "IDCF-GC": "idcf-gc",
    "FISM": "fism",
    "Mult-VAE": "mult-vae",
    "IGMC": "igmc",
    "NIMC": "nimc",
    "BOMIC": "bomic",
    "F-EAE": "f-eae",
    "NGCF": "ngcf",
    "PinSAGE": "pinsage",
    "popularity": "popularity",
}
ROUNDING = 0.0005  # of a number that the paper prints
Cells = dict[tuple[int, int], str]  # (row, column) -> text, without bold


class PageTable(NamedTuple):
    """A table of the page."""

    section: str  # the heading that it is under
    header: list[str]
    rows: list[list[str]]
    first_line: int  # of the rows, in the page
    text_before: str  # the paragraphs of the section up to the table

    def cells(self) -> Iterator[tuple[int, int, str]]:
        """Yield row, column and text of each cell, without bold."""
        for row, cells in enumerate(self.rows):
            for column, text in enumerate(cells):
                yield row, column, text.replace("**", "")


def page_tables(text: str) -> list[PageTable]:
    """Return the tables of a Markdown page."""
    tables, lines, section, before = [], text.split("\n"), "", []
    n = 0
    while n < len(lines):
        if lines[n].startswith("#"):
            section, before = lines[n].lstrip("# "), []
        elif re.match(r" *\|", lines[n]):
            end = n
            while end < len(lines) and re.match(r" *\|", lines[end]):
                end += 1
            header, _, *rows = ([x.strip() for x in split_line(line)] for line in lines[n:end])
            tables.append(PageTable(section, header, rows, n + 2, "\n".join(before)))
            before, n = [], end - 1
        else:
            before.append(lines[n])
        n += 1
    return tables


def split_line(line: str) -> list[str]:
    """Return the cells of a line of a table, with their spaces."""
    return line.strip().removeprefix("|").removesuffix("|").split("|")


# Formats


def number(value: float, digits: int = 3, sign: str = "") -> str:
    """Return a number as the page writes it: .700, 1.001, −.020."""
    text = f"{value:{sign}.{digits}f}"
    return re.sub(r"^([+-]?)0\.", r"\1.", text).replace("-", "−")


def interval_text(interval: Interval, sign: str = "") -> str:
    """Return an interval as `.700 [.677, .722]`."""
    value, low, high = (number(x, sign=sign) for x in interval)
    return f"{value} [{low}, {high}]"


# Values


@cache
def rows_by_cell() -> dict[tuple[str, ...], list[StoredRow]]:
    """Return (dataset, split, model, preset, users, metric) -> the rows of its seeds."""
    cells: dict[tuple[str, ...], list[StoredRow]] = {}
    for dataset in DATASETS.values():
        for row in results_store.latest_rows(RESULTS, dataset):
            key = (row.dataset, row.split, row.model, row.preset, row.users, row.metric)
            cells.setdefault(key, []).append(row)
    return {key: sorted(rows, key=lambda r: r.seed) for key, rows in cells.items()}


def rows_of(
    dataset: str, model: str, users: str, metric: str, preset: str = "clean", split: str = ""
) -> list[StoredRow]:
    """Return the rows of the seeds; `split` is a label of table 6, by default the standard one."""
    table = find_table("table6" if split else "table3" if "amazon" in dataset else "table4")
    key = (dataset, table.split_name(dataset, split), model, preset, users, metric)
    if key not in rows_by_cell():
        raise AssertionError(f"there is no row of {key}")
    return rows_by_cell()[key]


def mean(*args: str, **options: str) -> float:
    """Return the mean over seeds; the arguments are those of `rows_of`."""
    return fmean(row.value for row in rows_of(*args, **options))


def paper(table: str, dataset: str, model: str, users: str, metric: str, split: str = "") -> float:
    """Return the number that the paper prints."""
    column = TableColumn(dataset, split, users, metric)
    return find_table(table).published_values(column)[model]


def rating_table(users: str) -> str:
    """Return the table of the paper that has this group of users."""
    return "table4" if users == "new" else "table2"


def system(label: str) -> str:
    """Return the model of a label such as "`als` with ridge fold-in" or "GC-MC"."""
    label = label.replace("**", "")
    if match := re.match(r"`([\w-]+)`", label):
        return match[1]
    return next(model for start, model in SYSTEMS.items() if label.startswith(start))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON; it must exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Tables, in the order of the page


def main_table(table: PageTable) -> Cells:
    """RMSE of all systems, and the paper's."""
    columns = [(d, g) for d in ("douban", "ml-100k", "ml-1m") for g in ("new", "few-shot", "all")]
    cells = {}
    for row, (label, *texts) in enumerate(table.rows):
        for column, (dataset, users) in enumerate(columns, 1):
            if not texts[column - 1]:
                continue
            name = rating_table(users)
            if label.startswith("paper, best"):
                values = find_table(name).published_values(TableColumn(dataset, "", users, "rmse"))
                value = min(values.values())
            elif label.startswith("paper, "):
                value = paper(name, dataset, system(label[7:]), users, "rmse")
            else:
                value = mean(dataset, system(label), users, "rmse")
            cells[row, column] = number(value)
    return cells


def paired_table(table: PageTable) -> Cells:
    """Differences to the best simple system."""
    cells = {}
    for column, name in enumerate(table.header[1:], 1):
        dataset = DATASETS[name]
        lines = {
            line.model: line
            for line in results_store.read_lines(RESULTS, PairedDifference, dataset).values()
            if (line.preset, line.users, line.metric) == ("clean", "new", "rmse")
            and line.split == find_table("table4").split_name(dataset, "")
        }
        for row, (label, *_) in enumerate(table.rows):
            if label.startswith("best simple"):
                cells[row, column] = f"`{lines['idcf-bayes'].baseline}`"
            else:
                line = lines[system(label)]
                interval = Interval(line.difference, line.low, line.high)
                cells[row, column] = interval_text(interval, sign="+")
    return cells


def draw_table(table: PageTable) -> Cells:
    """Means over draws, and the corrected comparisons with idcf-bayes."""
    spec, dataset = find_table("splits"), DATASETS[table.header[1].split(",")[0]]
    results, cells = SplitResults.load(RESULTS, spec), dict[tuple[int, int], str]()
    n_draws = spec.repeats[dataset].draws
    assert table.header[1].endswith(f"mean of {n_draws} draws")
    for row, (label, *_) in enumerate(table.rows):
        cell = (system(label), "new", "rmse")
        rows, mean_interval = results.rows(dataset, cell), results.mean(dataset, cell)
        assert len(rows) == n_draws
        assert mean_interval is not None
        cells[row, 1] = interval_text(mean_interval)
        cells[row, 2] = number(stdev(r.value for r in rows))
        if cell[0] != spec.reference:
            line = results.differences[dataset, cell]
            reference = results.cells[dataset][spec.reference, "new", "rmse"]
            assert is_current(line, reference, results.cells[dataset][cell])
            interval = Interval(line.difference, line.low, line.high)
            cells[row, 3] = interval_text(interval, sign="+")
            p_value = results.corrected_p_values[dataset, cell]
            cells[row, 4] = "< .001" if p_value < 0.001 else number(p_value)
    return cells


def length_table(table: PageTable) -> Cells:
    """RMSE by the number of ratings shown, mean over seeds."""
    dataset = DATASETS[table.header[0].split(",")[0]]
    rows = read_jsonl(RESULTS / f"history-length-{dataset}.jsonl")
    assert len({r["seed"] for r in rows}) >= 3
    return {
        (row, column): number(
            fmean(
                r["rmse"]
                for r in rows
                if (r["model"], str(r["ratings_shown"])) == (system(label), shown)
            )
        )
        for row, (label, *_) in enumerate(table.rows)
        for column, shown in enumerate(table.header[1:], 1)
    }


def coverage_table(table: PageTable) -> Cells:
    """Range of the coverage over seeds."""
    cells = {}
    for row, (label, *_) in enumerate(table.rows):
        users = {"new": "new", "few-shot": "few-shot", "all": "all"}[label.split()[0]]
        for column, name in enumerate(table.header[1:], 1):
            values = [r.value for r in rows_of(DATASETS[name], "idcf-bayes", users, "cover90")]
            cells[row, column] = f"{100 * min(values):.1f} to {100 * max(values):.1f} %"
    return cells


def interview_table(table: PageTable) -> Cells:
    """RMSE after five questions about any item, with equal weight for ratings and for users."""
    names = {"`next_question`": "next_question", "random items": "random"}
    names |= {"most popular items": "popular", "no question": "nothing"}
    rows = {
        (r["weight"], r["asked"]): r
        for r in read_jsonl(REPORTS / "interview.jsonl")
        if (r["pool"], r["users"]) == ("anything", "test")
    }
    cells = {}
    for row, (label, *_) in enumerate(table.rows):
        for column, weight in ((1, "ratings"), (3, "users")):
            values = rows[weight, names[label]]
            cells[row, column] = number(values["rmse"])
            if label != "`next_question`":
                low, high = (number(-values[f"difference_{x}"]) for x in ("high", "low"))
                cells[row, column + 1] = f"{number(-values['difference'])} ({low} to {high})"
    return cells


def key_user_table(table: PageTable) -> Cells:
    """RMSE by number of key users."""
    rows = read_jsonl(RESULTS / "key-users-ml-1m.jsonl")
    values = {(r["chosen"], r["key_users"]): r["rmse"] for r in rows}
    every = next(r["rmse"] for r in rows if r["chosen"] == "all")
    return {
        (row, column): number(
            every if name.startswith("all") else values[label, int(name.replace(",", ""))]
        )
        for row, (label, *_) in enumerate(table.rows)
        for column, name in enumerate(table.header[1:], 1)
    }


def verdict(values: Sequence[float], printed: float) -> str:
    """Return whether seeds reproduce a printed number: see the page."""
    if min(values) - ROUNDING <= printed <= max(values) + ROUNDING:
        return "yes"
    n = len(values)
    width = stats.t.ppf(0.975, n - 1) * (1 + 1 / n) ** 0.5 * stdev(values)
    return "open" if abs(fmean(values) - printed) <= width else "no"


def outdated_mark(rows: Sequence[StoredRow]) -> str:
    """Return the sign of rows of which any was made with settings that have changed since."""
    current = settings_fingerprint(
        rows[0].model, rows[0].preset, rows[0].dataset, USER_GROUPS[rows[0].users]
    )
    return "" if all(row.options == current for row in rows) else " †"


def verdict_table(table: PageTable, metric: str) -> Cells:
    """Each cell of the paper on Douban and ML-100K beside our seeds."""
    cells: Cells = {}
    for row, (dataset, label, group, *_) in enumerate(table.rows):
        users = GROUPS[group]
        rows = rows_of(DATASETS[dataset], system(label), users, metric, "published")
        values = [r.value for r in rows]
        printed = paper(rating_table(users), DATASETS[dataset], system(label), users, metric)
        seeds = " to ".join(number(x, 4) for x in (min(values), max(values)))
        texts = (number(printed), number(fmean(values)), seeds, number(stdev(values), 4))
        judged = verdict(values, printed) + outdated_mark(rows)
        cells |= {(row, n): x for n, x in enumerate((*texts, judged), 3)}
    return cells


def verdict_counts(table: PageTable) -> Cells:
    """How often each verdict is given, in the two tables that follow."""
    verdicts: dict[str, list[str]] = {"RMSE": [], "NDCG": []}
    of_metric = iter(verdicts.values())
    for other in page_tables(PAGE.read_text(encoding="utf-8")):
        if other.header[-1] == "reproduced?":
            next(of_metric).extend(cells[-1].strip(" *†") for cells in other.rows)
    return {
        (row, column): str(len(verdicts[label]) if name == "cells" else verdicts[label].count(name))
        for row, (label, *_) in enumerate(table.rows)
        for column, name in enumerate(table.header[1:], 1)
    }


def interval_table(table: PageTable, dataset: str, metric: str = "") -> Cells:
    """Whether the paper's number is in our interval over users and seeds."""
    cells: Cells = {}
    for row, (label, group, *others) in enumerate(table.rows):
        users, of_row = GROUPS[group], metric or others[0].lower()
        name = "table3" if "amazon" in dataset else rating_table(users)
        printed = paper(name, dataset, system(label), users, of_row)
        rows = rows_of(dataset, system(label), users, of_row, "published")
        ours = mean_of_seeds([r.interval for r in rows])
        spread = number(stdev(r.value for r in rows), 4)
        is_inside = ours.low - ROUNDING <= printed <= ours.high + ROUNDING
        judged = ("inside" if is_inside else "outside") + outdated_mark(rows)
        texts = (number(printed), interval_text(ours), spread, judged)
        cells |= {(row, n): x for n, x in enumerate(texts, len(table.header) - 4)}
    return cells


def key_rule_table(table: PageTable) -> Cells:
    """RMSE by the choice of key users (table 6); rows name the system or the group."""
    cells: Cells = {}
    for row, (label, *_) in enumerate(table.rows):
        probe = table.header[0] == "RMSE, `probe-new`"
        group = label.rpartition(", ")[2] if "RMSE of IDCF-NN" in table.header[0] else "New"
        users = "probe-new" if probe else GROUPS[group]
        published = "`published`" in label
        model = "idcf-nn" if published or "paper" in label else system(label)
        for column, name in enumerate(table.header[1:], 1):
            split = name.replace("δ = ", "delta=").replace("γ = .", "gamma=0.")
            if label.startswith("paper"):
                value = paper("table6", "ml-1m", "idcf-nn", users, "rmse", split)
            else:
                preset = "published" if published else "clean"
                value = mean("ml-1m", model, users, "rmse", preset=preset, split=split)
            cells[row, column] = number(value)
    return cells


def first_authors_table(table: PageTable) -> Cells:
    """RMSE of all users under the first authors' settings and ours."""
    cells: Cells = {}
    for row, (label, *_) in enumerate(table.rows):
        ours = label.endswith("our settings")
        model = "nnmf-original" if "nnmf-original" in label else "gcmc-softmax"
        preset = "clean" if ours else "published"
        for column, name in enumerate(table.header[1:], 1):
            cells[row, column] = number(mean(DATASETS[name], model, "all", "rmse", preset))
    return cells


def all_users_table(table: PageTable) -> Cells:
    """Ours minus the paper's RMSE, all users."""
    return {
        (row, column): number(
            mean(DATASETS[name], system(label), "all", "rmse")
            - paper("table2", DATASETS[name], system(label), "all", "rmse"),
            sign="+",
        )
        for row, (label, *_) in enumerate(table.rows)
        for column, name in enumerate(table.header[1:], 1)
    }


def draws_by_threshold_table(table: PageTable) -> Cells:
    """Mean and sd over draws of the RMSE of users below each threshold."""
    rows = [x for x in read_jsonl(CELL_ROWS) if x["study"] == "threshold-draws"]
    cells: Cells = {}
    for row, (label, *_) in enumerate(table.rows):
        for column, name in enumerate(table.header[1:], 1):
            threshold = name.removeprefix("δ = ")
            if label.startswith("paper, "):
                split = f"delta={threshold}"
                value = paper("table6", "ml-1m", system(label[7:]), "few-shot", "rmse", split)
                cells[row, column] = number(value)
                continue
            users = f"fewer than {threshold}"
            values = {
                x["draw"]: x["rmse"]
                for x in rows
                if (x["model"], x["users"]) == (system(label), users)
            }
            assert len(values) == 10
            spread = number(stdev(values.values()))
            cells[row, column] = f"{number(fmean(values.values()))} ± {spread}"
    return cells


def order_table(table: PageTable) -> Cells:
    """NDCG of orders without a model, and the paper's of two systems."""
    rows = [x for x in read_jsonl(CELL_ROWS) if x["study"] == "worst-order" and "draw" not in x]
    values = {(x["dataset"], x["order"]): x["ndcg"] for x in rows}
    cells: Cells = {}
    for row, (label, *_) in enumerate(table.rows):
        for column, name in enumerate(table.header[1:], 1):
            dataset = DATASETS[name]
            if label.startswith("paper, "):
                value = paper("table4", dataset, system(label[7:]), "new", "ndcg")
            else:
                value = values[dataset, label.split()[0]]
            cells[row, column] = number(value)
    return cells


CURVE_OPTIONS: dict[str, dict[str, float] | None] = {  # how a label ends -> options over the preset
    "": None,
    "ten times the rate": {"train.learning_rate": 0.01},
    "no early stop": {"train.patience": 500, "train.epochs": 60},
}


def curve_table(table: PageTable) -> Cells:
    """Test figures of new users over the epochs: seed 0, `published`."""
    cells: Cells = {}
    for row, (name, label, metric, *_) in enumerate(table.rows):
        dataset, model, key = DATASETS[name], system(label), metric.lower()
        options = CURVE_OPTIONS[label.partition(", ")[2]]
        lines = [
            x
            for x in read_jsonl(RESULTS / f"epoch-curve-{dataset}.jsonl")
            if (x["model"], x["seed"], x["users"]) == (model, 0, "new")
            and x.get("options") == options
        ]
        values = {x["epoch"]: x[key] for x in lines if "epoch" in x}
        chosen = next((x["chosen"] for x in lines if "chosen" in x), None)
        best = min(values, key=lambda n: values[n] if key == "rmse" else -values[n])
        name = "table3" if "amazon" in dataset else "table4"
        cells[row, 3] = str(len(values))
        cells[row, 4] = number(values[1])
        cells[row, 5] = f"{number(values[best])} ({best})"
        cells[row, 6] = f"{number(values[chosen])} ({chosen})" if chosen else ""
        cells[row, 7] = number(paper(name, dataset, model, "new", key))
    return cells


def constant_table(table: PageTable) -> Cells:
    """FISM and Mult-VAE beside the paper; that of a constant comes from the test rows alone."""
    cells: Cells = {(0, 1): "2.786", (0, 2): "2.878", (0, 3): "2.997"}
    for row, (label, *_) in enumerate(table.rows[1:], 1):
        for column, name in enumerate(table.header[1:], 1):
            dataset, model = DATASETS[name], system(label)
            kind = label.rpartition(", ")[2].strip("`")
            if kind == "paper":
                value = paper("table4", dataset, model, "new", "rmse")
            else:
                value = mean(dataset, model, "new", "rmse", kind)
            cells[row, column] = number(value)
    return cells


def ablation_table(table: PageTable) -> Cells:
    """Ours and the paper's numbers of table 7."""
    columns = [("ml-1m", "new", "rmse"), ("ml-1m", "few-shot", "rmse")]
    columns += [("amazon-books", "few-shot", "auc")]
    cells: Cells = {}
    for row, (label, *texts) in enumerate(table.rows):
        for n, column in enumerate(columns):
            dataset, users, metric = column
            if texts[2 * n]:
                cells[row, 2 * n + 1] = number(mean(dataset, system(label), users, metric))
            if texts[2 * n + 1]:
                model = "idcf-gc" if system(label) == "idcf-nn" else f"{system(label)}-gc"
                cells[row, 2 * n + 2] = number(paper("table7", dataset, model, users, metric))
    return cells


def implicit_table(table: PageTable, columns: Sequence[tuple[str, str, str]]) -> Cells:
    """Metrics of implicit feedback by (dataset, users, metric)."""
    cells: Cells = {}
    for row, (label, *texts) in enumerate(table.rows):
        for column, (dataset, users, metric) in enumerate(columns, 1):
            if not texts[column - 1]:
                continue
            if label.startswith("paper, "):
                value = paper("table3", dataset, system(label[7:]), users, metric)
            else:
                value = mean(dataset, system(label), users, metric)
            cells[row, column] = number(value)
    return cells


def preset_table(table: PageTable) -> Cells:
    """AUC and Recall@20 under both presets."""
    cells: Cells = {}
    for row, (dataset, label, group, *_) in enumerate(table.rows):
        for column, name in enumerate(table.header[3:], 3):
            metric, preset = re.fullmatch(r"(\S+) `(\w+)`", name).groups()  # type: ignore[union-attr]
            args = (DATASETS[dataset], system(label), GROUPS[group], metric.lower(), preset)
            cells[row, column] = number(mean(*args))
    return cells


def list_table(table: PageTable) -> Cells:
    """Recall and NDCG of lists, by the committed rows and by those of `--implicit`."""
    cells: Cells = {}
    for row, (label, *texts) in enumerate(table.rows):
        for column, name in enumerate(table.header[1:], 1):
            if not texts[column - 1]:
                continue
            dataset, metric = DATASETS[name.split()[0]], name.split()[1].lower()
            if "--implicit" in label:
                model = label.split()[0].strip("`*")
                rows = read_jsonl(REPORTS / f"implicit-{dataset}.jsonl")
                values = [
                    r["value"]
                    for r in rows
                    if (r["model"], r["users"], r["metric"]) == (model, "new", metric)
                ]
                assert len(values) >= 3, (model, dataset, metric)
                value = fmean(values)
            else:
                preset = "published" if "`published`" in label else "clean"
                value = mean(dataset, system(label), "new", metric, preset)
            cells[row, column] = f"{100 * value:.0f} %" if "recall" in metric else number(value)
    return cells


def size_table(table: PageTable) -> Cells:
    """Users and test rows of each dataset; the last column is a rounded half-width."""
    cells: Cells = {}
    for row, (name, *_) in enumerate(table.rows):
        rows = rows_of(DATASETS[name], "bias", "new", "rmse")
        interval = mean_of_seeds([r.interval for r in rows])
        cells[row, 1] = f"{rows[0].n_users:,}"
        cells[row, 2] = f"{rows[0].n_ratings:,}"
        cells[row, 3] = f"about ±{number((interval.high - interval.low) / 2, 2)}"
    return cells


def seed_table(table: PageTable) -> Cells:
    """The committed seeds of idcf-bayes on ML-1M; the other row is an audit's."""
    values = [r.value for r in rows_of("ml-1m", "idcf-bayes", "new", "rmse")]
    return {
        (row, column): text
        for row, (label, *_) in enumerate(table.rows)
        if "committed" in label
        for column, text in (
            (1, ", ".join(number(x, 4) for x in values)),
            (2, number(stdev(values), 4)),
        )
    }


_BEAUTY = [
    ("amazon-beauty", users, metric)
    for users in ("new", "few-shot")
    for metric in ("auc", "auc-user", "ndcg", "recall@20")
]
_BOOKS = [("amazon-books", "new", x) for x in ("auc", "auc-user", "ndcg", "recall@20", "ndcg@20")]
_QUERY = [
    (dataset, "few-shot", metric)
    for dataset in ("amazon-beauty", "amazon-books")
    for metric in ("auc", "recall@20")
]

# (how the section begins, how the first line of the table begins) -> its cells, tables in the order
# of the page; None: words, and numbers that are no results
CHECKS: list[tuple[str, str, Callable[[PageTable], Cells] | None]] = [
    ("Results", "page", None),
    ("Who wins for new users?", "|Douban New", main_table),
    ("Who wins for new users?", "|Douban", paired_table),
    ("Do the figures hold", "", draw_table),
    ("Is the uncertainty right?", "", coverage_table),
    ("How many key users", "", key_user_table),
    ("Does the published", "Douban and ML-100K", verdict_counts),
    ("Does the published", "dataset", lambda t: verdict_table(t, "rmse")),
    ("Does the published", "dataset", lambda t: verdict_table(t, "ndcg")),
    ("Does the published", "system|users|paper", lambda t: interval_table(t, "ml-1m", "rmse")),
    ("Does the published", "system|users|metric", lambda t: interval_table(t, "amazon-beauty")),
    ("Does the published", "RMSE of IDCF-NN", key_rule_table),
    ("What explains the cells", "few-shot", draws_by_threshold_table),
    ("What explains the cells", "dataset", curve_table),
    ("What explains the cells", "New users, NDCG", order_table),
    ("Which systems were not run", "system", None),
    ("Which systems were not run", "first authors", first_authors_table),
    ("Where does the paper hold?", "", all_users_table),
    ("FISM and Mult-VAE", "", constant_table),
    ("Fewer key users", "New users", key_rule_table),
    ("Fewer key users", "RMSE, `probe-new`", key_rule_table),
    ("Ablations", "", ablation_table),
    ("Amazon-Beauty", "", lambda t: implicit_table(t, _BEAUTY)),
    ("Amazon-Books", "", lambda t: implicit_table(t, _BOOKS)),
    ("Query users", "", lambda t: implicit_table(t, _QUERY)),
    ("Is `published` better", "", preset_table),
    ("Lists where there are", "", list_table),
    ("How much is noise?", "New users|users", size_table),
    ("How much is noise?", "three seeds", seed_table),
    ("Which settings had seen", "rows", None),
    ("Which settings had seen", "setting", None),
    ("How few ratings", "ML-100K", length_table),
    ("How few ratings", "ML-1M", length_table),
    ("Does asking help?", "", interview_table),
]
NO_ROWS = "**No committed rows.**"  # stands before a table whose rows do not exist


def expected_cells(table: PageTable) -> Cells:
    """Return the text of the cells of a table; AssertionError if nothing is known of the table."""
    key = "|".join(table.header)
    same = [t for t in page_tables(PAGE.read_text(encoding="utf-8")) if _is_like(t, table)]
    checks = [c for s, h, c in CHECKS if table.section.startswith(s) and key.startswith(h)]
    assert checks, f"no function gives the figures of the table {table.header} of {table.section!r}"
    position = [t.first_line for t in same].index(table.first_line)
    check = checks[min(position, len(checks) - 1)]
    return {} if check is None else check(table)


def _is_like(a: PageTable, b: PageTable) -> bool:
    return (a.section, a.header) == (b.section, b.header)


def figures(table: PageTable) -> Iterator[tuple[int, int, str]]:
    """Yield row, column and text of the cells that are figures: with a digit, not in the first
    column, and not of a line that repeats an audit of uncommitted runs."""
    for row, column, text in table.cells():
        if column and re.search(r"\d", text) and "audit" not in table.rows[row][0]:
            yield row, column, text


def write_page() -> int:
    """Write the cells that differ from the rows into the page; return how many."""
    lines, n_written = PAGE.read_text(encoding="utf-8").split("\n"), 0
    for table in page_tables("\n".join(lines)):
        if NO_ROWS in table.text_before or is_of_an_audit(table):
            continue
        expected = expected_cells(table)
        for row, column, text in table.cells():
            if expected.get((row, column), text) != text:
                cells = split_line(lines[table.first_line + row])
                cells[column] = cells[column].replace(text, expected[row, column])
                indent = re.match(" *", lines[table.first_line + row]).group()  # type: ignore[union-attr]
                lines[table.first_line + row] = f"{indent}|{'|'.join(cells)}|"
                n_written += 1
    PAGE.write_text("\n".join(lines), encoding="utf-8")
    return n_written


def is_of_an_audit(table: PageTable) -> bool:
    """Return whether the paragraph before a table says that its figures are an audit's."""
    paragraphs = table.text_before.strip().split("\n\n")
    return "(audit)" in paragraphs[-1]
