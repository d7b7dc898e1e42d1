"""The command line. What is heavy to import is imported by the command that needs it."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, TextIO

import typer

from idcf.cli import (
    demo,
    doctor,
    embed,
    evaluate,
    export,
    recommend,
    reproduce,
    serve,
    train,
    tune,
)
from idcf.errors import ArtifactError, IdcfError

app = typer.Typer(
    name="idcf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("recommend")(recommend.recommend)
app.command("embed")(embed.embed)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("evaluate")(evaluate.evaluate)
app.command("tune")(tune.tune)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(reproduce.report)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)


@app.command(
    "data",
    help="Datasets: list, fetch, describe.",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # `idcf data --help` is for the commands below
    },
)
def data_(context: typer.Context) -> None:
    from idcf.cli.data import app as data

    data(context.args, prog_name="idcf data")


def _version(asked: bool) -> None:
    if asked:
        from idcf import __version__

        typer.echo(f"idcf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Inductive collaborative filtering: train once, recommend to people never met before."""


def main() -> None:
    """Run the command line. A deliberate error is one line and an exit code, never a traceback:
    2 for what was asked or given, 3 for a saved model that is missing or damaged."""
    warnings.showwarning = _note
    try:
        app()
    except IdcfError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(3 if isinstance(error, ArtifactError) else 2)


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line."""
    typer.echo(f"note: {message}", err=True)
