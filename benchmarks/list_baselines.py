"""Lists for new users: `idcf-takeup` beside simple systems and other libraries, tuned.

Every system is trained on the key users of the standard split, as implicit feedback (`ease-ratings`
sees the ratings), and ranks the catalogue less the history for the new users with test rows. The
first 20 items count: `recall@20` is the share of a user's test rows, `ndcg@20` has gain 1.

Options are chosen on *light key users*: at most 1,000 of the least active quarter of the key users,
who are hidden from training. A part of their items is the history, up to 10 others are to be ranked
first. Half of the histories lack a tenth of the user's items, the others are as long as those of
the new users; where there are few users each is cut in several ways. `idcf-takeup` holds out users
in the same way inside its fit. The measure is NDCG@20, the values to try are in `list_systems.py`.
The system is then trained on all key users. Of new users only the numbers of training rows are read
for this, of test rows nothing.

`implicit` and `irspack` run in a Python of their own, that of the variable IDCF_PEERS.

    python benchmarks/list_baselines.py ml-100k douban --out lists.jsonl [--seeds 3]
        [--systems ease,slim] [--replace]
    python benchmarks/list_baselines.py --table lists.jsonl [FILE ...]

Rows are appended as systems end, and rows that are there are not measured again, unless --replace
says so. One value per user is kept in a folder beside the file, from which the paired differences
of `idcf-takeup` minus each other system are computed when a run ends; the last rows of the file
hold them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from list_systems import SYSTEMS, Options, System, stage_options
from peers import peer_python
from scipy.sparse import csr_matrix, save_npz
from serving import ONE_THREAD

from idcf.data.interactions import Interactions, Ints, Vocab
from idcf.data.split import Split, least_active_users, rank_in_user
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.files import write_text
from idcf.inference.scoring import top_unseen_items
from idcf.metrics import PerUserMetric, RelevantItems, ndcg_at, paired_difference, recall_at
from idcf.models.base import Model
from idcf.models.registry import model_entry
from idcf.rng import random_stream
from idcf.training.gradient import fit_standalone
from idcf.training.presets import stage_config
from idcf.training.train import TrainingJob, train

K = 20
REFERENCE = "idcf-takeup"  # whose paired differences are computed
METRICS = ("recall@20", "ndcg@20")
LIGHT_SHARE, MAX_LIGHT_USERS = 0.25, 1000  # of the key users; at most
UNKNOWN_SHARE, MAX_TARGETS = 0.1, 10  # of the items of a light key user
N_HISTORIES, MAX_CUTS = 2000, 4  # of light key users in all, and of each
Row = dict[str, Any]


class Lists(NamedTuple):
    """The lists of one trained system."""

    top: Ints  # [U, K] item rows, -1 where there are fewer
    fit_seconds: float  # of processor time, one thread


class Task(NamedTuple):
    """A split, once as implicit feedback and once as it is, and the users to rank for."""

    implicit: Split
    rated: Split
    users: Ints  # query users with test rows

    @classmethod
    def from_split(cls, split: Split) -> Task:
        """Return the task of ranking for the query users of a split."""
        implicit = Split(
            split.train.as_implicit(), split.test.as_implicit(), split.key_users, split.query_users
        )
        return cls(implicit, split, np.unique(split.test.for_users(split.query_users).user))


def main() -> None:
    """Measure what is missing and print a table, or print the table of a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="names, by commas")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replace", action="store_true", help="measure again what is there")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown([row for file in arguments.table for row in read_rows(file)]))
        return
    names = arguments.systems.split(",")
    if unknown := [x for x in names if x not in SYSTEMS]:
        parser.error(f"no system named {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    if not arguments.datasets or not arguments.out:
        parser.error("name a dataset and --out FILE.jsonl, or give --table FILE.jsonl")
    torch.set_num_threads(1)
    for dataset in arguments.datasets:
        for seed in range(arguments.seeds):
            measure(dataset, seed, names, arguments.out, arguments.replace)
    add_differences(arguments.out)
    print(markdown(read_rows(arguments.out)))


def measure(dataset: str, seed: int, names: Sequence[str], out: Path, replace: bool) -> None:
    """Append a row for every system that has none for this dataset and seed."""
    measured = {
        x["system"]
        for x in read_rows(out)
        if "seed" in x and (x["dataset"], x["seed"]) == (dataset, seed)
    }
    missing = [x for x in names if replace or x not in measured]
    if not missing:
        return
    split, split_name = standard_split(open_dataset(dataset, progress=False), seed=seed)
    test, tuning = Task.from_split(split), Task.from_split(light_user_split(split, seed))
    for name in missing:
        row: Row = {"dataset": dataset, "split": split_name, "seed": seed, "system": name}
        if reason := reason_not_to_run(SYSTEMS[name], test):
            row["not_run"] = reason
        else:
            row |= measure_system(SYSTEMS[name], test, tuning, seed, user_file(out, row))
        append_row(out, row)


def measure_system(system: System, test: Task, tuning: Task, seed: int, file: Path) -> Row:
    """Choose the options, fit, and return what a row says of it; write the values of the users."""
    start = time.perf_counter()
    options, trials = choose_options(system, tuning, seed)
    tune_seconds = time.perf_counter() - start
    (lists,) = rank(system, test, [options], seed)
    values = metrics(lists.top, test)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, users=test.users, **values)
    row: Row = {name: round(float(x.mean()), 4) for name, x in values.items()}
    return row | {
        "users": len(test.users),
        "fit_seconds": round(lists.fit_seconds, 2),
        "tune_seconds": round(tune_seconds, 1),
        "options": options,
        "light_users": len(tuning.users),
        "trials": trials,
    }


