"""Limits of a case: seconds, address space, size of files; and the command line in this process."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from idcf.cli import main


class TooLong(BaseException):
    """A case took longer than it may; no `except Exception` of the program stops it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` if the block, which must run in the main thread, takes longer.

    Native code that does not return ends the process after three times the limit.
    """

    def stop(*_: object) -> None:
        raise TooLong(f"not finished after {seconds:g} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextmanager
def memory_limit(n_bytes: int) -> Iterator[None]:
    """Let the block take at most this much more address space than the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + n_bytes):
        yield


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """Let no file become larger in the block: a write beyond it fails, in native code, too."""
    with _limit(resource.RLIMIT_FSIZE, n_bytes):
        yield


@contextmanager
def _limit(kind: int, value: int) -> Iterator[None]:
    """Lower a limit of the process in the block."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard < 0 else min(value, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@contextmanager
def quiet() -> Iterator[None]:
    """Show no warnings, and turn none into an error, in the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Outcome(NamedTuple):
    """What a command did."""

    code: int  # the exit code; 1 for an exception that is not of the program
    out: str
    err: str  # with the traceback of such an exception

    def problem(self) -> str:
        """Return what is wrong with how a command failed; "" if it did not, or failed well."""
        lines = [x for x in self.err.splitlines() if x.startswith("error: ")]
        if self.code == 0:
            return ""
        if "Traceback" in self.err:
            return f"traceback: {self.err[-1500:]}"
        if self.code not in (2, 3) or len(lines) != 1 or not self.err.endswith(lines[0] + "\n"):
            return f"exit code {self.code} with {self.err!r}"
        return ""


def call(*arguments: str | Path) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["idcf", *map(str, arguments)]
    code: Any = 0
    try:
        with quiet(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code
    except Exception:
        code = 1
        err.write(traceback.format_exc())
    finally:
        sys.argv = argv
    return Outcome(int(code or 0), out.getvalue(), err.getvalue())


def last_frames(error: BaseException) -> str:
    """Return an exception with the end of its traceback."""
    return "".join(traceback.format_exception(error))[-1500:]
