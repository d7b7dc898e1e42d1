"""`idcf predict`, `explain`, `next-question`, `similar`: what a model says of one user or item."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.data.title_search import TitleIndex
    from idcf.recommender import Recommender

Items = Annotated[list[str], o.argument("ITEM...", "Items, by title or id.")]
Item = Annotated[str, o.argument("ITEM", "Item, by title or id.")]


def predict(
    model_folder: o.ModelFolder,
    items: Items,
    rate: o.Rate = None,
    feature: o.UserFeature = None,
    confidence_level: Annotated[
        float | None,
        o.option(
            "P",
            "Also print the interval in which a rating lies with this probability, such as 0.9. "
            "Needs a model of ratings with a posterior.",
        ),
    ] = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """Predict how one new user scores some items: ratings or, for clicks, probabilities."""
    recommender, titles = _load(model_folder)
    history, features = _read_user(recommender, titles, rate, feature)
    ids = [_item_id(recommender, titles, x) for x in items]
    if confidence_level is None:
        values = {"score": recommender.predict(history, ids, features=features).tolist()}
    else:
        interval = recommender.predict_interval(history, ids, confidence_level, features=features)
        names = ("score", "std", "low", "high")
        values = {name: getattr(interval, name).tolist() for name in names}
    rows = [
        {"item_id": item_id, **dict(zip(values, x, strict=True))}
        for item_id, *x in zip(ids, *values.values(), strict=True)
    ]
    lines = ["  ".join(str(x) for x in values)]
    for name, row in zip(items, rows, strict=True):
        lines.append("  ".join([*(f"{row[k]:.3f}" for k in values), name]))
    o.print_result({"items": rows}, "\n".join(lines), as_json)


def explain(
    model_folder: o.ModelFolder,
    item: Item,
    rate: o.Rate = None,
    feature: o.UserFeature = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """Explain the score of one item for one new user by the items of the history."""
    recommender, titles = _load(model_folder)
    history, features = _read_user(recommender, titles, rate, feature)
    item_id = _item_id(recommender, titles, item)
    explanation = recommender.explain(history, item_id, features=features)
    values = explanation._asdict()
    values |= {k: [x._asdict() for x in values[k]] for k in ("reasons", "cohorts")}
    o.print_result(values, repr(explanation), as_json)


def next_question(
    model_folder: o.ModelFolder,
    rate: o.Rate = None,
    feature: o.UserFeature = None,
    n: Annotated[int, o.option("N", "Number of items.", "-n", min=1)] = 5,
    as_json: o.JsonSwitch = False,
) -> None:
    """Name the items whose answers would say most about one new user."""
    recommender, titles = _load(model_folder)
    history, features = _read_user(recommender, titles, rate, feature)
    questions = recommender.next_question(history, n, features=features)
    o.print_result({"items": _rows(questions)}, repr(questions), as_json)


def similar(
    model_folder: o.ModelFolder,
    item: Item,
    n: Annotated[int, o.option("N", "Number of items.", "-n", min=1)] = 10,
    as_json: o.JsonSwitch = False,
) -> None:
    """List the items most similar to one item; the score is the similarity."""
    recommender, titles = _load(model_folder)
    similar_items = recommender.similar_items(_item_id(recommender, titles, item), n)
    o.print_result({"items": _rows(similar_items)}, repr(similar_items), as_json)


def _load(folder: Path) -> tuple[Recommender, TitleIndex]:
    """Return a saved model and an index of its titles."""
    from idcf.data.title_search import TitleIndex
    from idcf.recommender import Recommender

    recommender = Recommender.load(folder)
    predictor = recommender.predictor
    return recommender, TitleIndex(predictor.item_ids, predictor.titles)


def _read_user(
    recommender: Recommender, titles: TitleIndex, rate: list[str] | None, feature: list[str] | None
) -> tuple[dict[Any, float], dict[str, Any] | None]:
    """Return the history and the features of --rate and --feature."""
    from idcf.cli.recommend import parse_rating
    from idcf.config import parse_overrides

    history = dict(parse_rating(x, titles, recommender.predictor) for x in rate or [])
    return history, parse_overrides(feature) if feature else None


def _item_id(recommender: Recommender, titles: TitleIndex, text: str) -> Any:
    """Return the id of the item with this title or id."""
    from idcf.cli.recommend import find_item_row

    return recommender.predictor.item_ids[find_item_row(text, titles)]


def _rows(results: Sequence[Any]) -> list[dict[str, Any]]:
    """Return named tuples as dictionaries."""
    return [x._asdict() for x in results]
