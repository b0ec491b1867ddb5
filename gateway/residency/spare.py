"""The warm spare: a worker with its imports done, so that a cold load costs mapping and building only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from engines.wire import Hello
from gateway.residency.worker_host import WorkerHost, WorkerMessage
from gateway.residency.worker_process import WorkerCommand, WorkerExit

__all__ = ["SparePool"]

_RETRY_S = 30.0  # after a spare that ended by itself: what broke it is not mended in a moment

logger = logging.getLogger("innkeeper.residency")


class SparePool:
    """Keeps up to ``limit`` spares, starting one at a time, and none while loads run (``pause``, ``refill``).

    A spare imports at low priority and touches no device. ``on_change`` is called when the spares, or the bytes they take,
    may have changed. One writer: the event loop's thread.
    """

    def __init__(
        self, command: WorkerCommand, *, limit: int, cancel_timeout_s: float, on_change: Callable[[], None]
    ) -> None:
        self._command = replace(command, arguments=(*command.arguments, "--spare"))
        self._limit = limit
        self._cancel_timeout_s = cancel_timeout_s
        self._on_change = on_change
        self._spares: list[WorkerHost] = []
        self._leaving: set[WorkerHost] = set()  # killed by close, not yet gone
        self._paused = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self.failure: str | None = None  # why the last one could not start; None once one says Hello

    @property
    def hosts(self) -> tuple[WorkerHost, ...]:
        return tuple(self._spares)

    def raise_limit(self, limit: int) -> None:
        """Keeps at least so many from now on; they start when no load is under way."""
        self._limit = max(self._limit, limit)

    def take(self) -> WorkerHost | None:
        """The oldest spare, warm or still importing (that is faster than a fresh one); None without one.

        The taker sets its listener at once.
        """
        if not self._spares:
            return None
        host = self._spares.pop(0)
        host.listener = None
        self._on_change()
        return host

    def pause(self) -> None:
        """A load begins: no new spare until ``refill``."""
        self._paused = True

    def refill(self) -> None:
        """No load is under way: start what is missing."""
        self._paused = False
        self._start_next()

    def kill_all(self) -> None:
        """No spare from now on; those there are are killed."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._leaving.update(self._spares)
        self._spares.clear()
        for host in self._leaving:
            host.kill()

    async def close(self) -> None:
        """Kills them and returns when their processes are gone."""
        self.kill_all()
        while self._leaving:
            self._empty.clear()
            await self._empty.wait()

    def _start_next(self) -> None:
        importing = any(host.hello is None for host in self._spares)
        waiting = self._retry is not None
        if self._closed or self._paused or importing or waiting or len(self._spares) >= self._limit:
            return
        try:
            host = WorkerHost(self._command, self, cancel_timeout_s=self._cancel_timeout_s)
        except OSError as error:
            self.failure = f"cannot be started: {error}"
            self._lost(self.failure)
            return
        self._spares.append(host)
        self._on_change()

    def worker_said(self, host: WorkerHost, message: WorkerMessage) -> None:
        if isinstance(message, Hello):
            self.failure = None
            self._on_change()
            self._start_next()

    def worker_exited(self, host: WorkerHost, exit: WorkerExit) -> None:
        if host in self._leaving:
            self._leaving.discard(host)
            self._empty.set()
            return
        self._spares.remove(host)
        if host.hello is None:
            self.failure = exit.describe()
        self._lost(exit.describe())
        self._on_change()

    def _lost(self, how: str) -> None:
        logger.warning("the spare worker %s", how)
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._start_next()
