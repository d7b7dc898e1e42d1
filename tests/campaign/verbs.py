"""What forked processes run: verbs of the command line, and loops over `Recommender`.

Light to import; everything else is imported by the functions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


def run(arguments: list[str]) -> None:
    """Run `idcf` with these arguments."""
    from idcf.cli import main

    sys.argv = ["idcf", *arguments]
    main()


def run_with_checkpoints(arguments: list[str]) -> None:
    """Run `idcf` with a checkpoint after every epoch, instead of one every ten seconds."""
    from idcf.training import train

    train._CHECKPOINT_SECONDS = 0.0
    run(arguments)


def run_on_small_datasets(arguments: list[str]) -> None:
    """Run `idcf` with small synthetic datasets under the names of the real ones."""
    sys.path.insert(0, str(TESTS / "paper"))
    from tables_world import small_dataset

    from idcf.paper import demo, reproduce

    reproduce.open_dataset = small_dataset
    demo.load_dataset = lambda name, **_: small_dataset(name)
    run(arguments)


def save_in_turn(sources: list[str], target: str, n: int) -> None:
    """Save models in turn into one folder."""
    from idcf import Recommender

    models = [Recommender.load(x) for x in sources]
    for number in range(n):
        models[number % len(models)].save(target)


def add_item(source: str, ratings: str, histories: str, target: str) -> None:
    """Add the items of a table to a model, and save it."""
    from pyarrow import csv

    from idcf import Recommender

    model = Recommender.load(source)
    model.partial_fit_items(ratings, histories=csv.read_csv(histories))
    model.save(target)


def load_again_and_again(target: str, digests: list[str], seconds: float) -> None:
    """Load a folder that others replace; print how often, and stop at a model of none of them."""
    import time

    from idcf import Recommender

    n, end = 0, time.monotonic() + seconds
    seen: set[str] = set()
    while time.monotonic() < end:
        digest = model_digest(Recommender.load(target))
        if digest not in digests:
            print(f"a model of no generation: {digest}")
            sys.exit(9)
        seen.add(digest)
        n += 1
    print(f"loads: {n}, generations: {len(seen)}")


def model_digest(recommender: Any) -> str:
    """Return the SHA-256 of everything in a model: manifest, items and tensors."""
    import hashlib
    import json

    from idcf.config import dataclass_to_dict

    artifact = recommender.artifact
    content = hashlib.sha256()
    manifest = dataclass_to_dict(artifact.manifest)
    content.update(json.dumps(manifest, sort_keys=True, default=str).encode())
    content.update(json.dumps([artifact.items.ids, artifact.titles], default=str).encode())
    for name, tensor in sorted(artifact.tensors().items()):
        content.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return content.hexdigest()
