"""The server process: one listening socket, the signals, and a shutdown in steps.

=========================  =====================================================================================
signal                     effect
=========================  =====================================================================================
first SIGTERM or SIGINT    the shutdown below
second SIGTERM or SIGINT   its grace is over now
SIGHUP                     the registry file is read again; the log says what came of it
=========================  =====================================================================================

1. ``/ready`` says 503, new work gets 503 ``shutting_down`` from the port that is still open; what waits or loads ends
2. answers under way run on, until none is left or the grace has 3 s to go
3. those left get an error event and their end marker; stored responses are closed
4. workers are closed, then the port; clients that do not take what was sent are cut
5. the exit status is 0, within ``shutdown_grace_s``

uvicorn would close the port first, cut what is left and die of the signal; so its signal handling is off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from gateway.app import create_app
from gateway.connection import Connection, connection_class
from gateway.errors import ShuttingDown
from gateway.logs import configure_logging, log_event
from gateway.network import is_loopback
from gateway.paths import state_directory
from gateway.registry.catalog import Catalog
from gateway.registry.load import RegistryError
from gateway.residency.pins import check_pins
from gateway.residency.shell import Residency as ModelResidency
from gateway.services import Residency, Services
from gateway.settings import ServerSettings, Settings

__all__ = ["StartError", "check_bind", "open_socket", "serve"]

logger = logging.getLogger("innkeeper.server")

_CUT_BEFORE_END_S = 3.0  # of the grace: left for the error events, the workers' end and the port
_CLOSE_S = 1.0  # of that: for connections that are still being read, half of it for those that are not
_RETRY_AFTER_S = 10.0
_KEEP_ALIVE_S = 75  # an idle connection; longer than clients' pools keep theirs, so that they close first
_BACKLOG = 2048


class StartError(Exception):
    """The server cannot start; the message says what to do."""


def serve(
    settings: Settings,
    catalog: Catalog,
    *,
    residency: Residency | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serves until a signal ends it; returns the exit status. StartError or RegistryError when it cannot start.

    ``on_ready`` is called with the URL once requests are answered; by default a line on stdout says it.
    """
    check_bind(settings.server)
    check_pins(catalog, settings.memory.budget_bytes)
    listener = open_socket(settings.server)
    configure_logging()
    for warning in settings.memory.warnings:
        log_event(logger, logging.WARNING, "memory setting", warning=warning)
    state = state_directory() if residency is None else None
    residency = residency or ModelResidency(settings, catalog, state=state)
    server = _Server(_config(settings.server, create_app(settings, catalog, residency, state=state)))
    gateway = _Gateway(settings.server, server, residency)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(gateway.run(listener, on_ready or _print_ready))
    return 0


def check_bind(server: ServerSettings) -> None:
    """StartError for an address that others can reach while anybody may use it."""
    if server.api_keys or _all_loopback(server):
        return
    raise StartError(
        f"server.host {server.host} can be reached from other machines, and no key is configured. "
        "Add one under server.api_keys in the registry file, or bind to 127.0.0.1."
    )


def _all_loopback(server: ServerSettings) -> bool:
    if is_loopback(server.host):
        return True
    return all(is_loopback(str(address[0])) for _family, address in _addresses(server))


def _addresses(server: ServerSettings) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # the latter where the name is none that DNS could have
        raise StartError(f"server.host {server.host!r} is not an address of this machine: {error}") from error
    return [(family, address) for family, _type, _proto, _name, address in found]


def open_socket(server: ServerSettings) -> socket.socket:
    """The listening socket; port 0 takes a free one. StartError when the port cannot be had."""
    family, address = _addresses(server)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(_why_not_bound(server, error)) from error
    listener.setblocking(False)
    return listener


def _why_not_bound(server: ServerSettings, error: OSError) -> str:
    where = f"{server.host} port {server.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program; stop it, or choose another with --port (0: any free one)"
    if error.errno == errno.EACCES:
        return f"{where} needs privileges this program does not have; choose a port above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: this machine has no such address; choose another with --host"
    return f"{where} cannot be bound: {error.strerror}"


def _config(server: ServerSettings, app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection_class(server.client_stall_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here trusts a forwarded address
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(_CLOSE_S),
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which says when it listens."""

    on_started: Callable[[], None] = staticmethod(lambda: None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()


class _Gateway:
    """One run of the server. The two events are set by signal handlers, on the loop."""

    def __init__(self, settings: ServerSettings, server: _Server, residency: Residency) -> None:
        self._settings = settings
        self._server = server
        self._residency = residency
        self._services: Services = server.config.app.state.services  # type: ignore[union-attr]
        self._reloads: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
        """Serves on ``listener`` until a signal, then shuts down."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        url = _url(self._settings.host, listener.getsockname()[1])
        self._server.on_started = lambda: on_ready(url)
        await self._residency.start()
        await self._services.responses.open()
        serving = asyncio.create_task(self._server.serve([listener]))
        await _first_of(serving, self._stop.wait())
        await self._shut_down()
        self._server.should_exit = True
        await _first_of(serving, timeout_s=_CLOSE_S / 2)
        self._cut_who_do_not_read()
        await serving

    def _cut_who_do_not_read(self) -> None:
        """uvicorn would cancel their answers, and log that as an error of the application."""
        for connection in tuple(self._server.server_state.connections):
            if isinstance(connection, Connection) and connection.waiting_bytes:
                connection.abort()

    def _on_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _on_reload(self) -> None:
        task = asyncio.create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        # A registry that cannot be used has been logged, and the old one stays.
        with contextlib.suppress(RegistryError):
            await self._residency.reload()

    async def _shut_down(self) -> None:
        loop = asyncio.get_running_loop()
        log_event(logger, logging.INFO, "shutting down", grace_s=self._settings.shutdown_grace_s)
        end_s = loop.time() + self._settings.shutdown_grace_s
        live = self._services.live
        closing = asyncio.create_task(self._residency.shutdown())
        await _first_of(live.wait_idle(), self._hurry.wait(), timeout_s=end_s - _CUT_BEFORE_END_S - loop.time())
        if live:
            log_event(logger, logging.WARNING, "ending answers under way", answers=len(live))
            live.end_all(ShuttingDown("the server is shutting down", retry_after_s=_RETRY_AFTER_S))
            await _first_of(live.wait_idle(), timeout_s=_CLOSE_S)
        await _first_of(self._services.runs.wait_idle(), timeout_s=_CLOSE_S)
        await self._services.responses.close()
        await _first_of(closing, self._hurry.wait(), timeout_s=end_s - _CLOSE_S - loop.time())
        if not closing.done():
            log_event(logger, logging.WARNING, "workers were slow to close")
            closing.cancel()
        await asyncio.wait([closing])
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.error("closing the workers failed", exc_info=error)


async def _first_of(*waits: Coroutine[Any, Any, Any] | asyncio.Task[Any], timeout_s: float | None = None) -> None:
    """Until one is done, or the time is over. Coroutines are cancelled then, tasks are left alone."""
    tasks = [wait if isinstance(wait, asyncio.Task) else asyncio.create_task(wait) for wait in waits]
    own = [task for task, wait in zip(tasks, waits, strict=True) if task is not wait]
    try:
        timeout_s = None if timeout_s is None else max(0.0, timeout_s)
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        if own:
            await asyncio.wait(own)


def _url(host: str, port: int) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _print_ready(url: str) -> None:
    sys.stdout.write(f"Innkeeper is ready at {url}\n")
    sys.stdout.flush()
