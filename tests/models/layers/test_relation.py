"""Attention as matrix products against attention one query, one key and one head at a time."""

import pytest
import torch
import torch.nn.functional as F

from idcf.models.layers.relation import Relation

torch.set_num_threads(1)
QUERY, SIZE, HEADS, USERS, KEYS = 5, 4, 3, 6, 8


def made(attention, **options):
    torch.manual_seed(0)
    relation = Relation(QUERY, SIZE, HEADS, attention, **options).double()
    with torch.no_grad():  # values and output begin as the identity: not a test
        relation.value.add_(torch.randn_like(relation.value))
        relation.out.add_(torch.randn_like(relation.out))
    query = torch.randn(USERS, QUERY).double()
    return relation, query, torch.randn(KEYS, SIZE).double()


def score(relation, h, d, p):
    asked, key = d @ relation.query[h], p @ relation.key[h]
    if relation.attention == "dot":
        return asked @ key * relation.scale
    if relation.attention == "additive":
        return F.leaky_relu(asked + key, 0.2) @ relation.e_key[h, :, 0]
    return torch.cat([asked, key]) @ torch.cat([relation.e_query, relation.e_key], 1)[h, :, 0]


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_weights_against_loops(attention):
    relation, query, keys = made(attention)
    got = relation.weights(query, keys)
    assert got.shape == (HEADS, USERS, KEYS)
    for h in range(HEADS):
        for b in range(USERS):
            raw = torch.stack([score(relation, h, query[b], p) for p in keys])
            expected = raw / raw.sum() if attention == "literal" else raw.softmax(0)
            torch.testing.assert_close(got[h, b], expected)


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_rows_sum_to_one(attention):
    relation, query, keys = made(attention)
    weights = relation.weights(query, keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(HEADS, USERS).double())


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_forward_against_loops(attention):
    """p̃ = W_o [head_1 ‖ ... ‖ head_H], head_h = Σ c W_v p."""
    relation, query, keys = made(attention)
    weights = relation.weights(query, keys)
    got = relation(query, keys)
    for b in range(USERS):
        heads = [
            sum(weights[h, b, s] * (keys[s] @ relation.value[h]) for s in range(KEYS))
            for h in range(HEADS)
        ]
        torch.testing.assert_close(got[b], torch.cat(heads) @ relation.out)


def test_dot_against_torch_s_own_attention():
    relation, query, keys = made("dot")
    asked, key, value = query @ relation.query, keys @ relation.key, keys @ relation.value
    expected = F.scaled_dot_product_attention(asked, key, value)
    expected = expected.transpose(0, 1).reshape(USERS, -1) @ relation.out
    torch.testing.assert_close(relation(query, keys), expected)


def test_unscaled():
    relation, query, keys = made("dot", scaled=False)
    expected = ((query @ relation.query) @ (keys @ relation.key).mT).softmax(-1)
    torch.testing.assert_close(relation.weights(query, keys), expected)


def test_keys_of_each_head_s_own():
    """A sample per head [H, S, D] is as the shared keys [S, D], repeated."""
    relation, query, keys = made("dot")
    shared = relation(query, keys)
    torch.testing.assert_close(relation(query, keys.repeat(HEADS, 1, 1)), shared)


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_the_scale_of_the_keys_is_for_the_scores_alone(attention):
    relation, query, keys = made(attention)
    weights = relation.weights(query, keys, 3.0)
    torch.testing.assert_close(weights, relation.weights(query, 3.0 * keys))
    heads = weights @ (keys @ relation.value)
    expected = heads.transpose(0, 1).reshape(USERS, -1) @ relation.out
    torch.testing.assert_close(relation(query, keys, 3.0), expected)


def test_literal_scores_differ_between_users_by_one_number_only():
    """Why it is for study: before normalisation the query adds the same to every key."""
    relation, query, keys = made("literal")
    raw = torch.stack([torch.stack([score(relation, 0, d, p) for p in keys]) for d in query])
    torch.testing.assert_close(raw - raw[:, :1], (raw - raw[:, :1])[:1].expand_as(raw))


def test_softmax_of_the_literal_score_forgets_the_user():
    """The reason for `dot` and `additive`: the query term cancels."""
    relation, query, keys = made("literal")
    raw = torch.stack(
        [torch.stack([score(relation, 0, d, p) for p in keys]) for d in query]
    ).softmax(-1)
    torch.testing.assert_close(raw, raw[:1].expand_as(raw))


@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_large_scores_do_not_overflow(attention):
    relation, query, keys = made(attention)
    assert torch.isfinite(relation(query * 1e4, keys)).all()


@pytest.mark.parametrize(
    "attention",
    [
        "dot",
        "literal",
        "additive",
    ],
)
def test_no_parameter_is_idle(attention):
    relation, query, keys = made(attention)
    relation(query, keys).square().sum().backward()
    assert not [k for k, p in relation.named_parameters() if p.grad is None]
