"""A transport that writes once a turn of the event loop, what was written to it in that turn."""

from __future__ import annotations

import asyncio

__all__ = ["CorkedTransport"]

_LARGE_BYTES = 64 * 1024  # from here on a copy costs more than a system call


class CorkedTransport:
    """What an HTTP protocol uses of a transport. Head and body of a short answer leave together.

    The transport below may have no write buffer of its own (``high=0``), so that it pauses its protocol as soon as the kernel
    does not take a write; without this every small write would be a system call.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= _LARGE_BYTES:
            self.flush()

    def close(self) -> None:
        """What was written still leaves."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts, self._bytes = [], 0
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes not yet taken by the kernel."""
        return self._bytes + self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def flush(self) -> None:
        """What was written leaves now."""
        if not self._parts:
            return
        parts, self._parts, self._bytes = self._parts, [], 0
        if not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
