from __future__ import annotations

import numpy as np
import pytest

from idcf.data.features import encode
from idcf.data.interactions import Interactions, Vocab
from idcf.data.sources import find, load
from idcf.errors import DataError


def test_numbers_words_and_gaps() -> None:
    vocab = Vocab(["a", "b", "c", "d", "e", "f", "nobody"])
    found = encode(
        vocab,
        ["f", "e", "d", "c", "b", "a", "stranger"],
        {"age": [1, 2, 3, 4, 5, "", 99], "kind": ["x|y", "x", "y", "x|y", "z", "", "x"]},
    )
    assert found.shape[0] == 7
    assert (found[6] == 0).all()  # of whom nothing is known
    known = found[:6].astype(np.float64)
    np.testing.assert_allclose(known.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(known.std(0), 1, atol=1e-5)
    signs = {tuple((column > 0).tolist()) for column in known.T}
    assert (False, False, True, False, True, True) in signs  # "x" of c, e and f
    assert (False, False, True, True, False, True) in signs  # "y" of c, d and f


def test_rare_words_and_constants_say_nothing() -> None:
    vocab = Vocab(range(4))
    assert encode(vocab, range(4), {"once": list("wxyz"), "same": [1, 1, 1, 1]}).shape == (4, 0)
    with pytest.raises(DataError, match=r"'age' has 2 rows, not 4"):
        encode(vocab, range(4), {"age": [1, 2]})


def test_people_carry_what_is_known_of_them() -> None:
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    table = Interactions.from_columns(np.array([0, 1, 2]), np.array([5, 6, 7]), np.ones(3))
    assert table.people(np.array([0])).features is None
    from dataclasses import replace

    table = replace(table, user_features=features).where(np.array([True, False, True]))
    people = table.people(np.array([2, -1, 0]))
    assert people.features is not None
    assert people.features.tolist() == [[4, 5], [0, 0], [0, 1]]
    assert people.history.lengths().tolist() == [1, 0, 1]


@pytest.mark.accuracy
@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_films_and_people_of_movielens(name: str) -> None:
    if find(name) is None:
        pytest.skip(f"{name} is not on this machine (set IDCF_DATA)")
    table = load(name, progress=False).interactions
    users, items = table.user_features, table.item_features
    assert users is not None
    assert items is not None
    assert users.shape[1] > 20  # occupations alone
    assert items.shape[1] > 18  # genres alone
    assert (np.abs(items).sum(1) > 0).mean() > 0.99
