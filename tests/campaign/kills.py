"""Kill -9 at random moments of every verb that writes.

After a kill, every part of a result is the old one or the new one, whole. The same command then
makes the result of a run that was never killed, byte for byte, and leaves no temporary file.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attack import Tally
from forked import Call, ForkServer
from small_world import FLAGS, SmallWorld

from idcf import Recommender
from idcf.errors import ArtifactError

N_KILLS = 238  # with a share of 1; some find their process ended
MAX_KILLS_IN_A_ROW = 3
TIMEOUT_S = 120.0
Parts = Mapping[str, str]  # the digest of each part of a result that can be old or new by itself

_FAST = ("--datasets", "ml-100k", "--models", "random,item-mean,bias", "--seeds", "1")


@dataclass(frozen=True)
class Writer:
    """A command that writes, and how its result is read.

    `old` makes what was there before; without it, there was nothing. `first`, by default `start`,
    is the command that is killed, if it is not the one that then completes the result.
    """

    start: Callable[[ForkServer, SmallWorld, Path], Call]
    read: Callable[[Path], Parts]
    old: Callable[[ForkServer, SmallWorld, Path], Call] | None = None
    first: Callable[[ForkServer, SmallWorld, Path], Call] | None = None
    modules: tuple[str, ...] = ()


def run(folder: Path, seed: int, share: float) -> Tally:
    """Kill writers in turn, each about as often."""
    tally, rng = Tally(), random.Random(f"kills {seed}")
    n_kills = max(3, round(share * N_KILLS))
    names = rng.sample(sorted(WRITERS), max(1, min(len(WRITERS), n_kills // 2)))
    modules = dict.fromkeys(x for name in names for x in WRITERS[name].modules)
    world = SmallWorld(folder / "world", seed % 1000)
    with ForkServer(folder / "calls", [*modules]) as server:
        for position, name in enumerate(names):
            n = len(range(position, n_kills, len(names)))
            attack = WriterAttack(name, server, world, folder / name, tally)
            attack.kill_often(n, rng, f"seed {seed}, {name}")
    tally.left_out["demo"] = "takes minutes; it writes by the same functions as `evaluate`"
    tally.left_out["data fetch"] = "downloads"
    tally.measured["files_in_tmp"] = sum(1 for _ in server.temporary.iterdir())
    return tally


class WriterAttack:
    """The kills of one writer."""

    def __init__(
        self, name: str, server: ForkServer, world: SmallWorld, folder: Path, tally: Tally
    ) -> None:
        self.name, self.writer, self.server, self.world = name, WRITERS[name], server, world
        self.tally, self.folder = tally, folder
        self.before, self.after = folder / "before", folder / "after"
        self.before.mkdir(parents=True)
        if self.writer.old:
            self.complete(self.writer.old, self.before)
        self.old = self.writer.read(self.before)
        shutil.copytree(self.before, self.after)
        self.seconds = self.complete(self.writer.start, self.after)
        self.new = self.writer.read(self.after)

    def complete(self, start: Callable[[ForkServer, SmallWorld, Path], Call], place: Path) -> float:
        """Run a command to its end; return the seconds that it took."""
        begin = time.monotonic()
        call = start(self.server, self.world, place)
        if call.wait(TIMEOUT_S) != 0:
            raise RuntimeError(f"{self.name} ended with {call.code}: {call.text()}")
        return time.monotonic() - begin

    def kill_often(self, n: int, rng: random.Random, case: str) -> None:
        """Kill n processes, and complete the result after at most a few of them."""
        n_killed = n_tried = 0
        place = self.folder / "killed"
        while n_killed < n and n_tried < 4 * n:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self.before, place)
            for _ in range(min(rng.randint(1, MAX_KILLS_IN_A_ROW), n - n_killed)):
                n_tried += 1
                moment = rng.choice(("any", "end", "write"))
                was_killed = self.kill(place, moment, rng)
                n_killed += was_killed
                if was_killed:
                    self.tally.count(f"{self.name}, killed at {moment}")
                else:
                    self.tally.count("ended before its kill")
                self.check_parts(place, f"{case}, try {n_tried}, killed at {moment}")
            self.check_complete(place, f"{case}, try {n_tried}")

    def kill(self, place: Path, moment: str, rng: random.Random) -> bool:
        """Start the command and kill it; return whether it was still running."""
        start = self.writer.first or self.writer.start
        names = unlocked(listing(place))
        call = start(self.server, self.world, place)
        if moment == "write":  # shortly after a file or a folder appears
            end = time.monotonic() + 2 * self.seconds + 1
            while (
                call.code is None and unlocked(listing(place)) == names and time.monotonic() < end
            ):
                call.wait(0.0003)
            call.wait(rng.random() * 0.01)
        else:
            share = rng.uniform(0.85, 1.02) if moment == "end" else rng.random()
            call.wait(share * self.seconds)
        call.send(signal.SIGKILL)
        if call.wait(TIMEOUT_S) is None:
            raise RuntimeError(f"{self.name} outlived its kill")
        if call.code not in (0, -signal.SIGKILL):
            self.tally.fail(f"{self.name}, exit code", f"{call.code}", call.text())
        return call.code == -signal.SIGKILL

    def check_parts(self, place: Path, case: str) -> None:
        """Note every part that is neither the old nor the new one."""
        state = self.writer.read(place)
        for part in sorted({*state, *self.old}):
            if state.get(part) not in (self.old.get(part), self.new.get(part)):
                what = f"{part} is {state.get(part, 'missing')}"
                self.tally.fail(f"{self.name}, neither old nor new", case, what)

    def check_complete(self, place: Path, case: str) -> None:
        """Run the command again; note what differs from a run that was not killed."""
        begin = time.monotonic()
        call = self.writer.start(self.server, self.world, place)
        if call.wait(TIMEOUT_S) != 0:
            self.tally.fail(f"{self.name}, run again", case, f"{call.code}: {call.text()}")
            return
        self.seconds = min(self.seconds, time.monotonic() - begin)
        self.tally.count(f"{self.name}, run again")
        if self.writer.read(place) != self.new:
            self.tally.fail(f"{self.name}, run again", case, "the result differs")
        if names := unlocked(listing(place) ^ listing(self.after)):
            self.tally.fail(f"{self.name}, files left", case, sorted(names))


def listing(place: Path) -> set[str]:
    """Return the paths below a folder, without those of checkpoints."""
    names = (str(x.relative_to(place)) for x in place.rglob("*"))
    return {x for x in names if not x.startswith("checkpoints")}


def unlocked(names: set[str]) -> set[str]:
    """Return names without those of locks: they are there from the start of a command, and that of
    a killed process, an empty file, until another process takes the lock."""
    return {x for x in names if not x.endswith(".lock")}


def digest(data: bytes) -> str:
    """Return a short SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def read_files(place: Path) -> Parts:
    """Return the digest of every file that is not hidden; `_job.json` says how far a run is."""
    paths = (x for x in place.rglob("*") if x.is_file() and not is_hidden(x, place))
    return {str(x.relative_to(place)): digest(x.read_bytes()) for x in paths}


