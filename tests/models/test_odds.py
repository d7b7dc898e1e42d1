"""The odds model: its logit against slow loops, its chances against what happened."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions, Vocab
from idcf.models.odds import RELATIONS, SIDE, design
from idcf.models.registry import configure, model_entry
from idcf.recommender import Recommender
from idcf.testing.synthetic import clusters
from idcf.training.solvers.context import Work
from idcf.training.solvers.odds import (
    Cut,
    kinship,
    lateness,
    logistic,
    matrix,
    newcomers,
    relations,
    shorten,
)
from idcf.types import History, Users

torch.set_num_threads(1)


@cache
def world(users=400, seed=0):
    """Groups of taste, some items famous: implicit feedback."""
    rng = np.random.default_rng(seed)
    made = clusters(users, 60, 4, rng, each=30, loyalty=0.8, implicit=True).interactions
    kept = rng.random(len(made)) < np.linspace(0.3, 1.0, 60)[made.item]
    return made.where(kept)


@cache
def solved(known=False, users=400):
    config = configure("idcf-odds", {"rank": 5, "neighbours": 20, "reg": 20.0, "horizon": 4})
    return model_entry("idcf-odds").load_solver()(config, world(users), Work(0, known=known)).eval()


def slow(model, items):
    """The logit of every item for one history, in plain Python."""
    c, n, out = model.config, len(items), []
    readers = model.readers.double().numpy()
    own = readers[items] - float(model.own)
    own = np.maximum(own, 0)
    usual = model.usual.double().numpy()
    u = [
        1,
        (sum(own == 0) + c.prior * usual[0]) / (n + c.prior),
        (sum(np.log1p(own)) + c.prior * usual[1]) / (n + c.prior),
        np.log1p(n),
    ]
    known = [j for j, r in zip(items, own, strict=True) if r > 0]
    coefficients = iter(model.coefficients.double().tolist())
    pairs = [(next(coefficients), a, b) for a in range(SIDE) for b in range(a, SIDE)]
    mixed = [[next(coefficients) for _ in range(1 + RELATIONS)] for _ in range(SIDE)]
    inner = [(next(coefficients), a, b) for a in range(RELATIONS) for b in range(a, RELATIONS)]
    weight = model.kin.dense().double().numpy()
    for i in range(model.n_items):
        said = sum(weight[j, i] for j in items) ** (1 / c.power)
        met = sum(float(model.into[j].double() @ model.out[i].double()) for j in known)
        chance = len(known) * readers[i] / readers.sum()
        lift = np.log(max(met / chance, c.floor)) if chance > 0 else 0.0
        v = [readers[i] == 0, np.log1p(readers[i]), float(model.late[i]) * bool(known), lift]
        v.append(np.log1p(said / c.scale))
        logit = sum(w * u[a] * u[b] for w, a, b in pairs)
        logit += sum(mixed[a][b] * u[a] * v[b] for a in range(SIDE) for b in range(1 + RELATIONS))
        out.append(logit + sum(w * v[1 + a] * v[1 + b] for w, a, b in inner))
    return np.array(out)


def told(*items):
    return History(torch.tensor(items), torch.ones(len(items)), torch.tensor([0, len(items)]))


@pytest.mark.parametrize("known", [False, True])
@settings(max_examples=15, deadline=None)
@given(items=st.lists(st.integers(0, 59), unique=True, max_size=8))
def test_logit_against_loops(known, items):
    model = solved(known)
    items = np.array(items, np.int64)
    got = (
        model.logits(told(*items.tolist()))[0] if len(items) else model.logits(History.empty(1))[0]
    )
    np.testing.assert_allclose(got, slow(model, items), atol=2e-4)


def test_rows_of_the_design_are_the_quadratic_form():
    model, rng = solved(), torch.Generator().manual_seed(0)
    user = torch.randn(9, SIDE, generator=rng)
    unknown, *related = torch.randn(1 + RELATIONS, 9, generator=rng)
    rows = design(user, unknown, related) @ model.coefficients
    whole = model.join(user, unknown[:, None], [x[:, None] for x in related])[:, 0]
    torch.testing.assert_close(rows, whole)


def test_chances_are_what_happens():
    """People never met, from the same world: of items given a chance p, a share p is among the
    next few. In all, and in each band of p."""
    model, fresh = solved(users=1200), matrix(world(1500, 7))
    cut = shorten(fresh, model.config, 4, np.random.default_rng(3))
    with torch.no_grad():
        chance = model.rank(Users(torch.full((fresh.shape[0],), -1), cut.history)).numpy()
    hit = np.zeros_like(chance)
    hit[cut.wanted.owner(), cut.wanted.items] = 1
    free = np.ones_like(chance, bool)
    free[cut.history.owner(), cut.history.items] = False
    p, y = chance[free], hit[free]
    assert p.mean() == pytest.approx(y.mean(), rel=0.03)
    for band in np.array_split(np.argsort(p), 8):
        assert p[band].mean() == pytest.approx(y[band].mean(), rel=0.25, abs=0.003)
    assert p.max() > 3 * p.min()


def test_nothing_known_is_the_order_of_popularity():
    model = solved()
    prior = model.rank(Users(torch.tensor([-1]), History.empty(1)))[0]
    order = torch.argsort(model.readers, stable=True)
    assert (prior[order].diff() >= 0).all()


def test_their_own_row_does_not_vouch_for_people_of_the_table():
    """Somebody who alone had an item: with their row in the table it looks as unknown as it would
    to people without it."""
    table = world()
    items = Vocab([*table.items.ids, "rare"])
    user, item = np.append(table.user, 0), np.append(table.item, 60)
    wider = Interactions(table.users, items, user, item, np.ones(len(user), np.float32), None, True)
    config = configure("idcf-odds", {"rank": 5, "reg": 20.0})
    with_row = relations(config, wider.domain(), matrix(wider), True, matrix(wider))
    others = wider.where(wider.user != 0)
    without = relations(config, wider.domain(), matrix(others), False, matrix(others))
    without.usual = with_row.usual
    mine = wider.history(np.array([0]))
    torch.testing.assert_close(with_row.read(mine).user, without.read(mine).user)
    torch.testing.assert_close(with_row.read(mine).known, without.read(mine).known)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("cut", ["random", "last"])
def test_newcomers_are_hidden_and_their_items_are_divided(cut, known):
    """The table lacks them, or has their short histories in place of their rows."""
    config = configure("idcf-odds", {"cut": cut, "folds": 3, "lengths": (0, 9), "horizon": 4})
    x, asked = matrix(world()), 0
    for rest, (history, wanted) in newcomers(config, x, known, np.random.default_rng(0)):
        people, told = len(wanted.offsets) - 1, history.lengths()
        asked += people
        assert (wanted.lengths() == 4).all()
        assert told.max() == 9
        key = [h.owner() * 60 + h.items for h in (history, wanted)]
        assert len(torch.cat(key).unique()) == len(torch.cat(key))
        stay = int((told > 0).sum()) if known else 0
        assert rest.shape[0] == x.shape[0] - people + stay
        if known:
            kept = rest[-stay:].toarray()
            expected = np.zeros((people, 60))
            expected[history.owner(), history.items] = 1
            np.testing.assert_array_equal(kept, expected[told.numpy() > 0])
    assert asked == (np.diff(x.indptr) > 4).sum()


def test_last_items_are_the_last_of_the_table():
    x = csr_array(
        (np.ones(6, np.float32), np.array([5, 1, 3, 0, 4, 2]), np.array([0, 6])), shape=(1, 6)
    )
    config = configure("idcf-odds", {"cut": "last", "lengths": (2, 2)})
    cut = shorten(x, config, 3, np.random.default_rng(0))
    assert isinstance(cut, Cut)
    assert (cut.history.items.tolist(), cut.wanted.items.tolist()) == ([1, 3], [0, 4, 2])


def test_logistic_finds_what_made_the_labels():
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(60_000), rng.normal(3, 2, 60_000), np.full(60_000, 4.0)], 1)
    true = np.array([-1.0, 0.7])
    p = 1 / (1 + np.exp(-(x[:, :2] @ true)))
    y = (rng.random(len(p)) < p).astype(float)
    found = logistic(x, y, np.ones(len(y)), 1e-3)
    np.testing.assert_allclose(found, [*true, 0], atol=0.05)
    # a row that stands for two is two rows
    w = rng.integers(1, 3, len(y))
    twice = logistic(np.repeat(x, w, 0), np.repeat(y, w), np.ones(w.sum()), 0.0)
    np.testing.assert_allclose(logistic(x, y, w.astype(float), 0.0), twice, atol=0.02)


def test_bayes_takes_data_without_ratings(tmp_path):
    """Under the name asked for, saved and loaded."""
    made = Recommender("idcf-bayes", rank=4, device="cpu").fit(world())
    again = Recommender.load(made.save(tmp_path / "odds"))
    assert again.wish.model == "idcf-bayes"
    items = [f"i{n}" for n in (0, 4, 8)]
    first, second = made.recommend(items), again.recommend(items)
    assert [(r.item_id, r.score) for r in first] == [(r.item_id, r.score) for r in second]
    assert 0 < first[0].score < 1
    groups = [int(r.item_id[1:]) % 4 for r in made.similar_items("i56", n=8)]
    assert groups.count(0) > 4  # its own


def test_when_people_come_to_an_item_is_found_from_the_order_of_rows():
    """Everybody reads a stretch of one long series, in its order, with slips."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(300):
        start, kept = rng.integers(0, 80), rng.random(40) < 0.4
        series = np.flatnonzero(kept) + start
        rows.append(series[np.argsort(series + rng.normal(0, 3, len(series)))])
    ends = np.cumsum([0, *map(len, rows)])
    items = np.concatenate(rows)
    x = csr_array((np.ones(len(items), np.float32), items, ends), shape=(300, 120))
    late = lateness(x)
    assert np.corrcoef(late[10:110], np.arange(10, 110))[0, 1] > 0.95
    mixed = np.concatenate([rng.permutation(r) for r in rows])
    nothing = lateness(csr_array((np.ones(len(items), np.float32), mixed, ends), shape=x.shape))
    assert nothing.std() < 0.2 * late.std()


