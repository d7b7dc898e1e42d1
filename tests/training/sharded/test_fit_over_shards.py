"""Fits over shards: the same bits for any shards and engine, and the models of tables in memory."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import board
from shard_files import write_shards

from idcf import ConfigError, DataError, Recommender
from idcf.data.interactions import Interactions, Vocab, recode_ids
from idcf.data.shards import TableBlocks
from idcf.errors import EngineError
from idcf.inference.artifact import Artifact
from idcf.inference.manifest import RecommenderConfig
from idcf.training.engine import LocalEngine, ProcessEngine
from idcf.training.sharded import cooccurrences
from idcf.training.sharded.fit import fit_sharded_artifact, models_over_shards

OPTIONS = {
    "idcf-bayes": {"sweeps": 8, "burn_in": 4},
    "als": {"embedding_size": 4, "epochs": 3},
    "als-popularity": {"embedding_size": 4, "epochs": 3},
    "ease": {"reg": 50.0},
    "item-knn": {"reg": 5.0, "neighbors": 10},
    "idcf-takeup": {"reg": 20.0, "power": 1.0, "spectral_weight": 0.3, "regression": "nearest"},
}


class ShuffledEngine(LocalEngine):
    """Makes the calls in random order, and one of them twice."""

    def map(self, call, tasks: Sequence[tuple], state) -> Iterator[tuple[int, object]]:
        """Yield the results in random order."""
        for position in np.random.default_rng(len(tasks)).permutation(len(tasks)).tolist():
            yield position, call(*tasks[position], state)


@cache
def table(implicit: bool = False) -> Interactions:
    """Return a table in which every user has rows, and ids are in order as in shards."""
    data = board(150, 40, 6, 18, implicit=implicit)
    users, items = (Vocab(sorted(x.ids)) for x in (data.users, data.items))
    return recode_ids(data, users, items)


def kind(name: str) -> bool:
    """Return whether the model is fitted without ratings here."""
    return name in ("idcf-takeup", "idcf-odds", "als-popularity")


def fit(name: str, blocks, engine=None, **arguments: object) -> Artifact:
    config = RecommenderConfig(name, OPTIONS.get(name, {}), key_threshold=8, device="cpu")
    titles = (None,) * blocks.n_items
    return fit_sharded_artifact(config, blocks, titles, engine or LocalEngine(), **arguments)


def assert_same_bits(first: Artifact, second: Artifact) -> None:
    assert first.manifest == second.manifest
    for a, b in ((first.model, second.model), (first.take_up_model, second.take_up_model)):
        assert (a is None) == (b is None)
        for key, value in {} if a is None else a.state_dict().items():
            assert torch.equal(value, b.state_dict()[key]), key


@pytest.mark.parametrize("name", models_over_shards())
def test_shards_and_their_order_change_no_bit(name: str, tmp_path: Path) -> None:
    blocks = TableBlocks(table(kind(name)), 16)
    one = fit(name, blocks, n_shards=1)
    assert_same_bits(one, fit(name, blocks, n_shards=2))
    assert_same_bits(one, fit(name, blocks, ShuffledEngine(), n_shards=64))
    folder = write_shards(table(kind(name)), tmp_path, 3)
    assert_same_bits(one, fit(name, folder))


@pytest.mark.parametrize("name", ["als", "bias", "idcf-takeup"])
def test_sixty_four_shards_in_any_order_change_no_bit(name: str) -> None:
    blocks = TableBlocks(table(kind(name)), 2)
    assert blocks.n_blocks > 64
    one = fit(name, blocks, n_shards=1)
    for n_shards in (2, 8, 64):
        assert_same_bits(one, fit(name, blocks, ShuffledEngine(), n_shards=n_shards))


def test_the_bar_of_a_pass_has_rows_per_second_and_the_time_left(monkeypatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    fit("als", TableBlocks(table(), 2), n_shards=64, progress=True)
    lines = [x for x in re.split(r"[\r\n]+", stream.getvalue()) if "sweep 2 of 3" in x]
    assert re.search(r"100%.*\[\d\d:\d\d<\d\d:\d\d, +[\d.]+[kM]? rows/s\]", lines[-1]), lines


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(2)
    yield engine
    engine.close()


@pytest.mark.parametrize("name", ["als", "idcf-bayes"])
def test_processes_change_no_bit(name: str, processes: ProcessEngine, tmp_path: Path) -> None:
    folder = write_shards(table(kind(name)), tmp_path)
    assert_same_bits(fit(name, folder, processes), fit(name, folder))


@pytest.mark.parametrize(
    ("name", "implicit"),
    [
        ("popularity", False), ("popularity", True), ("item-mean", False), ("bias", False),
        ("als", False), ("als", True), ("ease", True), ("item-knn", False), ("item-knn", True),
    ],
)  # fmt: skip
def test_simple_models_are_those_of_a_table_in_memory(name: str, implicit: bool) -> None:
    data, options = table(implicit), dict(OPTIONS.get(name, {}))
    if name == "bias":
        options["shrinkage"] = 5.0
    if name == "als":
        options |= {"reg": 5.0, "alpha": 10.0}
    memory = Recommender(name, key_threshold=8, device="cpu", **options).fit(data)
    config = RecommenderConfig(name, options, key_threshold=8, device="cpu")
    blocks = TableBlocks(data, 16)
    titles = (None,) * len(data.items)
    shards = Recommender.from_artifact(fit_sharded_artifact(config, blocks, titles, LocalEngine()))
    for history in ({"i1": 5.0, "i2": 1.0}, {"i7": 4.0}, {}):
        first, second = (
            {x.item_id: x.score for x in r.recommend(list(history) if implicit else history, n=30)}
            for r in (memory, shards)
        )
        both = sorted(first.keys() & second.keys())
        assert len(both) >= 25
        np.testing.assert_allclose(
            [first[x] for x in both], [second[x] for x in both], rtol=1e-4, atol=1e-5
        )
    expected, found = memory.manifest.domain, shards.manifest.domain
    assert found.levels == expected.levels
    assert found.mean == pytest.approx(expected.mean, abs=1e-6)
    assert found.std == pytest.approx(expected.std, abs=1e-5)


@pytest.mark.parametrize("name", ["idcf-bayes", "idcf-takeup"])
def test_lists_over_shards_know_the_taste(name: str) -> None:
    """Even and odd items are liked by different users, in the table of `board`."""
    implicit = kind(name)
    model = Recommender.from_artifact(fit(name, TableBlocks(table(implicit), 16)))
    history = ["i0", "i2", "i4"] if implicit else {"i0": 5.0, "i2": 5.0, "i1": 1.0}
    items = [int(x.item_id[1:]) for x in model.recommend(history, n=8)]
    assert sum(x % 2 == 0 for x in items) >= 7


def test_pairs_counted_over_all_users_are_those_of_all_rows(monkeypatch) -> None:
    """With a sample of users for the candidates, the counts are those of all users."""
    from scipy.sparse import csr_array

    from idcf.training.sharded.training import ShardedTraining
    from idcf.training.solvers.odds import interaction_matrix

    data = board(400, 40, 6, 18, implicit=True)
    monkeypatch.setattr(cooccurrences, "CANDIDATE_ROWS", 1500)
    monkeypatch.setattr(cooccurrences, "_MAX_PAIRS", 3000)  # several blocks at a time
    source = cooccurrences.ShardedSource(ShardedTraining(TableBlocks(data, 16), LocalEngine()), "x")
    nearest = source.nearest_items(8)
    x = interaction_matrix(data)
    gram = csr_array(x.T @ x).toarray()
    np.testing.assert_array_equal(nearest.n_users, np.diagonal(gram))
    items, counts = nearest.items.numpy(), nearest.counts.numpy()
    rows, columns = np.nonzero(counts)
    assert len(rows) > 200
    np.testing.assert_array_equal(counts[rows, columns], gram[rows, items[rows, columns]])
    assert (rows != items[rows, columns]).all()
    nearness = counts * (np.diagonal(gram) + 20.0)[items] ** -0.5
    assert (np.diff(nearness, axis=1) <= 1e-6).all()


def test_users_left_out_are_not_read() -> None:
    from idcf.training.sharded.training import ShardedTraining
    from idcf.training.solvers.cooccurrences import MatrixSource
    from idcf.training.solvers.odds import interaction_matrix

    data = table(True)
    training, users = ShardedTraining(TableBlocks(data, 16), LocalEngine()), np.array([3, 17, 90])
    source = cooccurrences.ShardedSource(training, "others", users)
    expected = MatrixSource(interaction_matrix(data.where(~np.isin(data.user, users))))
    np.testing.assert_array_equal(source.item_counts, expected.item_counts)
    assert (source.n_users, source.n_entries) == (expected.n_users, expected.n_entries)
    for a, b in zip(source.length_counts(), expected.length_counts(), strict=True):
        np.testing.assert_array_equal(a, b)
    first, second = (x.weighted_gram(lambda n: n**-0.5) for x in (source, expected))
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_the_samples_of_users_are_random_and_of_the_size_that_is_given() -> None:
    from idcf.training.sharded.training import ShardedTraining

    training = ShardedTraining(TableBlocks(board(3000, 40, 6, 18), 256), LocalEngine(), seed=3)
    some = training.sample("some", max_rows=10_000)
    assert 8_000 < len(some.items) <= 10_000
    assert 1300 < np.median(some.users) < 1700
    assert (np.diff(some.users) > 0).all()
    light = training.sample("light", max_users=200, user_rows=(2, 10))
    assert 200 <= len(light.users) < 230
    assert light.lengths.max() <= 10
    assert len(training.sample("all").users) == 3000


def test_a_fit_goes_on_from_the_passes_that_it_finished(tmp_path: Path) -> None:
    """The engine stops working in every pass in turn; each fit goes on from the last one."""

    class FailingEngine(LocalEngine):
        """Makes some calls, then raises."""

        n_calls = 0

        def map(self, call, tasks: Sequence[tuple], state) -> Iterator[tuple[int, object]]:
            for position, result in super().map(call, tasks, state):
                FailingEngine.n_calls += 1
                if FailingEngine.n_calls % 5 == 0:
                    raise EngineError("no more workers")
                yield position, result

    folder, resume = write_shards(table(), tmp_path / "shards"), tmp_path / "resume"
    expected = fit("als", folder, n_shards=3)
    artifact, n_fits = None, 0
    while artifact is None:
        n_fits += 1
        try:
            artifact = fit("als", folder, FailingEngine(), n_shards=3, resume=resume)
        except EngineError:
            assert any(resume.iterdir())
    assert 3 < n_fits < 100
    assert_same_bits(artifact, expected)
    assert not resume.exists()


def test_passes_of_another_fit_are_refused(tmp_path: Path) -> None:
    folder, resume = write_shards(table(), tmp_path / "shards"), tmp_path / "resume"

    class DeadEngine(LocalEngine):
        def map(self, call, tasks, state) -> Iterator[tuple[int, object]]:
            raise EngineError("no workers")
            yield

    with pytest.raises(EngineError):
        fit("als", folder, DeadEngine(), resume=resume)
    with pytest.raises(ConfigError, match="holds a training with model 'als', not 'bias'"):
        fit("bias", folder, resume=resume)
    other = write_shards(board(60, 40, 6, 18), tmp_path / "other")
    with pytest.raises(ConfigError, match="holds a training with data"):
        fit("als", other, resume=resume)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("keep")
    with pytest.raises(ConfigError, match="holds no interrupted training"):
        fit("als", folder, resume=tmp_path / "full")
    with pytest.raises(ConfigError, match="only fits of a folder of shards can be resumed"):
        fit("als", TableBlocks(table()), resume=tmp_path / "new")


def test_a_recommender_is_fitted_to_a_folder_of_shards(tmp_path: Path) -> None:
    data = table()
    write_shards(data, tmp_path / "shards")
    options = {"key_threshold": 8, "device": "cpu", **OPTIONS["idcf-bayes"]}
    items = {"i0": "Alien", "i1": "Heat"}
    recommender = Recommender(**options).fit(
        tmp_path / "shards", engine="local", titles=items, attributes={"genre": {"i2": "Comedy"}}
    )
    assert recommender.recommend({"i2": 5.0}, n=40)[0].title in (None, "Alien", "Heat")
    only = recommender.recommend({"i0": 5.0}, where={"genre": "Comedy"})
    assert [x.item_id for x in only] == ["i2"]
    saved = Recommender.load(recommender.save(tmp_path / "model"))
    assert saved.recommend({"i2": 5.0}) == recommender.recommend({"i2": 5.0})
    clicks = Recommender("popularity", key_threshold=8).fit(
        tmp_path / "shards", engine="local", implicit=True
    )
    assert clicks.manifest.domain.implicit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "lokal"}, "no engine named 'lokal'; did you mean 'local'"),
        ({"engine": "local", "card_metrics": True}, "card_metrics needs the table in memory"),
        ({"engine": "local", "duplicates": "count"}, "duplicates='count' needs the table in mem"),
    ],
)
def test_arguments_that_do_not_fit_shards(arguments: dict, message: str, tmp_path: Path) -> None:
    write_shards(table(), tmp_path)
    with pytest.raises(ConfigError, match=message):
        Recommender("bias").fit(tmp_path, **arguments)


def test_what_needs_memory_is_refused_with_a_sentence(tmp_path: Path) -> None:
    write_shards(table(), tmp_path)
    with pytest.raises(
        ConfigError, match="'slim' cannot be trained over shards; leave out the eng"
    ):
        Recommender("slim").fit(tmp_path, engine="local", implicit=True)
    with pytest.raises(ConfigError, match="key_users='random' needs the table in memory"):
        Recommender("bias", key_users="random").fit(tmp_path, engine="local")
    with pytest.raises(ConfigError, match="trains on a folder of shards, not on Interactions"):
        Recommender("bias").fit(table(), engine="local")
    with pytest.raises(DataError, match="only 0 of 150 users have 1000 rows or more"):
        Recommender("bias", key_threshold=1000).fit(tmp_path, engine="local")
