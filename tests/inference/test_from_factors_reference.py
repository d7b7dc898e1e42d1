"""Fold-in of given factors against minimized losses, and the values that are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

from idcf.errors import ConfigError, DataError
from idcf.inference import from_factors as module
from idcf.inference.from_factors import Biases, FoldInSpec, from_factors
from idcf.inference.onnx import to_dense_model
from idcf.inference.predictions import predict_scores
from idcf.inference.predictor import Predictor

ITEMS, USERS, SIZE = 15, 40, 3
IDS = [f"i{n}" for n in range(ITEMS)]
HISTORY = {"i2": 5.0, "i7": 1.0, "i11": 4.0}
ROWS = [2, 7, 11]


def random_factors(seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Return item factors, user factors, item biases and user biases."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(ITEMS, SIZE)),
        rng.normal(0.4, 1.0, (USERS, SIZE)),
        rng.normal(0, 0.3, ITEMS),
        rng.normal(0.2, 0.4, USERS),
    )


def predictor(
    items: Any, users: Any = None, *, implicit: bool, biases: Biases | None = None, **spec: Any
) -> Predictor:
    spec = {"rating_range": (-9, 9), **spec}
    return Predictor(
        from_factors(items, users, IDS, biases or Biases(), FoldInSpec(implicit, **spec))
    )


def user_vector(p: Predictor, history: Any, size: int = SIZE) -> Any:
    """Return the embedding of a new user without the coordinate of popularity."""
    return p.embed([p.read_new_user(history)])[0][:size]


def scores(p: Predictor, history: Any) -> Any:
    return predict_scores(p, p.read_new_user(history), IDS)


def slow_prior(users: Any) -> tuple[Any, Any]:
    """Return mean and precision of the users and one pseudo-user of equal variance, by loops."""
    n, size = users.shape
    mean = users.mean(0)
    total = np.zeros((size, size))
    for row in users:
        total += np.outer(row - mean, row - mean)
    total += np.eye(size) * np.trace(total) / n / size
    return mean, np.linalg.inv(total / (n + 1))


def test_the_prior_is_that_of_the_users_and_a_pseudo_user() -> None:
    _, users, _, _ = random_factors()
    mean, precision = module._fit_prior(users, SIZE)
    expected_mean, expected = slow_prior(users)
    np.testing.assert_allclose(mean, expected_mean)
    np.testing.assert_allclose(precision, expected, rtol=1e-9)
    mean, precision = module._fit_prior(None, 4)
    assert mean.tolist() == [0] * 4
    assert precision.tolist() == np.eye(4).tolist()


def test_the_prior_of_users_in_a_plane_is_finite() -> None:
    _, users, _, _ = random_factors()
    users[:, 2] = users[:, 0] + users[:, 1]
    _, precision = module._fit_prior(users, SIZE)
    assert np.isfinite(precision).all()
    assert (np.linalg.eigvalsh(precision) > 0).all()


@pytest.mark.parametrize("reg", [0.2, 2.0])
def test_implicit_feedback_minimizes_the_pairwise_loss(reg: float) -> None:
    """Σ_i mean_j (margin - (s_i - s_j))² and the prior, in units of the users' scores."""
    items, users, bias, _ = random_factors()
    p = predictor(items, users, implicit=True, biases=Biases(bias), reg=reg)
    mean, precision = slow_prior(users)
    variance = np.mean([(items @ user + bias).var() for user in users])
    margin, noise = 3 * variance**0.5, 2 * variance

    def loss(vector: Any) -> float:
        s = items @ vector + bias
        pairs = sum(np.mean((margin - (s[i] - s)) ** 2) for i in ROWS)
        return pairs + noise * reg * (vector - mean) @ precision @ (vector - mean)

    best = minimize(loss, mean, tol=1e-12).x
    np.testing.assert_allclose(user_vector(p, list(HISTORY)), best, atol=2e-4)
    differences = np.subtract.outer(*[items @ best + bias] * 2)
    found = scores(p, list(HISTORY))
    np.testing.assert_allclose(np.subtract.outer(found, found), differences, atol=2e-3)


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_implicit_feedback_without_users_is_weighted_least_squares(alpha: float) -> None:
    """Every item has the target 0 with weight 1; an item of the history 1 + 1/α, with weight α."""
    items, _, bias, _ = random_factors()
    p = predictor(items, implicit=True, biases=Biases(bias), reg=0.7, alpha=alpha)
    q, b = items - items.mean(0), bias - bias.mean()

    def loss(vector: Any) -> float:
        s = q @ vector + b
        positives = sum((1 + 1 / alpha - s[i]) ** 2 for i in ROWS)
        return (s**2).sum() + alpha * positives + 0.7 * vector @ vector

    best = minimize(loss, np.zeros(SIZE), tol=1e-12).x
    np.testing.assert_allclose(user_vector(p, list(HISTORY)), best, atol=2e-4)
    np.testing.assert_allclose(scores(p, list(HISTORY)), q @ best + b, atol=1e-3)


