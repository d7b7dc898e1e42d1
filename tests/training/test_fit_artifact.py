"""`fit_artifact`: the choice of key users, the options it routes, and the manifest it writes."""

import numpy as np
import pytest
from builders import board

from idcf.data.interactions import Interactions, Vocab
from idcf.data.side_tables import add_side_tables
from idcf.data.split import DEFAULT_KEY_THRESHOLD
from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import load_artifact, save_artifact
from idcf.inference.manifest import DomainInfo, RecommenderConfig, TrainingData
from idcf.inference.model_card import render_model_card
from idcf.models.take_up import TakeUpModel
from idcf.training.options import TrainConfig
from idcf.training.train import (
    MIN_KEY_USERS,
    _route_train_options,
    _split_key_users,
    fit_artifact,
)

TABLE = board(40, 24, 6, 14)


def table_with_counts(counts):
    """Return a table in which user n has rated the first counts[n] items."""
    user = np.repeat(np.arange(len(counts)), counts)
    item = np.concatenate([np.arange(n) for n in counts])
    n_items = max(counts)
    users, items = Vocab(range(len(counts))), Vocab(range(n_items))
    return Interactions(users, items, user, item, np.ones(len(user), np.float32))


def fit(name="bias", table=TABLE, **config):
    titles = (None,) * len(table.items)
    return fit_artifact(
        RecommenderConfig(name, device="cpu", **config), add_side_tables(table, None, None), titles
    )


@pytest.mark.parametrize(
    ("counts", "threshold"),
    [
        ([50, 60, 70, 80], DEFAULT_KEY_THRESHOLD),
        ([1, 1, 1, 1, 1], 1),
        ([2, 4, 6, 8, 10], 6),  # the median
        ([3, 4, 5, 6], 4),  # 4.5, rounded down
        ([0, 0, 0, 5, 5, 5], 5),  # users without rows do not count
    ],
)
def test_the_default_threshold(counts, threshold):
    table = table_with_counts(counts)
    split, chosen = _split_key_users(table, RecommenderConfig("bias"))
    assert chosen == threshold
    assert split.key_users.tolist() == [n for n, x in enumerate(counts) if x >= threshold]


def test_a_given_threshold_wins_and_no_row_is_a_test_row():
    table = table_with_counts([2, 4, 6, 8, 10])
    split, chosen = _split_key_users(table, RecommenderConfig("bias", key_threshold=4))
    assert (chosen, split.key_users.tolist()) == (4, [1, 2, 3, 4])
    assert len(split.test) == 0
    assert len(split.train) == len(table)


def test_too_few_key_users_name_the_numbers_and_the_way_out():
    table = table_with_counts([2, 4, 6, 8, 10])
    with pytest.raises(DataError) as caught:
        _split_key_users(table, RecommenderConfig("bias", key_threshold=8))
    assert str(caught.value) == (
        f"only 2 of 5 users have 8 rows or more; at least {MIN_KEY_USERS} key users are needed: "
        "lower key_threshold or give more data"
    )
    config = RecommenderConfig("bias", key_threshold=1, key_users=2)
    with pytest.raises(DataError, match=r"rows or more and are chosen by key_users=2; at least 3"):
        _split_key_users(table, config)


def test_options_that_only_training_has_get_the_prefix():
    routed = _route_train_options("idcf-nn", {"heads": 2, "epochs": 3, "train.reg": 0.1, "odd": 1})
    assert routed == {"heads": 2, "train.epochs": 3, "train.reg": 0.1, "odd": 1}
    # epochs is an option of the model als, which is solved
    assert _route_train_options("als", {"epochs": 3, "reg": 1.0}) == {"epochs": 3, "reg": 1.0}
    assert _route_train_options("idcf-nn", {}) == {}
    assert "reg" in TrainConfig.__dataclass_fields__


