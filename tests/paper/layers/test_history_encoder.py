"""The history encoder and item biases from counts, against loops over plain lists."""

import math

import pytest
import torch

from idcf.models.layers.ragged import item_ridge_biases
from idcf.paper.layers.history_encoder import HistoryEncoder, OffsetEmbedding, item_log_popularity
from idcf.paper.model_options import HistoryEncoderConfig
from idcf.types import Domain, History

N_ITEMS, SIZE, MEAN = 6, 3, 3.5
HISTORIES = [[(0, 5.0), (3, 2.0), (4, 4.0)], [], [(5, 1.0)]]  # (item, rating)
TRAINING = [[(0, 5.0), (1, 3.0)], [(0, 4.0)], [(0, 2.0), (2, 1.0), (3, 5.0)]]  # by user


def make_history(rows):
    flat = [pair for row in rows for pair in row]
    lengths = torch.tensor([0, *(len(row) for row in rows)])
    return History(
        torch.tensor([a for a, _ in flat], dtype=torch.int64),
        torch.tensor([b for _, b in flat]),
        lengths.cumsum(0),
    )


def make_domain(implicit=False):
    by_item = [
        [(u, r) for u, row in enumerate(TRAINING) for j, r in row if j == i] for i in range(N_ITEMS)
    ]
    return Domain(
        len(TRAINING), N_ITEMS, MEAN, (1.0, 5.0), implicit, make_history(by_item).as_ragged()
    )


def make_encoder(*, has_ratings=True, alpha=0.5, **options):
    torch.manual_seed(0)
    domain = make_domain(implicit=not has_ratings)
    return HistoryEncoder(HistoryEncoderConfig(**options), domain, SIZE, alpha).eval()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("has_ratings", "use_item_identity"), [(True, True), (True, False), (False, True)]
)
def test_a_history_is_encoded_as_by_a_loop(alpha, has_ratings, use_item_identity):
    encoder = make_encoder(
        alpha=alpha, has_ratings=has_ratings, use_item_identity=use_item_identity
    )
    item_bias = torch.randn(N_ITEMS)
    encoded = encoder(make_history(HISTORIES), item_bias)
    for row, vector, bias in zip(HISTORIES, encoded.vector, encoded.bias, strict=True):
        residuals = [r - MEAN - float(item_bias[j]) for j, r in row]
        b_u = sum(residuals) / (len(row) + encoder.shrinkage) if has_ratings else 0.0
        total = torch.zeros(SIZE)
        for (j, _), e in zip(row, residuals, strict=True):
            total += (e - b_u) * encoder.rating_vectors[j] if has_ratings else 0
            total += encoder.identity_vectors[j] if use_item_identity else 0
        expected = total * (len(row) ** -alpha if row else 1.0)
        torch.testing.assert_close(vector, expected)
        assert float(bias) == pytest.approx(b_u, abs=1e-6)


def test_a_binary_history_has_unit_length():
    """n^-½ is 1 over the norm of a vector of n ones."""
    encoder = make_encoder(has_ratings=False)
    with torch.no_grad():
        encoder.identity_vectors.copy_(torch.eye(N_ITEMS)[:, :SIZE])
    history = make_history([[(0, 1.0), (1, 1.0), (2, 1.0)]])
    vector = encoder(history, torch.zeros(N_ITEMS)).vector.detach()
    assert float(vector.norm()) == pytest.approx(1.0)


def test_gradients_are_those_of_finite_differences():
    encoder, item_bias = make_encoder().double(), torch.randn(N_ITEMS, dtype=torch.float64)
    history = make_history(HISTORIES)
    history = history._replace(values=history.values.double())

    def encode(rating_vectors, identity_vectors, bias):
        values = {"rating_vectors": rating_vectors, "identity_vectors": identity_vectors}
        return tuple(torch.func.functional_call(encoder, values, (history, bias)))

    inputs = [
        x.detach().clone().requires_grad_()
        for x in (encoder.rating_vectors, encoder.identity_vectors, item_bias)
    ]
    assert torch.autograd.gradcheck(encode, inputs)


def test_dropout_is_for_training_and_preserves_the_mean():
    encoder, history = make_encoder(dropout=0.5, has_ratings=False), make_history(HISTORIES)
    item_bias = torch.zeros(N_ITEMS)
    vector = encoder(history, item_bias).vector
    assert torch.equal(encoder(history, item_bias).vector, vector)
    encoder.train()
    samples = torch.stack([encoder(history, item_bias).vector for _ in range(1000)])
    torch.testing.assert_close(samples.mean(0), vector, atol=0.04, rtol=0.0)


def test_ridge_biases_are_a_fixed_point():
    """b_i from b_u and b_u from b_i, by loops."""
    bias = item_ridge_biases(make_domain(), 5.0, n_rounds=200)
    user_bias = [
        sum(r - MEAN - float(bias[j]) for j, r in row) / (len(row) + 5.0) for row in TRAINING
    ]
    for i in range(N_ITEMS):
        residuals = [
            r - MEAN - user_bias[u] for u, row in enumerate(TRAINING) for j, r in row if j == i
        ]
        assert float(bias[i]) == pytest.approx(sum(residuals) / (len(residuals) + 3.0), abs=1e-5)


def test_log_popularity_by_hand():
    counts = [3, 1, 1, 1, 0, 0]
    average = sum(c + 0.5 for c in counts) / N_ITEMS
    expected = [math.log((c + 0.5) / average) for c in counts]
    popularity = item_log_popularity(make_domain(implicit=True))
    assert popularity.tolist() == pytest.approx(expected, abs=1e-6)


def test_learned_biases_are_added_to_the_offsets():
    table = OffsetEmbedding(torch.arange(4.0), SIZE)
    with torch.no_grad():
        table.embedding.bias.fill_(0.5)
    embeddings = table(torch.tensor([[0, 3]]))
    assert embeddings.vector.shape == (1, 2, SIZE)
    assert embeddings.bias.tolist() == [[0.5, 3.5]]
    assert table.bias.tolist() == [0.5, 1.5, 2.5, 3.5]
