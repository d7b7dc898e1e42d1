"""Compare models on a dataset: split, train, measure, tabulate; and tune the options of one."""

from __future__ import annotations

DEFAULT_MODELS = (  # of `idcf evaluate` and `idcf demo`; the trivial baselines are added
    *("popularity", "bias", "item-knn", "ease", "als"),
    *("idcf-dot", "idcf-nn", "idcf-gc", "idcf-bayes"),
)
