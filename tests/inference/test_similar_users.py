"""Similar users among saved embeddings, in every form in which they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from idcf import ConfigError, DataError, Recommender

FACTORS = np.random.default_rng(0).normal(size=(30, 4))
MODEL = Recommender.from_factors(FACTORS, item_ids=list(range(30)), implicit=True)
HISTORIES = [list(range(k, k + 4)) for k in range(20)]
VECTORS = MODEL.embed(HISTORIES)
SAVED = pa.table(
    {
        "user_id": [*(f"u{k}" for k in range(20)), "nobody"],
        "embedding": pa.array(
            [*map(list, VECTORS), None], pa.list_(pa.float32(), VECTORS.shape[1])
        ),
    }
)


def test_the_most_similar_users_have_the_largest_cosines() -> None:
    users = MODEL.similar_users([3, 4, 5, 6], SAVED, n=5)
    one = VECTORS[3] / np.linalg.norm(VECTORS[3])
    cosines = [float(x @ one / np.linalg.norm(x)) for x in VECTORS]
    expected = sorted(range(20), key=lambda k: -cosines[k])[:5]
    assert [x.user_id for x in users] == [f"u{k}" for k in expected]
    assert [x.similarity for x in users] == pytest.approx([cosines[k] for k in expected], abs=1e-5)
    assert users[0] == ("u3", pytest.approx(1.0, abs=1e-5))


@pytest.mark.parametrize("form", ["file", "folder", "pandas", "polars"])
def test_saved_embeddings_in_every_form(form: str, tmp_path: Path) -> None:
    parquet.write_table(SAVED.slice(0, 9), tmp_path / "a.parquet")
    saved: Any = tmp_path / "a.parquet"
    if form == "folder":
        parquet.write_table(SAVED.slice(9), tmp_path / "b.parquet")
        saved = str(tmp_path)
    elif form == "pandas":
        saved = SAVED.to_pandas()
    elif form == "polars":
        import polars as pl

        saved = pl.from_arrow(SAVED)
    table = SAVED.slice(0, 9) if form == "file" else SAVED
    assert MODEL.similar_users([1, 2], saved) == MODEL.similar_users([1, 2], table)


def test_similar_users_are_printed_as_a_table() -> None:
    users = MODEL.similar_users([3, 4, 5, 6], SAVED, n=12)
    lines = repr(users).splitlines()
    assert lines[0] == "SimilarUsers: 12 users"
    assert lines[1].split() == ["user_id", "similarity"]
    assert lines[2].split() == ["u3", "1.000"]
    assert lines[-1] == "… and 2 more"
    assert users.to_pandas()["user_id"].iloc[0] == "u3"
    assert users.to_arrow().num_rows == 12


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    for saved, message in (
        (SAVED.slice(20), "there is no embedding"),
        (SAVED.drop_columns(["embedding"]), "no columns user_id and embedding, but"),
        (3, "give the file or folder that `idcf embed` wrote"),
        (tmp_path / "none.parquet", "no file at"),
        (pa.table({"user_id": ["x"], "embedding": [[1.0, 2.0]]}), "have 2 coordinates, but those"),
    ):
        with pytest.raises(DataError, match=message):
            MODEL.similar_users([1], saved)
    with pytest.raises(ConfigError, match="not fitted"):
        Recommender().similar_users([1], SAVED)