def is_hidden(path: Path, place: Path) -> bool:
    """Return whether a path is temporary, a checkpoint, or the note of a job."""
    names = path.relative_to(place).parts
    return names[0] == "checkpoints" or any(x[0] == "." or x == "_job.json" for x in names)


def read_model(place: Path) -> Parts:
    """Return the digest of a folder that can be loaded, as one part."""
    folder = place / "model"
    if not folder.exists():
        return {}
    try:
        Recommender.load(folder)
    except ArtifactError as error:
        return {"model": f"broken: {error}"}
    files = sorted(folder.iterdir())
    content = b"".join(x.name.encode() + x.read_bytes() for x in files)
    return {"model": digest(content)}


def read_shards(place: Path) -> Parts:
    """Return the digest of a folder of shards as one part."""
    folder = place / "shards"
    if not folder.exists():
        return {}
    files = sorted(x for x in folder.rglob("*") if x.is_file())
    return {"shards": digest(b"".join(x.name.encode() + x.read_bytes() for x in files))}


def read_rows(place: Path) -> Parts:
    """Return the digest of the rows of an evaluation, without what depends on the clock."""
    path = place / "rows.json"
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_text())
    except ValueError as error:
        return {"rows": f"broken: {error}"}
    return {"rows": digest(json.dumps([_timeless(x) for x in rows]).encode())}


