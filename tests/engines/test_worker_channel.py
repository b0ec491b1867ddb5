"""The worker's end of the socket: what is posted leaves in order, in few writes, and within bounds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engines.wire import ToWorker
from engines.worker_channel import OUTGOING_BOUND_BYTES, Channel

BOUND_S = 30.0


class Ends:
    """A channel, what it was told to call, and the gateway's end of its socket."""

    def __init__(self, gateway: socket.socket) -> None:
        self.gateway = gateway
        self.messages: list[ToWorker] = []
        self.lost = asyncio.Event()
        self.room = asyncio.Event()
        self.channel = Channel(
            on_message=self.messages.append, on_lost=lambda _why: self.lost.set(), on_room=self.room.set
        )

    async def receive(self, count: int) -> bytes:
        """This many bytes, exactly."""
        loop = asyncio.get_running_loop()
        data = b""
        async with asyncio.timeout(BOUND_S):
            while len(data) < count:
                data += await loop.sock_recv(self.gateway, min(count - len(data), 65536))
        return data


@asynccontextmanager
async def connected() -> AsyncIterator[Ends]:
    gateway, worker = socket.socketpair()
    gateway.setblocking(False)
    worker.setblocking(False)
    ends = Ends(gateway)
    with gateway:
        await asyncio.get_running_loop().create_unix_connection(lambda: ends.channel, sock=worker)
        yield ends
        if not ends.lost.is_set():
            ends.channel.finish()
        async with asyncio.timeout(BOUND_S):
            await ends.lost.wait()


async def test_frame_after_a_rest_leaves_before_post_returns() -> None:
    async with connected() as ends:
        ends.channel.post([b"one", b"two"])
        assert ends.gateway.recv(100) == b"onetwo"


async def test_frames_of_a_rush_leave_together_and_in_order() -> None:
    async with connected() as ends:
        for i in range(100):
            ends.channel.post([b"%03d" % i])
        assert await ends.receive(300) == b"".join(b"%03d" % i for i in range(100))


async def test_flush_sends_what_rests() -> None:
    async with connected() as ends:
        ends.channel.post([b"first"])
        ends.channel.post([b"second"])
        ends.channel.flush()
        assert ends.gateway.recv(100) == b"firstsecond"


async def test_frame_that_need_not_wait_takes_those_before_it_along() -> None:
    async with connected() as ends:
        for frame in (b"first", b"second", b"third"):
            ends.channel.post([frame])
        ends.channel.post([b"last"], at_once=True)
        assert ends.gateway.recv(100) == b"firstsecondthirdlast"


async def test_frames_from_another_thread_keep_their_order() -> None:
    async with connected() as ends:

        def make() -> None:
            for i in range(2000):
                ends.channel.post([b"%04d" % i])

        making = asyncio.create_task(asyncio.to_thread(make))
        assert await ends.receive(8000) == b"".join(b"%04d" % i for i in range(2000))
        await making


async def test_full_channel_tells_when_it_has_room() -> None:
    async with connected() as ends:
        frame = b"x" * 200_000
        posted = 0
        while ends.channel.has_room:
            ends.channel.post([frame])
            posted += len(frame)
        assert posted >= OUTGOING_BOUND_BYTES
        assert not ends.room.is_set()
        assert await ends.receive(posted) == b"x" * posted
        async with asyncio.timeout(BOUND_S):
            await ends.room.wait()
        assert ends.channel.has_room


async def test_finish_sends_everything_before_the_end() -> None:
    async with connected() as ends:
        frame = b"x" * 200_000
        for _ in range(10):
            ends.channel.post([frame])
        ends.channel.finish()
        assert len(await ends.receive(10 * len(frame))) == 10 * len(frame)
        async with asyncio.timeout(BOUND_S):
            await ends.lost.wait()
        assert ends.gateway.recv(1) == b""


async def test_gateway_that_is_gone_is_told_once_and_frames_are_dropped() -> None:
    async with connected() as ends:
        ends.gateway.close()
        async with asyncio.timeout(BOUND_S):
            await ends.lost.wait()
        ends.channel.post([b"late"])
        assert ends.channel.has_room
