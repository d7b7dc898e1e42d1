"""Theorem 1: combinations of key users lose nothing, as long as their latents span the space.

Free matrix factorisation learns any p* for a query user. IDCF may only use p = P_kᵀ c. With P_k
of full column rank, c = P_k (P_kᵀ P_k)⁻¹ p* gives back any p*, so the best losses are equal.
"""

import numpy as np
import pytest

SIZE, ITEMS, QUERY = 6, 40, 25


def free(ratings, mask, q):
    """Σ over query users of min_p ‖r - Q p‖² over their ratings, and the p."""
    solved = [
        np.linalg.lstsq(q[m], r[m], rcond=None)[0] for r, m in zip(ratings, mask, strict=True)
    ]
    return loss(ratings, mask, q, np.array(solved)), np.array(solved)


def related(ratings, mask, q, keys):
    """The same with p = P_kᵀ c, c free."""
    c = [
        np.linalg.lstsq(q[m] @ keys.T, r[m], rcond=None)[0]
        for r, m in zip(ratings, mask, strict=True)
    ]
    return loss(ratings, mask, q, np.array(c) @ keys)


def loss(ratings, mask, q, p):
    return float((((p @ q.T) - ratings)[mask] ** 2).sum())


def problem(seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(ITEMS, SIZE))
    ratings = rng.normal(size=(QUERY, ITEMS)) + rng.normal(size=(QUERY, SIZE)) @ q.T
    return rng, q, ratings, rng.random((QUERY, ITEMS)) < 0.6


@pytest.mark.parametrize("keys", [SIZE, SIZE + 1, 100])
@pytest.mark.parametrize("seed", range(3))
def test_free_relations_reach_the_loss_of_free_latents(keys, seed):
    rng, q, ratings, mask = problem(seed)
    latents = rng.normal(size=(keys, SIZE))
    assert np.linalg.matrix_rank(latents) == SIZE
    best, _ = free(ratings, mask, q)
    assert best > 1  # noise is left: equality is not that of two zeros
    assert related(ratings, mask, q, latents) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_proof_s_own_relation_is_one_of_them(seed):
    rng, q, ratings, mask = problem(seed)
    latents = rng.normal(size=(30, SIZE))
    best, wanted = free(ratings, mask, q)
    c = wanted @ np.linalg.inv(latents.T @ latents) @ latents.T
    np.testing.assert_allclose(c @ latents, wanted, rtol=1e-9, atol=1e-9)
    assert loss(ratings, mask, q, c @ latents) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("rank", [1, SIZE - 1])
@pytest.mark.parametrize("seed", range(3))
def test_not_without_full_column_rank(rank, seed):
    """However many key users there are: what they do not span nobody can be given."""
    rng, q, ratings, mask = problem(seed)
    latents = rng.normal(size=(100, rank)) @ rng.normal(size=(rank, SIZE))
    assert np.linalg.matrix_rank(latents) == rank
    best, _ = free(ratings, mask, q)
    assert related(ratings, mask, q, latents) > best * 1.01


def test_too_few_key_users_are_rank_deficient_too():
    rng, q, ratings, mask = problem(0)
    best, _ = free(ratings, mask, q)
    assert related(ratings, mask, q, rng.normal(size=(SIZE - 1, SIZE))) > best * 1.01


def test_collapsed_latents_are_nearly_deficient():
    """A backbone whose penalty drove the latents to one point: the theorem
    holds on paper, but only with relations of enormous size."""
    rng, q, ratings, mask = problem(0)
    _, wanted = free(ratings, mask, q)
    healthy = rng.normal(size=(30, SIZE))
    collapsed = rng.normal(size=(1, SIZE)) + 1e-4 * healthy
    size = [np.abs(wanted @ np.linalg.pinv(k)).max() for k in (healthy, collapsed)]
    assert size[1] > 1e3 * size[0]
