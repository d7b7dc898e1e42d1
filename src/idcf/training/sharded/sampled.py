"""Solvers over shards that read a random sample of the key users, of a bounded number of rows.

A posterior over item vectors hardly changes beyond some ratings per item (see "Are fewer key users
enough?" in the documentation), so that the sample does not grow with the users.
"""

from __future__ import annotations

from dataclasses import replace

from idcf.models.bayes import BayesModel
from idcf.models.odds import OddsModel
from idcf.models.options import LARGE_CATALOG, BayesConfig, OddsConfig
from idcf.training import size_limits
from idcf.training.sharded.training import ShardedTraining
from idcf.training.solvers import SolverContext, bayes, odds
from idcf.types import Domain

_MAX_ODDS_ROWS = 2_000_000
_MAX_ODDS_SIDE = 10_000  # the smaller number of users and items, of which a matrix is inverted


def fit_bayes(
    config: BayesConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> BayesModel:
    """Fit idcf-bayes to as many key users as it reads of a table in memory."""
    n_rows, n_items = training.n_rows, training.n_items
    max_rows = None
    if n_rows > size_limits.LARGE_TABLE or n_items >= LARGE_CATALOG:
        max_rows = max(size_limits.MIN_SAMPLED_ROWS, size_limits.SAMPLED_ROWS_PER_ITEM * n_items)
    table = training.as_table(training.sample("key users of idcf-bayes", max_rows=max_rows))
    model = bayes.fit_bayes(config, table, replace(context, table_rows=n_rows))
    context.details.update(key_users=training.n_users)
    return model


def fit_odds(
    config: OddsConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> OddsModel:
    """Fit idcf-odds to users of whom it can invert a matrix."""
    max_users = _MAX_ODDS_SIDE if training.n_items > _MAX_ODDS_SIDE else None
    histories = training.sample(
        "key users of idcf-odds", max_rows=_MAX_ODDS_ROWS, max_users=max_users
    )
    table = training.as_table(histories).as_implicit()
    context.details.update(key_users=training.n_users, key_users_used=len(histories.users))
    return odds.fit_odds(config, table, context)
