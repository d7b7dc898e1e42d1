"""What a saved model holds of single users: every tensor is searched for rows of the table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import board
from row_search import training_rows_in

from idcf import Recommender
from idcf.data.interactions import Interactions, Vocab
from idcf.data.side_tables import EnrichedInteractions
from idcf.errors import ConfigError
from idcf.inference.artifact import Artifact, load_artifact, save_artifact
from idcf.inference.manifest import RecommenderConfig
from idcf.models.registry import all_models
from idcf.training.train import fit_artifact

N_USERS, N_ITEMS, MIN_ROWS = 43, 37, 11
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