@pytest.mark.parametrize("with_users", [False, True])
def test_ratings_minimize_the_squared_error_with_the_prior(with_users: bool) -> None:
    items, users, bias, user_bias = random_factors()
    reg, mean_rating = 0.8, 3.0
    biases = Biases(bias, user_bias if with_users else None, mean_rating)
    p = predictor(items, users if with_users else None, implicit=False, biases=biases, reg=reg)
    q = np.column_stack([items, np.ones(ITEMS)])
    mean, precision = np.zeros(SIZE + 1), np.eye(SIZE + 1)
    if with_users:
        mean, precision = slow_prior(np.column_stack([users, user_bias]))

    def loss(vector: Any) -> float:
        s = mean_rating + q @ vector + bias
        errors = sum((HISTORY[IDS[i]] - s[i]) ** 2 for i in ROWS)
        return errors + reg * (vector - mean) @ precision @ (vector - mean)

    best = minimize(loss, mean, tol=1e-12).x
    np.testing.assert_allclose(user_vector(p, HISTORY, SIZE + 1), best, atol=2e-3)
    np.testing.assert_allclose(scores(p, HISTORY), mean_rating + q @ best + bias, atol=5e-3)


def test_without_a_history_the_order_is_that_of_the_mean_user() -> None:
    items, users, bias, _ = random_factors()
    p = predictor(items, users, implicit=True, biases=Biases(bias))
    expected = np.argsort(-(items @ users.mean(0) + bias), kind="stable")
    assert np.argsort(-scores(p, []), kind="stable").tolist() == expected.tolist()


def test_a_shift_of_all_items_changes_no_order_of_implicit_feedback() -> None:
    items, users, bias, _ = random_factors()
    plain = predictor(items, users, implicit=True, biases=Biases(bias))
    shifted = predictor(items + 2.0, users, implicit=True, biases=Biases(bias + 5.0))
    for history in ([], ["i3"], list(HISTORY)):
        np.testing.assert_allclose(scores(plain, history), scores(shifted, history), atol=1e-4)


