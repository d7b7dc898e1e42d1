"""The whole path in one go: data, training, newcomers, a table, ten films, a report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from idcf import __version__
from idcf.data.datasets.catalog import Dataset, load
from idcf.data.interactions import Interactions
from idcf.data.split import Split, first
from idcf.errors import DataError
from idcf.evaluation.measure import Exam, errors
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import Row, write_json
from idcf.evaluation.run import Plan, evaluate
from idcf.evaluation.tables import tables, text
from idcf.inference.scoring import deviations, predict
from idcf.metrics import Interval
from idcf.metrics.calibration import LEVELS, reliability
from idcf.models.base import Model, Posterior
from idcf.models.idcf import IDCF
from idcf.paper import figures
from idcf.paper.html_report import Section, write_report
from idcf.paper.published_numbers import paper_numbers
from idcf.recommender import Recommender
from idcf.results import Recommendations
from idcf.rng import stream
from idcf.testing.synthetic import low_rank
from idcf.training import new_user_curve
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.train import Trained
from idcf.types import Users

LENGTHS = (*new_user_curve.LENGTHS, None)  # of the cut histories; None: the whole history
OURS = ("idcf-dot", "idcf-nn", "idcf-gc")
BEST = "idcf-bayes"
MODELS = ("item-mean", "popularity", "bias", "item-knn", "ease", "als", *OURS, BEST)
CURVES = ("bias", "als", *OURS, BEST)
METRICS = ("rmse", "ndcg", "ndcg@10")
NEWCOMER = {
    "Star Wars (1977)": 5.0,
    "Empire Strikes Back, The (1980)": 5.0,
    "Toy Story (1995)": 4.0,
    "Scream (1996)": 1.0,
    "English Patient, The (1996)": 2.0,
}
LOUD = (
    "NOT REAL DATA: MovieLens-100K could not be had, so everything here is about a made-up world, "
    "and the numbers say nothing of the paper's. "
)


def show(
    folder: Path,
    runtime: Runtime = LOCAL,
    *,
    jobs: int = 1,
    say: Callable[[str], None] = print,
    models: Sequence[str] = MODELS,
) -> Path:
    """Everything the demo does; where the report is."""
    began = time.perf_counter()
    dataset, loud = real_or_synthetic()
    if loud:
        say(loud)
    split, name = standard_split(dataset)
    say(
        f"{dataset.name} ({name}): training on {len(split.key_users):,} key users, then meeting "
        f"{len(split.query_users):,} people who are in no training row"
    )
    kept: dict[str, Trained] = {}
    rows = evaluate(
        Plan(dataset, models),
        split=(split, name),
        runtime=runtime,
        jobs=jobs,
        progress=True,
        keep=lambda model, users, seed, trained: kept.update({model: trained}),
    )
    shown = [r for r in rows if r.metric in (*METRICS, "cover90")]
    say(f"\n{text(shown, paper_numbers())}\n")
    rated = NEWCOMER if all(t in dataset.titles.values() for t in NEWCOMER) else _some(dataset)
    films = recommend(dataset, rated)
    say(_told(rated, films))
    write_json(rows, folder / "rows.json")
    sections = [
        _results(shown, split),
        _films(rated, films),
        *_pictures(shown, split, kept),
    ]
    page = folder / "report.html"
    took = time.perf_counter() - began
    _write(page, dataset.name, sections, loud, took)
    say(f"{loud}\nThe report, with figures, is {page} ({took:.0f} s in all).")
    return page


def real_or_synthetic() -> tuple[Dataset, str]:
    """MovieLens-100K, or as a last resort a world of our own and a loud word about it."""
    try:
        return load("ml-100k"), ""
    except DataError as error:
        return synthetic(), f"{LOUD}({error})"


def synthetic() -> Dataset:
    """Ratings of rank 4, a third of the people with few of them."""
    rng = stream(0, "demo world")
    table = low_rank(900, 600, 4, rng, density=0.15, noise=0.5, whole=True).interactions
    few, many = cut(table, 20), table
    table = many.where(many.user % 3 > 0).plus(few.where(few.user % 3 == 0))
    titles = {item: f"Film {str(item)[1:]}" for item in table.items.ids}
    return Dataset("synthetic", table, None, None, titles, 30)


def cut(table: Interactions, n: int | None) -> Interactions:
    """Return the first n rows of each user, in an order drawn once; all rows for None."""
    return table if n is None else first(table, n, stream(0, "cut"))


def by_length(
    exam: Exam, models: Mapping[str, Model], lengths: Sequence[int | None] = LENGTHS
) -> dict[str, list[Interval]]:
    """Return each inductive model's RMSE on one set of test rows, at each length of history."""
    histories = exam.seen.of(exam.users)
    cuts = [cut(histories, n) for n in lengths]
    return {name: [errors(exam, model, seen) for seen in cuts] for name, model in models.items()}