def reason_not_to_run(system: System, test: Task) -> str | None:
    """Return why a system cannot be measured here, or None."""
    key_rows = test.implicit.train.for_users(test.implicit.key_users)
    n_items = len(key_rows.items)
    if system.library != "idcf":  # see `rank_with_peer`
        n_items = int(np.count_nonzero(key_rows.item_counts()))
    if system.reads_ratings and test.rated.train.implicit:
        return "the dataset has no ratings"
    if system.max_dense_items is not None and n_items > system.max_dense_items:
        return f"a dense matrix of {n_items:,} x {n_items:,} items"
    if system.max_items is not None and n_items > system.max_items:
        return f"a fit with {n_items:,} items takes too long on one thread"
    if system.library != "idcf" and not has_library(system.library):
        return f"{system.library} is not installed: set IDCF_PEERS to a Python that has it"
    return None


def has_library(library: str) -> bool:
    """Return whether the Python of other libraries can import one of them."""
    return not subprocess.run(
        [peer_python(), "-c", f"import {library}"], capture_output=True
    ).returncode


def light_user_split(split: Split, seed: int) -> Split:
    """Split the training rows of the key users again; query users are cuts of light key users.

    No row of a query user and no test row of `split` is in the result.
    """
    table = split.train.for_users(split.key_users)
    rng = random_stream(seed, "light key users")
    light = least_active_users(table, LIGHT_SHARE, rng)
    held_out = np.sort(rng.permutation(light)[:MAX_LIGHT_USERS])
    n_cuts = min(MAX_CUTS, max(1, N_HISTORIES // len(held_out)))
    cuts = copy_users(table, held_out, n_cuts)
    users = np.arange(len(table.users), len(cuts.users))
    counts = cuts.user_counts()[users]
    new_lengths = split.train.user_counts()[split.query_users]
    lengths = rng.choice(new_lengths[new_lengths > 0], size=len(users))
    whole = counts - np.maximum(2, np.rint(UNKNOWN_SHARE * counts).astype(np.int64))
    lengths = np.where(np.arange(len(users)) % 2, whole, lengths)
    lengths = np.minimum(lengths, np.maximum(counts - 2, counts // 2))
    n_targets = max(1, min(MAX_TARGETS, int(np.median(counts)) // 2))
    rank = rank_in_user(cuts, rng.random(len(cuts))) - lengths[cuts.user - users[0]]
    others = table.where(~table.user_mask(held_out)[table.user])
    histories = cuts.where(rank < 0)
    return Split(
        replace(others, users=cuts.users, user_features=None).concat(histories),
        cuts.where((rank >= 0) & (rank < n_targets)),
        np.setdiff1d(split.key_users, held_out),
        users,
    )


def copy_users(table: Interactions, users: Ints, n: int) -> Interactions:
    """Return the rows of some users [U'] n times, as those of n · U' users after all others."""
    rows = table.for_users(users)
    first = len(table.users) + n * np.searchsorted(users, rows.user)
    parts = [replace(rows, user=first + k) for k in range(n)]
    ids = Vocab(range(len(table.users) + n * len(users)))
    rows = reduce(Interactions.concat, parts)
    return replace(rows, users=ids, user_features=None)


def choose_options(system: System, tuning: Task, seed: int) -> tuple[Options, list[Row]]:
    """Return the options with the best NDCG@20 on the light key users, and all trials."""
    best, trials = dict(system.fixed), []
    for grid in system.stages:
        candidates = stage_options(grid, best)
        values = [
            float(metrics(lists.top, tuning)["ndcg@20"].mean())
            for lists in rank(system, tuning, candidates, seed)
        ]
        trials += [
            {**{key: options[key] for key in grid}, "ndcg@20": round(value, 4)}
            for options, value in zip(candidates, values, strict=True)
        ]
        best = candidates[int(np.argmax(values))]
    return best, trials


def rank(system: System, task: Task, candidates: Sequence[Options], seed: int) -> Iterator[Lists]:
    """Yield the lists of a system for the users of a task, with each of some options."""
    if system.library != "idcf":
        yield from rank_with_peer(system, task, candidates, seed)
        return
    split = task.rated if system.reads_ratings else task.implicit
    for options in candidates:
        start = time.process_time()
        model = fit(system.model, split, options, seed)
        seconds = time.process_time() - start
        top = top_unseen_items(model, task.users, split.train, K, anonymous=True)
        yield Lists(top, seconds)


def fit(name: str, split: Split, options: Options, seed: int) -> Model:
    """Train a model of the registry. The epochs of gradient training are an option like others."""
    job = TrainingJob(split, seed=seed)
    if model_entry(name).solver:
        return train(name, job, options=options).model
    stage = stage_config(name, options=options)
    with torch.random.fork_rng():
        return fit_standalone(
            name, job, stage, job.training_table(), n_epochs=stage.train.epochs
        ).model


def rank_with_peer(
    system: System, task: Task, candidates: Sequence[Options], seed: int
) -> Iterator[Lists]:
    """Yield the lists of a class of another library, which gets the items with training rows."""
    split = task.implicit
    key_rows = split.train.for_users(split.key_users)
    items = np.flatnonzero(key_rows.item_counts())
    job = {"library": system.library, "class": system.model, "k": K, "seed": seed}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_npz(folder / "train.npz", matrix(key_rows, split.key_users, items))
        save_npz(folder / "histories.npz", matrix(split.train, task.users, items))
        trials = [{**system.fixed, **x} for x in candidates]
        (folder / "job.json").write_text(json.dumps({**job, "trials": trials}), encoding="utf-8")
        worker = Path(__file__).with_name("list_peers.py")
        environment = {**os.environ, **ONE_THREAD, "IRSPACK_NUM_THREADS_DEFAULT": "1"}
        subprocess.run(
            [peer_python(), str(worker), name],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        seconds = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
        for number, fit_seconds in enumerate(seconds):
            top = np.load(folder / f"lists-{number}.npy")
            yield Lists(np.where(top >= 0, items[top], -1), fit_seconds)


def matrix(table: Interactions, users: Ints, items: Ints) -> csr_matrix:
    """Return the 0/1 matrix of some users and items of a table."""
    shape = (len(table.users), len(table.items))
    ones = np.ones(len(table), np.float32)
    return csr_matrix(csr_matrix((ones, (table.user, table.item)), shape=shape)[users][:, items])


def metrics(top: Ints, task: Task) -> dict[str, np.ndarray]:
    """Return the metrics of lists [U, K], one value per user."""
    rows = task.implicit.test.for_users(task.users)
    order, start = rows.rows_by_user
    offsets = np.concatenate([[0], start[task.users + 1]])
    relevant = RelevantItems(rows.item[order], offsets)
    return {"recall@20": recall_at(top, relevant), "ndcg@20": ndcg_at(top, relevant)}


def user_file(out: Path, row: Row) -> Path:
    """Return the file with the values of each user that belongs to a row."""
    name = re.sub(r"[^\w.+]+", "-", f"{row['dataset']}-{row['seed']}-{row['system']}")
    return out.with_name(out.stem + "-users") / f"{name}.npz"


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file; of rows of one dataset, seed and system the last."""
    if not file.exists():
        return []
    rows = [json.loads(x) for x in file.read_text(encoding="utf-8").splitlines()]
    return list({(x["dataset"], x.get("seed"), x["system"]): x for x in rows}.values())


def append_row(file: Path, row: Row) -> None:
    """Append a row to a file, and print it without its trials."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")
    print(json.dumps({k: v for k, v in row.items() if k != "trials"}), flush=True)


def add_differences(file: Path) -> None:
    """Write a file again with the paired differences as last rows, over all seeds of a dataset.

    Differences whose values per user are not there any more stay as they are.
    """
    rows = read_rows(file)
    measured = [x for x in rows if "seed" in x]
    differences = {(x["dataset"], x["system"]): x for x in rows if "seeds" in x}
    for dataset in dict.fromkeys(x["dataset"] for x in measured):
        seeds_of: dict[str, list[Row]] = {}
        for row in measured:
            if row["dataset"] == dataset and user_file(file, row).exists():
                seeds_of.setdefault(row["system"], []).append(row)
        reference = seeds_of.pop(REFERENCE, [])
        for name, others in seeds_of.items():
            if row := difference_row(file, reference, others):
                differences[dataset, name] = row
    lines = (json.dumps(x) + "\n" for x in [*measured, *differences.values()])
    write_text(file, "".join(lines))


def difference_row(file: Path, reference: list[Row], others: list[Row]) -> Row | None:
    """Return the mean paired differences of two systems over the seeds that both have."""
    seeds = sorted({x["seed"] for x in reference} & {x["seed"] for x in others})
    if not seeds:
        return None
    a, b = (
        [np.load(user_file(file, x)) for x in rows if x["seed"] in seeds]
        for rows in (reference, others)
    )
    row: Row = {key: others[0][key] for key in ("dataset", "system")} | {"seeds": seeds}
    for metric in METRICS:
        interval = paired_difference(
            mean_per_user(a, metric), mean_per_user(b, metric), rng=random_stream(0, "bootstrap")
        )
        row[f"{REFERENCE} minus it, {metric}"] = [round(float(x), 4) for x in interval]
    return row


def mean_per_user(parts: Sequence[Any], metric: str) -> PerUserMetric:
    """Return the mean of each user over the seeds in which the user is a new user."""
    users, owner = np.unique(np.concatenate([x["users"] for x in parts]), return_inverse=True)
    total = np.bincount(owner, np.concatenate([x[metric] for x in parts]))
    return PerUserMetric.from_values(total / np.bincount(owner), users)


def markdown(rows: Sequence[Row]) -> str:
    """Return a table for each dataset, the highest NDCG@20 first."""
    return "\n\n".join(
        dataset_table(dataset, [x for x in rows if x["dataset"] == dataset])
        for dataset in dict.fromkeys(x["dataset"] for x in rows)
    )


def dataset_table(dataset: str, rows: Sequence[Row]) -> str:
    """Return the table of one dataset: means over seeds, and the paired differences."""
    runs = [x for x in rows if "ndcg@20" in x]
    differences = {x["system"]: x for x in rows if "seeds" in x}
    lines = []
    for name in dict.fromkeys(x["system"] for x in runs):
        own = [x for x in runs if x["system"] == name]
        recall, ndcg, seconds = (
            np.mean([x[key] for x in own]) for key in ("recall@20", "ndcg@20", "fit_seconds")
        )
        paired = differences.get(name, {})
        cells = [f"{recall:.4f}", f"{ndcg:.4f}"]
        cells += [interval_cell(paired.get(f"{REFERENCE} minus it, {x}")) for x in METRICS]
        cells += [f"{seconds:.1f}", options_cell(own)]
        lines.append((-ndcg, f"| {name} | " + " | ".join(cells) + " |"))
    seeds = sorted({x["seed"] for x in runs})
    users = sorted({x["users"] for x in runs})
    title = f"**{dataset}**: {runs[0]['split']}" if runs else f"**{dataset}**"
    header = f"{title}; seeds {seeds}, {'/'.join(map(str, users))} new users"
    columns = ["system", "recall@20", "NDCG@20", f"{REFERENCE} minus it: recall", "NDCG"]
    columns += ["fit, processor s", "options"]
    not_run = [f"- {x['system']} not run: {x['not_run']}" for x in rows if "not_run" in x]
    parts = [header, "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    parts += [x for _, x in sorted(lines)]
    return "\n".join([*parts, *([""] if not_run else []), *not_run])


def interval_cell(interval: Sequence[float] | None) -> str:
    """Return a difference with its interval, in bold where 0 is outside."""
    if interval is None:
        return ""
    value, low, high = interval
    text = f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def options_cell(runs: Sequence[Row]) -> str:
    """Return the options that were chosen, of each seed where they differ."""
    texts = []
    for row in runs:
        searched = {key for trial in row["trials"] for key in trial} - {"ndcg@20"}
        texts.append(", ".join(f"{k} {v}" for k, v in row["options"].items() if k in searched))
    return "; ".join(dict.fromkeys(texts))


if __name__ == "__main__":
    main()
