"""`idcf reproduce`: run the experiments of the paper's tables and figures; `idcf report`: pages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import options as o
from idcf.errors import require_extra
from idcf.files import reserve_content, reserve_file

if TYPE_CHECKING:
    from idcf.paper.run_plan import Run
    from idcf.paper.studies.study import Point, Study
    from idcf.paper.table_spec import TableSpec
    from idcf.training.job import Runtime

ResultsFolder = Annotated[Path, o.option("FOLDER", "Folder of result rows.")]
_DEFAULT_RESULTS = Path("experiments/results")


@dataclass(frozen=True)
class _PlannedWork:
    """The runs of tables and the points of studies that were chosen, and those of them to do."""

    tables: list[TableSpec]
    runs: list[Run]
    missing_runs: list[Run]
    points: Mapping[Study, list[Point]]
    missing_points: Mapping[Study, list[Point]]

    def progress(self) -> list[str]:
        """Return a line on the runs of tables, and one on the points of each study."""
        lines = [_progress_line("", self.runs, self.missing_runs, "runs")] if self.runs else []
        for study, points in self.points.items():
            missing = self.missing_points[study]
            lines.append(_progress_line(f"{study.name}: ", points, missing, "points"))
        return lines

    def missing_point_labels(self) -> list[str]:
        """Return the names of the points that are missing."""
        from idcf.paper.studies.study import point_label

        return [
            f"{study.name}, {point_label(point)}"
            for study, points in self.missing_points.items()
            for point in points
        ]

    def missing(self) -> list[str]:
        """Return the name of everything that is missing."""
        return [*map(str, self.missing_runs), *self.missing_point_labels()]


def reproduce(
    item: Annotated[
        str,
        o.argument("ITEM", "table2, …, cold-start, splits, …, figure-sparsity, …, or all."),
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
    """Run the missing experiments of a table or a figure of the paper.

    An interrupted run continues when the command is repeated.
    Experiments that fail are listed at the end.
    """
    o.limit_threads(threads)
    from idcf.training.job import start_runtime

    if merge is not None:
        _merge(merge, results, as_json)
        return
    chosen: dict[str, Any] = {
        "datasets": o.split_commas(datasets),
        "models": o.split_commas(models),
        "presets": o.split_commas(presets),
        "n_seeds": seeds,
    }
    work = _plan(item, chosen, draws, results, rerun, longest_first=jobs > 1)
    if dry_run:
        from idcf.paper.reproduce import describe_progress

        state = describe_progress(work.tables, work.runs, work.missing_runs)
        missing_points = [f"missing: {name}" for name in work.missing_point_labels()]
        lines = [*work.progress(), *(x for table in state for x in table.lines()), *missing_points]
        values = {
            "n_runs": len(work.runs),
            "n_points": sum(map(len, work.points.values())),
            "missing": work.missing(),
            "tables": {table.name: table._asdict() for table in state},
        }
        o.print_result(values, "\n".join(lines), as_json)
        return
    typer.echo("\n".join(work.progress()), err=True)
    try:
        with ExitStack() as stack:
            for path in _written_files(work, results):
                stack.enter_context(reserve_file(path))
            completed, failed = _run(work, results, start_runtime(device), jobs, not as_json)
    except KeyboardInterrupt:
        typer.echo("interrupted; finished runs are saved: the same command continues", err=True)
        raise typer.Exit(130) from None
    lines = [f"{len(completed)} runs completed, {len(failed)} failed; rows are in {results}"]
    lines += [f"failed: {name}: {reason}" for name, reason in failed.items()]
    o.print_result({"completed": completed, "failed": failed}, "\n".join(lines), as_json)
    if failed:
        raise typer.Exit(1)


def _plan(
    item: str,
    chosen: Mapping[str, Any],
    n_draws: int | None,
    results: Path,
    rerun: bool,
    longest_first: bool,
) -> _PlannedWork:
    """List the runs and points of a table, a figure or of all, and those without stored rows."""
    from idcf.paper import figure_catalog, figure_runs, run_plan, table_spec
    from idcf.paper import reproduce as reproduction

    tables = list(table_spec.load_tables().values()) if item == "all" else []
    figures = list(figure_catalog.FIGURES.values()) if item == "all" else []
    if item.startswith("figure"):
        figures = [figure_catalog.find_figure(item)]
    elif item != "all":
        tables = [table_spec.find_table(item)]
    runs = run_plan.plan_runs(tables, **chosen, n_draws=n_draws) if tables else []
    missing = runs
    if not rerun:
        missing = reproduction.missing_runs(runs, results, longest_first=longest_first)
    points: dict[Study, list[Point]] = {}
    for figure in figures:
        planned = points.setdefault(figure.study, [])
        planned += [
            point
            for point in figure_runs.plan_points(figure.study, **chosen)
            if figure.shows(point) and point not in planned
        ]
    missing_points = {
        study: planned if rerun else figure_runs.missing_points(study, planned, results)
        for study, planned in points.items()
    }
    return _PlannedWork(tables, runs, missing, points, missing_points)


def _run(
    work: _PlannedWork, results: Path, runtime: Runtime, n_jobs: int, progress: bool
) -> tuple[list[str], dict[str, str]]:
    """Make what is missing; return the names of what was completed, and name -> error."""
    from idcf.paper import figure_runs
    from idcf.paper import reproduce as reproduction

    options: dict[str, Any] = {"runtime": runtime, "n_jobs": n_jobs, "progress": progress}
    completed: list[str] = []
    failed: dict[str, str] = {}
    if work.runs:
        outcome = reproduction.reproduce(work.missing_runs, results, **options)
        completed += [str(run) for run in outcome.completed]
        failed |= outcome.failed
        done = {run.dataset for run in work.runs} - {run.dataset for run in work.missing_runs}
        for dataset in sorted(done):  # an earlier call may have been killed before this
            reproduction.compact_results(results, dataset)
    for study, points in work.missing_points.items():
        study_outcome = figure_runs.measure_points(study, points, results, **options)
        completed += study_outcome.completed
        failed |= study_outcome.failed
    return completed, failed


def _written_files(work: _PlannedWork, results: Path) -> list[Path]:
    """Return a file for each dataset and each study whose rows will be written."""
    from idcf.paper.figure_runs import rows_path
    from idcf.paper.results_store import StoredRow, results_path

    datasets = sorted({run.dataset for run in work.missing_runs})
    studies = [study for study, points in work.missing_points.items() if points]
    paths = [results_path(results, StoredRow, dataset) for dataset in datasets]
    return [*paths, *(rows_path(results, study) for study in studies)]


def _progress_line(label: str, planned: list[Any], missing: list[Any], noun: str) -> str:
    """Return "sparsity: 36 points, 12 of them done"."""
    return f"{label}{len(planned)} {noun}, {len(planned) - len(missing)} of them done"


def report(
    out: Annotated[Path, o.option("FOLDER", "Folder for the pages.")] = Path("docs/results"),
    results: ResultsFolder = _DEFAULT_RESULTS,
    check: Annotated[
        bool, o.switch("--check", "Write nothing; exit with 1 if a page is out of date.")
    ] = False,
    as_json: o.JsonSwitch = False,
) -> None:
    """Render the paper's tables and figures from result rows: Markdown pages, one HTML page of all
    tables, and the pictures."""
    require_extra("plots", "matplotlib")
    with nullcontext() if check else reserve_content(out):
        n_outdated = _render(out, results, check, as_json)
    if check:
        raise typer.Exit(bool(n_outdated))


def _render(out: Path, results: Path, check: bool, as_json: bool) -> int:
    """Write the pages, or compare them with those of the folder; return how many differ."""
    from idcf.paper import figure_pages, pages, results_store

    results_store.require_results_folder(results)
    rendered = pages.render_pages(results)
    rendered[figure_pages.PAGE], pictures = figure_pages.render_figures(results)
    names = [*rendered, *(picture.name for picture in pictures)]
    if check:
        outdated = pages.outdated_pages(out, rendered)
        outdated += figure_pages.outdated_pictures(out, pictures)
        lines = [f"{out / name} is out of date" for name in outdated]
        lines.append(f"{len(names) - len(outdated)} pages are up to date")
        o.print_result({"outdated": outdated}, "\n".join(lines), as_json)
        return len(outdated)
    pages.write_pages(out, rendered)
    figure_pages.write_pictures(out, pictures)
    o.print_result({"pages": sorted(names)}, f"{len(names)} pages written to {out}", as_json)
    return 0


def _merge(source: Path, results: Path, as_json: bool) -> None:
    """Copy the result rows of another folder."""
    from idcf.paper.figure_catalog import FIGURES
    from idcf.paper.figure_runs import merge_rows
    from idcf.paper.reproduce import merge_results

    n_merged_rows, n_skipped_runs = merge_results(source, results)
    studies = dict.fromkeys(figure.study for figure in FIGURES.values())
    n_merged_rows += sum(merge_rows(study, source, results) for study in studies)
    text = f"{n_merged_rows} new rows of {source} were added to {results}"
    if n_skipped_runs:
        text += f"; {n_skipped_runs} runs with outdated settings were skipped"
    values = {"n_merged_rows": n_merged_rows, "n_skipped_runs": n_skipped_runs}
    o.print_result(values, text, as_json)