def test_order_of_rows_is_heard_only_where_next_means_in_time():
    table = world()
    last = configure("idcf-odds", {"rank": 5, "neighbours": 20, "cut": "last"})
    heard = relations(last, table.domain(), matrix(table), False, matrix(table))
    assert heard.late.any()
    assert not solved().late.any()


def test_kinship_against_loops():
    x = matrix(world())
    config = configure("idcf-odds", {"reg": 20.0, "neighbours": 100, "nearest": 100})
    found, n = kinship(x, config, 1.0).toarray(), x.shape[1]
    dense = x.toarray().astype(np.float64)
    inverse = np.linalg.inv(dense.T @ dense + 20 * np.eye(n))
    readers = dense.sum(0) + config.support
    ease, cosine = np.zeros((n, n)), np.zeros((n, n))
    for j in range(n):
        for i in range(n):
            if i != j:
                ease[j, i] = max(0, -inverse[j, i] / inverse[i, i])
                cosine[j, i] = (dense[:, j] @ dense[:, i]) / np.sqrt(readers[i] * readers[j])
    half = [k / (2 * k.max(0)[k.max(0) > 0].mean()) for k in (ease, cosine)]
    np.testing.assert_allclose(found, (half[0] + half[1]) ** config.power, rtol=2e-3, atol=1e-5)
