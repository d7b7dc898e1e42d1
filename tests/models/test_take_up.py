"""The take-up model: weights against slow solutions, probabilities against observed rates."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from builders import board
from scipy.sparse import csr_array

from idcf import Recommender
from idcf.data.interactions import Interactions, Vocab
from idcf.inference.topk import CatalogRanker
from idcf.models.options import TakeUpConfig
from idcf.models.registry import configure, model_entry
from idcf.models.take_up import TakeUpModel, interpolate
from idcf.testing.synthetic import clusters
from idcf.training.size_limits import spectral_rank
from idcf.training.solvers import SolverContext
from idcf.training.solvers.cooccurrences import MatrixSource
from idcf.training.solvers.item_relation import (
    MAX_SHOWN_SHARE,
    ItemRelation,
    Settings,
)
from idcf.training.solvers.nearest_items import (
    find_nearest_items,
    local_ridge,
    sample_long_rows,
)
from idcf.training.solvers.odds import cut_after, cut_histories, interaction_matrix
from idcf.training.solvers.take_up import fit_link, isotonic_rates
from idcf.types import History, Users

RIDGE = Settings(reg=5.0, count_reg=0.5)  # of the regression on the nearest items


@cache
def table(n_users: int = 400, seed: int = 0) -> Interactions:
    """Implicit feedback of four groups of taste, with popular and rare items."""
    rng = np.random.default_rng(seed)
    interactions = clusters(
        n_users, 60, 4, rng, rows_per_user=30, in_group_probability=0.8, implicit=True
    ).interactions
    return interactions.where(
        rng.random(len(interactions)) < np.linspace(0.3, 1.0, 60)[interactions.item]
    )


@cache
def fitted(**options: float) -> TakeUpModel:
    solve = model_entry("idcf-takeup").load_solver()
    model = solve(
        configure("idcf-takeup", {"n_next_items": 4, **options}), table(), SolverContext()
    )
    return model.eval()


def as_history(*histories: list[int]) -> History:
    lengths = [len(x) for x in histories]
    items = torch.tensor([i for x in histories for i in x], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    return History(items, torch.ones(len(items)), offsets)


def slow_column(
    x: csr_array, item: int, others: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Regress one column of X on others, with the penalty λ + a n of each and weighted users."""
    dense = x.toarray().astype(np.float64)
    design = dense[:, others]
    weighted = design if weight is None else design * weight[:, None]
    penalty = RIDGE.reg + RIDGE.count_reg * (weighted * design).sum(0)
    return np.linalg.solve(weighted.T @ design + np.diag(penalty), weighted.T @ dense[:, item])


def relation(x: csr_array, settings: Settings, **options: int) -> np.ndarray:
    """B with all its weights."""
    weights, factors = ItemRelation(TakeUpConfig(neighbors=60, **options), MatrixSource(x)).stored(
        settings
    )
    if factors is None:
        return weights.toarray()
    low_rank = factors.sources @ factors.targets.T
    np.fill_diagonal(low_rank, 0)
    return weights.toarray() + low_rank


def scaled(matrix: np.ndarray) -> np.ndarray:
    """Divide by the mean of the positive column maxima."""
    largest = matrix.max(0)
    return matrix / largest[largest > 0].mean()


def user_weights(x: csr_array) -> np.ndarray:
    lengths = np.diff(x.indptr).astype(np.float64)
    weights = lengths**-0.5
    return weights * lengths.sum() / (weights @ lengths)


