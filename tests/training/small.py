"""A small training, for tests of what it leaves behind."""

import torch

from idcf.testing import world
from idcf.testing.worlds import blank, keys_of, objective_of, some_batches
from idcf.training.loop import TrainConfig, fit

torch.set_num_threads(1)

SPLIT = world().split
TABLE = SPLIT.train.of(SPLIT.key_users)
CONFIG = TrainConfig(epochs=4, learning_rate=0.01, batch_size=256, reg=0.01)


def made(name="pmf", seed=0, **options):
    torch.manual_seed(seed)
    return blank(name, TABLE, keys_of(TABLE), options=options)


def run(model, config=CONFIG, seed=0, table=TABLE, **more):
    def epoch(number):
        return some_batches(model, table, config.batch_size, seed=seed, number=number)

    return fit(model, epoch, objective_of(model, table), config, seed=seed, **more)


def equal(a, b):
    return all(torch.equal(v, b[k]) for k, v in a.items()) and a.keys() == b.keys()


def scripted(values, seen):
    """A validation that says these numbers in turn and remembers the weights it was shown."""

    def validate(model):
        assert not model.training
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return values[len(seen) - 1]

    return validate
