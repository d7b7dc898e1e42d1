"""The figures and theorems of the paper: one entry each. A further figure is one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from idcf.errors import ConfigError, unknown_name_message
from idcf.paper.studies import sparsity
from idcf.paper.studies.study import FigureRow, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[FigureRow]


@dataclass(frozen=True)
class PaperFigure:
    """One figure or theorem: its study, and how rows become a picture, a text and a table.

    Attributes
    ----------
    title
        The heading on the page.
    study
        The study whose rows it shows; several figures may share one.
    claim
        What the paper claims.
    findings
        A function of the rows of one dataset that returns what we see, in sentences.
    certainty
        How sure we are, and what the rows do not show.
    plot
        A function of the rows of one dataset that returns the picture.
    table
        A function of the rows of one dataset that returns column -> cells; None: no table.
    only
        The values of the study's points that the figure shows.
    """

    title: str
    study: Study
    claim: str
    findings: Callable[[Rows], str]
    certainty: str
    plot: Callable[[Rows], Figure]
    table: Callable[[Rows], Mapping[str, list[str]]] | None = None
    only: Mapping[str, Any] = field(default_factory=dict)

    def shows(self, values: Mapping[str, Any]) -> bool:
        """Return whether the figure shows a point of its study, or a row."""
        return all(values.get(key) == value for key, value in self.only.items())


FIGURES: dict[str, PaperFigure] = {
    "figure-sparsity": PaperFigure(
        "Sparsity (Fig. 3a): RMSE with ever fewer training ratings",
        sparsity.STUDY,
        "With 50 % down to 0.1 % of the training ratings of ML-1M, the RMSE of query users rises "
        "less for IDCF-NN and IDCF-GC than for NNMF and GC-MC.",
        sparsity.describe_sparsity,
        "Key and query users are those of the full data: at 1 % hardly any user would pass the "
        "threshold of 30. Settings are those chosen on the full data, which is hard on the large "
        "models at small shares. Differences between systems are of the size of the intervals in "
        "the next figure.",
        sparsity.plot_sparsity,
        sparsity.tabulate_groups,
    ),
    "figure-history-length": PaperFigure(
        "History length (Fig. 3b): RMSE by number of training ratings, with half of them",
        sparsity.STUDY,
        "With 50 % of the training ratings, users with more ratings have a lower RMSE; with fewer "
        "than five ratings, IDCF-GC is 2.5 % better than GC-MC, the best transductive system.",
        sparsity.describe_history_length,
        "Intervals are over users. The systems are compared on the same users, so that a "
        "difference is surer than the overlap of two intervals suggests.",
        sparsity.plot_history_length,
        None,
        {"share": sparsity.LENGTHS_SHARE},
    ),
}


def find_figure(name: str) -> PaperFigure:
    """Return a figure by its name; ConfigError names the nearest one if there is none."""
    if name not in FIGURES:
        raise ConfigError(unknown_name_message("figure", name, FIGURES))
    return FIGURES[name]
