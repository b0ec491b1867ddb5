"""One worker from the gateway's side: its process, its frames, its requests under way."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from itertools import count
from typing import Protocol

from engines.wire import (
    Cancel,
    CapacityReport,
    CapacityRow,
    Close,
    Closed,
    DenyGrowth,
    Events,
    Finished,
    GrowRequest,
    Hello,
    LoadFailed,
    LoadModel,
    LoadProgress,
    MemoryReport,
    Ready,
    Request,
    SchedulingReport,
    SetCores,
    SetGrant,
    Shed,
    ToGateway,
    Usage,
    decode_to_gateway,
    encode_frame,
    submit_frames,
)
from gateway.residency.frame_socket import FrameSocket
from gateway.residency.request_stream import RequestStream
from gateway.residency.worker_process import WorkerCommand, WorkerExit, WorkerProcess

__all__ = ["HostListener", "WorkerHost", "WorkerMessage"]

WorkerMessage = (
    Hello | LoadProgress | Ready | LoadFailed | MemoryReport | GrowRequest | SchedulingReport | CapacityReport | Closed
)
"""What a listener hears: everything but the events of requests, which go to their streams."""

_EXIT_AFTER_EOF_S = 0.5


class HostListener(Protocol):
    """Hears of one worker. Called from the event loop, in the order in which things happened."""

    def worker_said(self, host: WorkerHost, message: WorkerMessage) -> None: ...

    def worker_exited(self, host: WorkerHost, exit: WorkerExit) -> None:
        """Its whole process group is gone and its streams have ended. Nothing follows."""
        ...


class WorkerHost:
    """Starts a worker and speaks with it. All methods return at once and belong to the event loop's thread.

    A worker that closes its end and lives on, breaks the protocol or leaves a cancel unanswered for ``cancel_timeout_s`` is
    killed with its group; whatever ends it, every stream ends, then ``worker_exited`` is called.
    """

    def __init__(self, command: WorkerCommand, listener: HostListener | None, *, cancel_timeout_s: float) -> None:
        """OSError when the command cannot be run."""
        self._loop = asyncio.get_running_loop()
        self.listener = listener  # a spare gets one when it is taken
        self.hello: Hello | None = None
        self.ready: Ready | None = None
        self.memory: MemoryReport | None = None
        self.scheduling: SchedulingReport | None = None
        self.capacity: tuple[CapacityRow, ...] = ()  # as was said last; of a worker that is ready
        self.width = 0  # rows it decodes together at most, likewise
        self.exit: WorkerExit | None = None
        self.started_at = self._loop.time()
        self._cancel_timeout_s = cancel_timeout_s
        self._ids = count(1)
        self._streams: dict[int, RequestStream] = {}
        self._cancel_timers: dict[int, asyncio.TimerHandle] = {}
        self._cause: str | None = None  # why we killed it, where we did
        self._closing = False
        self._exit_timer: asyncio.TimerHandle | None = None
        ours, theirs = socket.socketpair()
        try:
            self._process = WorkerProcess(command, theirs.fileno(), self._exited)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._frames = FrameSocket(ours, decode=decode_to_gateway, on_message=self._message, on_lost=self._lost)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def active(self) -> int:
        """Requests without a terminal event."""
        return len(self._streams)

    # --- to the worker ---

    def load(self, load: LoadModel) -> None:
        """Once; ``Ready`` or ``LoadFailed`` follows. May be sent before ``Hello``: it waits in the socket."""
        self._frames.send(encode_frame(load))

    def submit(self, request: Request) -> RequestStream:
        """Sends a request to a worker that is ready. On a worker that is gone the stream is lost from the start."""
        stream = RequestStream(next(self._ids), self._cancel)
        if self.exit is not None or self._closing:
            stream.lose("is gone" if self.exit is None else self.exit.describe())
            return stream
        self._streams[stream.request_id] = stream
        self._frames.send_request(stream.request_id, submit_frames(stream.request_id, request))
        return stream

    def set_grant(self, grant_bytes: int) -> None:
        self._frames.send(encode_frame(SetGrant(grant_bytes=grant_bytes)))

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        self._frames.send(encode_frame(DenyGrowth(request_id=request_id, most_bytes=most_bytes)))

    def shed(self, byte_count: int) -> None:
        self._frames.send(encode_frame(Shed(bytes=byte_count)))

    def set_cores(self, cores: int) -> None:
        self._frames.send(encode_frame(SetCores(cores=cores)))

    def close(self) -> None:
        """Asks it to persist, end its requests as cancelled and exit. Idempotent; the caller bounds the wait and kills."""
        if not self._closing:
            self._closing = True
            for request_id in [i for i in self._streams if self._frames.withdraw(i)]:
                self._end_unsent(request_id)
            self._frames.send(encode_frame(Close()))

    def kill(self, cause: str | None = None) -> None:
        """SIGKILL to its process group. ``cause`` completes "The model's worker …" for whoever it served."""
        self._cause = self._cause or cause
        self._process.kill_group()

    def _cancel(self, stream: RequestStream) -> None:
        request_id = stream.request_id
        withdrawn = self._frames.withdraw(request_id)
        self._frames.send(encode_frame(Cancel(request_id=request_id)))
        if withdrawn:
            self._end_unsent(request_id)
            return
        self._cancel_timers[request_id] = self._loop.call_later(
            self._cancel_timeout_s,
            self.kill,
            f"hung: it did not answer a cancel within {self._cancel_timeout_s:g} s and was killed",
        )

    def _end_unsent(self, request_id: int) -> None:
        """Ends a request whose Submit never left: the worker does not know it and will not answer."""
        self._clear_timer(request_id)
        self._streams.pop(request_id).put(Finished(request_id=request_id, reason="cancelled", usage=Usage()))

    # --- from the worker ---

    def _message(self, message: ToGateway) -> None:
        match message:
            case Events(events=events):
                for event in events:
                    stream = self._streams.get(event.request_id)
                    if stream is None:
                        continue
                    stream.put(event)
                    if stream.ended:
                        del self._streams[event.request_id]
                        self._clear_timer(event.request_id)
                return
            case Hello():
                self.hello = message
            case Ready():
                self.ready = message
                self.capacity, self.width = message.capacity, message.width
            case MemoryReport():
                self.memory = message
            case SchedulingReport():
                self.scheduling = message
            case CapacityReport():
                self.capacity, self.width = message.capacity, message.width
            case _:
                pass
        if self.listener is not None:
            self.listener.worker_said(self, message)

    def _clear_timer(self, request_id: int) -> None:
        timer = self._cancel_timers.pop(request_id, None)
        if timer is not None:
            timer.cancel()

    def _lost(self, why: str | None) -> None:
        """The socket ended. The process does so too, or is made to: a worker without a socket is of no use.

        One that closed its end may be about to exit by itself, with a status and last words that say more than a kill.
        """
        if why is not None:
            self.kill(why)
        else:
            self._exit_timer = self._loop.call_later(_EXIT_AFTER_EOF_S, self.kill)

    def _exited(self, exit: WorkerExit) -> None:
        self._frames.drain()
        self._frames.close()
        self.exit = exit if self._cause is None else replace(exit, cause=self._cause)
        for timer in (*self._cancel_timers.values(), self._exit_timer):
            if timer is not None:
                timer.cancel()
        self._cancel_timers.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lose(self.exit.describe())
        if self.listener is not None:
            self.listener.worker_exited(self, self.exit)
