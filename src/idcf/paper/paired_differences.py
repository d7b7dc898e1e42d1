"""Every system against the best simple one, paired over users."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from idcf.evaluation.results import LOWER
from idcf.evaluation.tables import over_seeds
from idcf.metrics import difference
from idcf.metrics.stats import Statistic
from idcf.paper import results_store
from idcf.paper.results_store import Pair, Record
from idcf.paper.table_spec import load_all
from idcf.rng import stream

SIMPLE = ("item-mean", "popularity", "bias", "item-knn", "ease", "als")
Systems = dict[tuple[str, str], list[Record]]  # (model, preset) -> its seeds


def columns(records: Iterable[Record]) -> dict[tuple[str, str, str], Systems]:
    """(split, users, metric) -> the rows of every system."""
    found: dict[tuple[str, str, str], Systems] = {}
    for r in records:
        systems = found.setdefault((r.split, r.users, r.metric), {})
        systems.setdefault((r.model, r.preset), []).append(r)
    return found


def best_simple(systems: Systems, metric: str) -> str | None:
    """The simple baseline with the best mean: on test rows, which favours it and not us."""
    means = {
        model: sum(r.value for r in rows) / len(rows)
        for (model, preset), rows in systems.items()
        if model in SIMPLE and preset == "clean"
    }
    if not means:
        return None
    return (min if metric in LOWER else max)(means, key=lambda m: means[m])


def update(results: Path, dataset: str) -> int:
    """Pair what can be paired anew: all seeds, or those whose values are at hand where these are
    more than before. Differences of which nothing is at hand stay. How many are new."""
    records = results_store.records(results, dataset)
    lines = results_store.read(results, Pair, dataset)
    wanted = {m for spec in load_all().values() if dataset in spec.datasets for m in spec.metrics}
    fresh = 0
    for (_, _, metric), systems in columns(records).items():
        baseline = best_simple(systems, metric) if metric in wanted else None
        if baseline is None:
            continue
        against = {r.seed: r for r in systems[baseline, "clean"]}
        for system, rows in systems.items():
            mine = [(r, against[r.seed]) for r in rows if r.seed in against]
            if not mine or system in ((baseline, "clean"), ("random", "clean")):
                continue
            known = lines.get(pair_key(mine[0][0]))
            if known and not (known.baseline == baseline and is_current(known, systems)):
                known = None
            if known and known.seeds == len(mine):
                continue
            line = _pair(results, mine, baseline)
            if line and (known is None or line.seeds > known.seeds):
                lines[line.key()] = line
                fresh += 1
    results_store.rewrite(results, Pair, dataset, sorted(lines.values(), key=Pair.key))
    return fresh


def pair_key(r: Record) -> tuple[str, ...]:
    """The key of the difference that a row goes into."""
    return r.dataset, r.split, r.model, r.preset, r.users, r.metric


def is_current(pair: Pair, systems: Systems) -> bool:
    """Is it a difference between the runs that are in the tables?"""
    mine, others = (
        {r.seed: r.options for r in systems.get(system, ())}
        for system in ((pair.model, pair.preset), (pair.baseline, "clean"))
    )
    there = [f"{mine[seed]}/{others[seed]}" for seed in mine.keys() & others.keys()]
    found = {*pair.options.split("+")}
    return found == {*there} if pair.seeds == len(there) else found <= {*there}


def _pair(results: Path, mine: list[tuple[Record, Record]], baseline: str) -> Pair | None:
    """Seed against seed, then the mean over the seeds of which both values are at hand."""
    found, first, options = [], mine[0][0], set()
    statistic: Statistic = "rmse" if first.metric == "rmse" else "mean-ratio"
    for record, other in mine:
        a, b = (results_store.load_each(results, r) for r in (record, other))
        if a is None or b is None:
            continue
        found.append(difference(a, b, statistic=statistic, rng=stream(0, "bootstrap")))
        options.add(f"{record.options}/{other.options}")
    if not found:
        return None
    value, low, high = over_seeds(found)
    return Pair(
        *(first.dataset, first.split, first.model, first.preset, first.users, first.metric),
        baseline,
        *(value, low, high),
        first.n_users,
        len(found),
        "+".join(sorted(options)),
    )