def test_the_regression_is_that_of_users_who_show_random_parts() -> None:
    """Every item on all others, against least squares over sampled parts."""
    x = interaction_matrix(table()).toarray().astype(np.float64)
    rng, n_samples = np.random.default_rng(0), 4000
    lengths = x.sum(1)
    shown_share = np.minimum(MAX_SHOWN_SHARE, 8.0 / lengths)
    weight = user_weights(csr_array(x)) / shown_share
    gram, moments = np.zeros((60, 60)), np.zeros((60, 60))
    for _ in range(n_samples):
        shown = x * (rng.random(x.shape) < shown_share[:, None])
        gram += shown.T @ (shown * weight[:, None]) / n_samples
        moments += shown.T @ (x * weight[:, None]) / n_samples
    expected = np.zeros((60, 60))
    for item in range(60):
        others = np.delete(np.arange(60), item)
        penalized = gram[np.ix_(others, others)] + 5.0 * np.eye(59)
        expected[others, item] = np.linalg.solve(penalized, moments[others, item])
    weights = relation(csr_array(x.astype(np.float32)), Settings(reg=5.0, shown_items=8.0))
    assert (np.diag(weights) == 0).all()
    np.testing.assert_allclose(weights, scaled(expected), atol=0.03)
    assert np.corrcoef(weights.ravel(), scaled(expected).ravel())[0, 1] > 0.999


def test_with_equal_shares_the_regression_is_a_ridge_whose_penalty_grows_with_the_item() -> None:
    """Users of one length, each of whom shows a quarter: EASE with λ and 3 n on a scale of 4."""
    rng = np.random.default_rng(0)
    dense = np.zeros((300, 60))
    for row in dense:
        row[rng.permutation(60)[:12]] = 1
    weights = relation(csr_array(dense.astype(np.float32)), Settings(reg=5.0, shown_items=3.0))
    gram, expected = dense.T @ dense, np.zeros((60, 60))
    for item in (0, 17, 59):
        others = np.delete(np.arange(60), item)
        penalized = gram[np.ix_(others, others)] + np.diag(20.0 + 3 * gram.diagonal()[others])
        expected[others, item] = np.linalg.solve(penalized, gram[others, item])
    columns = [0, 17, 59]
    ratio = weights[:, columns].max() / expected[:, columns].max()
    np.testing.assert_allclose(weights[:, columns], ratio * expected[:, columns], atol=1e-4)


@pytest.mark.parametrize("max_dense_items", [60, 0])
def test_the_spectral_part_is_a_relation_of_low_rank(max_dense_items: int, monkeypatch) -> None:
    """In a small catalogue a part of the weights, in a large one factors."""
    monkeypatch.setattr("idcf.training.size_limits._RANK", 4)
    x, options = interaction_matrix(table()), {"max_dense_items": max_dense_items}
    plain = relation(x, Settings(reg=5.0, power=1.5), **options)
    both = relation(x, Settings(reg=5.0, power=1.5, spectral_weight=0.5), **options)
    scale, lengths = ((x.toarray().sum(axis) + 1.0) ** 0.5 for axis in (0, 1))
    vectors = np.linalg.svd(x.toarray() / scale / lengths[:, None])[2][:4].T
    expected = (vectors / scale[:, None]) @ (vectors * scale[:, None]).T
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(both - plain, 0.5 * scaled(expected), rtol=1e-3, atol=1e-5)


def test_factors_that_would_be_too_large_are_left_out(monkeypatch) -> None:
    small, large = TakeUpConfig(), TakeUpConfig(max_dense_items=0)
    assert spectral_rank(large, 400, 60) == 59
    assert spectral_rank(large, 10**6, 40_000) == 128
    assert 64 <= spectral_rank(large, 10**6, 90_000) < 70
    assert spectral_rank(large, 10**6, 10**6) == 0
    monkeypatch.setattr("idcf.training.size_limits._MAX_FACTOR_CELLS", 60 * 63)
    assert spectral_rank(large, 400, 60) == 0
    assert spectral_rank(small, 400, 60) == 59  # a small catalogue has no factors
    settings = Settings(reg=5.0, spectral_weight=1.0)
    assert (
        ItemRelation(large, MatrixSource(interaction_matrix(table()))).stored(settings)[1] is None
    )


