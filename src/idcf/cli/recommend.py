"""`idcf recommend`: recommend items to one new user, or to every user of a history file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import history_files
from idcf.cli import options as o
from idcf.errors import ConfigError

if TYPE_CHECKING:
    from idcf.data.title_search import TitleIndex
    from idcf.inference.predictor import Predictor
    from idcf.inference.ranking_query import ListOptions
    from idcf.inference.recency import Recency
    from idcf.results import Explanation, Recommendations

_MAX_REASONS = 3  # printed for each item


def recommend(
    model_folder: o.ModelFolder,
    rate: o.Rate = None,
    feature: o.UserFeature = None,
    n: Annotated[int, o.option("N", "Number of items to recommend.", "-n", min=1)] = 10,
    exclude: Annotated[
        list[str] | None,
        o.option("ITEM", "Item never to recommend, by title or id; repeatable."),
    ] = None,
    explain: Annotated[
        bool, o.switch("--explain", "Show which rated items each recommendation comes from.")
    ] = False,
    quality: Annotated[
        float | None,
        o.option(
            "Q",
            "For ratings: from 0, what the user will most likely take up, to 1, the highest "
            "expected ratings; 0.4 by default.",
            min=0,
            max=1,
        ),
    ] = None,
    diversity: Annotated[
        float,
        o.option(
            "D",
            "From 0, the best items, to 1, the best item and then those least similar to the ones "
            "before.",
            min=0,
            max=1,
        ),
    ] = 0.0,
    damping: Annotated[
        float,
        o.option(
            "D",
            "From 0 to 1: divide the probability that an item is taken up by this power of its "
            "popularity.",
            min=0,
            max=1,
        ),
    ] = 0.0,
    recency: Annotated[
        str,
        o.option(
            "R",
            "From 0 to below 1: an item of the history with k later ones weighs 1 / (1 + k)^R; "
            "`fitted`: the value that training chose. --rate options are in order, oldest first.",
        ),
    ] = "0",
    where: Annotated[
        list[str] | None,
        o.option(
            "COLUMN=VALUE",
            "Recommend only items with this value in a column of `idcf train --items`, such as "
            "genre=Comedy (ml-100k and ml-1m have genre and year); repeatable: values of one "
            "column are alternatives, several columns must all fit.",
        ),
    ] = None,
    histories: Annotated[
        Path | None,
        o.option("PATH", f"CSV or Parquet file of many users' {history_files.HISTORIES_HELP}"),
    ] = None,
    out: Annotated[
        Path | None,
        o.option(
            "PATH",
            "File to write: .parquet, .csv or .jsonl. For a folder of histories, a folder (with "
            "--histories, as the next six).",
        ),
    ] = None,
    column: o.HistoryColumns = None,
    engine: o.EngineName = None,
    workers: o.Workers = None,
    address: o.ClusterAddress = None,
    device: o.Device = "auto",
    overwrite: o.OverwriteParts = False,
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Recommend items to one new user, or to every user of a file or of a folder of files.

    Without --rate, the user gets popular items.
    --histories writes files with the columns user_id, item_id, score, rank, std, source,
    probability, rating and rating_if_shown. For a folder, an interrupted run continues when the
    command is given again.
    """
    if (histories is None) != (out is None):
        raise ConfigError("--histories PATH and --out PATH go together: give both or neither")
    if histories and (rate or feature or explain):
        raise ConfigError(
            "--rate, --feature and --explain are for one user; leave them out with --histories"
        )
    if column and not histories:
        raise ConfigError("--column is for --histories; leave it out")
    o.require_engine_extra(engine)
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.data.title_search import TitleIndex
    from idcf.recommender import Recommender

    options: ListOptions = {
        "n": n,
        "exclude": exclude or [],
        "quality": quality,
        "diversity": diversity,
        "damping": damping,
        "recency": _parse_recency(recency),
        "where": _parse_where(where or []),
        "return_std": True,
    }
    bulk = history_files.BulkOptions(
        device, engine, workers, address, overwrite, threads, not as_json, o.parse_columns(column)
    )
    if histories and out:
        values, _ = history_files.convert_histories(
            model_folder, histories, out, bulk, partial(_with_item_ids, options)
        )
        history_files.print_conversion({**values, "n": n}, f"up to {n} items each", as_json)
        return
    bulk.refuse_folder_options("leave it out, or give --histories")
    recommender = Recommender.load(model_folder)
    predictor = recommender.predictor
    titles = TitleIndex(predictor.item_ids, predictor.titles, predictor.log_popularity)
    options = _with_item_ids(options, predictor)
    options["return_std"] = predictor.artifact.model.has_uncertainty
    history = dict(parse_rating(x, titles, predictor) for x in rate or [])
    features = parse_overrides(feature) if feature else None
    recommendations = recommender.recommend(history, features=features, **options)
    explain_item = partial(
        recommender.explain, features=features, quality=quality, damping=damping,
        recency=options["recency"],
    )  # fmt: skip
    lists = recommendations, [explain_item(history, x.item_id) for x in recommendations if explain]
    o.print_result(_json_values(*lists), _format_recommendations(*lists), as_json)


