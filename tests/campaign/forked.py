"""Calls in processes that are forked after the imports, so that hundreds of them are affordable."""

from __future__ import annotations

import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import idcf

FOLDER = Path(__file__).parent
_ARROW = ("narwhals", "pyarrow.csv", "pyarrow.json", "pyarrow.parquet")
_PACKAGES = ("idcf.server", "idcf.mlflow", "idcf.hub", "idcf.__main__")  # imported when needed


@dataclass(eq=False)
class Call:
    """A function that runs in a process of its own, with a session of its own."""

    server: ForkServer
    pid: int
    output: Path
    started: float
    cpu_s: float = 0.0  # once it has ended
    code: int | None = None  # None: it runs; negative: the number of the signal that ended it

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or None if the process still runs after so many seconds."""
        end = time.monotonic() + timeout
        while self.code is None and self.server.read(max(0.0, end - time.monotonic())):
            pass
        return self.code

    def send(self, number: int) -> None:
        """Send a signal to the process alone."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_to_all(self, number: int) -> None:
        """Send a signal to the process and its workers, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def text(self) -> str:
        """Return what the process wrote to standard output and standard error."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def survivors(self) -> list[int]:
        """Return the processes of the session that still run, but for the first one."""
        return [x for x in session_processes(self.pid) if x != self.pid]


class ForkServer:
    """Forks calls of functions from a process that has imported idcf and some modules.

    Parameters
    ----------
    folder
        Where outputs and temporary files of the calls are.
    modules
        What is imported before the first call, besides all of idcf but the server.
    executable
        The interpreter.
    """

    def __init__(
        self, folder: Path, modules: Sequence[str] = (), executable: str = sys.executable
    ) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        names = [x.name for x in pkgutil.walk_packages(idcf.__path__, "idcf.")]
        own = [x for x in names if not x.startswith(_PACKAGES)]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [executable, str(FOLDER / "fork_server.py"), *own, *_ARROW, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, "TMPDIR": str(self.temporary)},
        )
        self.calls: dict[int, Call] = {}
        self.n_calls = 0
        self._rest = b""
        self._started: int | None = None
        if not self.read(300):
            raise RuntimeError("the fork server did not start")

    def call(self, function: str, *arguments: Any) -> Call:
        """Start a call of "module:function"."""
        self.n_calls += 1
        output = self.folder / f"output-{self.n_calls}.txt"
        output.unlink(missing_ok=True)
        request = {"function": function, "arguments": arguments, "output": str(output)}
        assert self.process.stdin
        self._started = None
        self.process.stdin.write((json.dumps(request) + "\n").encode())
        self.process.stdin.flush()
        while self._started is None:
            if not self.read(60):
                raise RuntimeError("the fork server does not answer")
        call = Call(self, self._started, output, time.monotonic())
        self.calls[call.pid] = call
        return call

    def verb(self, *arguments: str) -> Call:
        """Start `idcf` with these arguments."""
        return self.call("verbs:run", list(arguments))

    def read(self, timeout: float) -> bool:
        """Wait for messages of the server; return whether there was one."""
        assert self.process.stdout
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], timeout)[0]:
            return False
        data = os.read(descriptor, 1 << 16)
        if not data:
            raise RuntimeError("the fork server has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "started" in message:
                self._started = message["started"]
            elif "ended" in message:
                call = self.calls.pop(message["ended"])
                call.code, call.cpu_s = message["code"], message["cpu_s"]
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in list(self.calls.values()):
            call.send_to_all(signal.SIGKILL)
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def session_processes(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    running = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            state, _, _, number = (path / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(number) == session and state not in "ZX":
            running.append(int(path.name))
    return running