def test_the_spectral_part_of_many_rows_is_that_of_some(monkeypatch) -> None:
    x = interaction_matrix(table())
    monkeypatch.setattr("idcf.training.size_limits._RANK", 3)
    settings = Settings(reg=5.0, spectral_weight=1.0)
    part = [relation(x, settings) - relation(x, Settings(reg=5.0))]
    monkeypatch.setattr("idcf.training.solvers.item_relation._MAX_SPECTRAL_ROWS", x.nnz // 2)
    part.append(relation(x, settings) - relation(x, Settings(reg=5.0)))
    assert 0.8 < np.corrcoef(part[0].ravel(), part[1].ravel())[0, 1] < 0.9999


@pytest.mark.parametrize("max_dense_items", [60, 0])
def test_a_power_keeps_the_signs(max_dense_items: int) -> None:
    x = interaction_matrix(table())
    options = {"max_dense_items": max_dense_items}
    plain = relation(x, Settings(reg=5.0), **options)
    squared = relation(x, Settings(reg=5.0, power=2.0), **options)
    np.testing.assert_allclose(squared, np.sign(plain) * plain**2, rtol=1e-5, atol=1e-7)


def test_a_small_catalogue_may_use_the_nearest_items_too() -> None:
    x = interaction_matrix(table())
    nearest = Settings(reg=5.0, regression="nearest")
    np.testing.assert_allclose(
        relation(x, nearest, local_neighbors=7),
        relation(x, nearest, local_neighbors=7, max_dense_items=0),
        rtol=1e-5,
    )
    assert np.count_nonzero(relation(x, nearest, local_neighbors=7)) == 7 * 60


@pytest.mark.parametrize("max_dense_items", [60, 0])
def test_cosines_are_those_of_the_nearest_items(max_dense_items: int) -> None:
    x = interaction_matrix(table())
    counts, cosines = x.toarray().sum(0), Settings(reg=5.0, regression="cosines")
    expected = (x.T @ x).toarray() / np.sqrt((counts + 20) * (counts[:, None] + 20))
    np.fill_diagonal(expected, 0)
    options = {"max_dense_items": max_dense_items}
    np.testing.assert_allclose(relation(x, cosines, **options), scaled(expected), rtol=1e-5)
    columns = np.count_nonzero(relation(x, cosines, **options, local_pairs=7), axis=0)
    assert (columns == 7).all()


def shop_clicks(n_users: int, rng: np.random.Generator) -> tuple[Interactions, np.ndarray]:
    """Return clicks on 90 items of three departments and five makes, and the weights that users
    choose by: all items of a department, and all of a make, are equally related."""
    item, user = np.arange(90), np.arange(n_users)[:, None]
    weights = np.where(item // 30 == user % 3, 12.0, 1.0) * np.where(item % 5 == user % 5, 4.0, 1)
    weights = weights / (3 + rng.permutation(90) % 30)
    order = np.argsort(rng.exponential(size=weights.shape) / weights, axis=1)
    lengths = rng.integers(3, 15, size=n_users)
    users, items = np.repeat(user[:, 0], lengths), np.arange(lengths.sum())
    items -= np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids, ones = (Vocab(range(n_users)), Vocab(range(90))), np.ones(len(users), np.float32)
    clicks = Interactions(*ids, users, order[users, items], ones, None, implicit=True)
    return clicks, weights


def test_few_users_of_large_groups_choose_cosines() -> None:
    """A regression has more to estimate than a few hundred short rows say."""
    clicks, weights = shop_clicks(1000, np.random.default_rng(0))
    is_new = np.arange(1000) >= 500
    rows, solve = clicks.where(~is_new[clicks.user]), model_entry("idcf-takeup").load_solver()
    context = SolverContext()
    chosen = solve(configure("idcf-takeup", {}), rows, context)
    assert context.details["relation"] == "cosines"
    assert "reg" not in context.details
    given = configure("idcf-takeup", {"regression": "all"})
    regression = solve(given, rows, SolverContext())
    history = clicks.history(np.flatnonzero(is_new))

    def mean_weight(model: TakeUpModel) -> float:
        """Return the mean weight of ten items of the lists of new users."""
        score = model.logits(history)
        score[history.owner(), history.items] = -torch.inf
        return float(np.take_along_axis(weights[is_new], score.topk(10).indices.numpy(), 1).mean())

    assert mean_weight(chosen) > 1.02 * mean_weight(regression)


@pytest.mark.parametrize("at_once", [1 << 23, 1])
def test_above_the_limit_every_item_is_regressed_on_its_nearest(at_once: int, monkeypatch) -> None:
    """At once, or one item at a time."""
    monkeypatch.setattr("idcf.training.solvers.nearest_items._MAX_EQUATION_CELLS", at_once)
    x = interaction_matrix(table())
    columns = csr_array(local_ridge(find_nearest_items(x, 60), RIDGE.reg, RIDGE.count_reg, 7).T)
    assert np.diff(columns.indptr).max() == 7
    counts = x.toarray().sum(0)
    cosine = (x.T @ x).toarray() / np.sqrt((counts + 20) * (counts[:, None] + 20))
    np.fill_diagonal(cosine, 0)
    for item in (0, 17, 59):
        nearest = columns.indices[columns.indptr[item] : columns.indptr[item + 1]]
        assert cosine[item, nearest].min() >= np.sort(cosine[item])[-7] - 1e-6
        expected = slow_column(x, item, nearest)
        np.testing.assert_allclose(columns[[item]].toarray()[0, nearest], expected, rtol=1e-4)


def test_pairs_that_are_not_kept_count_as_no_common_users() -> None:
    x = interaction_matrix(table())
    nearest = find_nearest_items(x, 9)
    gram = np.zeros((60, 60))
    for item in range(60):
        gram[item, nearest.items[item]] = nearest.counts[item]
    gram = np.maximum(gram, gram.T)
    columns = csr_array(local_ridge(nearest, RIDGE.reg, RIDGE.count_reg, 5).T)
    counts = x.toarray().sum(0)
    for item in (3, 40):
        others = nearest.items[item, :5].numpy()
        penalty = RIDGE.reg + (1 + RIDGE.count_reg) * counts[others]
        expected = np.linalg.solve(
            gram[np.ix_(others, others)] + np.diag(penalty), gram[others, item]
        )
        np.testing.assert_allclose(columns[[item]].toarray()[0, others], expected, rtol=1e-4)


def test_equal_neighbors_do_not_widen_the_equations() -> None:
    """Users with one pair of items each make all cosines equal."""
    users = np.repeat(np.arange(300), 2)
    items = np.stack([np.zeros(300, np.int64), np.arange(1, 301)], 1).ravel()
    x = csr_array((np.ones(600, np.float32), (users, items)), shape=(300, 301))
    weights = local_ridge(find_nearest_items(x, 8), RIDGE.reg, RIDGE.count_reg, 5)
    assert np.diff(csr_array(weights.T).indptr).max() == 5
    assert set(csr_array(weights.T)[[0]].indices) == {1, 2, 3, 4, 5}  # the first of equal ones


def test_items_without_neighbors_have_no_weights() -> None:
    x = csr_array(np.eye(4, 6, dtype=np.float32))
    assert local_ridge(find_nearest_items(x, 3), 1.0, 1.0, 3).nnz == 0


def test_long_rows_are_sampled_and_short_ones_stay() -> None:
    x = interaction_matrix(table())
    short = sample_long_rows(x, 12, np.random.default_rng(0))
    lengths = np.diff(x.indptr)
    np.testing.assert_array_equal(np.diff(short.indptr), np.minimum(lengths, 12))
    assert (short.toarray() <= x.toarray()).all()
    assert sample_long_rows(x, 60, np.random.default_rng(0)) is x


def test_the_logit_is_that_of_a_slow_loop() -> None:
    model, history = fitted(), [3, 7, 11]
    weights, counts = model.item_weights.to_dense().double().numpy(), model.item_counts.numpy()
    c, unit = model.coefficients.double().numpy(), float(model.score_unit)
    length = min(np.log1p(len(history)), float(model.max_log_length))
    expected = []
    for i in range(60):
        score = sum(weights[j, i] for j in history) + float(model.prior_scores[i])
        z = c[0] + c[1] * length + (c[2] + c[3] * length) * np.arcsinh(score / unit)
        expected.append(np.interp(z, model.link_knots.numpy(), model.link_logits.numpy()))
    np.testing.assert_allclose(model.logits(as_history(history))[0], expected, rtol=1e-3, atol=1e-3)
    popularity = -np.expm1(-4 * counts / counts.sum())  # four next items
    empty = model.logits(as_history([])).sigmoid()[0]
    np.testing.assert_allclose(empty, popularity, rtol=1e-4)


def test_probabilities_grow_with_the_scores() -> None:
    model = fitted()
    for history in ([3], list(range(20))):
        entries = as_history(history)
        order = model.relation_scores(entries)[0].argsort()
        assert (model.logits(entries)[0][order].diff() >= 0).all()
        assert len(model.logits(entries)[0].unique()) > 55  # hardly any ties


def test_the_link_is_increasing_and_takes_the_observed_rates() -> None:
    """z is overconfident: the true logit is half of it."""
    rng = np.random.default_rng(0)
    z = rng.normal(-2, 2, 200_000)
    labels = (rng.random(len(z)) < 1 / (1 + np.exp(-z / 2))).astype(float)
    knots, logits = fit_link(z, labels, np.ones(len(z)))
    assert (np.diff(knots) > 0).all()
    assert (np.diff(logits) > 0).all()
    inside = np.linspace(-5, 2, 30)
    np.testing.assert_allclose(np.interp(inside, knots, logits), inside / 2, atol=0.25)
    points = torch.tensor([-60.0, -4.0, 0.3, 50.0])
    values = interpolate(points, torch.from_numpy(knots).float(), torch.from_numpy(logits).float())
    assert values[0] < logits[0]  # a straight line beyond the last knots
    assert values[3] > logits[-1]
    np.testing.assert_allclose(values[1:3], np.interp(points[1:3], knots, logits), rtol=1e-4)


@pytest.mark.parametrize("n_rows", [1, 3])
def test_the_link_of_a_few_rows_is_increasing(n_rows: int) -> None:
    knots, logits = fit_link(np.zeros(n_rows), np.ones(n_rows), np.ones(n_rows))
    assert np.isfinite(logits).all()
    assert (np.diff(knots) > 0).all()
    assert (np.diff(logits) > 0).all()


def test_isotonic_rates_are_those_of_a_slow_minimization() -> None:
    hits, size = np.array([1.0, 0, 3, 2, 9, 4]), np.array([10.0, 5, 10, 10, 10, 10])
    best, rates = np.inf, isotonic_rates(hits, size)
    grid = np.linspace(0, 1, 41)
    assert (np.diff(rates) >= 0).all()
    cost = float((size * (rates - hits / size) ** 2).sum())
    rng = np.random.default_rng(0)
    for _ in range(20_000):
        trial = np.sort(rng.choice(grid, 6))
        best = min(best, float((size * (trial - hits / size) ** 2).sum()))
    assert cost <= best + 1e-9
    np.testing.assert_allclose(rates, [1 / 15, 1 / 15, 0.25, 0.25, 0.65, 0.65])


def test_probabilities_are_the_observed_rates_of_new_users() -> None:
    """Of users of the same world whom the model never saw; 4 items each are the next ones."""
    new = interaction_matrix(table(600, seed=0))[400:]
    rng, model = np.random.default_rng(1), fitted()
    expected, observed = [], []
    for row in range(new.shape[0]):
        items = rng.permutation(new.indices[new.indptr[row] : new.indptr[row + 1]])
        history, targets = items[4:9].tolist(), items[:4]
        probability = model.logits(as_history(history)).sigmoid()[0].numpy()
        candidates = np.setdiff1d(np.arange(60), history)
        expected.append(probability[candidates])
        observed.append(np.isin(candidates, targets))
    p, hit = np.concatenate(expected), np.concatenate(observed)
    assert p.mean() == pytest.approx(hit.mean(), rel=0.15)
    top = p >= np.quantile(p, 0.8)
    assert hit[top].mean() > 1.5 * hit.mean()
    assert p[top].mean() == pytest.approx(hit[top].mean(), rel=0.25)


def fitted_with_factors() -> TakeUpModel:
    """A model of a catalogue that counts as large, whose relation has a part of low rank."""
    return fitted(max_dense_items=0, local_neighbors=7, spectral_weight=0.7)


@pytest.mark.parametrize("neighbors", [60, 10])
def test_the_kernel_gives_the_scores_of_the_model(neighbors: int, monkeypatch) -> None:
    for limit in (1 << 24, 0):  # with zeros, and without
        monkeypatch.setattr("idcf.inference.kernels._MAX_DENSE_WEIGHTS", limit)
        for model in (fitted(neighbors=neighbors), fitted_with_factors()):
            ranker = CatalogRanker(model)
            rows, values = np.array([5, 9, 2], np.int64), np.array([1, 0.5, 2], np.float32)
            score = ranker.score_one_user(rows, values)
            history = as_history(rows.tolist())._replace(values=torch.from_numpy(values))
            users = Users(torch.tensor([-1]), history)
            np.testing.assert_allclose(score, model.score_catalog(users)[0], rtol=1e-4)


def test_many_users_of_a_sparse_relation_get_the_scores_of_the_model(monkeypatch) -> None:
    monkeypatch.setattr("idcf.inference.kernels._MAX_DENSE_WEIGHTS", 0)
    model = fitted(neighbors=10)
    ranker = CatalogRanker(model)
    assert ranker.single_user_scorer.is_sparse
    history = as_history([5, 9, 2], [], [7], [1, 2])
    users = Users(torch.full((4,), -1), history)
    with torch.inference_mode():
        scores, expected = ranker.score_catalog(users), model.score_catalog(users)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-7)


def test_factors_are_added_to_scores_and_similarities() -> None:
    model = fitted_with_factors()
    assert model.low_rank_weights.rank == 59
    part = model.low_rank_weights
    weights = model.item_weights.to_dense() + (part.sources @ part.targets.T).fill_diagonal_(0)
    history = as_history([5, 9, 2], [], [7])
    expected = torch.stack([weights[[5, 9, 2]].sum(0), 0 * weights[0], weights[7]])
    scores = model.relation_scores(history) - model.prior_scores
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.item_similarities(9), weights[9])
    rows = torch.tensor([[3, 5], [5, 5]])
    expected = torch.stack([weights[x][:, x] for x in rows])
    torch.testing.assert_close(model.similarities_among(rows), expected)
    users, items = Users(torch.tensor([-1] * 3), history), torch.tensor([[4, 9], [0, 1], [59, 7]])
    some = model(users, items, torch.arange(3))
    torch.testing.assert_close(some, model.score_catalog(users).gather(1, items))
    copy = TakeUpModel(TakeUpConfig(), table().domain())
    copy.load_state_dict(model.state_dict())
    torch.testing.assert_close(copy.eval().logits(history), model.logits(history))