def read_trials(place: Path) -> Parts:
    """Return the completed trials of a search, each as a part, and the file of options."""
    parts = {}
    if (place / "trials.toml").exists():
        parts["options"] = digest((place / "trials.toml").read_bytes())
    if not (place / "trials.db").exists():
        return parts
    query = (
        "SELECT v.value, a.value_json FROM trials t JOIN trial_values v USING (trial_id) "
        "JOIN trial_user_attributes a USING (trial_id) WHERE t.state = 'COMPLETE' ORDER BY t.number"
    )
    with closing(sqlite3.connect(place / "trials.db")) as database:
        try:
            rows = database.execute(query).fetchall()
        except sqlite3.OperationalError:  # the tables are not there yet
            rows = []
    return parts | {f"trial {n}": str(row) for n, row in enumerate(rows, 1)}


def read_results(place: Path) -> Parts:
    """Return the rows of a folder of results, each as a part, and its files of single users."""
    parts = {}
    for path in (place / "results").glob("*.jsonl"):
        *lines, _ = path.read_text().split("\n")  # the end may be cut: it is not read either
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError as error:
                parts[f"{path.name}: {line}"] = f"broken: {error}"
                continue
            names = ("split", "model", "preset", "users", "metric", "seed")
            parts[f"{path.name} {[row.get(x) for x in names]}"] = json.dumps(_timeless(row))
    for path in (place / "results").rglob("*.npz"):
        if not path.name.startswith("."):
            parts[path.name] = digest(path.read_bytes())
    return parts


def _timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: x for key, x in row.items() if key not in ("seconds", "commit")}


def _train(
    *options: str, function: str = "run", data: str = "ratings"
) -> Callable[[ForkServer, SmallWorld, Path], Call]:
    """Return how to train a model into the folder `model`."""

    def start(server: ForkServer, world: SmallWorld, place: Path) -> Call:
        table = ("train", str(getattr(world, data)), "--out", str(place / "model"))
        given = [x.replace("PLACE", str(place)) for x in options]
        return server.call(f"verbs:{function}", [*table, *FLAGS, *given])

    return start


