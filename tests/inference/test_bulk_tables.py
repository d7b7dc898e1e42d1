"""Tables of embeddings and lists of many users: those of single users, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import board

from idcf import ConfigError, Recommender
from idcf.data.history_arrays import HistoryArrays
from idcf.data.interactions import offsets_from_lengths
from idcf.inference import bulk_tables
from idcf.inference.bulk_tables import EmbeddingTables, ListTables
from idcf.inference.predictor import Predictor

MODELS: dict[str, dict[str, Any]] = {
    "als": {"embedding_size": 4},
    "idcf-bayes": {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6},
    "item-knn": {},
}


@pytest.fixture(scope="module", params=MODELS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    options = MODELS[request.param]
    return Recommender(request.param, device="cpu", **options).fit(board(60, 80, 9, 24)).predictor


def some_histories(n_users: int = 25, n_items: int = 80) -> HistoryArrays:
    """Return histories, a few of which are empty."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, n_users)
    items = [np.sort(rng.choice(n_items, n, replace=False)) for n in lengths]
    later = [rng.permutation(n) for n in lengths]
    return HistoryArrays(
        pa.array([f"u{n}" for n in range(n_users)]),
        offsets_from_lengths(lengths),
        np.concatenate(items),
        rng.integers(1, 6, lengths.sum()).astype(np.float32),
        np.concatenate(later),
        rng.integers(0, 3, n_users),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"n": 4},
        {"n": 4, "return_std": True},
        {"n": 200, "return_std": True, "exclude": ["i3", "i4"]},
        {"n": 5, "diversity": 0.5, "return_std": True},
        {"n": 3, "candidates": ["i1", "i2", "i3", "i4"]},
        {"n": 5, "recency": 0.5, "damping": 0.3, "quality": 0.7, "return_std": True},
    ],
)
def test_lists_are_those_of_recommend(predictor: Predictor, options: dict[str, Any]) -> None:
    histories = some_histories()
    try:
        query = predictor.list_query(**options)
    except ConfigError:
        return  # the model has no such lists
    queries = [
        query._replace(new_user=user, user_id=user_id)
        for user, user_id in zip(
            histories.new_users(np.arange(25)), histories.user_ids.to_pylist(), strict=True
        )
    ]
    expected = predictor.recommend(queries, min_batch=1).to_table()
    table = ListTables(predictor, options).table(histories)
    assert table.combine_chunks().equals(expected)
    assert set(table["source"].to_pylist()) > {"popular"}


def test_lists_without_any_history(predictor: Predictor) -> None:
    histories = some_histories().select(np.array([], np.int64))
    tables = ListTables(predictor, {"n": 3})
    empty = tables.table(histories._replace(user_ids=pa.array([], pa.string())))
    assert empty.num_rows == 0
    none = np.zeros(0, np.int64)
    nobody = HistoryArrays(
        pa.array(["a", "b"]), np.zeros(3, np.int64), none, none.astype(np.float32), none, np.ones(2)
    )
    both = tables.table(nobody)
    assert both.schema.equals(empty.schema)
    assert both["user_id"].to_pylist() == ["a"] * 3 + ["b"] * 3
    assert both.slice(0, 3).drop_columns("user_id").equals(both.slice(3).drop_columns("user_id"))


@pytest.mark.parametrize("size", [1, 4, 512])
def test_embeddings_are_those_of_embed(
    predictor: Predictor, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_tables, "USERS_PER_EMBEDDING", size)
    histories, tables = some_histories(), EmbeddingTables(predictor)
    if not hasattr(predictor.artifact.model, "embed_users"):
        with pytest.raises(ConfigError, match="scores items without user vectors"):
            tables.table(histories)
        return
    expected = predictor.embed(histories.new_users(np.arange(25)))
    table = tables.table(histories)
    assert table["n_known_items"].to_pylist() == histories.lengths.tolist()
    assert table["n_unknown_items"].to_pylist() == histories.n_unknown_items.tolist()
    for vector, row, n in zip(
        table["embedding"].to_pylist(), expected, histories.lengths, strict=True
    ):
        if n:
            np.testing.assert_allclose(vector, row, rtol=1e-4, atol=1e-6)
        else:
            assert vector is None