def _with_item_ids(options: ListOptions, predictor: Predictor) -> ListOptions:
    """Return options with item ids in place of the titles or ids of --exclude."""
    from idcf.data.title_search import TitleIndex

    titles = TitleIndex(predictor.item_ids, predictor.titles, predictor.log_popularity)
    excluded = [predictor.item_ids[find_item_row(x, titles)] for x in options["exclude"] or []]
    return {**options, "exclude": excluded}


def _parse_recency(text: str) -> Recency:
    """Return the value of --recency, which `Recommender.recommend` checks."""
    if text == "fitted":
        return "fitted"
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"--recency {text!r}: write a number from 0 to below 1, or fitted"
        ) from None


def _parse_where(texts: list[str]) -> dict[str, list[str]] | None:
    """Return {column: values} of the --where options; None: there are none."""
    where: dict[str, list[str]] = {}
    for text in texts:
        column, sign, value = text.partition("=")
        if not (sign and column.strip() and value.strip()):
            raise ConfigError(f"--where {text!r}: write COLUMN=VALUE, as in genre=Comedy")
        where.setdefault(column.strip(), []).append(value.strip())
    return where or None


def parse_rating(text: str, titles: TitleIndex, predictor: Predictor) -> tuple[Any, float]:
    """Return the item id and the rating of a --rate value, such as "Toy Story (1995)=5"."""
    title, sign, rating = text.rpartition("=")
    if not sign:
        if not predictor.domain.implicit:
            raise ConfigError(f"--rate {text!r}: write the rating too, as in {text + '=5'!r}")
        title, rating = text, "1"
    try:
        value = float(rating)
    except ValueError:
        raise ConfigError(f"--rate {text!r}: {rating!r} is not a number") from None
    if sign and predictor.domain.implicit:
        typer.echo(
            "note: the model was trained on implicit feedback: the rating "
            f"{rating} of {title!r} is ignored",
            err=True,
        )
    return predictor.item_ids[find_item_row(title, titles)], value


def find_item_row(text: str, titles: TitleIndex) -> int:
    """Return the row of an item by title or id; print a note if the title was completed."""
    row = titles.resolve(text)
    if titles.find_exact(text) is None:
        typer.echo(f"note: {text!r} is taken for {titles.names[row]!r}", err=True)
    return row


def _json_values(
    recommendations: Recommendations, explanations: list[Explanation]
) -> dict[str, Any]:
    """Return a list for --json, with reasons and cohorts unless `explanations` is empty."""
    items: list[dict[str, Any]] = [x._asdict() for x in recommendations]
    for item, explanation in zip(items, explanations, strict=False):
        item["reasons"] = [x._asdict() for x in explanation.reasons]
        item["cohorts"] = [x._asdict() for x in explanation.cohorts]
    unknown_items = list(recommendations.unknown_items)
    return {"items": items, "unknown_items": unknown_items, "basis": recommendations.basis}


def _format_recommendations(
    recommendations: Recommendations, explanations: list[Explanation]
) -> str:
    """Return a line per item, each followed by its reasons unless `explanations` is empty, and what
    the list was made from if that is not the history."""
    lines = []
    for k, item in enumerate(recommendations):
        shown = item.score if item.rating is None else item.rating
        std = "" if item.std is None else f" ±{item.std:.2f}"
        likely = "" if item.probability is None else f"  {item.probability:4.0%}"
        lines.append(f"{item.rank:>3}  {shown:.2f}{std}{likely}  {item.title or item.item_id}")
        for reason in explanations[k].reasons[:_MAX_REASONS] if explanations else ():
            lines.append(f"{'':12}{reason.effect:+.2f}  {reason.title or reason.item_id}")
    if lines and recommendations.basis != "history":
        lines.append(f"basis: {recommendations.basis}")
    return "\n".join(lines) or "no items to recommend"