@pytest.mark.parametrize("build", [fitted, fitted_with_factors])
def test_added_items_are_unseen(build: Callable[[], TakeUpModel]) -> None:
    model, history = build(), as_history([3, 7])
    larger = model.with_n_items(63)
    before, after = model.logits(history), larger.logits(history)
    assert after.shape == (1, 63)
    torch.testing.assert_close(after[:, :60], before)
    unknown = larger.logits(as_history([61]))[0]
    assert (unknown[60:] == unknown[60]).all()  # nothing is known of the new items
    assert unknown[60:].max() <= unknown[:60].min()
    assert model.n_items == 60
    assert model.logits(history).shape == (1, 60)


def test_given_settings_are_not_searched(monkeypatch) -> None:
    seen: list[Settings] = []
    compute = ItemRelation.in_settings

    def record(self: ItemRelation, settings: Settings) -> object:
        seen.append(settings)
        return compute(self, settings)

    monkeypatch.setattr(ItemRelation, "in_settings", record)
    given = {"reg": 7.0, "shown_items": 5.0, "spectral_weight": 0.0, "power": 1.5}
    given |= {"regression": "all"}
    solve, context = model_entry("idcf-takeup").load_solver(), SolverContext()
    solve(configure("idcf-takeup", given), table(), context)
    assert set(seen) == {Settings(**given)}
    assert len(seen) == 3  # once to be measured, then without the held-out users, and on all
    del given["regression"]
    assert context.details == {"relation": "all items", **given}
    seen.clear()
    solve(configure("idcf-takeup", {}), table(), SolverContext())
    # the first settings, and what each stage tries
    assert len(set(seen)) >= 1 + 4 + 3 + 2 + 1
    assert {x.regression for x in seen} == {"all", "nearest", "cosines"}


