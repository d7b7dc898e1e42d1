"""Theorem 1: combinations of key users lose nothing, as long as their latents span the space.

Free matrix factorization learns any p* for a query user. IDCF may only use p = P_kᵀ c. With P_k
of full column rank, c = P_k (P_kᵀ P_k)⁻¹ p* gives back any p*, so the best losses are equal.
"""

import numpy as np
import pytest

SIZE, ITEMS, QUERY = 6, 40, 25


def fit_free_latents(ratings, mask, q):
    """Return Σ over query users of min_p ‖r - Q p‖² over their ratings, and the p."""
    latents = [
        np.linalg.lstsq(q[m], r[m], rcond=None)[0] for r, m in zip(ratings, mask, strict=True)
    ]
    return loss(ratings, mask, q, np.array(latents)), np.array(latents)


def best_loss_of_relations(ratings, mask, q, keys):
    """Return Σ over query users of min_c ‖r - Q P_kᵀ c‖² over their ratings."""
    c = [
        np.linalg.lstsq(q[m] @ keys.T, r[m], rcond=None)[0]
        for r, m in zip(ratings, mask, strict=True)
    ]
    return loss(ratings, mask, q, np.array(c) @ keys)


def loss(ratings, mask, q, p):
    return float((((p @ q.T) - ratings)[mask] ** 2).sum())


def random_problem(seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(ITEMS, SIZE))
    ratings = rng.normal(size=(QUERY, ITEMS)) + rng.normal(size=(QUERY, SIZE)) @ q.T
    return rng, q, ratings, rng.random((QUERY, ITEMS)) < 0.6


@pytest.mark.parametrize("keys", [SIZE, SIZE + 1, 100])
@pytest.mark.parametrize("seed", range(3))
def test_free_relations_reach_the_loss_of_free_latents(keys, seed):
    rng, q, ratings, mask = random_problem(seed)
    latents = rng.normal(size=(keys, SIZE))
    assert np.linalg.matrix_rank(latents) == SIZE
    best, _ = fit_free_latents(ratings, mask, q)
    assert best > 1  # the noise cannot be fitted: the losses are not both zero
    assert best_loss_of_relations(ratings, mask, q, latents) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_relation_of_the_proof_reaches_it(seed):
    rng, q, ratings, mask = random_problem(seed)
    latents = rng.normal(size=(30, SIZE))
    best, p = fit_free_latents(ratings, mask, q)
    c = p @ np.linalg.inv(latents.T @ latents) @ latents.T
    np.testing.assert_allclose(c @ latents, p, rtol=1e-9, atol=1e-9)
    assert loss(ratings, mask, q, c @ latents) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("rank", [1, SIZE - 1])
@pytest.mark.parametrize("seed", range(3))
def test_not_without_full_column_rank(rank, seed):
    """A latent outside the span of the key users cannot be reached, however many there are."""
    rng, q, ratings, mask = random_problem(seed)
    latents = rng.normal(size=(100, rank)) @ rng.normal(size=(rank, SIZE))
    assert np.linalg.matrix_rank(latents) == rank
    best, _ = fit_free_latents(ratings, mask, q)
    assert best_loss_of_relations(ratings, mask, q, latents) > best * 1.01


def test_too_few_key_users_are_rank_deficient_too():
    rng, q, ratings, mask = random_problem(0)
    best, _ = fit_free_latents(ratings, mask, q)
    latents = rng.normal(size=(SIZE - 1, SIZE))
    assert best_loss_of_relations(ratings, mask, q, latents) > best * 1.01


def test_collapsed_latents_are_nearly_deficient():
    """If a penalty drives the latents to one point, the theorem still holds, but only with
    relations of enormous size."""
    rng, q, ratings, mask = random_problem(0)
    _, p = fit_free_latents(ratings, mask, q)
    healthy = rng.normal(size=(30, SIZE))
    collapsed = rng.normal(size=(1, SIZE)) + 1e-4 * healthy
    size = [np.abs(p @ np.linalg.pinv(k)).max() for k in (healthy, collapsed)]
    assert size[1] > 1e3 * size[0]
