"""BOMIC against SoftImpute with everything written out, and its newcomers against its own rows."""

import numpy as np
import pytest
import torch

from idcf import Recommender
from idcf.data.interactions import Interactions
from idcf.models import configure
from idcf.train.solvers import Work
from idcf.train.solvers.bomic import Reg, _observed, bomic, solve
from idcf.types import History, Users

torch.set_num_threads(1)
TIGHT = {"rank": 8, "tolerance": 1e-10, "epochs": 5000, "feature_reg": 0.1}
LAMBDAS = [(0.1, 0.08, 0.1), (0.4, 0.03, 0.06), (0.03, 0.5, 0.3)]  # item, user, residual


def table(features: bool = False) -> Interactions:
    """12 people, 9 items, of whom one has no rows and of which one nobody rated."""
    rng = np.random.default_rng(3)
    full = rng.integers(1, 6, (12, 9)).astype(float)
    mask = rng.random((12, 9)) < 0.6
    mask[5], mask[:, 7] = False, False
    user, item = np.nonzero(np.ones_like(mask))
    whole = Interactions.from_columns(user, item, full[user, item])
    found = whole.where(mask[user, item])
    if not features:
        return found
    known = rng.normal(size=(12, 2)).astype(np.float32)
    known = np.hstack([known, known[:, :1] * 2])  # the last says nothing new
    return Interactions(**{**vars(found), "user_features": known})


def options(lambdas, **more):
    item, user, rest = lambdas
    return configure("bomic", {**TIGHT, "item_reg": item, "user_reg": user, "reg": rest, **more})


def blocks(n, told=None):
    """Orthonormal: ones, features, and the rest of the space."""
    first = np.full((n, 1), n**-0.5)
    parts = [first] if told is None else [first, told]
    have = np.hstack(parts)
    rest = np.linalg.svd(np.eye(n) - have @ have.T)[0][:, : n - have.shape[1]]
    return [*parts, rest]


def reference(found, reg, told=None, rounds=1500):
    """Dense SoftImpute over the blocks, no momentum, no trick: Z [users with rows, items with]."""
    people, things = np.unique(found.user), np.unique(found.item)
    m, n = len(people), len(things)
    ratings, mask = np.zeros((m, n)), np.zeros((m, n), bool)
    at = np.searchsorted(people, found.user), np.searchsorted(things, found.item)
    ratings[at], mask[at] = found.rating, True
    left, right = blocks(m, told), blocks(n)
    pairs = [(left[0], right[0], 0.0), (left[0], right[1], reg.items)]
    pairs += [(left[-1], right[0], reg.users), (left[-1], right[1], reg.rest)]
    if told is not None:
        pairs.append((told, np.eye(n), reg.features))
    z, last = np.zeros((m, n)), np.ones((m, n))
    for _ in range(rounds):
        if np.abs(z - last).max() < 1e-7:
            break
        last, filled, z = z, np.where(mask, ratings, z), np.zeros((m, n))
        for x, y, strength in pairs:
            u, s, v = np.linalg.svd(x.T @ filled @ y, full_matrices=False)
            z += x @ (u * np.maximum(s - strength, 0)) @ v @ y.T
    return z


def whole(point, told):
    low = point.left @ point.right.T + told @ point.by_features
    return point.mean + point.items + point.users[:, None] + low


def solved(found, config):
    people, things = np.flatnonzero(found.counts()), np.flatnonzero(found.item_counts())
    model = bomic(config, found, Work())
    told = model.place(found.people(people)).double().numpy()
    ratings = _observed(found, people, things, told)
    return model, ratings, things, solve(ratings, config, Work())


@pytest.mark.parametrize(
    ("lambdas", "features"), [*zip(LAMBDAS, (False, True, False), strict=True)]
)
def test_it_ends_where_plain_softimpute_ends(lambdas, features):
    found = table(features)
    config = options(lambdas, user_features=features)
    _, ratings, _, z = solved(found, config)
    told = ratings.told
    assert told.shape[1] == 2 * features
    expected = reference(found, Reg.of(config, ratings), told if features else None)
    np.testing.assert_allclose(whole(z, told), expected, atol=2e-4)


