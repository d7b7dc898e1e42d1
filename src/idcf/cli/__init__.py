"""The command line `idcf`. Each verb imports what it needs when it is called, so help is quick."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from typing import Annotated, TextIO

import typer

from idcf.cli import (
    bench_serve,
    data,
    demo,
    doctor,
    embed,
    estimate,
    evaluate,
    export,
    forget,
    mcp,
    models,
    one_user,
    push,
    recommend,
    reproduce,
    serve,
    shard,
    train,
    tune,
)
from idcf.cli.signals import exit_on_signals
from idcf.errors import ArtifactError, IdcfError

app = typer.Typer(
    name="idcf",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for verb in (
    *(train.train, forget.forget, estimate.estimate, recommend.recommend, embed.embed),
    *(export.export, serve.serve, shard.shard),
    *(one_user.predict, one_user.explain, one_user.next_question, one_user.similar),
    *(evaluate.evaluate, tune.tune, reproduce.reproduce, reproduce.report, demo.demo),
):
    app.command(verb.__name__.replace("_", "-"))(verb)
app.command("mcp")(mcp.mcp)
app.command("push")(push.push)
app.command("bench-serve")(bench_serve.bench_serve)
app.add_typer(data.app, name="data")
app.command("models")(models.models)
app.command("doctor")(doctor.doctor)


def _print_version(requested: bool) -> None:
    """Print the version and exit, if --version was given."""
    if requested:
        from idcf import __version__

        typer.echo(f"idcf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Inductive collaborative filtering: train once, then recommend to new users."""


def main() -> None:
    """Run the command line, and print an error of idcf, or of a disk, as one line.

    Exit code 2: wrong arguments or data; exit code 3: a saved model that is missing or damaged;
    130: Ctrl-C; 143: SIGTERM. Servers end as `idcf.server` says.
    """
    warnings.showwarning = _show_warning
    is_server = sys.argv[1:2] in (["serve"], ["mcp"])
    with nullcontext() if is_server else exit_on_signals():
        try:
            app()
        except IdcfError as error:
            typer.echo(f"error: {error}", err=True)
            sys.exit(3 if isinstance(error, ArtifactError) else 2)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            reason = (error.strerror or str(error)).lower()
            typer.echo(f"error: {place}{reason}; choose another place or make room", err=True)
            sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line; replaces `warnings.showwarning`."""
    typer.echo(f"note: {message}", err=True)
