"""A new model under load, again and again; damaged folders in between."""

from __future__ import annotations

import json
import random
from pathlib import Path

from attack import Tally
from busy_clients import BusyClients, BusyThread, post
from serve_process import BODY, Server, serving
from serve_world import EVEN_HISTORY, fitted

SWAPS = 200
MODELS = ("als", "bias", "idcf-dot", "popularity")
MAX_DIFFERENCE = 2.5e-4  # of scores: numbers are rounded, and batches change their last digits


def expected_lists() -> dict[tuple[str, ...], list[float]]:
    """Return the scores of the list of each model, by its items."""
    lists = {name: fitted(name).recommend(EVEN_HISTORY, n=5) for name in MODELS}
    return {tuple(x.item_id for x in items): [x.score for x in items] for items in lists.values()}


class ListCheck:
    """Checks that a list comes from one model."""

    def __init__(self) -> None:
        self.lists = expected_lists()
        self.seen: set[tuple[str, ...]] = set()

    def __call__(self, body: bytes) -> str:
        items = json.loads(body)["items"]
        ids = tuple(x["item_id"] for x in items)
        scores = self.lists.get(ids)
        if scores is None:
            return f"a list of no model: {ids}"
        self.seen.add(ids)
        difference = max(abs(x["score"] - y) for x, y in zip(items, scores, strict=True))
        return f"scores of {ids} differ by {difference:g}" if difference > MAX_DIFFERENCE else ""


def run(folder: Path, seed: int, share: float) -> Tally:
    """Swap models while 24 connections ask for lists; of every fifth folder, damage a file."""
    tally, rng, check = Tally(), random.Random(seed), ListCheck()
    n_swaps = max(8, round(SWAPS * share))
    model = fitted(MODELS[0]).save(folder / "model")
    with serving(model, folder / "token", 1) as server:
        host, port = server.host.split(":")
        clients = BusyClients((host, int(port)), [post("/v1/recommend", BODY, check)], 24)
        thread = BusyThread(clients)
        thread.start()
        served = MODELS[0]
        for number in range(n_swaps):
            case = f"seed {seed}, swap {number}"
            if number % 5 == 4:
                damaged_swap(tally, server, model, rng, case)
            served = rng.choice([x for x in MODELS if x != served])
            fitted(served).save(model)
            status, answer = server.reload()
            tally.count("swap")
            if status != 200 or answer["model"] != served:
                tally.fail("swap", case, f"{served}: {status} {answer}")
            thread.wait_for_answers(rng.randrange(20, 200))
        thread.finish()
        clients.close()
    tally.count("answers under load", clients.n_answers)
    tally.measured["slowest_answer_s"] = round(clients.slowest_s, 3)
    for problem in [*clients.lost, *clients.wrong]:
        tally.fail("answer", f"seed {seed}", problem)
    if clients.statuses[503]:
        tally.fail("answer", f"seed {seed}", f"{clients.statuses[503]} times 503")
    if len(check.seen) < 2:
        tally.fail("answer", f"seed {seed}", "all lists come from one model")
    return tally


def damaged_swap(tally: Tally, server: Server, model: Path, rng: random.Random, case: str) -> None:
    """Reload a folder of which one byte is wrong, or a file cut off: the old model stays."""
    old = json.loads(server.call("GET", "/v1/model")[1])
    path = rng.choice(sorted(x for x in model.iterdir() if x.suffix != ".md"))
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        del data[rng.randrange(len(data)) :]
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    status, answer = server.reload()
    tally.count("damaged folder")
    if status != 409 or "old model is still served" not in answer["detail"]:
        tally.fail("damaged folder", f"{case}, {path.name}", f"{status} {answer}")
    if json.loads(server.call("GET", "/v1/model")[1]) != old:
        tally.fail("damaged folder", f"{case}, {path.name}", "another model is served")
