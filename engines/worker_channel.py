"""The worker's end of the socket: messages in on the loop's thread, frames out from any thread, with a bound."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from engines.wire import REQUEST_BLOB, Chunk, FrameDecoder, FrameError, ToWorker, decode_to_worker

__all__ = ["OUTGOING_BOUND_BYTES", "Channel", "ChunkAssembler"]

OUTGOING_BOUND_BYTES = 1024 * 1024
_WRITE_BYTES = 256 * 1024


class Channel(asyncio.Protocol):
    """Frames over the inherited socket.

    ``on_message`` gets every message, ``on_lost`` the end of the connection (None: closed or gone; a text: what the gateway
    sent that is no message), ``on_room`` is called when a full channel has room again; all on the loop's thread.

    ``post`` never blocks. Whoever makes frames without being asked (the device thread) looks at ``has_room`` first, so that
    a gateway that does not read costs at most OUTGOING_BOUND_BYTES and one tick.
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
        self._transport: asyncio.Transport | None = None
        self._writable = True  # loop's thread only; False between pause_writing and resume_writing
        self._lock = threading.Lock()
        self._frames: deque[bytes] = deque()  # under the lock, as the next two
        self._queued_bytes = 0
        self._flush_scheduled = False

    # --- any thread ---

    @property
    def has_room(self) -> bool:
        """False when the gateway is so far behind that no more should be made for it."""
        return self._queued_bytes < OUTGOING_BOUND_BYTES

    def post(self, frames: Iterable[bytes]) -> None:
        """Queues encoded frames; they leave in the order of the calls."""
        with self._lock:
            for frame in frames:
                self._frames.append(frame)
                self._queued_bytes += len(frame)
            schedule, self._flush_scheduled = not self._flush_scheduled, True
        if schedule:
            self._loop.call_soon_threadsafe(self._flush)

    # --- the loop's thread ---

    def finish(self) -> None:
        """Sends what is queued, then closes: ``on_lost`` follows when the last byte is out."""
        self._writable = True
        self._flush(everything=True)
        if self._transport is not None:
            self._transport.close()

    def _flush(self, everything: bool = False) -> None:
        with self._lock:
            self._flush_scheduled = False
            was_full = not self.has_room
        transport = self._transport
        while transport is not None and (self._writable or everything):
            batch: list[bytes] = []
            size = 0
            with self._lock:
                while self._frames and size < _WRITE_BYTES:
                    batch.append(self._frames.popleft())
                    size += len(batch[-1])
                self._queued_bytes -= size
            if not batch:
                break
            transport.write(b"".join(batch))
        if was_full and self.has_room:
            self._on_room()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES)
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
        self._on_lost(None)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()


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
