"""Presets: every row is valid, datasets refine rows, and options given by the user win."""

import subprocess
import sys

import pytest

from idcf.data.datasets.catalog import DATASET_SOURCES
from idcf.errors import ConfigError
from idcf.models.registry import all_models, configure
from idcf.training import presets
from idcf.training.presets import StageConfig, stage_config, stage_configs

TABLE = presets._all_presets()


@pytest.mark.parametrize("preset", TABLE)
@pytest.mark.parametrize("name", all_models())
def test_every_row_is_valid(preset, name):
    for dataset in ("", *DATASET_SOURCES, "an unnamed file"):
        config = stage_config(name, preset=preset, dataset=dataset)
        configure(name, config.options)
        assert config.train.epochs > 0


def test_the_two_presets():
    assert set(TABLE) == {"clean", "published"}
    trained = {row.presets_of or name for name, row in all_models().items() if not row.solver}
    assert trained <= set(TABLE["clean"])


@pytest.mark.parametrize("preset", TABLE)
def test_every_key_is_an_option_or_a_dataset(preset):
    """Any other key would be ignored without an error."""
    for name, row in TABLE[preset].items():
        parts = [row, row.get("default", {}), *row.get("dataset", {}).values()]
        assert set(row.get("dataset", {})) <= set(DATASET_SOURCES)
        for part in (*parts, *(part.get("few-shot", {}) for part in parts)):
            keys = set(part) - {"default", "dataset", "few-shot"}
            assert keys <= presets._STAGE_FIELDS, (name, keys)


def test_the_part_of_a_dataset_refines_the_row_of_a_model():
    for preset, rows in TABLE.items():
        for name, row in rows.items():
            for dataset, refined in row.get("dataset", {}).items():
                config = stage_config(name, preset=preset, dataset=dataset)
                for key, value in refined.get("train", {}).items():
                    assert getattr(config.train, key) == value
                for key in set(row.get("train", {})) - set(refined.get("train", {})):
                    assert getattr(config.train, key) == row["train"][key]


def test_published_follows_the_published_code():
    """The choices of the published code that differ from the paper or from good practice."""
    for name in ("idcf-nn", "idcf-gc"):
        config = stage_config(name, preset="published")
        assert config.options["bias"] == "own"
        assert not config.episodes
        assert config.train.contrast > 0
        assert config.train.contrast_over == "trained"
        assert not config.options["query_length"]
        assert not config.options["relate_bias"]
        assert config.options["key_sample"] == "user"
        assert config.options["relation_start"] == "glorot"
    for name in ("nnmf", "gcmc"):
        config = stage_config(name, preset="published")
        assert config.train.penalty == "norm"
        assert config.options["center"] is False
    assert stage_config("gcmc", preset="published").graph_includes_query_users
    assert not stage_config("gcmc").graph_includes_query_users
    assert stage_config("idcf-nn").episodes


# λ of the pretraining of IDCF-NN and IDCF-GC, and the weight decay of both stages of IDCF-GC
PUBLISHED_SUMS = {
    "douban": (0.1, 0.1, 0.05, 1.0),
    "ml-100k": (0.1, 0.1, 0.05, 1.0),
    "ml-1m": (0.2, 0.2, 0.0, 0.0),
    "amazon-books": (0.1, 0.001, 0.0, 0.05),
    "amazon-beauty": (0.1, 0.001, 0.0, 0.05),
}


@pytest.mark.parametrize(("dataset", "expected"), PUBLISHED_SUMS.items())
def test_published_weighs_means_as_the_public_code_weighs_sums(dataset, expected):
    """A sum runs over the batch and, for implicit feedback, over the negatives of a positive."""
    implicit = dataset.startswith("amazon")
    nn, gc = (stage_configs(n, preset="published", dataset=dataset) for n in ("idcf-nn", "idcf-gc"))

    def scores_per_row(train):
        return 1 + train.negatives * implicit

    def scores_per_batch(train):
        return train.batch_size * scores_per_row(train)

    penalties = [x.train.reg * scores_per_row(x.train) for x in (nn["nnmf"], gc["gcmc"])]
    decays = [
        x.train.coupled_decay * scores_per_batch(x.train) for x in (gc["gcmc"], gc["idcf-gc"])
    ]
    assert [*penalties, *decays] == pytest.approx(expected, rel=0.03)
    for wrapper in (nn["idcf-nn"], gc["idcf-gc"]):
        assert wrapper.train.contrast * scores_per_batch(wrapper.train) == pytest.approx(
            10, rel=0.03
        )


