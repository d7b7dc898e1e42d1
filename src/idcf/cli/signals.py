"""Ctrl-C and SIGTERM: exit codes 130 and 143 within five seconds, without a traceback."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS = 4.0  # to remove temporary files and end workers


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let signals end the block, and the process, with 128 and the number of the first signal.

    The block is left by an exception, so that it cleans up. A process that computes in a library,
    where Python runs no handler, is ended by a thread; its workers then end by themselves.
    """
    if current_thread() is not main_thread():
        yield
        return
    received: list[int] = []

    def leave(number: int, frame: object) -> None:
        """Leave the block; later signals are ignored."""
        received.append(number)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    old_handlers = {x: signal.signal(x, leave) for x in _SIGNALS}
    old_descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    Thread(target=_end_process, args=(receiver,), daemon=True).start()
    try:
        yield
    except BaseException:  # whatever an interrupted library made of it
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        if not received:
            signal.set_wakeup_fd(old_descriptor)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            sender.close()


def _end_process(receiver: socket.socket) -> None:
    """End the process some seconds after a signal, which `receiver` gets at once."""
    with receiver:
        while number := receiver.recv(1):
            if number[0] in _SIGNALS:
                time.sleep(_SECONDS)
                os._exit(128 + number[0])
