"""Checks for models, shipped with the library, and synthetic data whose right answer is known.

For everyone who writes a model, in this repository or in a package of their own. `model_checks`
returns the checks that every model of the registry must pass; each is a function without arguments
that raises `AssertionError` with a message. With pytest, three lines run them all::

    @pytest.mark.parametrize("check", idcf.testing.model_checks("my-model"))
    def test_my_model(check):
        check()

The name is that of a `ModelEntry` in `idcf.models.registry.MODELS` or in a mapping that a package
publishes under the entry-point group `idcf.models`. A check trains the model in a small world of
160 users and 40 items, in which even users like even items and odd users odd ones; a world takes
about a second. The entry says how: `check_options` are the options for so small a dataset, and
`check_loss` the loss of models that are trained by gradient. `learns_item_quality_only=True` asks
for a world in which all users like the same items.

To look at a model that fails a check, train it by hand::

    world = idcf.testing.synthetic_world()
    result = idcf.testing.train_in_world("my-model")
    result.model, result.key_user_model, world.split, world.likes(user, item)

`idcf.testing.synthetic` makes larger datasets, for tests and for benchmarks of scale.
"""

from __future__ import annotations

from idcf.testing.checks import model_checks
from idcf.testing.worlds import SyntheticWorld, synthetic_world, train_in_world, trained_in_world

__all__ = [
    "SyntheticWorld",
    "model_checks",
    "synthetic_world",
    "train_in_world",
    "trained_in_world",
]
