"""A process that imports modules once and forks a child for each call; see `forked.ForkServer`.

Requests and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
from typing import Any


def answer(values: dict[str, Any]) -> None:
    """Write a line to the client."""
    os.write(1, (json.dumps(values) + "\n").encode())


def fork(request: dict[str, Any]) -> int:
    """Fork a child for a request; return its number when it has its own session and handlers."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        run_child(request, write_end)
    os.close(write_end)
    os.read(read_end, 1)  # ends when the child closes its end
    os.close(read_end)
    return pid


def run_child(request: dict[str, Any], ready: int) -> None:
    """Call the function of a request in a session of its own, and end the process.

    It ends as interpreters do, but for the memory: to free that of the parent takes a second.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(ready)
    module, _, name = request["function"].partition(":")
    code: object = 0
    try:
        getattr(importlib.import_module(module), name)(*request["arguments"])
    except SystemExit as error:
        code = error.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Import the modules named by the arguments and serve requests until the input ends."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # so that children need not copy the memory of all objects
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    answer({"ready": os.getpid()})
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            while children:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                children.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                cpu = usage.ru_utime + usage.ru_stime
                answer({"ended": pid, "code": code, "cpu_s": cpu})
        if 0 in ready:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            pid = fork(json.loads(line))
            children.add(pid)
            answer({"started": pid})


if __name__ == "__main__":
    main()