@pytest.mark.parametrize("lambdas", LAMBDAS)
@pytest.mark.parametrize("features", [False, True])
def test_a_known_user_s_own_history_gives_their_own_row(lambdas, features):
    """The ridge over a history, with the item side frozen, is the row of the solution."""
    found = table(features)
    model, ratings, things, z = solved(found, options(lambdas, user_features=features))
    with torch.no_grad():
        ranked = model.rank(found.people(np.unique(found.user)).anonymous()).numpy()
    np.testing.assert_allclose(ranked[:, things], whole(z, ratings.told), atol=2e-3)


def test_every_effect_has_one_place():
    found = table(True)
    _, ratings, _, z = solved(found, options(LAMBDAS[0], user_features=True))
    told = ratings.told
    for side in (z.items[:, None], z.users[:, None], z.left, z.right[:, z.left.any(0)]):
        assert np.abs(side.sum(0)).max() < 1e-8
    assert np.abs(told.T @ z.left).max() < 1e-6  # features are kept in single precision
    assert np.abs(told.T @ z.users).max() < 1e-6
    assert np.abs(told.sum(0)).max() < 1e-5
    np.testing.assert_allclose(told.T @ told, np.eye(2), atol=1e-5)


def test_strong_penalties_leave_the_mean():
    found = table()
    model = bomic(options((1e4, 1e4, 1e4), tolerance=1e-6), found, Work())
    with torch.no_grad():
        ranked = model.rank(found.people(np.arange(12)))
    torch.testing.assert_close(ranked, torch.full_like(ranked, float(found.rating.mean())))


def test_what_nothing_is_known_of_is_average():
    found = table(True)
    config = options(LAMBDAS[0], user_features=True)
    model = bomic(config, found, Work())
    nobody = Users(torch.tensor([-1, -1]), History.empty(2))
    mean = torch.from_numpy(found.user_features[np.flatnonzero(found.counts())].mean(0))
    with torch.no_grad():
        plain = model.rank(nobody)
        usual = model.rank(Users(nobody.ids, nobody.history, mean.expand(2, -1)))
        told = model.rank(Users(nobody.ids, nobody.history, mean + torch.tensor([[1.0, 0, 2]] * 2)))
    torch.testing.assert_close(plain, usual, atol=1e-4, rtol=0)
    assert (told - plain).abs().max() > 0.01
    assert plain[:, 7].allclose(plain.new_tensor(float(model.mean)), atol=1.0)  # nobody rated it


def test_directions_are_found_as_they_come_to_life():
    """It begins with a few directions and ends with all that survive."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((60, 50)) < 0.8)
    value = rng.normal(size=(60, 20)) @ rng.normal(size=(20, 50))
    found = Interactions.from_columns(user, item, value[user, item])
    config = options((0.05, 0.05, 0.15), rank=40, tolerance=1e-7)
    _, ratings, _, z = solved(found, config)
    assert int(z.left.any(0).sum()) > 10
    assert z.right.shape[1] <= 40
    expected = reference(found, Reg.of(config, ratings), rounds=300)
    np.testing.assert_allclose(whole(z, ratings.told), expected, atol=0.02)


def test_the_face_takes_it_with_features_and_without(tmp_path):
    ids = [f"u{n}" for n in range(40) for _ in range(12)]
    rng = np.random.default_rng(1)
    items = [f"i{n}" for _ in range(40) for n in rng.permutation(20)[:12]]
    group = {f"u{n}": n % 2 for n in range(40)}
    rating = [5.0 if int(i[1:]) % 2 == group[u] else 1.0 for u, i in zip(ids, items, strict=True)]
    import pandas as pd

    rows = pd.DataFrame({"user_id": ids, "item_id": items, "rating": rating})
    people = pd.DataFrame({"user_id": list(group), "side": [f"s{x}" for x in group.values()]})
    model = Recommender(
        "bomic", key_threshold=5, reg=2.0, feature_reg=2.0, user_reg=1.0, device="cpu"
    )
    model.fit(rows, users=people)
    folder = model.save(tmp_path / "model")
    for ready in (model, Recommender.load(folder)):
        for side in (0, 1):
            best = ready.recommend({}, n=5, features={"side": f"s{side}"})
            assert {int(x.item_id[1:]) % 2 for x in best} == {side}
        assert len(ready.recommend({"i1": 5.0, "i2": 1.0, "i3": 5.0}, n=5)) == 5