def test_the_manifest_describes_the_training():
    artifact = fit(key_threshold=10, seed=5, preset="clean")
    manifest = artifact.manifest
    assert (manifest.model, manifest.seed, manifest.preset) == ("bias", 5, "clean")
    assert manifest.domain == DomainInfo.from_table(TABLE, manifest.domain.mean)
    split, _ = _split_key_users(TABLE, RecommenderConfig("bias", key_threshold=10, seed=5))
    assert manifest.training_data == TrainingData.from_split(split, 10)
    key_rows = TABLE.for_users(split.key_users)
    assert manifest.domain.mean == pytest.approx(key_rows.mean_rating)
    assert manifest.options.keys() == {"shrinkage", "item_shrinkage"}
    assert (manifest.backbone, manifest.backbone_options) == (None, {})
    assert manifest.new_user_curve is None
    assert artifact.items == TABLE.items


def test_the_manifest_of_a_wrapper_has_the_options_of_its_backbone():
    artifact = fit("idcf-dot", key_threshold=10, options={"embedding_size": 3, "epochs": 1})
    manifest = artifact.manifest
    assert manifest.backbone == "pmf"
    assert manifest.backbone_options["embedding_size"] == 3
    assert "embedding_size" not in manifest.options
    assert artifact.model.key_latents.shape[1] == 3 + 1


def test_the_same_configuration_trains_the_same_model_again():
    first = fit("als", key_threshold=10, seed=3)
    again = fit_artifact(
        first.manifest.config("cpu"), add_side_tables(TABLE, None, None), first.titles
    )
    assert again.manifest == first.manifest
    assert all(
        bool((a == b).all())
        for a, b in zip(
            first.model.state_dict().values(), again.model.state_dict().values(), strict=True
        )
    )


def test_a_solved_model_has_no_epochs_to_call_back():
    def callback(stage, record, /):
        raise AssertionError

    with pytest.raises(ConfigError, match="'bias' is solved, not trained by epochs: leave out"):
        fit_artifact(
            RecommenderConfig("bias", device="cpu"),
            add_side_tables(TABLE, None, None),
            [],
            callback=callback,
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": "bais"}, "no model named 'bais'; did you mean 'bias'"),
        ({"model": "bias", "device": "tpu"}, "device must be auto, cpu or cuda, got 'tpu'"),
        ({"model": "bias", "options": {"shrinkag": 1}}, "did you mean 'shrinkage'"),
        ({"model": "bias", "preset": "cleen"}, "no preset named 'cleen'; did you mean 'clean'"),
        ({"model": "pmf", "options": {"epoch": 1}}, "no option named 'epoch'"),
    ],
)
def test_a_wrong_configuration_is_named(config, message):
    with pytest.raises(ConfigError, match=message):
        fit_artifact(
            RecommenderConfig(**{"key_threshold": 10, "device": "cpu", **config}),
            add_side_tables(TABLE, None, None),
            (None,) * 24,
        )


def test_clicks_get_the_model_of_lists(tmp_path) -> None:
    table = board(60, 40, 6, 14).as_implicit()
    artifact = fit("idcf-bayes", table, key_threshold=5)
    assert artifact.manifest.model == "idcf-bayes"
    assert isinstance(artifact.model, TakeUpModel)
    assert artifact.manifest.details["idcf-takeup"]["relation"] in ("all items", "nearest items")
    save_artifact(artifact, tmp_path / "model")
    assert load_artifact(tmp_path / "model").manifest.details == artifact.manifest.details


def test_the_manifest_says_what_the_solvers_chose() -> None:
    options = {"sweeps": 8, "burn_in": 4}
    manifest = fit("idcf-bayes", board(60, 24, 6, 14), key_threshold=5, options=options).manifest
    assert manifest.details["idcf-bayes"]["sweeps"] == 12
    assert manifest.details["idcf-takeup"]["reg"] in (20.0, 50.0, 100.0)


def test_the_model_card_says_what_the_solvers_chose() -> None:
    options = {"sweeps": 8, "burn_in": 4}
    manifest = fit("idcf-bayes", board(60, 24, 6, 14), key_threshold=5, options=options).manifest
    card = render_model_card(manifest)
    n = manifest.training_data.n_key_users
    assert f"(`idcf-bayes`) key_users {n}, key_users_used {n}, rows_used" in card
    relation = manifest.details["idcf-takeup"]["relation"]
    assert f"(`idcf-takeup`) relation {relation}, reg" in card
    assert "Chosen in training" not in render_model_card(fit("bias").manifest)
