"""`idcf reproduce`: run the experiments of the paper's tables. `idcf report`: render the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o

ResultsFolder = Annotated[Path, o.option("FOLDER", "Folder of result rows.")]
_DEFAULT_RESULTS = Path("experiments/results")


def reproduce(
    table: Annotated[
        str,
        o.argument(
            "TABLE",
            "cold-start, table2, table3, table4, table6, table7, splits, splits-implicit or all.",
        ),
    ] = "all",
    datasets: Annotated[str, o.option("A,B", "Only these datasets, separated by commas.")] = "",
    models: Annotated[str, o.option("A,B", "Only these models, separated by commas.")] = "",
    presets: Annotated[
        str, o.option("A,B", "Only these presets (clean, published), separated by commas.")
    ] = "",
    seeds: Annotated[
        int | None, o.option("N", "Number of seeds, instead of the table's.", min=1)
    ] = None,
    draws: Annotated[
        int | None,
        o.option("N", "Only the first N random splits of a dataset.", min=1),
    ] = None,
    results: ResultsFolder = _DEFAULT_RESULTS,
    rerun: Annotated[
        bool, o.switch("--rerun", "Run experiments that are already done, too.")
    ] = False,
    merge: Annotated[
        Path | None,
        o.option("FOLDER", "Only copy result rows from this folder; run no experiments."),
    ] = None,
    dry_run: Annotated[
        bool, o.switch("--dry-run", "List per table what is done and what is missing; run nothing.")
    ] = False,
    jobs: o.Jobs = 1,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Run the missing experiments of a table of the paper.

    An interrupted run continues when the command is repeated.
    Experiments that fail are listed at the end.
    """
    o.limit_threads(threads)
    from idcf.paper import reproduce as reproduction
    from idcf.paper import run_plan, table_spec
    from idcf.training.job import start_runtime

    if merge is not None:
        _merge(merge, results, as_json)
        return
    tables = (
        list(table_spec.load_tables().values())
        if table == "all"
        else [table_spec.find_table(table)]
    )
    runs = run_plan.plan_runs(
        tables,
        datasets=o.split_commas(datasets),
        models=o.split_commas(models),
        presets=o.split_commas(presets),
        n_seeds=seeds,
        n_draws=draws,
    )
    todo = runs if rerun else reproduction.missing_runs(runs, results, longest_first=jobs > 1)
    progress = f"{len(runs)} runs, {len(runs) - len(todo)} of them done"
    if dry_run:
        state = reproduction.describe_progress(tables, runs, todo)
        lines = [progress, *(line for table in state for line in table.lines())]
        values = {
            "n_runs": len(runs),
            "missing": [str(run) for run in todo],
            "tables": {table.name: table._asdict() for table in state},
        }
        o.print_result(values, "\n".join(lines), as_json)
        return
    typer.echo(progress, err=True)
    try:
        outcome = reproduction.reproduce(
            todo, results, runtime=start_runtime(device), n_jobs=jobs, progress=not as_json
        )
    except KeyboardInterrupt:
        typer.echo("interrupted; finished runs are saved: the same command continues", err=True)
        raise typer.Exit(130) from None
    completed, failed = outcome.completed, outcome.failed
    lines = [f"{len(completed)} runs completed, {len(failed)} failed; rows are in {results}"]
    lines += [f"failed: {name}: {reason}" for name, reason in failed.items()]
    values = {"completed": [str(run) for run in completed], "failed": failed}
    o.print_result(values, "\n".join(lines), as_json)
    if failed:
        raise typer.Exit(1)


def report(
    out: Annotated[Path, o.option("FOLDER", "Folder for the pages.")] = Path("docs/results"),
    results: ResultsFolder = _DEFAULT_RESULTS,
    check: Annotated[
        bool, o.switch("--check", "Write nothing; exit with 1 if a page is out of date.")
    ] = False,
    as_json: o.JsonSwitch = False,
) -> None:
    """Render the paper's tables from result rows: one Markdown page each, and one HTML page."""
    from idcf.paper import pages, results_store

    results_store.require_results_folder(results)
    rendered = pages.render_pages(results)
    if check:
        outdated = pages.outdated_pages(out, rendered)
        lines = [f"{out / name} is out of date" for name in outdated]
        lines.append(f"{len(rendered) - len(outdated)} pages are up to date")
        o.print_result({"outdated": outdated}, "\n".join(lines), as_json)
        raise typer.Exit(bool(outdated))
    pages.write_pages(out, rendered)
    o.print_result({"pages": sorted(rendered)}, f"{len(rendered)} pages written to {out}", as_json)


def _merge(source: Path, results: Path, as_json: bool) -> None:
    """Copy the result rows of another folder."""
    from idcf.paper.reproduce import merge_results

    n_merged_rows, n_skipped_runs = merge_results(source, results)
    text = f"{n_merged_rows} new rows of {source} were added to {results}"
    if n_skipped_runs:
        text += f"; {n_skipped_runs} runs with outdated settings were skipped"
    values = {"n_merged_rows": n_merged_rows, "n_skipped_runs": n_skipped_runs}
    o.print_result(values, text, as_json)
