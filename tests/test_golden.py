"""Every model gives the figures that are written in `tests/golden/`.

They hold a change that should change nothing: names moved, code rearranged. Where figures are
meant to change, write them anew and look at the difference:

    python tests/test_golden.py --write                      # all
    python tests/test_golden.py --write idcf-bayes ease      # these models
    IDCF_DATA=...: the folder that holds ml-100k/; without it only the small world is written

Training in single precision depends on the processor and on the release of PyTorch and NumPy. Where
these differ from `made_with` in the files, write the figures anew from the commit before.
"""

from __future__ import annotations

import sys

import golden_values as values
import pytest

needs_movielens = pytest.mark.skipif(
    values.movielens_folder() is None, reason="IDCF_DATA names no folder with ml-100k"
)


def check(name: str, place: str) -> None:
    written = values.golden(place)
    if name not in written["models"]:
        pytest.fail(f"{values.path(place)} has no figures of {name!r}: see the docstring")
    expected, computed = written["models"][name], values.records(name, place)
    lines = list(values.differences(expected, computed, name))
    if lines:
        pytest.fail(
            f"{len(lines)} figures differ, the first of them:\n"
            + "\n".join(lines[:10])
            + f"\nwritten with {written['made_with']}, now {values.versions()}"
        )


@pytest.mark.parametrize("name", values.MODELS)
def test_figures_in_a_small_world(name: str) -> None:
    check(name, values.SMALL)


@needs_movielens
@pytest.mark.accuracy
@pytest.mark.parametrize("name", values.MODELS)
def test_figures_on_movielens(name: str) -> None:
    check(name, values.MOVIELENS)


@pytest.mark.parametrize("place", values.WORLDS)
def test_figures_are_those_of_the_models_there_are(place: str) -> None:
    assert set(values.golden(place)["models"]) == set(values.MODELS)


def test_a_difference_is_seen_and_a_tie_is_none() -> None:
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
    if arguments[:1] != ["--write"] or set(arguments[1:]) - set(values.MODELS):
        raise SystemExit(f"usage: {sys.argv[0]} --write [MODEL ...]")
    for place in values.WORLDS:
        if place == values.SMALL or values.movielens_folder() is not None:
            print(values.write(place, arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
