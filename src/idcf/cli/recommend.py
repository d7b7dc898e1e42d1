"""`idcf recommend`: somebody rates a few things by name, and sees what else they may like; or a
file of histories becomes a file of lists.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import history_files
from idcf.cli import options as o
from idcf.errors import ConfigError, DataError

if TYPE_CHECKING:
    from idcf.data.title_search import Titles
    from idcf.inference.predictor import Desk, Filters
    from idcf.results import Explanation, Recommendations

_REASONS = 3
_AT_ONCE = 512  # people of a file: how sure a model is of each item takes room


def recommend(
    folder: o.Folder,
    rate: Annotated[
        list[str] | None,
        typer.Option(help='What they think of something: "Toy Story (1995)=5". By title or id.'),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(help="What else is known of them, as in age=30, where the model reads it."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 10,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Never this title or id; may be repeated.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why, where the model can.")
    ] = False,
    histories: Annotated[
        Path | None,
        typer.Option(help="Many at once, Parquet or CSV: user_id, item_id, rating; sorted."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The Parquet file to write, with --histories.")
    ] = None,
    threads: o.Threads = 1,
    as_json: o.Json = False,
) -> None:
    """The best items for somebody the model has never met, or for each of a file of them."""
    if (histories is None) != (out is None):
        raise ConfigError("--histories FILE and --out FILE go together: give both or neither")
    if histories and (rate or feature or explain):
        raise ConfigError("--histories is for many people; --rate, --feature and --explain for one")
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.data.title_search import Titles
    from idcf.recommender import Recommender

    recommender = Recommender.load(folder)
    desk = recommender.desk
    names = Titles(desk.ids, desk.titles)
    never = [desk.ids[_row(x, names)] for x in exclude or []]
    if histories and out:
        _many(desk, histories, out, n, desk.filters(None, never), as_json)
        return
    history = dict(_rated(x, names, desk) for x in rate or [])
    features = parse_overrides(feature) if feature else None
    sure = desk.posterior is not None
    found = recommender.recommend(history, n=n, exclude=never, features=features, std=sure)
    why: list[Explanation] = []
    if explain:
        why = [recommender.explain(history, x.item_id, features=features) for x in found]
    if as_json:
        typer.echo(json.dumps(_plain(found, why), indent=2, ensure_ascii=False))
    else:
        typer.echo(_text(found, why))


def _many(desk: Desk, histories: Path, out: Path, n: int, filters: Filters, as_json: bool) -> None:
    """Columns user_id, item_id, score, rank, std, source; a piece of the file at a time."""
    began, counts = time.perf_counter(), dict[str, Any]()
    everybody = history_files.people(histories, desk.world.implicit)
    history_files.write(_tables(desk, everybody, n, filters, counts), out)
    counts |= {"n": n, "file": str(out), "seconds": round(time.perf_counter() - began, 2)}
    said = (
        f"{counts['people']:,} people, up to {n} items each; nothing known of "
        f"{counts['nothing_known']:,}, {counts['unknown_items']:,} unknown items; "
        f"{counts['seconds']:.1f} s\nwritten to {out}"
    )
    typer.echo(json.dumps(counts) if as_json else said)


def _tables(
    desk: Desk,
    everybody: Iterator[history_files.Person],
    n: int,
    filters: Filters,
    counts: dict[str, int],
) -> Iterator[Any]:
    schema = None
    for chunk in history_files.chunks(everybody, _AT_ONCE):
        reads, _ = history_files.read(desk, chunk, counts)
        who = [x for x, _ in chunk]
        found = desk.many(reads, n, filters, who, std=True).to_table()
        schema = schema or found.schema
        yield found.cast(schema)


def _rated(text: str, names: Titles, desk: Desk) -> tuple[Any, float]:
    """The id and the rating in "title=rating"; a bare title is enough for implicit feedback."""
    title, sign, rating = text.rpartition("=")
    if not sign:
        if not desk.world.implicit:
            raise ConfigError(f"--rate {text!r}: write the rating too, as in {text + '=5'!r}")
        title, rating = text, "1"
    try:
        value = float(rating)
    except ValueError:
        raise ConfigError(f"--rate {text!r}: {rating!r} is not a number") from None
    if sign and desk.world.implicit:
        typer.echo(
            f"note: fitted without ratings: {title!r} counts as had, not as {rating}", err=True
        )
    return desk.ids[_row(title, names)], value


def _row(text: str, names: Titles) -> int:
    """The item meant, which is said where it was not written in full."""
    from idcf.data.title_search import either

    row = names.find(text)
    if row is not None:
        return row
    near = names.search(text, 4)
    if len(near) == 1 and names.holds(near[0], text):
        typer.echo(f"note: {text!r} is taken for {names.names[near[0]]!r}", err=True)
        return near[0]
    hint = f"; did you mean {either(names.names[x] for x in near)}?" if near else ""
    raise DataError(f"no item named {text!r}{hint}")


def _plain(found: Recommendations, why: list[Explanation]) -> dict[str, Any]:
    items: list[dict[str, Any]] = [x._asdict() for x in found]
    for item, said in zip(items, why, strict=False):
        item["reasons"] = [x._asdict() for x in said.reasons]
        item["cohorts"] = [x._asdict() for x in said.cohorts]
    return {"items": items, "unknown_items": list(found.unknown_items)}


def _text(found: Recommendations, why: list[Explanation]) -> str:
    lines = []
    for k, x in enumerate(found):
        sure = "" if x.std is None else f" ±{x.std:.2f}"
        lines.append(f"{x.rank:>3}  {x.score:.2f}{sure}  {x.title or x.item_id}")
        for reason in why[k].reasons[:_REASONS] if why else ():
            lines.append(f"{'':12}{reason.effect:+.2f}  {reason.title or reason.item_id}")
    return "\n".join(lines) or "nothing is left to recommend"
