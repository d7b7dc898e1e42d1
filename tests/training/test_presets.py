"""The table of presets: every row is readable, data sets refine, options win."""

import pytest

from idcf.data.datasets.catalog import SOURCES
from idcf.errors import ConfigError
from idcf.models.registry import all_models, configure
from idcf.training import presets
from idcf.training.presets import Setting, setting, stages

TABLE = presets._table()


@pytest.mark.parametrize("preset", TABLE)
@pytest.mark.parametrize("name", all_models())
def test_every_row_can_be_read(preset, name):
    for dataset in ("", *SOURCES, "a file of somebody's own"):
        found = setting(name, preset=preset, dataset=dataset)
        configure(name, found.options)
        assert found.train.epochs > 0


def test_the_two_presets():
    assert set(TABLE) == {"clean", "published"}
    trained = {row.presets_of or name for name, row in all_models().items() if not row.solver}
    assert trained <= set(TABLE["clean"])


@pytest.mark.parametrize("preset", TABLE)
def test_every_key_is_an_option_or_a_data_set(preset):
    """Anything else would be passed over in silence."""
    for name, row in TABLE[preset].items():
        parts = [row, row.get("default", {}), *row.get("dataset", {}).values()]
        assert set(row.get("dataset", {})) <= set(SOURCES)
        for part in (*parts, *(part.get("few-shot", {}) for part in parts)):
            keys = set(part) - {"default", "dataset", "few-shot"}
            assert keys <= presets._FIELDS, (name, keys)


def test_a_data_set_s_row_refines_the_model_s():
    for preset, rows in TABLE.items():
        for name, row in rows.items():
            for dataset, refined in row.get("dataset", {}).items():
                own = setting(name, preset=preset, dataset=dataset)
                for key, value in refined.get("train", {}).items():
                    assert getattr(own.train, key) == value
                for key in set(row.get("train", {})) - set(refined.get("train", {})):
                    assert getattr(own.train, key) == row["train"][key]


def test_published_follows_the_published_code():
    """Choices that differ from the paper or from good practice."""
    for name in ("idcf-nn", "idcf-gc"):
        found = setting(name, preset="published")
        assert found.options["bias"] == "own"
        assert not found.episodes
        assert found.train.contrast > 0
    for name in ("nnmf", "gcmc"):
        found = setting(name, preset="published")
        assert found.train.penalty == "norm"
        assert found.options["center"] is False
    assert setting("gcmc", preset="published").whole_graph
    assert not setting("gcmc").whole_graph
    assert setting("idcf-nn").episodes


# λ of the pretraining of IDCF-NN and IDCF-GC, and the weight decay of both stages of IDCF-GC
SUMS = {
    "douban": (0.1, 0.1, 0.05, 1.0),
    "ml-100k": (0.1, 0.1, 0.05, 1.0),
    "ml-1m": (0.2, 0.2, 0.0, 0.0),
    "amazon-books": (0.1, 0.001, 0.0, 0.05),
    "amazon-beauty": (0.1, 0.001, 0.0, 0.05),
}


@pytest.mark.parametrize(("dataset", "expected"), SUMS.items())
def test_published_weighs_means_as_the_public_code_weighs_sums(dataset, expected):
    """A sum is over the batch and, without ratings, over a positive's negatives as well."""
    implicit = dataset.startswith("amazon")
    nn, gc = (stages(n, preset="published", dataset=dataset) for n in ("idcf-nn", "idcf-gc"))

    def each(train):
        return 1 + train.negatives * implicit

    def whole(train):
        return train.batch_size * each(train)

    penalties = [x.train.reg * each(x.train) for x in (nn["nnmf"], gc["gcmc"])]
    decays = [x.train.coupled_decay * whole(x.train) for x in (gc["gcmc"], gc["idcf-gc"])]
    assert [*penalties, *decays] == pytest.approx(expected, rel=0.03)
    for wrapper in (nn["idcf-nn"], gc["idcf-gc"]):
        assert wrapper.train.contrast * whole(wrapper.train) == pytest.approx(10, rel=0.03)


@pytest.mark.parametrize("dataset", SOURCES)
def test_a_wrapped_backbone_is_not_the_one_that_is_compared(dataset):
    """The public code trains NNMF for 100 epochs on Douban, and inside IDCF-NN for 50."""
    where = {"preset": "published", "dataset": dataset}
    stage = stages("idcf-nn", {"embedding_size": 3, "heads": 2}, **where)
    assert [*stage] == ["idcf-nn", "nnmf"]
    assert stage["idcf-nn"].options["heads"] == 2
    assert stage["nnmf"].options["embedding_size"] == 3
    alone = setting("nnmf", **where).train
    differs = {"douban": (50, 0.1), "ml-1m": (100, 0.2)}
    expected = differs.get(dataset, (alone.epochs, alone.reg))
    assert (stage["nnmf"].train.epochs, stage["nnmf"].train.reg) == expected


def test_few_shot_users_may_have_settings_of_their_own():
    where = {"preset": "published", "dataset": "ml-1m"}
    new, few = (setting("idcf-nn", **where, users=who) for who in ("new", "few-shot"))
    assert (new.train.learning_rate, few.train.learning_rate) == (0.001, 0.01)  # the row's
    assert (new.train.decay, few.train.decay) == (0.95, 0.99)  # the data set's
    assert (new.validation, few.validation) == (0.0, 0.05)
    assert new.train.batch_size == few.train.batch_size == 1024
    assert setting("nnmf", users="few-shot") == setting("nnmf")


def test_options_win():
    found = setting("pmf", options={"embedding_size": 3, "train.epochs": 2, "train.reg": 0.5})
    assert found.options["embedding_size"] == 3
    assert (found.train.epochs, found.train.reg) == (2, 0.5)
    assert found.train.batch_size == setting("pmf").train.batch_size


def test_a_model_without_a_row_gets_the_defaults():
    assert setting("ease") == Setting()


def test_what_does_not_exist_is_told():
    with pytest.raises(ConfigError, match="no preset named 'cleen'; did you mean 'clean'"):
        setting("pmf", preset="cleen")
    with pytest.raises(ConfigError, match="did you mean 'idcf-nn'"):
        setting("idcf-nm")
    with pytest.raises(ConfigError, match=r"training of 'pmf'.*did you mean 'epochs'"):
        setting("pmf", options={"train.epoch": 3})
    with pytest.raises(ConfigError, match="'epochs' is 'many'"):
        setting("pmf", options={"train.epochs": "many"})


@pytest.mark.parametrize(
    "dataset",
    [
        "train",
        "options",
        "targets",
        "few-shot",
    ],
)
def test_a_data_set_may_be_called_anything(dataset):
    """A person's own file, named like a key of the row."""
    for preset in TABLE:
        for name in all_models():
            assert setting(name, preset=preset, dataset=dataset) == setting(name, preset=preset)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("[clean.bais]", "b.toml, clean: no model named 'bais'; did you mean 'bias'"),
        ("[clean.pmf]\ntargets = 3", "b.toml, clean.pmf: 'targets' is set twice"),
    ],
)
def test_files_that_do_not_agree(tmp_path, row, words):
    (tmp_path / "a.toml").write_text("[clean.pmf]\ntargets = 2\n")
    (tmp_path / "b.toml").write_text("[clean.pmf.default]\ntargets = 4\n")
    assert presets.read_presets(tmp_path) == {
        "clean": {"pmf": {"targets": 2, "default": {"targets": 4}}}
    }
    (tmp_path / "b.toml").write_text(row)
    with pytest.raises(ConfigError, match=words):
        presets.read_presets(tmp_path)
