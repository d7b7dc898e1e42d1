"""`idcf demo`: compare models on MovieLens-100K, recommend ten films, write an HTML report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idcf import __version__
from idcf.data.datasets.catalog import Dataset, load_dataset
from idcf.data.interactions import Interactions
from idcf.data.split import Split, sample_rows_per_user
from idcf.errors import DataError, require_extra
from idcf.evaluation import DEFAULT_MODELS
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import inductive_rmse
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import ResultRow, write_json
from idcf.evaluation.run import EvaluationPlan, evaluate
from idcf.evaluation.tables import format_text, intervals_by_cell, make_tables
from idcf.files import write_text
from idcf.inference.scoring import interaction_std, score_interactions
from idcf.metrics import Interval
from idcf.metrics.calibration import CONFIDENCE_LEVELS, reliability_curve
from idcf.models.base import Model
from idcf.models.idcf import IDCF
from idcf.paper import figures
from idcf.paper.html_report import Section, render_html
from idcf.paper.table_spec import paper_numbers
from idcf.recommender import Recommender
from idcf.rng import random_stream
from idcf.testing.synthetic import low_rank
from idcf.training import new_user_curve
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.train import TrainingResult

HISTORY_LENGTHS = (*new_user_curve.HISTORY_LENGTHS, None)  # None: the whole history
IDCF_MODELS = ("idcf-dot", "idcf-nn", "idcf-gc")
BEST_MODEL = "idcf-bayes"
CURVE_MODELS = ("bias", "als", *IDCF_MODELS, BEST_MODEL)
SHOWN_METRICS = ("rmse", "ndcg", "ndcg@10")
NEW_USER_RATINGS = {
    "Star Wars (1977)": 5.0,
    "Empire Strikes Back, The (1980)": 5.0,
    "Toy Story (1995)": 4.0,
    "Scream (1996)": 1.0,
    "English Patient, The (1996)": 2.0,
}
SIMPLE_MODEL = "bias"  # what the curve of the best model is compared with
_CAPTIONS = {  # by the title of a figure
    "Each model with its interval": "Dots are our results with 95 % intervals over users. Diamonds "
    "are the numbers that the paper prints.",
    "How many ratings of a new user are enough?": "Each new user's history is cut to n ratings, "
    f"while the test ratings stay the same. The band is the 95 % interval of `{BEST_MODEL}` over "
    "users.",
    f"Are the intervals of `{BEST_MODEL}` calibrated?": "For each level, the share of new users' "
    "test ratings inside the predicted interval. A calibrated model lies on the diagonal.",
    "To whom does `idcf-nn` attend?": "The weight that each new user (row) gives to key users "
    "(columns), as a mean over heads.",
    "To how many key users does `idcf-nn` attend?": "Over how many key users a head spreads its "
    "attention, as the exponential of the entropy of its weights; each box holds the new users. "
    "The dotted line is uniform attention.",
    "When does training stop?": "The error on held-out ratings or users by epoch. A ring marks the "
    "epoch that was chosen.",
}
SYNTHETIC_NOTICE = (
    "NOT REAL DATA: MovieLens-100K could not be loaded, so all results here are for synthetic data "
    "and cannot be compared with the paper's. "
)


def run_demo(
    folder: Path,
    runtime: Runtime = LOCAL_RUNTIME,
    *,
    n_jobs: int = 1,
    echo: Callable[[str], None] = print,
    models: Sequence[str] = DEFAULT_MODELS,
) -> Path:
    """Train and compare models on new users and write `report.html` and `rows.json` to a folder.
    Return the path of the report. `echo` is called with each text for the console."""
    require_extra("plots", "matplotlib")  # before long work whose end is a figure
    began = time.perf_counter()
    try:
        dataset, notice = load_dataset("ml-100k"), ""
    except DataError as error:
        dataset, notice = synthetic_dataset(), f"{SYNTHETIC_NOTICE}({error})"
        echo(notice)
    split, split_name = standard_split(dataset)
    echo(
        f"Dataset {dataset.name}, split {split_name}: training on {len(split.key_users):,} key "
        f"users, then predicting for {len(split.query_users):,} new users, who are absent from "
        "training."
    )
    trained: dict[str, TrainingResult] = {}
    rows = evaluate(
        EvaluationPlan(dataset, models),
        split=(split, split_name),
        runtime=runtime,
        n_jobs=n_jobs,
        progress=True,
        on_trained=lambda model, users, seed, result: trained.update({model: result}),
    )
    write_json(rows, folder / "rows.json")
    shown = [row for row in rows if row.metric in (*SHOWN_METRICS, "cover90")]
    echo(f"\n{format_text(shown, paper_numbers())}\n")
    sections = [
        _results_section(shown, split),
        _recommendations_section(dataset, echo),
        *_figure_sections(shown, split, trained),
    ]
    path, seconds = folder / "report.html", time.perf_counter() - began
    lead = (
        f"The models are trained once on {dataset.name} and then recommend to new users without "
        "further training."
    )
    footer = (
        f"This page was made by idcf {__version__} with torch {torch.__version__} and Python "
        f"{platform.python_version()} on {platform.machine()} with {os.cpu_count()} cores, in "
        f"{seconds:.0f} s. All numbers are in rows.json in the same folder."
    )
    title = "Recommendations for new users"
    write_text(path, render_html(title, lead, sections, footer, notice, _headline(rows)))
    echo(f"{notice}\nThe report with figures is {path}. The demo took {seconds:.0f} s.")
    return path


def synthetic_dataset() -> Dataset:
    """Return synthetic ratings of rank 4, in which a third of the users has few ratings."""
    rng = random_stream(0, "demo world")
    table = low_rank(900, 600, 4, rng, density=0.15, noise=0.5, round_ratings=True).interactions
    short = truncate_histories(table, 20)
    table = table.where(table.user % 3 > 0).concat(short.where(short.user % 3 == 0))
    titles = {item: f"Film {str(item)[1:]}" for item in table.items.ids}
    return Dataset("synthetic", table, None, None, titles, 30)


def truncate_histories(table: Interactions, n: int | None) -> Interactions:
    """Return n random rows of each user, or all rows for None; a larger n adds rows."""
    return table if n is None else sample_rows_per_user(table, n, random_stream(0, "cut"))


def rmse_by_history_length(
    evaluation_set: EvaluationSet,
    models: Mapping[str, Model],
    history_lengths: Sequence[int | None] = HISTORY_LENGTHS,
) -> dict[str, list[Interval]]:
    """Return model -> its RMSE when it reads each number of ratings of a history; None is all. The
    test rows stay the same for all lengths."""
    histories = evaluation_set.history_table.for_users(evaluation_set.users)
    truncated = [truncate_histories(histories, n) for n in history_lengths]
    return {
        name: [inductive_rmse(evaluation_set, model, table) for table in truncated]
        for name, model in models.items()
    }


def _headline(rows: Sequence[ResultRow]) -> str:
    """Say which model predicts ratings best, and which has the best lists."""
    intervals = intervals_by_cell(rows)
    by_rmse = sorted(
        (x.value, model) for (model, metric), x in intervals.items() if metric == "rmse"
    )
    lists = [(x.value, model) for (model, metric), x in intervals.items() if metric == "ndcg@10"]
    (best, model), (second, other) = by_rmse[:2]
    text = (
        f"`{model}` predicts the ratings of new users best: its RMSE is {best:.3f}, that of the "
        f"next one, `{other}`, {second:.3f}."
    )
    if lists:
        text += f" `{max(lists)[1]}` has the best ndcg@10 over the whole catalogue."
    return text


def _results_section(rows: Sequence[ResultRow], split: Split) -> Section:
    """Return the section with the table of results."""
    text = (
        f"The models are trained on {len(split.key_users):,} key users and measured on new users, "
        "who are absent from training. `ndcg` is that of the paper's public code: its gain is "
        "2^rating - 1 and it ranks only the user's test items, so even random order scores high. "
        "`ndcg@10` ranks the whole catalogue. Brackets hold 95 % bootstrap intervals over users. "
        "Lists by expected rating alone rarely beat popularity in `ndcg@10`, because high expected "
        "ratings are not what users choose next; the note below the table names the models whose "
        "lists also go by how likely an item is taken up."
    )
    return Section(
        "Quality of each model for new users", text, table=make_tables(rows, paper_numbers())[0]
    )


def _recommendations_section(dataset: Dataset, echo: Callable[[str], None]) -> Section:
    """Fit `BEST_MODEL`, recommend films to a new user, print them, return a section with them. The
    user rated `NEW_USER_RATINGS`; in synthetic data, the first five titles instead."""
    ratings, item_by_title = NEW_USER_RATINGS, {t: item for item, t in dataset.titles.items()}
    if not ratings.keys() <= item_by_title.keys():
        ratings = dict(zip(item_by_title, ratings.values(), strict=False))
    recommender = Recommender(BEST_MODEL).fit(
        dataset.interactions, titles=dataset.titles, attributes=dataset.attributes
    )
    history = {item_by_title[title]: rating for title, rating in ratings.items()}
    films = recommender.recommend(history, n=10, return_std=True)
    scores = [
        f"{film.probability:.0%} likely, rating {film.rating:.1f} ± {film.std:.1f}"
        for film in films
    ]
    echo("A new user has rated five films:")
    for title, rating in ratings.items():
        echo(f"  {rating:g}  {title}")
    echo(f"{BEST_MODEL} recommends these films, by how likely and how good they are:")
    for n, (film, score) in enumerate(zip(films, scores, strict=True), 1):
        echo(f"  {n:2}. {film.title} ({score})")
    rated = ", ".join(f"{title} {rating:g}" for title, rating in ratings.items())
    pairs = zip(films, scores, strict=True)
    items = [f"{film.title}: {score}" for film, score in pairs]
    text = f"The user's ratings: {rated}. The recommendations come from {BEST_MODEL}."
    return Section("Ten films for a new user", text, items=items)


def _figure_sections(
    rows: Sequence[ResultRow], split: Split, trained: Mapping[str, TrainingResult]
) -> list[Section]:
    """Return a section for each figure; figures of models that were not trained are left out."""
    evaluation_set = EvaluationSet.from_split(split, split.query_users)
    models = {name: trained[name].model for name in CURVE_MODELS if name in trained}
    logs = {name: trained[name].logs for name in IDCF_MODELS if name in trained}
    curves = rmse_by_history_length(evaluation_set, models)
    titles = list(_CAPTIONS)
    captions = dict(_CAPTIONS)
    plots = {titles[0]: figures.plot_forest(rows, SHOWN_METRICS)}
    lengths = (curves, HISTORY_LENGTHS, BEST_MODEL, SIMPLE_MODEL)
    plots[titles[1]] = figures.plot_rmse_by_history_length(*lengths)
    if BEST_MODEL in models and SIMPLE_MODEL in models:
        captions[titles[1]] = f"{figures.first_length_ahead(*lengths)} {captions[titles[1]]}"
    if BEST_MODEL in models:
        shares = _interval_coverage(evaluation_set, models[BEST_MODEL])
        plots[titles[2]] = figures.plot_reliability({BEST_MODEL: shares}, CONFIDENCE_LEVELS)
    if isinstance(attention_model := models.get("idcf-nn"), IDCF):
        weights = _attention_weights(evaluation_set, attention_model)
        plots[titles[3]] = figures.plot_attention(weights)
        plots[titles[4]] = figures.plot_attention_spread(weights)
    plots[titles[5]] = figures.plot_training(logs)
    return [Section(title, captions[title], figures.to_png(x)) for title, x in plots.items()]


def _interval_coverage(evaluation_set: EvaluationSet, model: Model) -> NDArray[np.float64]:
    """Return the share of test ratings inside the predicted interval of each level."""
    test_rows, histories = evaluation_set.test_rows, evaluation_set.history_table
    std = interaction_std(model, test_rows, histories, anonymous=True)
    scores = score_interactions(model, test_rows, histories, anonymous=True)
    shares = [
        reliability_curve(scores, std * model.interval_ratio(level), test_rows.rating, [level])
        for level in CONFIDENCE_LEVELS
    ]
    return np.concatenate(shares)


@torch.no_grad()
def _attention_weights(evaluation_set: EvaluationSet, model: IDCF) -> NDArray[Any]:
    """Return the attention of new users to key users: [heads, new users, key users]."""
    users = evaluation_set.history_table.build_users(evaluation_set.users).anonymous()
    return model.attention_weights(users.to(model.device)).cpu().numpy()
