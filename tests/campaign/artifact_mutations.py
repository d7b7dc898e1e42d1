"""Folders of saved models that were damaged, or forged so that the checksums are right.

A damaged folder is refused, or gives the answers of the model that was saved. A forged one is
refused, or gives a model whose answers are finite and whose operations work or are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import artifact_cases as cases
import numpy as np
import pyarrow as pa
import torch
from attack import Tally
from builders import board
from limits import TooLong, last_frames, memory_limit, quiet, time_limit

from idcf import Recommender
from idcf.errors import IdcfError
from idcf.inference.artifact import save_artifact
from idcf.server.service import RecommendationService

N_DAMAGED, N_FORGED = 900, 1300
SECONDS = 30.0  # that a case may take; it takes a tenth of a second
BYTES = 1 << 30  # of address space that a case may add
N_ITEMS = 24

DAMAGES: dict[str, float] = {
    "flip_bits": 4, "truncate": 3, "append": 2, "replace_file": 4, "add_files": 0.3,
    "edit_config": 4, "swap_values": 0.5, "rewrite_config": 2, "change_tensor": 1, "edit_items": 1,
    "mix_models": 1.5, "any_card": 0.3,
}  # fmt: skip
FORGERIES: dict[str, float] = {
    "edit_config": 8, "swap_values": 1, "change_tensor": 6, "change_names": 1, "edit_header": 1,
    "edit_items": 2, "move_bytes": 1, "mix_models": 1, "any_card": 0.1,
}  # fmt: skip


@dataclass(frozen=True)
class Original:
    """A saved model: its files, and what it answers."""

    name: str
    files: dict[str, bytes]
    answers: dict[str, Any]


@cache
def originals() -> tuple[Original, ...]:
    """Fit and save one model of each kind."""
    import tempfile

    clicks, features = {"implicit": True}, {"features": True}
    kinds: tuple[tuple[str, dict[str, bool], dict[str, Any]], ...] = (
        ("idcf-bayes", features, {"sweeps": 8, "burn_in": 2, "rank": 3}),
        ("idcf-nn", {}, {"epochs": 1, "embedding_size": 4}),
        ("als", {}, {"embedding_size": 4, "reg": 5.0}),
        ("bias", {}, {"shrinkage": 3.0}),
        ("item-knn", clicks, {"neighbors": 5, "reg": 3.0}),
        ("idcf-odds", clicks, {}),
        ("idcf-takeup", clicks, {}),
        ("idcf-gc", {}, {"epochs": 1, "embedding_size": 4}),
    )
    result = []
    for name, table, options in kinds:
        recommender = _fitted(name, options, **table)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            save_artifact(recommender.artifact, path, allow_training_rows=True)
            files = {x: (path / x).read_bytes() for x in cases.NAMES}
            with quiet():
                answers = dict(answers_of(Recommender.load(path)))
        result.append(Original(name, files, answers))
    return tuple(result)


def _fitted(
    name: str, options: dict[str, Any], *, implicit: bool = False, features: bool = False
) -> Recommender:
    """Fit a model to a small table, with titles, attributes and perhaps features."""
    table = board(40, N_ITEMS, 6, 14, implicit=implicit)
    items = table.items.ids
    genres = [["drama", "crime", "drama|crime"][k % 3] for k in range(N_ITEMS)]
    item_table = pa.table({"item_id": items, "genre": genres, "year": range(1990, 1990 + N_ITEMS)})
    if not features:
        genre_of = dict(zip(items, genres, strict=True))
        side: dict[str, Any] = {"attributes": {"genre": genre_of}}
    else:
        side = {"items": item_table}
    titles = {x: f"Film {x}" for x in items[:-2]}
    with quiet():
        return Recommender(name, key_threshold=10, device="cpu", **options).fit(
            table, titles=titles, **side
        )


def answers_of(recommender: Recommender) -> Iterator[tuple[str, Any]]:
    """Yield the name and the numbers of each operation; one that is refused has its message.

    Raises anything but an error of the program.
    """
    predictor = recommender.predictor
    ids, levels = list(predictor.item_ids), predictor.domain.levels
    items = ids[:4]
    history: Any = items if predictor.domain.implicit else dict.fromkeys(items, levels[-1])
    operations: dict[str, Callable[[], Any]] = {
        "recommend": lambda: recommender.recommend(history, n=5),
        "recommend to nobody": lambda: recommender.recommend([], n=5),
        "recommend to three": lambda: recommender.recommend([history, [], history], n=3).to_table(),
        "recommend diversely": lambda: recommender.recommend(history, diversity=0.5),
        "recommend by quality": lambda: recommender.recommend(history, quality=1.0),
        "recommend with damping": lambda: recommender.recommend(history, damping=0.5),
        "recommend with recency": lambda: recommender.recommend(history, recency=0.5),
        "recommend with deviations": lambda: recommender.recommend(history, return_std=True),
        "recommend where": lambda: recommender.recommend(history, where={"genre": "drama"}),
        "predict": lambda: recommender.predict(history, ids[-5:]),
        "predict if shown": lambda: recommender.predict(history, ids[-5:], if_shown=True),
        "predict_interval": lambda: recommender.predict_interval(history, ids[-5:]),
        "explain": lambda: recommender.explain(history, ids[-1]),
        "similar": lambda: recommender.similar_items(ids[0]),
        "embed": lambda: recommender.embed(history),
        "next question": lambda: recommender.next_question(history),
        "serve": lambda: _serve(recommender),
    }
    for name, operation in operations.items():
        try:
            result = operation()
        except IdcfError as error:
            if "\n" in str(error):
                raise AssertionError(f"{name}: not one line: {error}") from error
            yield name, f"{type(error).__name__}: {error}"
        else:
            yield name, list(numbers_in(result))


def _serve(recommender: Recommender) -> Any:
    """Put a model to work as the server does."""
    service = RecommendationService(recommender)
    service.model_info()
    return [service.search_items("film", 3).items, service.search_items("", 3).items]


def numbers_in(value: Any) -> Iterator[Any]:
    """Yield the numbers, texts and gaps of a result of any kind."""
    if isinstance(value, np.ndarray | torch.Tensor):
        yield from value.reshape(-1).tolist()
    elif isinstance(value, pa.Table):
        for column in value.columns:
            yield from numbers_in(column.to_pylist())
    elif isinstance(value, dict):
        yield from numbers_in(list(value.items()))
    elif isinstance(value, list | tuple):
        for x in value:
            yield from numbers_in(x)
    elif hasattr(value, "__dataclass_fields__") or hasattr(value, "__struct_fields__"):
        names = getattr(value, "__struct_fields__", None) or value.__dataclass_fields__
        yield from numbers_in([getattr(value, x) for x in names])
    else:
        yield value


def run(folder: Path, seed: int, share: float) -> Tally:
    """Damage and forge folders of models."""
    torch.set_num_threads(1)
    tally = Tally()
    for kinds, label, n_cases in (
        (DAMAGES, "damaged", N_DAMAGED),
        (FORGERIES, "forged", N_FORGED),
    ):
        weights = np.array(list(kinds.values()))
        for draw in range(max(round(share * n_cases), 1)):
            rng = np.random.default_rng([seed, label == "forged", draw])
            kind = str(rng.choice(list(kinds), p=weights / weights.sum()))
            original, other = (originals()[int(k)] for k in rng.choice(len(originals()), 2, False))
            tally.count(f"{label}: {kind}")
            problem = _try(folder, original, other, kind, label == "forged", rng)
            if problem:
                tally.fail(f"{label}: {kind}", f"seed {seed}, draw {draw}", problem)
    return tally


def _try(
    folder: Path,
    original: Original,
    other: Original,
    kind: str,
    is_forged: bool,
    rng: np.random.Generator,
) -> str:
    """Change a copy of a model and use it; return what was wrong, or ""."""
    shutil.rmtree(folder)
    copy = folder / "model"
    copy.mkdir(parents=True)
    for name, content in original.files.items():
        (copy / name).write_bytes(content)
    change = cases.mix_models(other.files) if kind == "mix_models" else getattr(cases, kind)
    label = f"{original.name}, {change(copy, rng)}: "
    if is_forged:
        try:
            cases.reseal(copy)
        except (OverflowError, ValueError):  # a value that JSON cannot hold
            return ""
    try:
        with quiet(), time_limit(SECONDS), memory_limit(BYTES):
            known = [original, other] if kind == "mix_models" else [original]
            problem = _forged_problem(copy) if is_forged else _damaged_problem(copy, known)
    except TooLong as error:
        problem = str(error)
    except BaseException as error:
        problem = last_frames(error)
    return label + problem if problem else ""


def _damaged_problem(copy: Path, known: list[Original]) -> str:
    """Load a damaged folder; return what was wrong, or "" if it answers as a known model."""
    try:
        recommender = Recommender.load(copy)
    except IdcfError as error:
        return _message_problem(error)
    answers = dict(answers_of(recommender))
    if any(answers == x.answers for x in known):
        return ""
    wrong = [x for x in answers if answers[x] != known[0].answers[x]]
    return f"loads, and answers otherwise: {wrong[0]}"


def _forged_problem(copy: Path) -> str:
    """Load a folder whose checksums are right; return what was wrong, or ""."""
    try:
        recommender = Recommender.load(copy)
    except IdcfError as error:
        return _message_problem(error)
    for name, numbers in answers_of(recommender):
        if isinstance(numbers, list):
            bad = [x for x in numbers if isinstance(x, float) and not np.isfinite(x)]
            if bad:
                return f"{name} answers {bad[0]}"
    recommender.save(copy.parent / "again", allow_training_rows=True)
    Recommender.load(copy.parent / "again")
    return ""


def _message_problem(error: IdcfError) -> str:
    """Return what is wrong with the message of an error, or ""."""
    text = str(error)
    return "" if text and "\n" not in text and len(text) < 2000 else f"message: {text[:500]!r}"