def _train_over_shards(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    """Train by passes over shards, which are written first."""
    shards = world.folder / "shards"
    if not shards.exists():
        server.verb("shard", str(world.ratings), "--out", str(shards)).wait(TIMEOUT_S)
    table = ("train", str(shards), "--out", str(place / "model"), *FLAGS, "--engine", "local")
    bayes = ("-o", "sweeps=12", "-o", "burn_in=2")
    return server.verb(*table, *bayes, "--resume", str(place / "checkpoints"))


def _save_in_turn(*seeds: int, n: int = 1) -> Callable[[ForkServer, SmallWorld, Path], Call]:
    """Return how to save the models of some seeds in turn, n times."""

    def start(server: ForkServer, world: SmallWorld, place: Path) -> Call:
        sources = [str(world.model(seed)) for seed in seeds]
        return server.call("verbs:save_in_turn", sources, str(place / "model"), n)

    return start


def _add_item(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    """Add an item to a model, over a model that is there."""
    paths = (world.model(1, "idcf-bayes"), world.new_item, world.ratings, place / "model")
    return server.call("verbs:add_item", *map(str, paths))


def _convert(
    verb: str, out: str, *options: str, seed: int = 1
) -> Callable[[ForkServer, SmallWorld, Path], Call]:
    """Return how to write the embeddings or the lists of histories, of a file or of a folder."""

    def start(server: ForkServer, world: SmallWorld, place: Path) -> Call:
        source = str(world.ratings if "." in out else world.histories)
        histories = ("--histories", source) if verb == "recommend" else (source,)
        places = (str(world.model(seed)), *histories, "--out", str(place / out))
        return server.verb(verb, *places, *options, "--device", "cpu", "--json")

    return start


def _export(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    return server.verb("export", str(world.model(1)), "--onnx", str(place / "model.onnx"))


def _shard(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    options = ("--shards", "3", "--block-users", "16", "--json")
    return server.verb("shard", str(world.ratings), "--out", str(place / "shards"), *options)


def _evaluate(models: str) -> Callable[[ForkServer, SmallWorld, Path], Call]:
    """Return how to evaluate models."""

    def start(server: ForkServer, world: SmallWorld, place: Path) -> Call:
        options = ("--models", models, "--out", str(place / "rows.json"))
        return server.verb("evaluate", str(world.ratings), *options, *FLAGS)

    return start


def _tune(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    storage = ("--storage", str(place / "trials.db"), "--trials", "4")
    return server.verb("tune", str(world.ratings), "--model", "bias", *storage, *FLAGS)


def _reproduce(folder: str = "results") -> Callable[[ForkServer, SmallWorld, Path], Call]:
    """Return how to make the runs of a table."""

    def start(server: ForkServer, world: SmallWorld, place: Path) -> Call:
        results = ("--results", str(place / folder), "--device", "cpu", "--json")
        return server.call("verbs:run_on_small_datasets", ["reproduce", "table2", *_FAST, *results])

    return start


def _results(server: ForkServer, world: SmallWorld) -> Path:
    """Return a folder of results, which is made first."""
    if not (world.folder / "results").exists():
        _reproduce()(server, world, world.folder).wait(TIMEOUT_S)
    return world.folder / "results"


def _merge(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    source = str(_results(server, world))
    return server.verb("reproduce", "--merge", source, "--results", str(place / "results"))


def _report(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    results = str(_results(server, world))
    return server.verb("report", "--results", results, "--out", str(place / "pages"))


def _empty_report(server: ForkServer, world: SmallWorld, place: Path) -> Call:
    (world.folder / "no-results").mkdir(exist_ok=True)
    results = str(world.folder / "no-results")
    return server.verb("report", "--results", results, "--out", str(place / "pages"))


_BAYES = ("-o", "sweeps=6", "-o", "burn_in=2")
WRITERS = {
    "train": Writer(_train("--model", "als", "-o", "embedding_size=4"), read_model),
    "train over a model": Writer(
        _train(*_BAYES), read_model, _train(*_BAYES, "--seed", "1", data="other_ratings")
    ),
    "train --resume": Writer(
        _train(
            *("--model", "idcf-nn", "-o", "epochs=3", "--no-card-metrics"),
            *("--resume", "PLACE/checkpoints"),
            function="run_with_checkpoints",
        ),
        read_model,
        modules=("torch._dynamo",),
    ),
    "train over shards": Writer(_train_over_shards, read_model, modules=("duckdb",)),
    "save in a loop": Writer(
        _save_in_turn(2), read_model, _save_in_turn(1), first=_save_in_turn(1, 2, n=1_000_000)
    ),
    "partial_fit_items": Writer(_add_item, read_model, _save_in_turn(2)),
    "embed": Writer(
        _convert("embed", "users.parquet"), read_files, _convert("embed", "users.parquet", seed=2)
    ),
    "embed, folder": Writer(_convert("embed", "users"), read_files),
    "recommend": Writer(
        _convert("recommend", "lists.jsonl", "-n", "5"),
        read_files,
        _convert("recommend", "lists.jsonl", "-n", "5", seed=2),
    ),
    "recommend, folder": Writer(_convert("recommend", "lists", "-n", "5"), read_files),
    "export": Writer(_export, read_files, modules=("torch.onnx", "onnx", "onnxscript")),
    "shard": Writer(_shard, read_shards, modules=("duckdb",)),
    "evaluate": Writer(_evaluate("bias,als"), read_rows, _evaluate("bias")),
    "tune": Writer(_tune, read_trials, modules=("optuna.samplers", "sqlalchemy")),
    "reproduce": Writer(_reproduce(), read_results),
    "reproduce --merge": Writer(_merge, read_results),
    "report": Writer(_report, read_files, _empty_report, modules=("matplotlib.pyplot",)),
}
