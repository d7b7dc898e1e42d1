"""What the card says newcomers may expect."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from idcf import Recommender
from idcf.data.split import Split, first
from idcf.models.registry import all_models
from idcf.testing.synthetic import clusters, low_rank
from idcf.training import new_user_curve
from idcf.training.new_user_curve import LENGTHS, rehearse
from idcf.training.train import Job

torch.set_num_threads(1)


def split_of(table):
    return Split(table, table.where(np.zeros(len(table), bool)), np.arange(400), np.arange(0))


@pytest.fixture(scope="module")
def rated():
    return low_rank(400, 60, 3, np.random.default_rng(0), density=0.7).interactions


def test_the_more_is_shown_the_better_and_who_is_held_out_is_not_trained_on(rated, monkeypatch):
    tables, true = [], new_user_curve.train
    monkeypatch.setattr(
        new_user_curve,
        "train",
        lambda name, job, **more: tables.append(job.table()) or true(name, job, **more),
    )
    found = rehearse("als", Job(split_of(rated)), {"embedding_size": 3, "reg": 1.0})
    assert [p.shown for p in found.curve] == list(LENGTHS)
    values = [p.value for p in found.curve]
    assert values[-1] < 0.8 * values[0]
    assert all(p.low <= p.value <= p.high for p in found.curve)
    assert found.curve[-1].plain > values[-1]
    assert (found.people, found.metric, found.plain) == (40, "rmse", "bias")
    for table in tables:
        assert len(np.unique(table.user)) == 360


def test_without_ratings_lists_are_measured():
    rng = np.random.default_rng(1)
    table = clusters(400, 60, 4, rng, each=30, loyalty=0.9, implicit=True).interactions
    found = rehearse("ease", Job(split_of(table)), {"reg": 20.0})
    assert (found.metric, found.cover90) == ("ndcg@20", None)
    assert found.curve[-1].value > 1.2 * found.curve[-1].plain


def test_few_people_are_not_measured(rated):
    few = replace(split_of(rated), key_users=np.arange(100))
    assert rehearse("bias", Job(few), {}) is None


def test_a_longer_cut_holds_the_shorter(rated):
    short, long = (first(rated, n, np.random.default_rng(5)) for n in (3, 7))
    assert short.counts().max() == 3
    assert long.counts().max() == 7
    assert {*zip(short.user, short.item, strict=True)} < {*zip(long.user, long.item, strict=True)}


def test_the_card_tells_and_the_folder_keeps_it(rated, tmp_path):
    assert all_models()["bias"].solver
    made = Recommender("bias", key_threshold=10, device="cpu").fit(rated, measure=True)
    again = Recommender.load(made.save(tmp_path / "m"))
    assert again.about.measured == made.about.measured
    card = (tmp_path / "m" / "card.md").read_text()
    for point in made.about.measured.curve:
        assert f"| {point.shown} | {point.value:.3f} [" in card
    assert (
        "not measured"
        in Recommender("bias", key_threshold=10)
        .fit(rated)
        .save(tmp_path / "n")
        .joinpath("card.md")
        .read_text()
    )