@pytest.mark.parametrize("dataset", DATASET_SOURCES)
def test_a_wrapped_backbone_may_be_trained_differently(dataset):
    """The public code trains NNMF for 100 epochs on Douban, and inside IDCF-NN for 50."""
    row = {"preset": "published", "dataset": dataset}
    stage = stage_configs("idcf-nn", {"embedding_size": 3, "heads": 2}, **row)
    assert [*stage] == ["idcf-nn", "nnmf"]
    assert stage["idcf-nn"].options["heads"] == 2
    assert stage["nnmf"].options["embedding_size"] == 3
    alone = stage_config("nnmf", **row).train
    differs = {"douban": (50, 0.1), "ml-1m": (100, 0.2)}
    expected = differs.get(dataset, (alone.epochs, alone.reg))
    assert (stage["nnmf"].train.epochs, stage["nnmf"].train.reg) == expected


@pytest.mark.parametrize("dataset", DATASET_SOURCES)
@pytest.mark.parametrize("mode", ["new", "few-shot"])
@pytest.mark.parametrize("name", ["idcf-nn", "idcf-gc"])
def test_published_has_one_rule_for_the_number_of_epochs(name, mode, dataset):
    config = stage_config(name, preset="published", dataset=dataset, query_user_mode=mode)
    assert (config.train.epochs, config.train.patience) == (500, 10)
    assert (config.validation, config.validate_on) == (0.05, "rows")
    assert not config.refit_on_all


def test_few_shot_users_may_have_other_options():
    row = {"preset": "published", "dataset": "ml-1m"}
    new, few = (
        stage_config("idcf-nn", **row, query_user_mode=mode) for mode in ("new", "few-shot")
    )
    assert (new.train.learning_rate, few.train.learning_rate) == (0.001, 0.01)  # from the row
    assert (new.train.decay, few.train.decay) == (0.95, 0.99)  # from the dataset
    assert new.train.batch_size == few.train.batch_size == 1024
    assert stage_config("nnmf", query_user_mode="few-shot") == stage_config("nnmf")


def test_given_options_win():
    config = stage_config("pmf", options={"embedding_size": 3, "train.epochs": 2, "train.reg": 0.5})
    assert config.options["embedding_size"] == 3
    assert (config.train.epochs, config.train.reg) == (2, 0.5)
    assert config.train.batch_size == stage_config("pmf").train.batch_size


def test_a_model_without_a_row_gets_the_defaults():
    assert stage_config("ease") == StageConfig()


def test_an_unknown_name_is_an_error():
    with pytest.raises(ConfigError, match="no preset named 'cleen'; did you mean 'clean'"):
        stage_config("pmf", preset="cleen")
    with pytest.raises(ConfigError, match="did you mean 'idcf-nn'"):
        stage_config("idcf-nm")
    with pytest.raises(ConfigError, match=r"training of 'pmf'.*did you mean 'epochs'"):
        stage_config("pmf", options={"train.epoch": 3})
    with pytest.raises(ConfigError, match="'epochs' is 'many'"):
        stage_config("pmf", options={"train.epochs": "many"})


@pytest.mark.parametrize(
    "dataset",
    ["train", "options", "targets_per_episode", "few-shot"],
)
def test_a_dataset_may_be_called_anything(dataset):
    """A user's file may be named like a key of the row."""
    for preset in TABLE:
        for name in all_models():
            assert stage_config(name, preset=preset, dataset=dataset) == stage_config(
                name, preset=preset
            )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[clean.bais]", "b.toml, clean: no model named 'bais'; did you mean 'bias'"),
        (
            "[clean.pmf]\ntargets_per_episode = 3",
            "b.toml, clean.pmf: 'targets_per_episode' is set twice",
        ),
    ],
)
def test_files_that_do_not_agree(tmp_path, row, message):
    (tmp_path / "a.toml").write_text("[clean.pmf]\ntargets_per_episode = 2\n")
    (tmp_path / "b.toml").write_text("[clean.pmf.default]\ntargets_per_episode = 4\n")
    assert presets.read_presets(tmp_path) == {
        "clean": {"pmf": {"targets_per_episode": 2, "default": {"targets_per_episode": 4}}}
    }
    (tmp_path / "b.toml").write_text(row)
    with pytest.raises(ConfigError, match=message):
        presets.read_presets(tmp_path)


def test_a_core_model_reads_no_plugin():
    """Fitting the default model must not import the paper's systems."""
    code = (
        "import sys; from idcf.training.presets import stage_configs; "
        "stage_configs('idcf-nn', preset='clean', dataset='ml-100k'); "
        "print([m for m in sys.modules if m.startswith('idcf.paper')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
