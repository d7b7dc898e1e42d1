"""What a saved model holds of single users: every tensor is searched for rows of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import board
from torch import Tensor

from idcf import Recommender
from idcf.data.interactions import Interactions, Vocab, group_rows_by_key
from idcf.data.side_tables import EnrichedInteractions
from idcf.errors import ConfigError
from idcf.inference.artifact import Artifact, load_artifact, save_artifact
from idcf.inference.manifest import RecommenderConfig
from idcf.models.registry import all_models
from idcf.training.train import fit_artifact

N_USERS, N_ITEMS, MIN_ROWS = 43, 37, 11
MIN_MATCHES = 3  # users, or items, whose rows are in a tensor: fewer may be chance
CASES = [
    (name, implicit)
    for name, entry in all_models().items()
    for implicit in (False, True)
    if not (entry.ratings_only if implicit else entry.implicit_only)
]
HOLDERS = {
    *("gcmc", "gcmc-rd", "idcf-gc", "rd-item-gc", "meta-path-gc", "trans-user-gc"),
    *("gcmc-softmax", "gcmc-features", "f-eae", "igmc", "ngcf", "meta-path", "agnn"),
}


@cache
def table(implicit: bool = False) -> Interactions:
    """Return a table whose numbers of rows and users occur as no other length in a model."""
    rows = board(N_USERS, N_ITEMS, 8, 17, implicit=implicit)
    rng = np.random.default_rng(1)
    users, items = (rng.normal(size=(n, 2)).astype(np.float32) for n in (N_USERS, N_ITEMS))
    widths = {"user_feature_widths": (1, 1), "item_feature_widths": (1, 1)}
    return replace(rows, user_features=users, item_features=items, **widths)


def key_rows(rows: Interactions) -> Interactions:
    return rows.for_users(np.flatnonzero(rows.user_counts() >= MIN_ROWS))


@cache
def trained(name: str, implicit: bool) -> Artifact:
    options = {} if all_models()[name].solver else {"epochs": 1}
    config = RecommenderConfig(name, options, key_threshold=MIN_ROWS, device="cpu")
    return fit_artifact(config, EnrichedInteractions(table(implicit)), [None] * N_ITEMS)


def groups(key: np.ndarray, value: np.ndarray, n: int) -> list[tuple[int, ...]]:
    """Return the sorted values of each key that has at least five."""
    order, offsets = group_rows_by_key(key, n)
    parts = np.split(value[order], offsets[1:-1])
    return [tuple(sorted(map(int, x))) for x in parts if len(x) >= 5]


def holds_group(values: np.ndarray, group: tuple[int, ...]) -> bool:
    """Return whether a run of the values is the group, in any order."""
    if len(values) < len(group):
        return False
    runs = np.sort(np.lib.stride_tricks.sliding_window_view(values, len(group)), axis=1)
    return bool((runs == group).all(1).any())


def training_rows_in(tensors: Mapping[str, Tensor], rows: Interactions) -> Iterator[str]:
    """Yield what each tensor holds of the rows: by its length, its runs, its keys, its pattern."""
    by_user = groups(rows.user, rows.item, N_USERS)
    compact = np.unique(rows.user, return_inverse=True)[1]  # key users, numbered among themselves
    by_item = [*groups(rows.item, rows.user, N_ITEMS), *groups(rows.item, compact, N_ITEMS)]
    keys = [rows.item * n + user for n, user in ((N_USERS, rows.user), (len(by_user), compact))]
    keys += [user * N_ITEMS + rows.item for user in (rows.user, compact)]
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().numpy()
        if len(rows) in values.shape or 2 * len(rows) in values.shape:
            yield f"{name}: one entry for each row"
        if not np.issubdtype(values.dtype, np.floating):
            flat = values.flatten().astype(np.int64)
            for kind, sought in (("histories", by_user), ("raters", by_item)):
                if sum(holds_group(flat, x) for x in sought) >= MIN_MATCHES:
                    yield f"{name}: {kind}"
            if any(np.isin(x, flat).mean() > 0.9 for x in keys):
                yield f"{name}: pairs of user and item"
        if values.ndim == 2 and N_ITEMS in values.shape:
            matrix = values if values.shape[1] == N_ITEMS else values.T
            patterns = {tuple(np.flatnonzero(x).tolist()) for x in matrix}
            if len(patterns & {*by_user}) >= MIN_MATCHES:
                yield f"{name}: histories as a pattern"
        features = rows.user_features
        if features is not None and values.ndim == 2 and values.shape[1] == features.shape[1]:
            known = {tuple(x) for x in features[np.unique(rows.user)].round(4).tolist()}
            if len(known & {tuple(x) for x in values.round(4).tolist()}) >= MIN_MATCHES:
                yield f"{name}: features of users"


@pytest.mark.parametrize(("name", "implicit"), CASES)
def test_a_model_holds_what_it_declares(name: str, implicit: bool) -> None:
    artifact, rows = trained(name, implicit), key_rows(table(implicit))
    tensors, user_data = artifact.tensors(), artifact.manifest.user_data
    found = list(training_rows_in(tensors, rows))
    assert (user_data == "rows") == (name in HOLDERS)
    if user_data == "rows":
        assert found  # else the search would find nothing in any model
        return
    assert not found
    n_key_users = len(np.unique(rows.user))
    lengths = {size: key for key, x in tensors.items() for size in x.shape}
    if artifact.model.inductive:
        assert N_USERS not in lengths  # no table of users that nothing reads
    if user_data == "sums":
        assert n_key_users not in lengths


@pytest.mark.parametrize("name", ["gcmc", "idcf-gc", "meta-path"])
def test_training_rows_are_saved_only_if_they_are_allowed(name: str, tmp_path: Path) -> None:
    artifact = trained(name, False)
    with pytest.raises(ConfigError, match="allow_training_rows=True"):
        save_artifact(artifact, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    save_artifact(artifact, tmp_path / "model", allow_training_rows=True)
    assert "Holds training rows" in (tmp_path / "model" / "card.md").read_text()
    assert load_artifact(tmp_path / "model").manifest.user_data == "rows"


@pytest.mark.parametrize("name", ["idcf-bayes", "idcf-dot", "pmf", "item-knn"])
def test_the_card_says_what_is_held(name: str, tmp_path: Path) -> None:
    artifact = trained(name, False)
    card = (save_artifact(artifact, tmp_path / "model") / "card.md").read_text()
    assert artifact.manifest.user_data_text in card
    assert "no histories are stored" in card.lower()


@pytest.mark.parametrize("name", ["idcf-bayes", "als", "item-knn", "idcf-nn"])
def test_an_unusual_rating_cannot_be_read_from_a_model(name: str) -> None:
    """A rating that one user alone gave, of an item that many rated, is in no tensor."""
    rows, unusual = key_rows(table()), 3.4375
    item = int(np.bincount(rows.item).argmax())
    position = int(np.flatnonzero(rows.item == item)[0])
    ratings = rows.rating.copy()
    ratings[position] = unusual
    options = {} if all_models()[name].solver else {"epochs": 1}
    config = RecommenderConfig(name, options, key_threshold=MIN_ROWS, device="cpu")
    changed = replace(rows, rating=ratings, user_features=None, item_features=None)
    artifact = fit_artifact(config, EnrichedInteractions(changed), [None] * N_ITEMS)
    sought = torch.tensor([unusual, unusual - float(ratings.mean())])
    for key, tensor in artifact.tensors().items():
        if tensor.is_floating_point():
            distance = (tensor.flatten()[:, None].double() - sought.double()).abs()
            assert distance.numel() == 0 or distance.min() > 1e-6, key


def test_items_that_are_added_later_bring_no_rows(tmp_path: Path) -> None:
    rows = replace(table(), user_features=None, item_features=None)
    recommender = Recommender("idcf-bayes", key_threshold=MIN_ROWS, device="cpu", sweeps=8)
    recommender.fit(rows)
    raters = [rows.users.ids[u] for u in np.unique(rows.user)[:9]]
    added = Interactions(
        Vocab(raters),
        Vocab(["new"]),
        np.arange(len(raters)),
        np.zeros(len(raters), np.int64),
        np.linspace(1, 5, len(raters), dtype=np.float32),
    )
    recommender.partial_fit_items(added)
    saved = load_artifact(recommender.save(tmp_path / "model"))
    new_rows = replace(added, user_features=None)
    assert not list(training_rows_in(saved.tensors(), key_rows(rows)))
    assert not [k for k, x in saved.tensors().items() if len(new_rows) in x.shape]
    assert saved.manifest.user_data == "sums"
