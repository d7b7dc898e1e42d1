"""Features of MovieLens users and films and of a friend graph, on files of a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_file
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.datasets.side_features import (
    friend_graph_features,
    movielens_attributes,
    movielens_item_features,
    movielens_user_features,
)
from idcf.data.interactions import Vocab
from idcf.errors import DataError

NO_GENRES = "|0" * 19
GENRES = {n: "".join(f"|{int(k == n % 2)}" for k in range(19)) for n in range(6)}


def distinct_signs(features: np.ndarray) -> set[tuple[bool, ...]]:
    """Return which rows are above average, for each feature."""
    return {tuple((column > 0).tolist()) for column in features.T}


def test_users_have_an_age_a_gender_and_an_occupation(tmp_path: Path) -> None:
    lines = [
        f"{n}|{20 + n}|{'MF'[n % 2]}|{'nurse' if n < 4 else 'writer'}|1\n" for n in range(1, 9)
    ]
    features = movielens_user_features(
        Vocab(range(1, 9)), write_file(tmp_path, "u.user", "".join(lines))
    )
    assert features.shape[0] == 8
    np.testing.assert_allclose(features.mean(0), 0, atol=1e-6)
    signs = distinct_signs(features)
    is_old, is_male = [n > 4 for n in range(1, 9)], [n % 2 == 0 for n in range(1, 9)]
    assert {tuple(is_old), tuple(is_male), tuple(not x for x in is_male)} <= signs
    assert tuple(n < 4 for n in range(1, 9)) in signs, "the nurses"


def test_a_zip_code_is_no_feature(tmp_path: Path) -> None:
    vocab = Vocab(range(1, 9))
    texts = [
        "".join(f"{n}|{20 + n}|{'MF'[n % 2]}|nurse|{zip_code * n}\n" for n in vocab.ids)
        for zip_code in (1, 77)
    ]
    first, second = (
        movielens_user_features(vocab, write_file(tmp_path, "u.user", text)) for text in texts
    )
    np.testing.assert_array_equal(first, second)


def test_occupations_written_as_numbers_are_words(tmp_path: Path) -> None:
    """ML-1M codes them: as numbers, job 2 would lie between the jobs 1 and 3."""
    jobs = [1, 2, 3] * 3
    lines = [f"{n}::{'MF'[n % 2]}::25::{job}::1\n" for n, job in enumerate(jobs)]
    features = movielens_user_features(
        Vocab(range(9)), write_file(tmp_path, "users.dat", "".join(lines))
    )
    for job in (1, 2, 3):
        assert tuple(x == job for x in jobs) in distinct_signs(features)


def test_films_have_genres_and_the_year_of_the_title(tmp_path: Path) -> None:
    lines = [f"{n}|Film {n} ({1990 + n})|01-Jan-1800|||{GENRES[n][1:]}\n" for n in range(6)]
    path = write_file(tmp_path, "u.item", "".join(lines))
    features = movielens_item_features(Vocab(range(6)), path)
    signs = distinct_signs(features)
    assert tuple(n % 2 == 0 for n in range(6)) in signs, "genre 0"
    assert tuple(n % 2 == 1 for n in range(6)) in signs, "genre 1"
    years = [x for x in features.T if np.all(np.diff(x) > 0)]
    assert len(years) == 1, "the year rises with the film; the date of release is not read"


def test_a_film_without_a_year_is_of_an_average_one(tmp_path: Path) -> None:
    years = {0: " (1990)", 1: " (2000)", 2: "", 3: " (1995) (uncut)", 4: " (1980)", 5: " (2010)"}
    lines = [f"{n}|Film{years[n]}|||{GENRES[n]}\n" for n in range(6)]
    features = movielens_item_features(
        Vocab(range(6)), write_file(tmp_path, "u.item", "".join(lines))
    )
    year = next(x for x in features.T if x[4] < x[0] < x[1] < x[5])
    np.testing.assert_allclose(year[[2, 3]], 0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "movies.dat",
            "".join(f"{n}::Film (199{n})::{'A|B' if n % 2 else 'B'}\n" for n in range(6)),
        ),
        (
            "x.item",
            "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
            + "".join(f"{n}\tFilm\t199{n}\t{'A B' if n % 2 else 'B'}\n" for n in range(6)),
        ),
    ],
)
def test_films_of_other_editions_have_equal_features(name: str, text: str, tmp_path: Path) -> None:
    features = movielens_item_features(Vocab(range(6)), write_file(tmp_path, name, text))
    signs = distinct_signs(features)
    assert tuple(n % 2 == 1 for n in range(6)) in signs, "genre A; B is in all films"
    assert any(np.all(np.diff(x) > 0) for x in features.T), "the year"


def test_items_of_the_file_that_have_no_interactions_are_left_out(tmp_path: Path) -> None:
    lines = [f"{n}|Film {n} ({1990 + n})|||{GENRES[n]}\n" for n in range(6)]
    path = write_file(tmp_path, "u.item", "".join(lines))
    features = movielens_item_features(Vocab([4, 2, 77]), path)
    assert features.shape[0] == 3
    assert (features[2] == 0).all(), "item 77 is not in the file"
    assert features[0].any()


@given(st.integers(1, 7), st.integers(0, 1000))
def test_the_friend_graph_equals_a_loop(n: int, seed: int) -> None:
    links = np.random.default_rng(seed).random((n, n)) < 0.4
    features = friend_graph_features(links.astype(float))
    friends = [{v for v in range(n) if v != u and (links[u, v] or links[v, u])} for u in range(n)]
    for u in range(n):
        for v in range(n):
            size = (max(len(friends[u]), 1) * max(len(friends[v]), 1)) ** 0.5
            expected = (u == v) + (v in friends[u]) / size
            assert features[u, v] == pytest.approx(expected, abs=1e-6)
    assert features.dtype == np.float32


@pytest.mark.parametrize("shape", [(2, 3), (4,), (2, 2, 2)])
def test_a_graph_that_is_not_square_is_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"a graph of users must be square, got \("):
        friend_graph_features(np.zeros(shape))


def test_films_have_genres_and_a_year_as_attributes(tmp_path: Path) -> None:
    """The genres of u.item are in the order of u.genre; "unknown" is none."""
    flags = {1: (3, 4, 5), 2: (0,), 3: (1, 18), 4: ()}
    lines = [
        f"{n}|Film {n} ({1990 + n})|||" + "".join(f"|{int(k in on)}" for k in range(19)) + "\n"
        for n, on in flags.items()
    ]
    expected: dict[str, Any] = {
        "genre": {1: ["Animation", "Children's", "Comedy"], 2: [], 3: ["Action", "Western"], 4: []},
        "year": {n: str(1990 + n) for n in flags},
    }
    assert movielens_attributes(write_file(tmp_path, "u.item", "".join(lines))) == expected
    lines = [f"{n}::Film ({1990 + n})::{'|'.join(x)}\n" for n, x in expected["genre"].items() if x]
    attributes = movielens_attributes(write_file(tmp_path, "movies.dat", "".join(lines)))
    assert attributes["genre"] == {1: expected["genre"][1], 3: expected["genre"][3]}
    header = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    rows = "1\tFilm\t1991\tAnimation Children's Comedy\n2\tFilm\t\tunknown\n"
    attributes = movielens_attributes(write_file(tmp_path, "ml-100k.item", header + rows))
    assert attributes["genre"] == {1: expected["genre"][1], 2: []}
    assert attributes["year"] == {1: "1991", 2: ""}
