"""Every model gives the values that are written in `tests/golden/`.

The values protect refactorings, which should change no number. If values are meant to change, write
them again and look at the difference:

    python tests/test_golden.py --write                      # all
    python tests/test_golden.py --write idcf-bayes ease      # these models
    IDCF_DATA=...: the folder that holds ml-100k/; without it only the small dataset is written

Training in single precision depends on the processor and on the releases of PyTorch and NumPy. If
these differ from `made_with` in the files, write the values again from the commit before.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import golden_values as values
import pytest

needs_movielens = pytest.mark.skipif(
    values.movielens_folder() is None, reason="IDCF_DATA names no folder with ml-100k"
)


def check(name: str, dataset: str) -> None:
    """Train a model and compare its records with the golden values."""
    golden = values.golden(dataset)
    if name not in golden["models"]:
        pytest.fail(f"{values.golden_file(dataset)} has no values of {name!r}: see the docstring")
    expected, computed = golden["models"][name], values.records(name, dataset)
    lines = list(values.differences(expected, computed, name))
    if lines:
        counts = Counter(re.split("[/:]", line)[1] for line in lines)  # by the kind of data
        pytest.fail(
            f"{len(lines)} values differ, {dict(counts)}, the first of them:\n"
            + "\n".join(lines[:10])
            + f"\nwritten with {golden['made_with']}, now {values.versions()}"
        )


@pytest.mark.parametrize("name", values.MODELS)
def test_values_on_the_small_dataset(name: str) -> None:
    check(name, values.SMALL)


@needs_movielens
@pytest.mark.accuracy
@pytest.mark.parametrize("name", values.MODELS)
def test_values_on_movielens(name: str) -> None:
    check(name, values.MOVIELENS)


@pytest.mark.parametrize("dataset", values.DATASETS)
def test_every_model_has_golden_values(dataset: str) -> None:
    assert set(values.golden(dataset)["models"]) == set(values.MODELS)


def test_differences_are_reported_and_ties_are_not() -> None:
    rows = [["a", 3.0], ["b", 2.0], ["c", 2.0], ["d", 1.5], ["e", 1.0], ["f", 1.0]]
    expected = {"ratings": {"scores": [[1.0, 2.0]], "lists": [rows]}}

    def count(scores: list[float], order: str) -> int:
        score = dict(rows) | {"g": 1.0}
        lists = [[[item, score[item]] for item in order]]
        computed = {"ratings": {"scores": [scores], "lists": lists}}
        return len(list(values.differences(expected, computed)))

    assert count([1.0, 2.0], "abcdef") == 0
    assert count([1.0, 2.0 + 1e-7], "acbdgf") == 0
    assert count([1.0, 2.0 + 1e-5], "abcdef") == 1
    assert count([1.0], "abcdef") == 1
    assert count([1.0, 2.0], "bacdef") == 4  # two scores and two items
    assert len(list(values.differences(expected, {"ratings": {}}))) == 2


def main(arguments: list[str]) -> None:
    """Write the golden values of the named models, or of all."""
    if arguments[:1] != ["--write"] or set(arguments[1:]) - set(values.MODELS):
        raise SystemExit(f"usage: {sys.argv[0]} --write [MODEL ...]")
    for dataset in values.DATASETS:
        if dataset == values.SMALL or values.movielens_folder() is not None:
            print(values.write(dataset, arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