def test_half_of_the_held_out_histories_are_as_long_as_those_of_new_users() -> None:
    x = csr_array(np.ones((200, 40), np.float32))
    lengths = np.array([7, 8])
    rng = np.random.default_rng(0)
    history, targets = cut_histories(x, (1, 3), 10, rng, new_user_lengths=lengths)
    assert set(history.lengths()[::2].tolist()) == {7, 8}
    assert set(history.lengths()[1::2].tolist()) == {1, 2, 3}
    assert (targets.lengths() == 10).all()


def test_a_row_is_cut_after_its_history() -> None:
    """A long history has fewer next items, at least two if the row has four."""
    x = interaction_matrix(table())
    lengths, n_history = np.diff(x.indptr), np.resize([1, 5, 100], x.shape[0])
    history, targets = cut_after(x, n_history, 4, np.random.default_rng(0))
    expected = np.minimum(n_history, np.maximum(lengths - 2, lengths // 2))
    np.testing.assert_array_equal(history.lengths(), expected)
    np.testing.assert_array_equal(targets.lengths(), np.minimum(4, lengths - expected))
    for row in (0, 1, 2, 200):
        parts = [
            part.items[part.offsets[row] : part.offsets[row + 1]] for part in (history, targets)
        ]
        items = torch.cat(parts).tolist()
        assert len(set(items)) == len(items)
        assert set(items) <= set(x.indices[x.indptr[row] : x.indptr[row + 1]].tolist())


@pytest.mark.parametrize("name", ["idcf-takeup", "idcf-odds"])
def test_two_fits_of_a_small_table_are_equal(name: str) -> None:
    """Users have all even or all odd items: two singular values are not 0, and a solver that draws
    the other vectors at random chooses other settings each time."""
    small = board(80, 40, 20, 20, implicit=True)
    entry = model_entry(name)
    first, second = (
        entry.load_solver()(configure(name, {}), small, SolverContext()).state_dict()
        for _ in range(2)
    )
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_users_with_one_row_each_can_be_fitted() -> None:
    rows = np.arange(12)
    table = Interactions(Vocab(range(12)), Vocab(range(12)), rows, rows, np.ones(12, np.float32))
    model = Recommender("idcf-takeup", device="cpu").fit(table.as_implicit())
    assert np.isfinite(model.predict([0], range(12))).all()