def test_user_biases_change_nothing_for_implicit_feedback() -> None:
    items, users, bias, user_bias = random_factors()
    plain = predictor(items, users, implicit=True, biases=Biases(bias))
    biased = predictor(items, users, implicit=True, biases=Biases(bias, user_bias))
    np.testing.assert_array_equal(scores(plain, ["i3"]), scores(biased, ["i3"]))


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("with_users", [False, True])
def test_the_dense_form_has_the_scores_of_the_model(implicit: bool, with_users: bool) -> None:
    """Priors, terms per entry and infinite shrinkage are in the ONNX form as well."""
    items, users, bias, user_bias = random_factors()
    biases = Biases(bias, user_bias if with_users else None, 0.0 if implicit else 3.0)
    p = predictor(items, users if with_users else None, implicit=implicit, biases=biases)
    rated, ratings = torch.zeros(2, ITEMS), torch.full((2, ITEMS), 77.0)
    rated[0, ROWS], ratings[0, ROWS] = 1.0, torch.tensor(list(HISTORY.values()))
    inputs = {"rated": rated} if implicit else {"rated": rated, "ratings": ratings}
    vector, dense = to_dense_model(p.artifact.model)(**inputs)
    for row, history in enumerate((HISTORY, {})):
        np.testing.assert_allclose(dense[row], scores(p, history), atol=1e-3)
        np.testing.assert_allclose(vector[row], user_vector(p, history, 99), atol=1e-3)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.tolist(),
        lambda x: torch.tensor(x, requires_grad=True),
        lambda x: pd.DataFrame(x),
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(np.float64)[::1],
    ],
)
def test_factors_in_any_form_give_one_model(convert: Any) -> None:
    items, users, _, _ = random_factors()
    plain, converted = (
        predictor(f(items), f(users), implicit=True).artifact for f in (np.asarray, convert)
    )
    assert plain.manifest.training_data == converted.manifest.training_data
    for a, b in zip(
        plain.model.state_dict().values(), converted.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, "x"]], "items cannot be read as numbers"),
        ([[1.0], [1.0, 2.0]], "items cannot be read as numbers"),
        (None, r"items\[\] is nan|items must be a matrix|cannot be read"),
        ([[]], r"items must be a matrix with rows, got the shape \(1, 0\)"),
        (np.zeros((0, 3)), r"items must be a matrix with rows, got the shape \(0, 3\)"),
        (np.zeros((2, 2, 2)), r"got the shape \(2, 2, 2\)"),
        ([[1.0, np.inf]], r"items\[0, 1\] is inf; factors must be finite"),
    ],
)
def test_items_that_are_no_factors(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_factors(values, None, ["a"], Biases(), FoldInSpec(True))


@pytest.mark.parametrize(
    ("biases", "message"),
    [
        (
            Biases(item=np.zeros((ITEMS, 1))),
            r"item_bias must be 15 numbers, got the shape \(15, 1\)",
        ),
        (Biases(user=np.zeros(3)), r"user_bias must be 40 numbers, got the shape \(3,\)"),
        (Biases(item=[np.nan] * ITEMS), r"item_bias\[0\] is nan"),
    ],
)
def test_biases_that_do_not_fit(biases: Biases, message: str) -> None:
    items, users, _, _ = random_factors()
    with pytest.raises(DataError, match=message):
        predictor(items, users, implicit=False, biases=biases)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"reg": -1.0}, "reg must be above 0, got -1.0"),
        ({"reg": float("nan")}, "reg must be above 0, got nan"),
        ({"alpha": 0}, "alpha must be above 0, got 0"),
        ({"rating_range": (3, 3)}, r"rating_range must be \(lowest rating, highest rating\), got"),
    ],
)
def test_options_out_of_range(spec: dict[str, Any], message: str) -> None:
    items, _, _, _ = random_factors()
    with pytest.raises(ConfigError, match=message):
        predictor(items, implicit=False, **spec)


@pytest.mark.parametrize(
    "ids", [range(3), np.arange(3), np.array(["a", "b", "c"]), ("x", "y", "z")]
)
def test_ids_become_text_or_integers(ids: Any) -> None:
    artifact = from_factors(np.eye(3), None, ids, Biases(), FoldInSpec(True), {ids[1]: "Title"})
    expected = [str(x) if isinstance(x, str) else int(x) for x in ids]
    assert list(artifact.items.ids) == expected
    assert {type(x) for x in artifact.items.ids} in ({str}, {int})
    assert artifact.titles == (None, "Title", None)


@pytest.mark.parametrize("ids", [[], ["a", 1, 2], ["a", None, "b"], [1.5, 2.5, 3.5]])
def test_ids_of_another_kind_are_refused(ids: Any) -> None:
    with pytest.raises(DataError, match="item_id"):
        from_factors(np.eye(3), None, ids, Biases(), FoldInSpec(True))


def test_the_checksum_is_that_of_the_factors() -> None:
    items, users, _, _ = random_factors()
    data = predictor(items, users, implicit=True).artifact.manifest.training_data
    assert (data.n_rows, data.n_users, data.key_threshold) == (0, USERS, 0)
    others = (
        predictor(items, None, implicit=True),
        predictor(items + 1e-9, users, implicit=True),
        predictor(items, users[::-1].copy(), implicit=True),
    )
    assert len({data.sha256, *(x.artifact.manifest.training_data.sha256 for x in others)}) == 4
