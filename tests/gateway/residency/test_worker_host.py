"""The gateway's side of one worker, against real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from engines.wire import (
    Closed,
    Failed,
    Finished,
    Hello,
    LoadFailed,
    LoadProgress,
    MemoryReport,
    Ready,
    SchedulingReport,
)
from gateway.residency.request_stream import RequestLost
from gateway.residency.worker_host import WorkerHost
from gateway.residency.worker_process import WorkerCommand
from tests.gateway.residency.helpers_workers import (
    BARE,
    BOUND_S,
    Recorder,
    drained,
    first_text,
    loaded,
    simulated,
    started,
    text_of,
    words,
)


async def test_host_life_of_a_worker_in_order() -> None:
    async with started() as (host, recorder):
        host.load(simulated(load_s=0.02))
        ready = await recorder.message(Ready)
        events = await drained(host.submit(words(3)))
        host.close()
        exit = await recorder.ended()

    reports = MemoryReport | SchedulingReport
    kinds = [type(message) for message in recorder.messages if not isinstance(message, reports)]
    assert kinds[0] is Hello and kinds[-2:] == [Ready, Closed] and set(kinds[1:-2]) == {LoadProgress}
    assert ready.static_bytes == 1000 and ready.kernels == "simulated"
    assert text_of(events) == "w0 w1 w2"
    assert isinstance(events[-1], Finished) and events[-1].usage.completion_tokens == 3
    assert exit.status == 0 and host.active == 0


def test_host_works_on_the_loop_that_the_server_uses() -> None:
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(test_host_life_of_a_worker_in_order())


async def test_host_requests_side_by_side_get_their_own_events() -> None:
    async with loaded() as (host, _):
        streams = [host.submit(words(count)) for count in (5, 1, 40)]
        texts = [text_of(await drained(stream)) for stream in streams]
    assert texts == [" ".join(f"w{i}" for i in range(count)) for count in (5, 1, 40)]


async def test_host_request_larger_than_a_frame() -> None:
    async with loaded() as (host, _):
        events = await drained(host.submit(words(1, text="long " * 400_000)))
    assert isinstance(events[-1], Finished) and events[-1].usage.prompt_tokens == 400_000


async def test_host_cancel_overtakes_a_request_that_is_still_being_sent() -> None:
    async with loaded(tokens_per_s=50) as (host, _):
        stream = host.submit(words(1, text="long " * 4_000_000))
        stream.cancel()
        events = await drained(stream)
        following = await drained(host.submit(words(1)))
    assert [type(event) for event in events] == [Finished] and text_of(following) == "w0"


async def test_host_cancel_mid_stream_ends_as_cancelled() -> None:
    async with loaded(tokens_per_s=100) as (host, _):
        stream = host.submit(words(1_000_000))
        await first_text(stream)
        stream.cancel()
        stream.cancel()
        events = await drained(stream)
        assert isinstance(events[-1], Finished) and events[-1].reason == "cancelled"
        assert events[-1].usage.completion_tokens < 100 * BOUND_S and host.active == 0


async def test_host_cancel_without_an_answer_kills_the_worker() -> None:
    async with loaded(cancel_timeout_s=0.1, hang_after_tokens=1) as (host, recorder):
        stream = host.submit(words(10))
        await first_text(stream)
        stream.cancel()
        with pytest.raises(RequestLost, match=r"did not answer a cancel within 0\.1 s"):
            await drained(stream)
        assert (await recorder.ended()).signal == signal.SIGKILL


async def test_host_killed_worker_ends_its_streams() -> None:
    async with loaded(tokens_per_s=100) as (host, recorder):
        admitted, waiting = host.submit(words(None)), host.submit(words(None, text="x " * 500_000))
        await first_text(admitted)
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(RequestLost, match="was ended by SIGKILL") as lost:
            await drained(admitted)
        assert lost.value.admitted
        with pytest.raises(RequestLost):
            await drained(waiting)
        await recorder.ended()
        with pytest.raises(RequestLost):
            await drained(host.submit(words(1)))


async def test_host_abort_in_the_engine_is_seen_as_the_signal() -> None:
    async with loaded(abort_after_tokens=2) as (host, recorder):
        with pytest.raises(RequestLost, match="SIGABRT"):
            await drained(host.submit(words(10)))
        assert (await recorder.ended()).signal == signal.SIGABRT


async def test_host_close_ends_requests_as_cancelled() -> None:
    async with loaded(tokens_per_s=100) as (host, recorder):
        stream = host.submit(words(1_000_000))
        await first_text(stream)
        host.close()
        events = await drained(stream)
        assert isinstance(events[-1], Finished) and events[-1].reason == "cancelled"
        assert (await recorder.ended()).status == 0


async def test_host_failed_load_says_why_and_exits() -> None:
    async with started() as (host, recorder):
        host.load(simulated(fail_load="the disk is on fire"))
        failed = await recorder.message(LoadFailed)
        exit = await recorder.ended()
    assert failed.error.code == "model_load_failed" and "the disk is on fire" in failed.error.message
    assert exit.status == 1


async def test_host_request_the_engine_refuses_fails_alone() -> None:
    load = simulated()
    async with started() as (host, recorder):
        host.load(type(load)(spec=type(load.spec)(id="s", task="text", format="sim", paths=(), context=8)))
        await recorder.message(Ready)
        refused = await drained(host.submit(words(1, text="x " * 9)))
        served = await drained(host.submit(words(1)))
    assert isinstance(refused[-1], Failed) and refused[-1].error.code == "context_length_exceeded"
    assert text_of(served) == "w0"


async def test_host_python_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(OSError, match="no-such-python"):
        WorkerHost(WorkerCommand(python="/nowhere/no-such-python"), Recorder(), cancel_timeout_s=1)


async def test_host_worker_that_cannot_start_says_its_last_words() -> None:
    async with started(WorkerCommand(arguments=("--no-such-option",))) as (_, recorder):
        exit = await recorder.ended()
    assert exit.status == 2 and "--no-such-option" in exit.describe()


async def test_host_kills_a_worker_that_closes_its_end_but_lives() -> None:
    """A bare end of file is no exit: the group is killed, and only then is the worker gone."""
    command = _Script("import os, signal, sys; os.close(int(sys.argv[2])); signal.pause()")
    async with started(command) as (_, recorder):
        assert (await recorder.ended()).signal == signal.SIGKILL


async def test_host_exit_waits_for_the_whole_group() -> None:
    """A child that a worker left behind is killed before the exit is told."""
    command = _Script(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, file=sys.stderr, flush=True)\n"
    )
    async with started(command) as (_, recorder):
        exit = await recorder.ended()
    assert exit.status == 0 and not _lives(int(exit.stderr[0]))


async def test_host_breach_of_the_protocol_ends_the_worker() -> None:
    command = _Script("import os, signal, sys; os.write(int(sys.argv[2]), b'\\xff' * 8); signal.pause()")
    async with started(command) as (_, recorder):
        exit = await recorder.ended()
    assert "broke the protocol" in exit.describe()


async def test_stream_reader_that_falls_behind_gets_its_text_in_one() -> None:
    async with loaded() as (host, _):
        stream = host.submit(words(2000))
        async with asyncio.timeout(BOUND_S):
            ended = asyncio.Event()
            stream.when_ended(ended.set)
            await ended.wait()
        events = await drained(stream)
    assert text_of(events) == " ".join(f"w{i}" for i in range(2000)) and len(events) < 10


async def test_host_events_reach_a_reader_one_by_one_when_it_keeps_up() -> None:
    async with loaded(tokens_per_s=200) as (host, _):
        events = await drained(host.submit(words(5)))
    assert len(events) == 7  # Admitted, five words, Finished


class _Script(WorkerCommand):
    """Runs a line of Python in a worker's place: ``--fd N`` are its arguments 1 and 2."""

    def __init__(self, code: str) -> None:
        super().__init__(python=BARE.python)
        object.__setattr__(self, "_code", code)

    def argv(self, descriptor: int) -> list[str]:
        return [self.python, "-c", self._code, "--fd", str(descriptor)]  # type: ignore[attr-defined]


def _lives(pid: int) -> bool:
    """False for a zombie too: nobody may be there to reap an orphan."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return ps.stdout.strip()[:1] not in ("", "Z", "X")
