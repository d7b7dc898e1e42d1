"""The figures and theorems of the paper: one entry each. A further figure is one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from idcf.errors import ConfigError, unknown_name_message
from idcf.paper.studies import (
    attention,
    attention_kinds,
    expressiveness,
    scalability,
    sparsity,
    theorem_1,
    theorem_2,
)
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
        "models at small shares. The next figure has the intervals over users at 50 %; differences "
        "below a hundredth are within the noise of one seed.",
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
    "figure-attention": PaperFigure(
        "Attention (Fig. 3c): query users by key users",
        attention.STUDY,
        "Some key users are important: most query users give them high weights.",
        attention.describe_heat_map,
        "One seed per preset. Both the query users and the key users shown are drawn at random, so "
        "the columns are not chosen for their weights.",
        attention.plot_heat_map,
        attention.tabulate_attention,
    ),
    "figure-attention-length": PaperFigure(
        "Accumulated attention (Fig. 3d): by the history length of the key user",
        attention.STUDY,
        "Key users with more ratings are more likely to have a large accumulated attention, and "
        "also more likely to have a small one.",
        attention.describe_attention_by_length,
        "One seed per preset. The correlation describes one training: it says nothing of whether "
        "these key users are needed, which the study of key users in the results measures.",
        attention.plot_attention_by_length,
        None,
    ),
    "figure-attention-kinds": PaperFigure(
        "Eq. 4 as printed, and two attentions in its place",
        attention_kinds.STUDY,
        "The attention score is eᵀ[W_q d ⊕ W_k p], divided by its sum over the key users (Eq. 4). "
        "The public code has a softmax of a dot product instead.",
        attention_kinds.describe_attention_kinds,
        "One seed; intervals are over users. The settings are those of the dot product, which were "
        "not searched again for the other two. The loss of Eq. 4 jumps in training where its "
        "denominator comes near 0. clean trains once more on all rows, without validation, and "
        "published keeps the weights of the best epoch or trains for few epochs: that would "
        "explain why Eq. 4 fails under clean alone, but is not tested.",
        attention_kinds.plot_attention_kinds,
        attention_kinds.tabulate_attention_kinds,
    ),
    "figure-scalability": PaperFigure(
        "Scalability (Fig. 3e): time of an epoch against the number of ratings",
        scalability.STUDY,
        "The time of an epoch on ML-1M grows linearly; IDCF-GC needs about twice that of GC-MC, "
        "and IGMC about ten times that of IDCF.",
        scalability.describe_scalability,
        "Each time is that of one epoch, so it moves with the load of the machine. Systems have "
        "their own batch sizes and sizes of layers, those that were chosen for accuracy; a ratio "
        "of times is a property of these settings too.",
        scalability.plot_scalability,
        scalability.tabulate_scalability,
    ),
    "figure-theorem-1": PaperFigure(
        "Theorem 1: combinations of key users lose nothing",
        theorem_1.STUDY,
        "If P_k has full column rank, which the paper calls trivial, a free matrix C reaches the "
        "loss of free latents.",
        theorem_1.describe_theorem_1,
        "The equality is exact up to rounding, and a test fails if a change of the model breaks "
        "it. It is about free C. The weights of a softmax are positive and sum to 1, so that the "
        "theorem does not cover the relation that is trained; the bars show what that costs on the "
        "training ratings. A penalty that shrinks all latents to one point keeps the rank and "
        "loses the theorem's use: the condition number says how far that has gone.",
        theorem_1.plot_theorem_1,
        None,
    ),
    "figure-theorem-2": PaperFigure(
        "Theorem 2: the gap between training and test error",
        theorem_2.STUDY,
        "The gap is at most of the order 2LHB √(2 M_q ln M_k / T_q) + √(ln(1/δ) / T_q): it grows "
        "with the logarithm of the number of key users and falls with the number of ratings.",
        theorem_2.describe_theorem_2,
        "The bound is drawn with constant 1 in the O and δ = .05. Query users without a training "
        "rating are left out, so that fewer ratings also means fewer query users; each point of "
        "idcf-dot trains its backbone on its own key users, and B, the largest prediction of a key "
        "user, grows with their number. The trained relation has shared "
        "weights and several heads, which the theorem does not model.",
        theorem_2.plot_theorem_2,
        theorem_2.tabulate_theorem_2,
    ),
    "figure-expressiveness": PaperFigure(
        "Expressiveness (appendix): where feature-driven and local-graph models fail",
        expressiveness.STUDY,
        "Feature-driven models fail where users have equal features and local-graph models where "
        "the 1-hop subgraphs of two pairs are equal; IDCF works in both cases.",
        expressiveness.describe_expressiveness,
        "The worlds are made so that a system which cannot tell two kinds of users apart is right "
        "in half of the cases. IDCF-NN with d = Σ q as Eq. 4 has it is one of these: d tells what "
        "was rated and not how, so IDCF works only where d reads ratings too, or where the "
        "backbone does (IDCF-GC). In the paper's second case the user who rated the test item has "
        "also rated the items of the two query users; then the two subgraphs do differ, by whether "
        "the raters agree. Our world has no such rating, which makes them equal.",
        expressiveness.plot_expressiveness,
        None,
    ),
}


def find_figure(name: str) -> PaperFigure:
    """Return a figure by its name; ConfigError names the nearest one if there is none."""
    if name not in FIGURES:
        raise ConfigError(unknown_name_message("figure", name, FIGURES))
    return FIGURES[name]
