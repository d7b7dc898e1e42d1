"""The expected quality for new users, and its place on the model card."""

from dataclasses import replace

import numpy as np
import pytest

from idcf import Recommender
from idcf.data.split import Split, sample_rows_per_user
from idcf.testing.synthetic import clusters, low_rank
from idcf.training import new_user_curve
from idcf.training.new_user_curve import HISTORY_LENGTHS, measure_new_user_curve
from idcf.training.train import TrainingJob


def split_without_test(table):
    """Return a split whose key users are all users of the table."""
    return Split(table, table.where(np.zeros(len(table), bool)), np.arange(400), np.arange(0))


@pytest.fixture(scope="module")
def ratings():
    """A table of ratings of low rank."""
    return low_rank(400, 60, 3, np.random.default_rng(0), density=0.7).interactions


def test_longer_histories_are_better_and_held_out_users_are_not_trained_on(ratings, monkeypatch):
    tables, original = [], new_user_curve.train

    def record_table(name, job, **options):
        tables.append(job.training_table())
        return original(name, job, **options)

    monkeypatch.setattr(new_user_curve, "train", record_table)
    curve = measure_new_user_curve(
        "als", TrainingJob(split_without_test(ratings)), {"embedding_size": 3, "reg": 1.0}
    )
    assert [p.history_length for p in curve.points] == list(HISTORY_LENGTHS)
    values = [p.value for p in curve.points]
    assert values[-1] < 0.8 * values[0]
    assert all(p.low <= p.value <= p.high for p in curve.points)
    assert curve.points[-1].baseline > values[-1]
    assert (curve.n_users, curve.metric, curve.baseline) == (40, "rmse", "bias")
    for table in tables:
        assert len(np.unique(table.user)) == 360


def test_lists_are_measured_for_implicit_feedback():
    rng = np.random.default_rng(1)
    table = clusters(
        400, 60, 4, rng, rows_per_user=30, in_group_probability=0.9, implicit=True
    ).interactions
    curve = measure_new_user_curve("ease", TrainingJob(split_without_test(table)), {"reg": 20.0})
    assert (curve.metric, curve.cover90) == ("ndcg@20", None)
    assert curve.points[-1].value > 1.2 * curve.points[-1].baseline


def test_too_few_users_are_not_measured(ratings):
    few = replace(split_without_test(ratings), key_users=np.arange(100))
    assert measure_new_user_curve("bias", TrainingJob(few), {}) is None


def test_a_longer_sample_contains_the_shorter(ratings):
    short, long = (sample_rows_per_user(ratings, n, np.random.default_rng(5)) for n in (3, 7))
    assert short.user_counts().max() == 3
    assert long.user_counts().max() == 7
    assert {*zip(short.user, short.item, strict=True)} < {*zip(long.user, long.item, strict=True)}


def test_the_curve_is_on_the_card_and_in_the_saved_folder(ratings, tmp_path):
    recommender = Recommender("bias", key_threshold=10, device="cpu")
    recommender.fit(ratings, card_metrics=True)
    loaded = Recommender.load(recommender.save(tmp_path / "m"))
    curve = recommender.manifest.new_user_curve
    assert loaded.manifest.new_user_curve == curve
    card = (tmp_path / "m" / "card.md").read_text()
    for point in curve.points:
        assert f"| {point.history_length} | {point.value:.3f} [" in card
    folder = Recommender("bias", key_threshold=10).fit(ratings).save(tmp_path / "n")
    assert "not measured" in (folder / "card.md").read_text()