def recommend(dataset: Dataset, ratings: Mapping[str, float]) -> Recommendations:
    """Fit the default model on the whole dataset and recommend to a new user, by titles."""
    by_title = {title: item for item, title in dataset.titles.items()}
    recommender = Recommender(BEST).fit(dataset.interactions, titles=dataset.titles)
    history = {by_title[title]: rating for title, rating in ratings.items()}
    return recommender.recommend(history, n=10, std=True)


def _some(dataset: Dataset) -> dict[str, float]:
    return dict(zip(list(dataset.titles.values())[:5], NEWCOMER.values(), strict=True))


def _told(rated: Mapping[str, float], films: Recommendations) -> str:
    lines = ["Somebody nobody has met rated five films:"]
    lines += [f"  {rating:g}  {title}" for title, rating in rated.items()]
    lines.append(f"{BEST} suggests, with the rating it expects and how far off it may be:")
    lines += [f"  {n:2}. {f.title} ({f.score:.1f} ± {f.std:.1f})" for n, f in enumerate(films, 1)]
    return "\n".join(lines)


def _results(rows: Sequence[Row], split: Split) -> Section:
    text = (
        f"Trained on {len(split.key_users):,} key users, measured on people absent from training. "
        "ndcg is the paper's (gain 2^rating - 1, the user's own test list), whose floor is high; "
        "ndcg@10 ranks the whole catalogue. A value in [ ] is a 95 % bootstrap interval over users."
        " Popularity is hard to beat in ndcg@10 by stars: for lists of what people take up, leave "
        "them aside (`idcf evaluate ml-100k --implicit`)."
    )
    return Section(
        "New users: quality of every system", text, table=tables(rows, paper_numbers())[0]
    )


def _films(rated: Mapping[str, float], films: Recommendations) -> Section:
    liked = ", ".join(f"{title} {rating:g}" for title, rating in rated.items())
    items = [f"{f.title}: {f.score:.1f} ± {f.std:.1f} expected" for f in films]
    return Section("Ten films for a newcomer", f"They had rated: {liked}.", items=items)


def _pictures(rows: Sequence[Row], split: Split, kept: Mapping[str, Trained]) -> list[Section]:
    exam = Exam.of(split, split.query_users)
    found = {name: kept[name].model for name in CURVES if name in kept}
    ours = {name: kept[name].logs for name in OURS if name in kept}
    sections = [
        Section(
            "Every system, with its interval",
            "Dots: ours with 95 % intervals over users; diamonds: what the paper published.",
            figures.png(figures.forest(rows, METRICS)),
        ),
        Section(
            "Quality against number of interactions",
            "Each newcomer's history is cut to n ratings; the test ratings stay the same. "
            "Faint bars are 95 % intervals over users.",
            figures.png(figures.quality(by_length(exam, found), LENGTHS)),
        ),
    ]
    if isinstance(sure := kept[BEST].model if BEST in kept else None, Posterior):
        std = deviations(sure, exam.rows, exam.seen, anonymous=True)
        scores = predict(sure, exam.rows, exam.seen, anonymous=True)
        shares = reliability(scores, std, exam.rows.rating)
        sections.append(
            Section(
                f"Is it as sure as it should be? ({BEST})",
                "The share of newcomers' test ratings inside intervals of each level; on the line "
                "it is calibrated.",
                figures.png(figures.reliability({BEST: shares}, LEVELS)),
            )
        )
    if isinstance(model := kept["idcf-nn"].model if "idcf-nn" in kept else None, IDCF):
        sections.append(
            Section(
                "Attention on key users (idcf-nn)",
                "Left: the weight that newcomers (rows) give key users (columns), mean over heads. "
                "Right: to how many key users a head listens in effect.",
                figures.png(figures.attention(_attention(model, exam))),
            )
        )
    sections.append(
        Section(
            "Training curves",
            "A ring marks the epoch that validation chose.",
            figures.png(figures.training(ours)),
        )
    )
    return sections


@torch.no_grad()
def _attention(model: IDCF, exam: Exam) -> np.typing.NDArray[np.float32]:
    users = Users(torch.from_numpy(exam.users), exam.seen.history(exam.users)).anonymous()
    weights: np.typing.NDArray[np.float32] = model.attention(users.to(model.device)).cpu().numpy()
    return weights


def _write(page: Path, name: str, sections: Sequence[Section], loud: str, took: float) -> None:
    footer = (
        f"idcf {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores; "
        f"{took:.0f} s. Every number is in rows.json beside this page."
    )
    lead = f"idcf on {name}: train once, then recommend to people the model has never met."
    write_report(page, "People never met before", lead, sections, footer, loud)
