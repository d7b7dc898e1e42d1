"""Rows of the attention studies, on a small world."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tables_world import small_dataset

from idcf.errors import ConfigError
from idcf.evaluation.protocol import standard_split
from idcf.paper.studies import attention, attention_kinds
from idcf.paper.studies.study import select
from idcf.testing import synthetic_world, trained_in_world
from idcf.training.job import LOCAL_RUNTIME

DATA = small_dataset("ml-100k")


def test_weights_are_relative_to_uniform_attention():
    model, split = trained_in_world("idcf-nn").model, synthetic_world().split
    users = split.train.build_users(split.query_users[:7])
    weights = attention.relative_weights(model, users)
    n_keys = len(model.key_latents)
    with torch.no_grad():
        heads = model.attention_weights(users).numpy()
    slow = [[np.mean(heads[:, b, k]) * n_keys for k in range(n_keys)] for b in range(7)]
    np.testing.assert_allclose(weights, slow, rtol=1e-4)
    np.testing.assert_allclose(weights.mean(1), 1, rtol=1e-5)


def test_rows_hold_the_sums_and_a_sample(monkeypatch):
    monkeypatch.setattr(attention, "N_KEYS", 10)
    monkeypatch.setattr(attention, "N_QUERIES", 5)
    point = attention.attention_points("ml-100k", 1)[0]
    summary, *sample = attention.measure_attention(point, DATA, LOCAL_RUNTIME)
    split, _ = standard_split(DATA)
    assert summary["n_keys"] == len(split.key_users) == len(summary["accumulated"])
    assert summary["lengths"] == split.train.user_counts()[split.key_users].tolist()
    assert np.mean(summary["accumulated"]) == pytest.approx(1, rel=1e-5)
    assert 0 < summary["entropy"] <= 1 + 1e-6
    assert [len(row["weights"]) for row in sample] == [10] * 5
    lengths = [row["length"] for row in sample]
    assert lengths == sorted(lengths)
    with pytest.raises(ConfigError, match="'bias' has no attention"):
        attention.measure_attention({**point, "model": "bias"}, DATA, LOCAL_RUNTIME)


def test_uniform_attention_has_entropy_one():
    row = attention._summary_row(1 + 1e-9 * np.arange(800).reshape(4, 200), np.arange(200) + 30)
    assert row["entropy"] == pytest.approx(1)
    assert row["top_share"] == pytest.approx(0.01)


def test_each_attention_is_measured_on_its_users():
    points = attention_kinds.attention_kinds_points("ml-100k", 1)
    assert {p["model"] for p in points} == {"bias", *attention_kinds.KINDS}
    for model in attention_kinds.KINDS:
        assert {p["preset"] for p in select(points, model=model)} == {"clean", "published"}
    point = select(points, model="idcf-nn-literal", users="new", preset="clean")[0]
    rows = attention_kinds.measure_attention_kinds(point, DATA, LOCAL_RUNTIME)
    assert {row["metric"] for row in rows} == {"rmse", "ndcg"}
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
