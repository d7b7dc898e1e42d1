"""`idcf reproduce` runs what the paper's tables need; `idcf report` draws the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.paper.run_plan import Run

Results = Annotated[Path, typer.Option(help="The folder of rows.")]
_RESULTS = Path("experiments/results")


def reproduce(
    table: Annotated[
        str, typer.Argument(help="table2, table3, table4, table6, table7, or all.")
    ] = "all",
    dataset: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    models: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    preset: Annotated[str, typer.Option(help="Only these: clean, published.")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="Other than the table says.")] = None,
    device: o.Device = "auto",
    jobs: o.Jobs = 1,
    threads: o.Threads = 1,
    results: Results = _RESULTS,
    again: Annotated[bool, typer.Option("--again", help="Also what is done already.")] = False,
    merge: Annotated[
        Path | None, typer.Option(help="Only take in the rows of this folder, from elsewhere.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is missing.")] = False,
    as_json: o.Json = False,
) -> None:
    """Run the cells of a table of the paper that are missing. Stop it when you like: the same
    command goes on. A run that fails is told, and the others go on."""
    o.limit_threads(threads)
    from idcf.paper import reproduce as work
    from idcf.paper import run_plan, table_spec
    from idcf.training.distributed import start

    if merge is not None:
        fresh, left = work.merge(merge, results)
        told = f"{fresh} new rows of {merge} are in {results}"
        if left:
            told += f"; {left} runs there are of earlier settings and were left"
        _tell({"merged": fresh, "left": left}, told, as_json)
        return
    tables = list(table_spec.load_all().values()) if table == "all" else [table_spec.find(table)]
    runs = run_plan.runs_of(
        tables,
        datasets=o.names(dataset),
        models=o.names(models),
        presets=o.names(preset),
        seeds=seeds,
    )
    todo = runs if again else work.missing(runs, results, longest_first=jobs > 1)
    head = f"{len(runs)} runs, {len(runs) - len(todo)} of them done"
    if dry_run:
        _tell({"runs": len(runs), "missing": _plain(todo)}, _listed(head, todo), as_json)
        return
    typer.echo(head, err=True)
    try:
        found = work.reproduce(
            todo, results, runtime=start(device), jobs=jobs, progress=not as_json
        )
    except KeyboardInterrupt:
        typer.echo("stopped; what was done is kept, and the same command goes on", err=True)
        raise typer.Exit(130) from None
    text = f"{len(found.made)} runs made, {len(found.failed)} failed; rows are in {results}"
    lines = [f"failed: {name}: {why}" for name, why in found.failed.items()]
    _tell({"made": _plain(found.made), "failed": found.failed}, "\n".join([text, *lines]), as_json)
    if found.failed:
        raise typer.Exit(1)


def report(
    out: Annotated[Path, typer.Option(help="The folder of pages.")] = Path("docs/results"),
    results: Results = _RESULTS,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; say which pages are not current.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Draw the paper's tables from the rows at hand: a page of Markdown each, and HTML for all."""
    from idcf.paper import pages, results_store

    results_store.require(results)
    found = pages.render(results)
    if check:
        old = pages.outdated(out, found)
        told = "".join(f"{out / name} is not what {results} renders to\n" for name in old)
        _tell({"outdated": old}, told + f"{len(found) - len(old)} pages are current", as_json)
        raise typer.Exit(bool(old))
    pages.write(out, found)
    _tell({"pages": sorted(found)}, f"{len(found)} pages written to {out}", as_json)


def _plain(runs: Sequence[Run]) -> list[str]:
    return [str(run) for run in runs]


def _listed(head: str, runs: list[Run]) -> str:
    return "\n".join([head, *(f"missing: {run}" for run in runs)])


def _tell(plain: dict[str, object], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(plain, indent=2) if as_json else text)
