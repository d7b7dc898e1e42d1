"""Is a preset within noise of the best of a fixed grid? Trials on held-out key users.

The grid is grids.toml. The validation users are those of `idcf tune`: a fifth of the key users with
histories as short as those of new users, another fifth for each seed. Trials are appended to
FOLDER/<model>-<dataset>.jsonl as they end, and what is there is not tried again.

    python experiments/search/grid_search.py idcf-bayes ml-100k [--seeds 3] [--jobs 4]
    python experiments/search/grid_search.py idcf-odds amazon-beauty --results FOLDER
    python experiments/search/grid_search.py idcf-bayes ml-100k --summary    a table of the trials
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.source_commit import source_commit
from idcf.evaluation.tune import make_tuning_split, validation_loss
from idcf.training.job import start_runtime
from idcf.training.train import TrainingJob, train

FOLDER = Path(__file__).resolve().parent
Options = dict[str, Any]
Trial = dict[str, Any]  # one line of a trace


def grid_of(model: str) -> list[Options]:
    """Return the options of the trials of a model: none, those of the preset, then one changed."""
    grid = tomllib.loads((FOLDER / "grids.toml").read_text(encoding="utf-8"))[model]
    return [{}, *({name: value} for name, values in grid.items() for value in values)]


def run_trial(model: str, dataset: str, options: Options, seed: int, device: str) -> Trial:
    """Train a model on the key users that are not held out, and measure it on those that are."""
    torch.set_num_threads(1)
    split, split_name = standard_split(open_dataset(dataset, progress=False))
    tuning = make_tuning_split(split, seed)
    began = time.perf_counter()
    job = TrainingJob(tuning, dataset=dataset, seed=seed, runtime=start_runtime(device))
    loss = validation_loss(train(model, job, options=options), tuning, seed)
    return {
        "model": model,
        "dataset": dataset,
        "split": split_name,
        "options": options,
        "metric": "1-auc" if tuning.train.implicit else "rmse",
        "valid": round(loss, 5),
        "seed": seed,
        "n_users": len(tuning.query_users),
        "seconds": round(time.perf_counter() - began, 1),
        "on": "held-out key users",
        "commit": source_commit(),
    }


def read_trials(path: Path) -> list[Trial]:
    """Return the trials of a file; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def missing_trials(
    trials: Sequence[Trial], grid: Sequence[Options], n_seeds: int
) -> list[tuple[Options, int]]:
    """Return options and seed of the trials that were not made, all options of a seed first."""
    made = [(trial["options"], trial["seed"]) for trial in trials]
    return [(x, seed) for seed in range(n_seeds) for x in grid if (x, seed) not in made]


def summarize(trials: Sequence[Trial]) -> Iterator[tuple[str, float, float, float, int]]:
    """Yield for each setting: its name, mean loss, mean difference to the preset, paired by seed,
    with the half-width of its 95 % interval (NaN for one seed), and the number of seeds. The best
    come first."""
    losses: dict[str, dict[int, float]] = {}
    for trial in trials:
        losses.setdefault(_describe(trial["options"]), {})[trial["seed"]] = trial["valid"]
    preset = losses.get(_describe({}), {})
    lines = []
    for name, by_seed in losses.items():
        seeds = sorted(by_seed.keys() & preset.keys())
        if not seeds:
            continue
        differences = np.array([by_seed[seed] - preset[seed] for seed in seeds])
        n, half_width = len(seeds), float("nan")
        if n > 1:
            half_width = float(stdtrit(n - 1, 0.975) * differences.std(ddof=1) / n**0.5)
        mean = float(np.mean([by_seed[seed] for seed in seeds]))
        lines.append((name, mean, float(differences.mean()), half_width, n))
    yield from sorted(lines, key=lambda line: line[2])


def _describe(options: Mapping[str, Any]) -> str:
    """Return options as text."""
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "preset"


def main() -> None:
    """Make the missing trials, or print a table of those that were made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    path = options.results / f"{options.model}-{options.dataset}.jsonl"
    if options.summary:
        for name, mean, difference, half_width, n in summarize(read_trials(path)):
            print(f"| {name} | {mean:.4f} | {difference:+.4f} ± {half_width:.4f} | {n} |")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    missing = missing_trials(read_trials(path), grid_of(options.model), options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        trials = [
            pool.submit(run_trial, options.model, options.dataset, *trial, options.device)
            for trial in missing
        ]
        for trial in as_completed(trials):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trial.result()) + "\n")


if __name__ == "__main__":
    main()
