"""What the paper published (Wu et al., ICML 2021, tables 2-4, 7), for printing beside our numbers.

Amazon-Books is left out: our copy is a quarter of its users on another split.
"""

from __future__ import annotations

from collections.abc import Sequence

_FEW = (("all", "rmse"), ("few-shot", "rmse"), ("all", "ndcg"), ("few-shot", "ndcg"))
_NEW = (("new", "rmse"), ("new", "ndcg"))
_AMAZON = (("few-shot", "auc"), ("new", "auc"), ("few-shot", "ndcg"), ("new", "ndcg"))
_BOTH = (("few-shot", "rmse"), ("few-shot", "ndcg"), *_NEW)
_SETS = ("douban", "ml-100k", "ml-1m")

# table 2: for each of the three sets RMSE All, FS, then NDCG All, FS
_TRAINED = """
pmf      .737 .718 .939 .954   .932 1.003 .858 .843  .851 .946 .919 .940
nnmf     .729 .705 .939 .952   .925 .987 .895 .878   .848 .940 .920 .937
gcmc     .731 .706 .938 .956   .911 .989 .900 .886   .837 .947 .923 .939
nimc     .732 .745 .928 .931  1.015 1.065 .832 .824  .873 .995 .889 .904
bomic    .735 .747 .923 .925   .931 1.001 .828 .815  .847 .953 .905 .924
f-eae    .738  -    -    -     .920  -    -    -     .860  -    -    -
igmc     .721 .728  -    -     .905 .997  -    -     .857 .956  -    -
idcf-nn  .738 .712 .939 .956   .931 .996 .896 .880   .844 .952 .922 .940
idcf-gc  .733 .712 .940 .956   .905 .981 .901 .884   .839 .944 .924 .940
"""
# table 4: for each of the three sets RMSE, NDCG of new users
_MET = """
nimc      .766 .921  1.089 .864  1.059 .883
bomic     .764 .920  1.088 .859  1.057 .879
fism     1.910 .824  1.891 .760  2.283 .771
mult-vae 2.783 .823  2.865 .758  2.981 .792
igmc      .743  -    1.051  -     .997  -
idcf-nn   .749 .955  1.078 .877   .994 .941
idcf-gc   .723 .955  1.011 .881   .957 .942
"""
# table 7, ML-1M: RMSE, NDCG of few-shot users, then of new ones; of IDCF-GC there, of IDCF-NN here
_ABLATED = """
rd-item    1.014 .843  1.023 .835
trans-user  .992 .876    -    -
meta-path   .959 .912   .981 .892
"""
# table 3, Beauty: AUC Query, New, then NDCG Query, New
_BEAUTY = """
pmf      .779  -   .769  -
nnmf     .790  -   .763  -
ngcf     .793  -   .775  -
pinsage  .790  -   .775  -
fism      -   .613  -   .678
mult-vae  -   .644  -   .679
idcf-nn  .792 .750 .783 .774
idcf-gc  .801 .791 .772 .791
"""


def _read(
    text: str, sets: Sequence[str], columns: Sequence[tuple[str, str]]
) -> dict[tuple[str, str, str, str], float]:
    heads = [(name, *column) for name in sets for column in columns]
    found = {}
    for line in text.strip().splitlines():
        model, *values = line.split()
        for (dataset, users, metric), value in zip(heads, values, strict=True):
            if value != "-":
                found[dataset, users, metric, model] = float(value)
    return found


PAPER = {  # (dataset, users, metric, model) -> value
    **_read(_TRAINED, _SETS, _FEW),
    **_read(_MET, _SETS, _NEW),
    **_read(_ABLATED, ("ml-1m",), _BOTH),
    **_read(_BEAUTY, ("amazon-beauty",), _AMAZON),
}


_SPLITS = {  # how our name of the paper's split begins, and its δ
    "douban": ("official", 30),
    "ml-100k": ("u1", 30),
    "ml-1m": ("random-10%", 30),
    "amazon-beauty": ("random-10-per-user", 20),
}


def same_split(dataset: str, split: str) -> bool:
    """Was this measured on the paper's split, or on a draw of the same kind?"""
    start, delta = _SPLITS.get(dataset, ("", 0))
    return bool(start) and split.startswith(start) and split.endswith(f"delta={delta}")


def published(dataset: str, users: str, metric: str, model: str) -> float | None:
    return PAPER.get((dataset, users, metric, model))


def systems(dataset: str, users: str, metric: str) -> dict[str, float]:
    """Every system of the paper that has this number."""
    return {key[3]: value for key, value in PAPER.items() if key[:3] == (dataset, users, metric)}
