"""Attention as matrix products against attention one query, one key and one head at a time."""

import pytest
import torch
import torch.nn.functional as F

from idcf.models.layers.relation import Relation

QUERY, SIZE, HEADS, USERS, KEYS = 5, 4, 3, 6, 8


def build(attention, **options):
    torch.manual_seed(0)
    relation = Relation(QUERY, SIZE, HEADS, attention, **options).double()
    with torch.no_grad():  # away from the identities that values and output begin as
        relation.value.add_(torch.randn_like(relation.value))
        relation.out.add_(torch.randn_like(relation.out))
    query = torch.randn(USERS, QUERY).double()
    return relation, query, torch.randn(KEYS, SIZE).double()


def slow_score(relation, h, d, p):
    query, key = d @ relation.query[h], p @ relation.key[h]
    if relation.attention == "dot":
        return query @ key * relation.scale
    if relation.attention == "additive":
        return F.leaky_relu(query + key, 0.2) @ relation.e_key[h, :, 0]
    return torch.cat([query, key]) @ torch.cat([relation.e_query, relation.e_key], 1)[h, :, 0]


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_weights_against_loops(attention):
    relation, query, keys = build(attention)
    got = relation.attention_weights(query, keys)
    assert got.shape == (HEADS, USERS, KEYS)
    for h in range(HEADS):
        for b in range(USERS):
            raw = torch.stack([slow_score(relation, h, query[b], p) for p in keys])
            expected = raw / raw.sum() if attention == "literal" else raw.softmax(0)
            torch.testing.assert_close(got[h, b], expected)


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_rows_sum_to_one(attention):
    relation, query, keys = build(attention)
    weights = relation.attention_weights(query, keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(HEADS, USERS).double())


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_forward_against_loops(attention):
    """p̃ = W_o [head_1 ‖ ... ‖ head_H], head_h = Σ c W_v p."""
    relation, query, keys = build(attention)
    weights = relation.attention_weights(query, keys)
    got = relation(query, keys)
    for b in range(USERS):
        heads = [
            sum(weights[h, b, s] * (keys[s] @ relation.value[h]) for s in range(KEYS))
            for h in range(HEADS)
        ]
        torch.testing.assert_close(got[b], torch.cat(heads) @ relation.out)


def test_dot_against_the_attention_of_torch():
    relation, query, keys = build("dot")
    projected = query @ relation.query
    expected = F.scaled_dot_product_attention(projected, keys @ relation.key, keys @ relation.value)
    expected = expected.transpose(0, 1).reshape(USERS, -1) @ relation.out
    torch.testing.assert_close(relation(query, keys), expected)


def test_unscaled():
    relation, query, keys = build("dot", scaled=False)
    expected = ((query @ relation.query) @ (keys @ relation.key).mT).softmax(-1)
    torch.testing.assert_close(relation.attention_weights(query, keys), expected)


def test_keys_per_head():
    """Shared keys [S, D], repeated for each head [H, S, D], give the same output."""
    relation, query, keys = build("dot")
    shared = relation(query, keys)
    torch.testing.assert_close(relation(query, keys.repeat(HEADS, 1, 1)), shared)


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_the_scale_of_the_keys_is_for_the_scores_alone(attention):
    relation, query, keys = build(attention)
    weights = relation.attention_weights(query, keys, 3.0)
    torch.testing.assert_close(weights, relation.attention_weights(query, 3.0 * keys))
    heads = weights @ (keys @ relation.value)
    expected = heads.transpose(0, 1).reshape(USERS, -1) @ relation.out
    torch.testing.assert_close(relation(query, keys, 3.0), expected)


def test_literal_scores_differ_between_users_by_one_number_only():
    """Before normalization the query adds one constant to the scores of all keys."""
    relation, query, keys = build("literal")
    raw = torch.stack([torch.stack([slow_score(relation, 0, d, p) for p in keys]) for d in query])
    torch.testing.assert_close(raw - raw[:, :1], (raw - raw[:, :1])[:1].expand_as(raw))


def test_softmax_of_the_literal_score_does_not_depend_on_the_user():
    """The query term cancels, which is why "dot" and "additive" exist."""
    relation, query, keys = build("literal")
    raw = torch.stack(
        [torch.stack([slow_score(relation, 0, d, p) for p in keys]) for d in query]
    ).softmax(-1)
    torch.testing.assert_close(raw, raw[:1].expand_as(raw))


@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_large_scores_do_not_overflow(attention):
    relation, query, keys = build(attention)
    assert torch.isfinite(relation(query * 1e4, keys)).all()


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_no_parameter_is_idle(attention):
    relation, query, keys = build(attention)
    relation(query, keys).square().sum().backward()
    assert not [k for k, p in relation.named_parameters() if p.grad is None]


def test_values_of_keys_against_a_loop():
    """head = Σ c W_v W_k p."""
    relation, query, keys = build("dot", values_of_keys=True)
    weights = relation.attention_weights(query, keys)
    for b in range(USERS):
        heads = []
        for h in range(HEADS):
            parts = [
                w * (p @ relation.key[h] @ relation.value[h])
                for w, p in zip(weights[h, b], keys, strict=True)
            ]
            heads.append(sum(parts))
        torch.testing.assert_close(relation(query, keys)[b], torch.cat(heads) @ relation.out)


@pytest.mark.parametrize("start", ["mean", "glorot"])
def test_initial_weights(start):
    """Glorot: a variance of 2 / (inputs + outputs). Otherwise values and output are identities."""
    torch.manual_seed(0)
    relation = Relation(60, 40, 4, start=start)
    variances = [float(w.detach().var()) for w in (relation.query, relation.key, relation.value)]
    if start == "glorot":
        assert variances == pytest.approx([2 / 100, 2 / 80, 2 / 80], rel=0.1)
        assert float(relation.out.detach().var()) == pytest.approx(2 / (4 * 40 + 40), rel=0.1)
    else:
        assert variances[:2] == pytest.approx([2 / 100 * 0.05**2, 2 / 80], rel=0.1)
        assert torch.equal(relation.value[1], torch.eye(40))
        assert torch.equal(relation.out.view(4, 40, 40).sum(0), torch.eye(40))


def test_multiplicities_against_repeated_keys():
    """A key that was drawn twice counts twice, one that was not drawn has no weight."""
    relation, query, keys = build("dot")
    counts = torch.randint(3, (HEADS, USERS, KEYS)).double()
    counts[..., 0] += 1
    weights = relation.attention_weights(query, keys, 1.0, counts)
    for h in range(HEADS):
        for b in range(USERS):
            raw = torch.stack([slow_score(relation, h, query[b], p) for p in keys])
            sample = [s for s in range(KEYS) for _ in range(int(counts[h, b, s]))]
            softmax = raw[sample].softmax(0)
            for s in range(KEYS):
                expected = sum(w for w, t in zip(softmax, sample, strict=True) if t == s)
                torch.testing.assert_close(weights[h, b, s], torch.as_tensor(expected).double())
