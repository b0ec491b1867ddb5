"""Writes of one turn of the loop leave together, in order, whatever ends the connection."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.corked_transport import CorkedTransport


class FakeTransport:
    """Takes every write; ``waiting`` is what its buffer is said to hold."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.waiting = 0
        self.closing = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.waiting


def corked() -> tuple[CorkedTransport, FakeTransport]:
    transport = FakeTransport()
    return CorkedTransport(cast(asyncio.Transport, transport), asyncio.get_running_loop()), transport


async def test_writes_of_a_turn_leave_together() -> None:
    cork, transport = corked()
    cork.write(b"head")
    cork.write(b"body")
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"headbody"]
    cork.write(b"next")
    await asyncio.sleep(0)
    assert transport.writes == [b"headbody", b"next"]


async def test_flush_does_not_wait_for_the_turn() -> None:
    cork, transport = corked()
    cork.write(b"a")
    cork.flush()
    assert transport.writes == [b"a"]
    await asyncio.sleep(0)
    assert transport.writes == [b"a"]


async def test_large_write_is_not_held() -> None:
    cork, transport = corked()
    cork.write(b"head")
    cork.write(b"x" * 2**17)
    assert transport.writes == [b"head" + b"x" * 2**17]


async def test_held_bytes_count_as_waiting() -> None:
    cork, transport = corked()
    transport.waiting = 5
    cork.write(b"abc")
    assert cork.get_write_buffer_size() == 8
    cork.flush()
    assert cork.get_write_buffer_size() == 5


async def test_close_sends_what_was_written_and_abort_drops_it() -> None:
    cork, transport = corked()
    cork.write(b"last words")
    cork.close()
    assert (transport.writes, transport.closing) == ([b"last words"], True)
    cork, transport = corked()
    cork.write(b"dropped")
    cork.abort()
    await asyncio.sleep(0)
    assert (transport.writes, transport.aborted) == ([], True)


async def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    cork, transport = corked()
    cork.write(b"late")
    transport.closing = True
    await asyncio.sleep(0)
    assert transport.writes == []
