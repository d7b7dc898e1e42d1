"""Several processes write one folder or one file at once, and others read it.

Every load gives a whole model of one generation. Of two commands with one `--out`, each either ends
well or says that it cannot write, and the file is whole and of one of them.
"""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

from attack import Tally
from forked import ForkServer
from kills import digest, listing
from small_world import FLAGS, SmallWorld
from verbs import model_digest

from idcf import Recommender

LOAD_SECONDS = 60.0  # with a share of 1
N_PAIRS = 60
TIMEOUT_S = 120.0


def run(folder: Path, seed: int, share: float) -> Tally:
    """Race savers against loaders, and pairs of commands against each other."""
    tally, rng = Tally(), random.Random(f"save races {seed}")
    world = SmallWorld(folder / "world", seed % 1000)
    with ForkServer(folder / "calls") as server:
        race_loads(server, world, folder / "loads", max(2.0, share * LOAD_SECONDS), tally)
        for number in range(max(2, round(share * N_PAIRS))):
            kind = rng.choice(sorted(PAIRS))
            place = folder / f"pair-{number}"
            race_pair(server, world, place, kind, f"seed {seed}, pair {number}", tally)
    return tally


def race_loads(
    server: ForkServer, world: SmallWorld, place: Path, seconds: float, tally: Tally
) -> None:
    """Load a folder again and again while three processes save two models into it."""
    sources = [str(world.model(seed)) for seed in (1, 2)]
    digests = [model_digest(Recommender.load(x)) for x in sources]
    target = str(place / "model")
    Recommender.load(sources[0]).save(target)
    orders = (sources, sources[::-1], sources[:1])
    savers = [server.call("verbs:save_in_turn", x, target, 1_000_000) for x in orders]
    arguments = (target, digests, seconds)
    loaders = [server.call("verbs:load_again_and_again", *arguments) for _ in range(2)]
    for loader in loaders:
        code = loader.wait(seconds + TIMEOUT_S)
        if code != 0:
            tally.fail("load while others save", "3 savers, 2 loaders", f"{code}: {loader.text()}")
        if numbers := re.search(r"loads: (\d+), generations: (\d)", loader.text()):
            tally.count("loads while others save", int(numbers[1]))
            tally.measured["generations_seen"] = float(numbers[2])
    for saver in savers:
        if saver.code is not None:
            tally.fail("save while others save", "3 savers", f"{saver.code}: {saver.text()}")
        saver.send(signal.SIGKILL)
        saver.wait(TIMEOUT_S)
    Recommender.load(sources[0]).save(target)
    if listing(place) != {"model", *(f"model/{x.name}" for x in Path(target).iterdir())}:
        tally.fail("files left", "after 3 savers were killed", sorted(listing(place)))


def race_pair(
    server: ForkServer, world: SmallWorld, place: Path, kind: str, case: str, tally: Tally
) -> None:
    """Start two commands with one `--out`; their results differ."""
    name, *commands = PAIRS[kind](world)
    expected = []
    for number, command in enumerate(commands):
        own = place / str(number)
        own.mkdir(parents=True)
        call = server.verb(*command, "--out", str(own / name))
        if call.wait(TIMEOUT_S) != 0:
            raise RuntimeError(call.text())
        expected.append(content(own / name))
    shared = place / "shared"
    shared.mkdir()
    calls = [server.verb(*command, "--out", str(shared / name)) for command in commands]
    codes = [call.wait(TIMEOUT_S) for call in calls]
    tally.count(f"pairs of {kind}")
    for call in calls:
        if call.code not in (0, 2, 3) or "Traceback" in call.text():
            tally.fail(f"pairs of {kind}", case, f"{call.code}: {call.text()}")
    written = [x for x, code in zip(expected, codes, strict=True) if code == 0]
    if not written or content(shared / name) not in written:
        tally.fail(f"pairs of {kind}", case, f"the result of neither; exit codes {codes}")
    if others := listing(shared) ^ listing(place / "0"):
        tally.fail(f"pairs of {kind}", case, f"files left: {sorted(others)}")


def content(path: Path) -> str:
    """Return the digest of a file, or of the files of a folder."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    return digest(b"".join(x.name.encode() + x.read_bytes() for x in paths if x.exists()))


def _train(world: SmallWorld) -> tuple[object, ...]:
    command = ("train", str(world.ratings), *FLAGS, "--model", "als", "-o")
    return "model", (*command, "embedding_size=4"), (*command, "embedding_size=5")


def _embed(world: SmallWorld) -> tuple[object, ...]:
    first, second = (
        ("embed", str(world.model(seed)), str(world.ratings), "--json") for seed in (1, 2)
    )
    return "users.parquet", first, second


def _recommend(world: SmallWorld) -> tuple[object, ...]:
    first, second = (
        ("recommend", str(world.model(seed)), "--histories", str(world.ratings), "--json")
        for seed in (1, 2)
    )
    return "lists.parquet", first, second


PAIRS = {"train": _train, "embed": _embed, "recommend": _recommend}
