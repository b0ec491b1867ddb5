"""A lease: one caller's hold on one resident, from the wait for it to the last event of its last request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Protocol

from engines.wire import Event, Request
from gateway.errors import GatewayError, WorkerDied
from gateway.residency.effects import GrantLease
from gateway.residency.request_stream import RequestLost, RequestStream

__all__ = ["Lease", "LeaseHolder", "Server"]


class Server(Protocol):
    """What serves a lease's requests (a :class:`~gateway.residency.worker_host.WorkerHost`)."""

    def submit(self, request: Request) -> RequestStream: ...


class LeaseHolder(Protocol):
    """Who grants leases (the shell). Every method returns at once."""

    def lease_admitted(self, lease: Lease) -> None: ...

    def lease_released(self, lease: Lease) -> None: ...

    def waiter_cancelled(self, lease: Lease) -> None: ...


class _State(Enum):
    WAITING = "waiting"  # no grant yet, or requeued after its worker died
    HELD = "held"  # the core counts it, on a worker that is live
    RELEASING = "releasing"  # its caller let go; the worker has not yet said that every request ended
    OVER = "over"  # refused, ended by the core, or released


class Lease:
    """Made waiting; ``granted`` returns once it is held. While it is, its model is neither evicted nor unloaded.

    ========== ================= =================================== ==============
    verb       WAITING           HELD                                RELEASING
    ========== ================= =================================== ==============
    hold       HELD              –                                   –
    requeue    –                 WAITING                             OVER, tells so
    refuse     OVER              OVER, streams end with the error    OVER
    release    OVER, tells so    RELEASING; without streams OVER     –
    last
    stream end –                 –                                   OVER, tells so
    ========== ================= =================================== ==============

    "–": nothing changes, as for every verb in OVER. It may serve several requests, also at the same time.
    """

    def __init__(self, waiter: int, model: str, holder: LeaseHolder) -> None:
        self.waiter = waiter
        self.model = model
        self.grant: GrantLease | None = None  # None while waiting
        self._holder = holder
        self._state = _State.WAITING
        self._host: Server | None = None  # of the grant
        self._error: GatewayError | None = None  # what its streams end with from now on
        self._admitted = False
        self._settled = asyncio.Event()  # not waiting
        self._streams: set[RequestStream] = set()  # without a terminal event

    # --- the caller ---

    @property
    def id(self) -> str:
        """The core's name for it; "" while waiting."""
        return "" if self.grant is None else self.grant.lease

    @property
    def generation(self) -> int:
        return 0 if self.grant is None else self.grant.generation

    async def granted(self) -> None:
        """Returns when it is held; raises what the core refused or ended it with."""
        await self._settled.wait()
        if self._error is not None:
            raise self._error

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request, ending with its terminal one.

        A request whose worker died before it was admitted waits for the next worker, once more from the start; one that had
        begun raises WorkerDied. Leaving the iterator cancels the request in the worker.
        """
        while True:
            await self.granted()
            host = self._live_host()
            stream = self._open(host, request)
            try:
                async for event in stream:
                    yield event
                return
            except RequestLost as lost:
                # The core decided when the worker was gone: an error, or another turn for what was not admitted.
                if self._error is not None:
                    raise self._error from lost
                if lost.admitted or self._host is host:
                    raise WorkerDied(f"The model's worker {lost.why}.", retry=False) from lost
            finally:
                stream.cancel()

    def cancel(self) -> None:
        """Asks the worker to stop its requests; their streams end as cancelled."""
        for stream in tuple(self._streams):
            stream.cancel()

    def release(self) -> None:
        """Gives it back. Requests under way are cancelled, and the lease lasts until the worker has said that they ended.

        Idempotent, and never waits.
        """
        if self._state is _State.WAITING:
            self._end(WorkerDied("The lease was released.", retry=False))
            self._holder.waiter_cancelled(self)
        elif self._state is _State.HELD:
            self._state = _State.RELEASING
            self.cancel()
            self._tell_when_free()

    # --- the shell ---

    def hold(self, grant: GrantLease, host: Server) -> None:
        """The core granted it."""
        self.grant, self._host = grant, host
        self._state = _State.HELD
        self._settled.set()

    def requeue(self) -> None:
        """Its worker died before admitting anything: it waits again."""
        if self._state is _State.RELEASING:
            self._end(WorkerDied("The lease was released.", retry=False))
            self._holder.waiter_cancelled(self)
            return
        self._state = _State.WAITING
        self.grant = self._host = None
        self._settled.clear()

    def refuse(self, error: GatewayError) -> None:
        """It waited in vain, or the core ended it: every stream ends with ``error`` now."""
        self._end(error)
        for stream in tuple(self._streams):
            stream.fail(error)

    def cancel_with(self, error: GatewayError) -> None:
        """Its requests are cancelled in the worker and end with ``error``, and later ones are refused with it."""
        self._error = self._error or error
        for stream in tuple(self._streams):
            stream.cancel(error)

    # --- inside ---

    def _live_host(self) -> Server:
        if self._state is not _State.HELD or self._host is None:
            raise WorkerDied("The lease has been released.", retry=False)
        return self._host

    def _open(self, host: Server, request: Request) -> RequestStream:
        stream = host.submit(request)
        self._streams.add(stream)
        stream.when_admitted(self._report_admitted)
        stream.when_ended(lambda: self._stream_ended(stream))
        return stream

    def _report_admitted(self) -> None:
        if not self._admitted:
            self._admitted = True
            self._holder.lease_admitted(self)

    def _stream_ended(self, stream: RequestStream) -> None:
        self._streams.discard(stream)
        self._tell_when_free()

    def _tell_when_free(self) -> None:
        if self._state is _State.RELEASING and not self._streams:
            self._state = _State.OVER
            self._holder.lease_released(self)

    def _end(self, error: GatewayError) -> None:
        self._state = _State.OVER
        self._error = self._error or error
        self._settled.set()
