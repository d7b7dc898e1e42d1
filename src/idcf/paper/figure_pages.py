"""The page of the paper's figures and theorems, and its pictures, from the stored rows.

A picture carries a digest of its rows and of the code that draws it, so that `report --check` can
see whether it is current without drawing it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from idcf.evaluation.tables import format_markdown_grid
from idcf.files import write_bytes
from idcf.paper.figure_catalog import FIGURES, PaperFigure, Rows
from idcf.paper.figure_runs import read_rows
from idcf.paper.figures import to_png
from idcf.paper.pages import format_contents

PAGE = "figures.md"
_INTRODUCTION = (
    "Each section has the claim of the paper, what our rows say, and how sure that is. Pictures, "
    "tables and the sentences of *Here* are made from the rows in `experiments/results/figures` "
    "by `idcf report`; `idcf reproduce NAME` makes the rows that are missing, and "
    "`idcf reproduce NAME --datasets ml-100k` makes them on another dataset."
)


@dataclass(frozen=True)
class Picture:
    """A picture of one figure on one dataset."""

    name: str  # of the file
    digest: str  # of the rows and the code
    draw: Callable[[], bytes]

    def is_current(self, folder: Path) -> bool:
        """Return whether the file in a folder was drawn from these rows by this code."""
        path = folder / self.name
        return path.exists() and self.digest.encode() in path.read_bytes()


def rows_by_dataset(figure: PaperFigure, results: Path) -> dict[str, Rows]:
    """Return dataset -> rows of a figure, the figure's default datasets first."""
    rows = [row for row in read_rows(results, figure.study) if figure.shows(row)]
    names = dict.fromkeys([*figure.study.datasets, *(row["dataset"] for row in rows)])
    by_dataset = {name: [row for row in rows if row["dataset"] == name] for name in names}
    return {name: rows for name, rows in by_dataset.items() if rows}


def render_figures(
    results: Path, figures: Mapping[str, PaperFigure] = FIGURES
) -> tuple[str, list[Picture]]:
    """Return the Markdown page of the figures, and their pictures, from a folder of results."""
    contents = format_contents([figure.title for figure in figures.values()])
    parts = ["# Figures and theorems", "", _INTRODUCTION, "", *contents]
    pictures: list[Picture] = []
    for name, figure in figures.items():
        by_dataset = rows_by_dataset(figure, results)
        parts += ["", f"## {figure.title}", "", f"**The paper.** {figure.claim}"]
        for dataset, rows in by_dataset.items():
            picture = _picture(name, figure, dataset, rows)
            pictures.append(picture)
            parts += ["", f"![{figure.title}, {dataset}]({picture.name})", ""]
            parts += [f"**Here**, {_origin(dataset, rows)}. {figure.findings(rows)}"]
            parts += _table_lines(figure, rows)
        if not by_dataset:
            parts += ["", f"**Here.** Not measured yet: `idcf reproduce {name}`."]
        parts += ["", f"**How sure.** {figure.certainty}"]
    return "\n".join(parts) + "\n", pictures


def write_pictures(folder: Path, pictures: Iterable[Picture]) -> None:
    """Draw the pictures that are missing in a folder or not current there."""
    for picture in pictures:
        if not picture.is_current(folder):
            write_bytes(folder / picture.name, picture.draw())


def outdated_pictures(folder: Path, pictures: Iterable[Picture]) -> list[str]:
    """Return the names of pictures that are missing in a folder or not current there."""
    return [picture.name for picture in pictures if not picture.is_current(folder)]


def _picture(name: str, figure: PaperFigure, dataset: str, rows: Rows) -> Picture:
    """Return the picture of a figure on a dataset."""
    code = inspect.getsource(inspect.unwrap(figure.plot))
    digest = hashlib.sha256(f"{code}{json.dumps(rows)}".encode()).hexdigest()[:20]
    return Picture(
        f"{name}-{dataset}.png",
        digest,
        lambda: to_png(figure.plot(rows), 110, f"idcf {name}, rows {digest}"),
    )


def _origin(dataset: str, rows: Rows) -> str:
    """Return the dataset, the seeds and the devices of some rows in words."""
    seeds = len({row.get("seed", 0) for row in rows})
    devices = " and ".join(sorted({row["device"] for row in rows}))
    return f"on {dataset} ({seeds} seed{'s' if seeds > 1 else ''}, {devices})"


def _table_lines(figure: PaperFigure, rows: Rows) -> Iterator[str]:
    """Yield the lines of the table of a figure, if it has one."""
    if figure.table is None:
        return
    columns = figure.table(rows)
    yield ""
    yield format_markdown_grid(tuple(columns), list(zip(*columns.values(), strict=True)))
