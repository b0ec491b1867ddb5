"""The worker's end of the socket: messages in on the loop's thread, frames out from any thread, with a bound."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from engines.wire import REQUEST_BLOB, Chunk, FrameDecoder, FrameError, ToWorker, decode_to_worker

__all__ = ["OUTGOING_BOUND_BYTES", "Channel", "ChunkAssembler"]

OUTGOING_BOUND_BYTES = 1024 * 1024
_WRITE_BYTES = 256 * 1024
_REST_S = 0.001


class Channel(asyncio.Protocol):
    """Frames over the inherited socket.

    ``on_message`` gets every message, ``on_lost`` the end of the connection (None: closed or gone; a text: what the gateway
    sent that is no message), ``on_room`` is called when a full channel has room again; all on the loop's thread.

    ``post`` never blocks. Whoever makes frames without being asked (the device thread) looks at ``has_room`` first, so that
    a gateway that does not read costs at most OUTGOING_BOUND_BYTES and one tick.

    The thread that posts writes by itself, so that a token leaves without waking the loop's thread. Within ``_REST_S`` of a
    write frames are only queued, and leave together when that time is over or at the next ``flush``: an engine that makes
    thousands of ticks a second costs the gateway a few reads.
    """

    def __init__(
        self,
        *,
        on_message: Callable[[ToWorker], None],
        on_lost: Callable[[str | None], None],
        on_room: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_room = on_room
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None  # reads and closes; loop's thread only, as the next two
        self._writer = False  # the loop waits for the socket to take more
        self._finishing = False
        self._lock = threading.Lock()
        self._frames: deque[bytes] = deque()  # under the lock, as all that follow
        self._queued_bytes = 0
        self._descriptor: int | None = None  # a second one of the socket, for writing: the first is the transport's
        self._scheduled = False  # the loop will flush
        self._rest_until = 0.0

    # --- any thread ---

    @property
    def has_room(self) -> bool:
        """False when the gateway is so far behind that no more should be made for it."""
        return self._queued_bytes < OUTGOING_BOUND_BYTES

    def post(self, frames: Iterable[bytes], *, at_once: bool = False) -> None:
        """Queues encoded frames; they leave in the order of the calls. ``at_once``: no others follow soon, so do not wait."""
        with self._lock:
            for frame in frames:
                self._frames.append(frame)
                self._queued_bytes += len(frame)
            if self._descriptor is None or (self._scheduled and not at_once):
                return
            rest_s = 0.0 if at_once else self._rest_until - time.monotonic()
            if rest_s <= 0:
                self._write()
            if not self._frames or self._scheduled:
                return
            self._scheduled = True
        self._loop.call_soon_threadsafe(self._flush_in, rest_s)

    def flush(self) -> None:
        """What was queued leaves now: nothing will follow for a while."""
        if self._frames:
            with self._lock:
                self._write()

    def _write(self) -> None:
        """Writes what the socket takes. Under the lock."""
        while self._frames and self._descriptor is not None:
            batch: list[bytes] = []
            size = 0
            while self._frames and size < _WRITE_BYTES:
                batch.append(self._frames.popleft())
                size += len(batch[-1])
            data = b"".join(batch)
            try:
                written = os.write(self._descriptor, data)
            except BlockingIOError:
                written = 0
            except OSError:  # the reading side sees the same and says so
                self._frames.clear()
                self._queued_bytes = 0
                return
            self._queued_bytes -= written
            self._rest_until = time.monotonic() + _REST_S
            if written < size:
                self._frames.appendleft(data[written:])
                break

    # --- the loop's thread ---

    def finish(self) -> None:
        """Sends what is queued, then closes: ``on_lost`` follows when the last byte is out."""
        self._finishing = True
        self._flush()

    def _flush_in(self, seconds: float) -> None:
        if seconds > 0:
            self._loop.call_later(seconds, self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            was_full = not self.has_room
            self._write()
            descriptor = self._descriptor
            waiting = bool(self._frames) and descriptor is not None
            self._scheduled = waiting
        if descriptor is not None and waiting is not self._writer:
            self._writer = waiting
            if waiting:
                self._loop.add_writer(descriptor, self._flush)
            else:
                self._loop.remove_writer(descriptor)
        if was_full and self.has_room:
            self._on_room()
        if self._finishing and not waiting and self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        with self._lock:
            self._descriptor = os.dup(transport.get_extra_info("socket").fileno())
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._decoder.feed(data):
                self._on_message(decode_to_worker(body))
        except FrameError as error:
            self._on_lost(str(error))

    def eof_received(self) -> None:
        self._on_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if self._writer:
                self._loop.remove_writer(descriptor)
                self._writer = False
            os.close(descriptor)
        self._on_lost(None)


class ChunkAssembler:
    """Puts the blobs of requests together from their chunks, whatever came between."""

    def __init__(self) -> None:
        self._blobs: dict[int, dict[int, bytearray]] = {}  # request id → blob → bytes so far
        self._next_index: dict[tuple[int, int], int] = {}

    def add(self, chunk: Chunk) -> None:
        """FrameError on a gap or a repeat."""
        key = (chunk.request_id, chunk.blob)
        expected = self._next_index.get(key, 0)
        if chunk.index != expected:
            raise FrameError(f"chunk {chunk.index} of request {chunk.request_id} came where {expected} was due")
        self._next_index[key] = expected + 1
        self._blobs.setdefault(chunk.request_id, {}).setdefault(chunk.blob, bytearray()).extend(chunk.data)

    def take_request(self, request_id: int) -> bytes:
        """The request's own body, complete; its blobs are forgotten. FrameError when no chunk of it came."""
        blobs = self.discard(request_id)
        if REQUEST_BLOB not in blobs:
            raise FrameError(f"request {request_id} was submitted without a body")
        return bytes(blobs[REQUEST_BLOB])

    def discard(self, request_id: int) -> dict[int, bytearray]:
        """Forgets this request's chunks and returns what there was."""
        blobs = self._blobs.pop(request_id, {})
        for blob in blobs:
            del self._next_index[request_id, blob]
        return blobs
