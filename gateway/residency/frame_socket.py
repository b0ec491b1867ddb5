"""Frames over one socket, from the gateway's side: never blocks, control frames overtake the chunks of large requests."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from engines.wire import FrameDecoder, FrameError

__all__ = ["FrameSocket"]

Message = TypeVar("Message")

_READ_BYTES = 64 * 1024  # a turn of the loop: some milliseconds of small frames


class FrameSocket(Generic[Message]):
    """``on_message`` gets every message as ``decode`` reads it, in order; ``on_lost`` comes once: with None when the peer closed
    or is gone, with a clause that says why when it sent what is no message.

    Both are called from the event loop, never from ``send``. What cannot be written at once waits here: control frames in the
    order of ``send``, and behind them the frames of requests in the order of ``send_request``.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        decode: Callable[[bytes], Message],
        on_message: Callable[[Message], None],
        on_lost: Callable[[str | None], None],
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._decode = decode
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = FrameDecoder()
        self._partial = memoryview(b"")  # the rest of a frame whose beginning is written
        self._control: deque[bytes] = deque()
        self._requests: deque[tuple[int, bytes]] = deque()
        self._writing = False
        self._open = True
        self._loop.add_reader(connection.fileno(), self._read)

    def send(self, frame: bytes) -> None:
        """A control frame. Dropped when the connection is closed."""
        self._control.append(frame)
        self._write()

    def send_request(self, request_id: int, frames: Sequence[bytes]) -> None:
        """The frames that submit one request, in order."""
        self._requests.extend((request_id, frame) for frame in frames)
        self._write()

    def withdraw(self, request_id: int) -> bool:
        """Drops the frames of a request that still wait here; True when its last one, the Submit, was among them."""
        kept = deque(entry for entry in self._requests if entry[0] != request_id)
        withdrawn = len(kept) < len(self._requests)
        self._requests = kept
        return withdrawn

    def drain(self) -> None:
        """Reads what the peer sent before it ended. For a peer whose exit is known."""
        while self._open and self._read():
            pass

    def close(self) -> None:
        """Idempotent; no callback follows."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()

    def _read(self) -> bool:
        """One read; True when it brought something."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # a reset: the peer was killed with unread bytes
            data = b""
        if not data:
            self._lost(None)
            return False
        try:
            for body in self._decoder.feed(data):
                self._on_message(self._decode(body))
                if not self._open:
                    return False
        except FrameError as error:
            self._lost(f"broke the protocol: {error}")
            return False
        return True

    def _write(self) -> None:
        """Writes until all is out or the socket is full; a writer is registered exactly while something waits."""
        while self._open:
            if not self._partial:
                if self._control:
                    self._partial = memoryview(self._control.popleft())
                elif self._requests:
                    self._partial = memoryview(self._requests.popleft()[1])
                else:
                    break
            try:
                sent = self._socket.send(self._partial)
            except BlockingIOError:
                break
            except OSError:
                return  # the reader sees the same and says so
            self._partial = self._partial[sent:]
        if not self._open:
            return
        waiting = bool(self._partial or self._control or self._requests)
        if waiting and not self._writing:
            self._loop.add_writer(self._socket.fileno(), self._write)
        elif not waiting and self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._writing = waiting

    def _lost(self, why: str | None) -> None:
        self.close()
        self._on_lost(why)
