import numpy as np
import torch

from idcf.data.split import by_threshold, hold_out
from idcf.data.synthetic import low_rank
from idcf.experiment.questions import best, compare, in_turn
from idcf.models import configure
from idcf.train.solvers import SOLVERS, Work

torch.set_num_threads(1)


def test_the_right_questions_are_worth_more_than_any() -> None:
    """A world of two tastes, where items differ much in how they tell people apart."""
    rng = np.random.default_rng(0)
    world = low_rank(260, 90, 2, rng, noise=0.3, density=0.3)
    train, test = hold_out(world.interactions, 0.3, rng)
    split = by_threshold(train, test, 20)
    options = {"embedding_size": 3, "rank": 4, "sweeps": 24, "burn_in": 12, "strength": 5.0}
    config = configure("idcf-bayes", options)
    model = SOLVERS["bayes"](config, train.of(split.key_users), Work())
    found = {k: v.value for k, v in compare(model, split, rng, asked=3).items()}
    assert found["everything"] < found["3 questions"] < found["3 at random"] < found["nothing"]
    assert found["3 questions"] < found["3 most popular"]
    own = split.train.of(split.query_users)
    asked = in_turn(model, own, 3)
    assert own.where(asked).counts()[split.query_users].max() == 3


def test_best_is_a_sort_of_each_users_rows() -> None:
    table = low_rank(12, 9, 1, np.random.default_rng(1), density=0.6).interactions
    worth = np.random.default_rng(2).random(len(table))
    kept = best(table, worth, 2)
    for user in range(12):
        mine = np.flatnonzero(table.user == user)
        expected = set(mine[np.argsort(-worth[mine])][:2].tolist())
        assert set(mine[kept[mine]].tolist()) == expected
