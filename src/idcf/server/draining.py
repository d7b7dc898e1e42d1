"""A uvicorn server that ends without losing a request: it drains its connections first."""

from __future__ import annotations

import asyncio
import ctypes
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import uvicorn

from idcf.server.acceptor import Acceptor
from idcf.server.batcher import RequestBatcher
from idcf.server.connections import ConnectionTable, LimitedProtocol

BACKLOG = 2048  # connections that wait to be accepted
_IDLE_S = 1.0  # a connection without a request for this time is closed
_TURN_S = 0.05
_SO_ATTACH_FILTER = 26  # Linux; Python has no name for it
_DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)  # BPF: return 0 bytes of each packet


class DrainingServer(uvicorn.Server):
    """Serves until a signal; then answers what clients have sent, and ends.

    First /ready gets status 503, for `drain_delay_s` before the server stops to listen. From then
    on, responses close their connections; connections that stay idle are closed after a second.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        batcher: RequestBatcher,
        table: ConnectionTable,
        drain_delay_s: float = 0.0,
    ) -> None:
        super().__init__(config)
        self.batcher = batcher
        self.table = table
        self.drain_delay_s = drain_delay_s
        self.servers: list[asyncio.Server] = []
        self.acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of the sockets, with a time limit of TLS handshakes."""
        loop = asyncio.get_running_loop()
        make_protocol: Callable[..., LimitedProtocol] = partial(  # type: ignore[assignment]
            self.config.http_protocol_class,  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )
        if sys.platform == "win32":  # its event loop cannot watch sockets
            tls = self.config.ssl
            timeout = self.table.limits.timeout_s if tls else None
            self.servers = [
                await loop.create_server(
                    make_protocol, sock=x, ssl=tls, ssl_handshake_timeout=timeout, backlog=BACKLOG
                )
                for x in sockets or []
            ]
        else:
            self.acceptors = [
                Acceptor(x, self.table, make_protocol, self.config.ssl) for x in sockets or []
            ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain the connections; end requests that take longer than uvicorn's limit."""
        loop = asyncio.get_running_loop()
        self.batcher.is_draining = self.table.is_draining = True
        end = loop.time() + self.drain_delay_s
        while loop.time() < end and not self.force_exit:
            await asyncio.sleep(_TURN_S)
        await self._stop_listening(sockets or [])
        for connection in list(self.server_state.connections):
            connection.shutdown()
        state, end = self.server_state, loop.time() + (self.config.timeout_graceful_shutdown or 0)
        while self._has_connections() and not self.force_exit and loop.time() < end:
            await asyncio.sleep(_TURN_S)
            self.table.close_idle(loop.time() - _IDLE_S)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        for acceptor in self.acceptors:
            acceptor.abort()
        await asyncio.sleep(0)

    def _has_connections(self) -> bool:
        """Return whether a connection is open, or a request of one that has gone."""
        state = self.server_state
        accepted = any(x.has_connections() for x in self.acceptors)
        return bool(state.connections or state.tasks or accepted)

    async def _stop_listening(self, listeners: Sequence[socket.socket]) -> None:
        """Accept the connections that wait for it, and close the listening sockets."""
        for listener in listeners:
            _refuse_connections(listener)
        while listeners and select.select(listeners, [], [], 0)[0] and not self.force_exit:
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for acceptor in self.acceptors:
            acceptor.close()
        for listener in listeners:
            listener.close()


def _refuse_connections(listener: socket.socket) -> None:
    """Let no more connections come to a socket, where the system can.

    Those that wait to be accepted stay; closing the socket would reset one that came since.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP_ALL)
    with suppress(OSError):
        option = struct.pack("@HP", 1, ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
