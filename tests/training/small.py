"""A small training for the tests of the loop, its checkpoints and its files."""

import torch

from idcf.testing import synthetic_world
from idcf.testing.worlds import epoch_batches, training_objective, untrained_model, users_with_rows
from idcf.training.loop import fit_by_gradient
from idcf.training.options import TrainConfig

SPLIT = synthetic_world().split
TABLE = SPLIT.train.for_users(SPLIT.key_users)
CONFIG = TrainConfig(epochs=4, learning_rate=0.01, batch_size=256, reg=0.01)


def new_model(name="pmf", seed=0, **options):
    """Return an untrained model with the weights of a seed."""
    torch.manual_seed(seed)
    return untrained_model(name, TABLE, users_with_rows(TABLE), options=options)


def fit(model, config=CONFIG, seed=0, table=TABLE, **options):
    """Train in place and return the log; `options` go to `fit_by_gradient`."""

    def epoch(number):
        return epoch_batches(model, table, config.batch_size, seed=seed, epoch=number)

    objective = training_objective(model, table)
    return fit_by_gradient(model, epoch, objective, config, seed=seed, **options)


def equal_states(a, b):
    """Return whether two state dicts are equal to the bit."""
    return all(torch.equal(v, b[k]) for k, v in a.items()) and a.keys() == b.keys()


def scripted_validation(values, states):
    """Return a validation that gives `values` in turn and appends the weights to `states`."""

    def validate(model):
        assert not model.training
        states.append({k: v.clone() for k, v in model.state_dict().items()})
        return values[len(states) - 1]

    return validate
