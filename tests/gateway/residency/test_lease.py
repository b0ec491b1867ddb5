"""A lease's states, against a host and a holder that record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engines.wire import Admitted, Event, Finished, Request, TextDelta, TextPrompt, TextRequest, Usage
from gateway.errors import GatewayError, ModelUnloaded, QueueTimeout, WorkerDied
from gateway.residency.effects import GrantLease
from gateway.residency.lease import Lease
from gateway.residency.request_stream import RequestStream

REQUEST = TextRequest(prompt=TextPrompt(text="hi"))
DONE = Finished(request_id=1, reason="stop", usage=Usage())


class Host:
    def __init__(self) -> None:
        self.streams: list[RequestStream] = []
        self.asked: asyncio.Queue[RequestStream] = asyncio.Queue()
        self.cancelled: list[int] = []

    def submit(self, request: Request) -> RequestStream:
        stream = RequestStream(len(self.streams) + 1, lambda stream: self.cancelled.append(stream.request_id))
        self.streams.append(stream)
        self.asked.put_nowait(stream)
        return stream


class Holder:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def lease_admitted(self, lease: Lease) -> None:
        self.calls.append("admitted")

    def lease_released(self, lease: Lease) -> None:
        self.calls.append(f"released {lease.id}")

    def waiter_cancelled(self, lease: Lease) -> None:
        self.calls.append("cancelled")


def grant(generation: int = 1) -> GrantLease:
    return GrantLease(waiter=7, lease=f"lease-{generation}", model="m", key="k", generation=generation)


def held() -> tuple[Lease, Host, Holder]:
    holder, host = Holder(), Host()
    lease = Lease(7, "m", holder)
    lease.hold(grant(), host)
    return lease, host, holder


async def start(events: AsyncIterator[Event], host: Host) -> tuple[asyncio.Task[list[Event]], RequestStream]:
    """A task that reads everything, and the stream it reads from."""

    async def read() -> list[Event]:
        return [event async for event in events]

    task = asyncio.create_task(read())
    return task, await host.asked.get()


async def test_lease_waits_until_it_is_granted() -> None:
    lease = Lease(7, "m", Holder())
    waiting = asyncio.create_task(lease.granted())
    await asyncio.sleep(0)
    assert not waiting.done() and lease.id == ""
    lease.hold(grant(3), Host())
    await waiting
    assert (lease.id, lease.generation) == ("lease-3", 3)


async def test_lease_refused_raises_the_error() -> None:
    holder = Holder()
    lease = Lease(7, "m", holder)
    lease.refuse(QueueTimeout("too long"))
    with pytest.raises(QueueTimeout):
        await lease.granted()
    lease.release()
    assert holder.calls == []


async def test_lease_released_while_waiting_gives_up_its_place_once() -> None:
    holder = Holder()
    lease = Lease(7, "m", holder)
    lease.release()
    lease.release()
    assert holder.calls == ["cancelled"]
    with pytest.raises(GatewayError):
        await lease.granted()


async def test_lease_released_unused_is_given_back_at_once() -> None:
    lease, _, holder = held()
    lease.release()
    lease.release()
    assert holder.calls == ["released lease-1"]


async def test_lease_stream_passes_events_and_reports_admission_once() -> None:
    lease, host, holder = held()
    task, stream = await start(lease.stream(REQUEST), host)
    sent: list[Event] = [Admitted(request_id=1, prompt_tokens=1), TextDelta(request_id=1, text="w"), DONE]
    for event in sent:
        stream.put(event)
    assert await task == sent
    lease.release()
    assert holder.calls == ["admitted", "released lease-1"] and host.cancelled == []


async def test_lease_released_mid_stream_lasts_until_the_worker_says_it_ended() -> None:
    lease, host, holder = held()
    task, stream = await start(lease.stream(REQUEST), host)
    lease.release()
    assert host.cancelled == [1] and holder.calls == []
    stream.put(Finished(request_id=1, reason="cancelled", usage=Usage()))
    assert holder.calls == ["released lease-1"]
    await task


async def test_lease_iterator_left_cancels_its_request() -> None:
    lease, host, _ = held()
    events = lease.stream(REQUEST)

    async def first() -> Event:
        return await anext(events)

    task = asyncio.create_task(first())
    (await host.asked.get()).put(Admitted(request_id=1, prompt_tokens=1))
    await task
    await events.aclose()
    assert host.cancelled == [1]


async def test_lease_serves_several_requests_and_ends_with_the_last() -> None:
    lease, host, holder = held()
    (first, one), (second, two) = [await start(lease.stream(REQUEST), host) for _ in range(2)]
    lease.release()
    one.put(DONE)
    assert holder.calls == []
    two.put(DONE)
    assert holder.calls == ["released lease-1"]
    await asyncio.gather(first, second)


async def test_lease_worker_that_died_under_an_admitted_request_is_an_error() -> None:
    lease, host, _ = held()
    task, stream = await start(lease.stream(REQUEST), host)
    stream.put(Admitted(request_id=1, prompt_tokens=1))
    stream.lose("was ended by SIGKILL")
    with pytest.raises(WorkerDied, match="worker was ended by SIGKILL") as error:
        await task
    assert error.value.retry is False


async def test_lease_ended_by_the_core_gives_what_came_and_then_the_error() -> None:
    lease, host, holder = held()
    seen: list[Event] = []

    async def read() -> None:
        async for event in lease.stream(REQUEST):
            seen.append(event)

    task = asyncio.create_task(read())
    (await host.asked.get()).put(TextDelta(request_id=1, text="w"))
    lease.refuse(WorkerDied("it is gone", retry=False))
    with pytest.raises(WorkerDied, match="it is gone"):
        await task
    lease.release()
    assert len(seen) == 1 and holder.calls == []


async def test_lease_requeued_is_served_by_the_next_worker() -> None:
    lease, host, holder = held()
    task, stream = await start(lease.stream(REQUEST), host)
    stream.lose("was ended by SIGKILL")
    lease.requeue()
    await asyncio.sleep(0)
    assert not task.done()
    following = Host()
    lease.hold(grant(2), following)
    (await following.asked.get()).put(DONE)
    assert await task == [DONE]
    lease.release()
    assert holder.calls == ["released lease-2"]


async def test_lease_requeued_and_refused_ends_with_the_refusal() -> None:
    lease, host, _ = held()
    task, stream = await start(lease.stream(REQUEST), host)
    stream.lose("died")
    lease.requeue()
    lease.refuse(WorkerDied("no more"))
    with pytest.raises(WorkerDied, match="no more"):
        await task


async def test_lease_requeued_and_released_gives_up_its_place() -> None:
    lease, host, holder = held()
    task, stream = await start(lease.stream(REQUEST), host)
    stream.lose("died")
    lease.requeue()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lease.release()
    assert holder.calls == ["cancelled"]


async def test_lease_requeued_while_its_caller_lets_go_is_not_kept() -> None:
    lease, host, holder = held()
    task, _ = await start(lease.stream(REQUEST), host)
    lease.release()
    lease.requeue()
    assert holder.calls == ["cancelled"]
    host.streams[0].lose("died")
    assert holder.calls == ["cancelled"]
    with pytest.raises(WorkerDied):
        await task


async def test_lease_cancelled_by_the_core_tells_why_and_is_still_given_back() -> None:
    lease, host, holder = held()
    task, stream = await start(lease.stream(REQUEST), host)
    lease.cancel_with(ModelUnloaded("unloaded by an operator"))
    assert host.cancelled == [1]
    stream.put(Finished(request_id=1, reason="cancelled", usage=Usage()))
    with pytest.raises(ModelUnloaded):
        await task
    with pytest.raises(ModelUnloaded):
        await anext(lease.stream(REQUEST))
    lease.release()
    assert holder.calls == ["released lease-1"]


async def test_lease_after_its_release_serves_nothing() -> None:
    lease, host, _ = held()
    lease.release()
    with pytest.raises(WorkerDied):
        await anext(lease.stream(REQUEST))
    assert host.streams == []
