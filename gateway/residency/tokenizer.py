"""Token ids of any model in the registry: one process for all of them, beside the models and their leases.

Nothing is loaded for it and nobody is evicted: the process reads vocabularies from the files' headers. It starts with the first
request, ends when nobody has asked for ``idle_s``, and is started again when it has died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engines.wire import DecodeTokens, EncodeChat, EncodeText, TokenizerAnswer, TokenizerRequest, TokenizerSource
from gateway.errors import QueueTimeout, ServerOverloaded, ShuttingDown, WorkerDied
from gateway.registry.catalog import ResolvedModel
from gateway.residency.tokenizer_host import TokenizerHost
from gateway.residency.worker_process import WorkerCommand, WorkerExit

__all__ = ["Tokenizer"]

IDLE_S = 120.0
TIMEOUT_S = 60.0
MOST_REQUESTS = 64  # under way at a time; each may hold server.max_chars characters
_MEASURE_AFTER_S = 1.0  # of an answer: the next ones are measured with it
_RETRY_S = 2.0  # after a process that did not come up

logger = logging.getLogger("innkeeper.residency")


class Tokenizer:
    """One writer: the event loop's thread. ``on_change`` is called when the process, or the bytes it takes, may have changed."""

    def __init__(
        self,
        command: WorkerCommand,
        on_change: Callable[[], None],
        *,
        idle_s: float = IDLE_S,
        timeout_s: float = TIMEOUT_S,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self._command = command
        self._on_change = on_change
        self._idle_s = idle_s
        self._timeout_s = timeout_s
        self._most_requests = most_requests
        self._host: TokenizerHost | None = None  # what the next request is given to
        self._alive: set[TokenizerHost] = set()  # and those that have not been seen to exit
        self._requests = 0  # under way
        self._idle: asyncio.TimerHandle | None = None
        self._measure: asyncio.TimerHandle | None = None
        self._failure: tuple[float, str] | None = None  # when and how the last process failed to come up
        self._closed = False
        self._changed = asyncio.Event()  # a request or a process ended

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the process, and of earlier ones that are about to end."""
        return tuple(sorted(host.pid for host in self._alive))

    async def ask(
        self,
        model: ResolvedModel,
        what: EncodeText | EncodeChat | DecodeTokens,
        *,
        texts: bool = False,
        pieces: bool = False,
    ) -> TokenizerAnswer:
        """The process's answer about this model's tokens.

        ServerOverloaded when too many ask, QueueTimeout, WorkerDied when the process dies meanwhile, ShuttingDown, or what the
        tokenizer or the template says.
        """
        if self._closed:
            raise ShuttingDown("the server is shutting down")
        if self._requests >= self._most_requests:
            raise ServerOverloaded(f"{self._requests} requests for tokens are under way; wait for one to end")
        path = model.spec.paths[0] if model.spec.format != "sim" else None
        source = TokenizerSource(key=model.content_key, path=path)
        request = TokenizerRequest(source=source, what=what, texts=texts, pieces=pieces)
        host = self._started()
        self._requests += 1
        asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await host.ask(request)
        except TimeoutError:
            if host.heard_at < asked_at:
                self._detach(host)
                host.kill("hung and was killed")
            message = f"the tokenizer process did not answer within {self._timeout_s:g} s"
            raise QueueTimeout(message, retry_after_s=_RETRY_S) from None
        finally:
            self._requests -= 1
            self._changed.set()
            self._rest()

    async def finish(self) -> None:
        """Takes nothing more, and returns when what is under way has its answers."""
        self._closed = True
        while self._requests:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Kills it, and returns when it is gone."""
        self.kill()
        while self._alive:
            self._changed.clear()
            await self._changed.wait()

    def kill(self) -> None:
        """Kills it without waiting; none is started from now on."""
        self._closed = True
        self._host = None
        for timer in (self._idle, self._measure):
            if timer is not None:
                timer.cancel()
        for host in self._alive:
            host.kill("was killed: the gateway is shutting down")

    def _started(self) -> TokenizerHost:
        """The process, a new one if need be. WorkerDied when it cannot be started."""
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._host is not None:
            return self._host
        if self._failure is not None and loop.time() < self._failure[0] + _RETRY_S:
            raise WorkerDied(f"the tokenizer process {self._failure[1]}", retry_after_s=_RETRY_S)
        try:
            host = TokenizerHost(self._command, on_change=self._measure_soon, on_exit=self._exited)
        except OSError as error:
            self._failure = (loop.time(), f"cannot be started: {error}")
            raise WorkerDied(f"the tokenizer process {self._failure[1]}", retry_after_s=_RETRY_S) from error
        self._host = host
        self._alive.add(host)
        self._on_change()
        return host

    def _exited(self, host: TokenizerHost, exit: WorkerExit) -> None:
        self._alive.discard(host)
        if host is self._host:
            self._host = None
            logger.warning("the tokenizer process %s", exit.describe())
            if not host.greeted:
                self._failure = (asyncio.get_running_loop().time(), exit.describe())
        self._changed.set()
        self._on_change()

    def _rest(self) -> None:
        """Nobody asks: it ends after a while."""
        if self._requests == 0 and self._host is not None:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle, self._host)

    def _end_idle(self, host: TokenizerHost) -> None:
        self._idle = None
        self._detach(host)
        host.close()

    def _detach(self, host: TokenizerHost) -> None:
        if self._host is host:
            self._host = None

    def _measure_soon(self) -> None:
        if self._measure is None and not self._closed:
            self._measure = asyncio.get_running_loop().call_later(_MEASURE_AFTER_S, self._measure_now)

    def _measure_now(self) -> None:
        self._measure = None
        self._on_change()
