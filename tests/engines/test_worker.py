"""The worker process, over its socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from engines.wire import (
    Admitted,
    Cancel,
    Chunk,
    Close,
    Closed,
    DenyGrowth,
    Failed,
    Finished,
    GrowRequest,
    Hello,
    LoadFailed,
    LoadModel,
    LoadProgress,
    MemoryReport,
    ModelSpec,
    Ready,
    SetCores,
    SetGrant,
    Shed,
    Submit,
    TextDelta,
    submit_frames,
)
from tests.engines.helpers_worker import (
    BOUND_S,
    PROJECT,
    CpuIdle,
    lives,
    raw_worker,
    simulated_load,
    stop,
    until,
    words,
)

BROKEN = "tests.engines.helpers_broken_engine"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and the parent-death signal is Linux's")


def test_worker_life_in_order() -> None:
    with raw_worker("--bare") as worker:
        assert worker.next(Hello).pid == worker.process.pid
        worker.send(simulated_load(load_s=0.01))
        kinds = [type(worker.next(object)) for _ in range(2)]
        assert kinds == [LoadProgress, LoadProgress]
        assert worker.next(Ready).static_bytes == 1000
        assert worker.next(MemoryReport).static == 1000
        worker.send(Submit(request_id=5, request=words(2)), Close())
        left = list(worker.messages())
        assert isinstance(left[-1], Closed) and worker.wait() == 0


def test_worker_answers_every_request_with_one_terminal_event() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(*(Submit(request_id=i, request=words(3)) for i in range(1, 9)))
        events = worker.answers(8)
        ends = [event.request_id for event in events if isinstance(event, Finished)]
        assert sorted(ends) == list(range(1, 9))
        for request_id in ends:
            own = [event for event in events if event.request_id == request_id]
            assert isinstance(own[0], Admitted) and isinstance(own[-1], Finished) and len(own) == 5


def test_worker_answer_wanted_whole_comes_in_few_events() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        request = replace(words(1000), whole=True)
        worker.send(Submit(request_id=1, request=request))
        events = worker.answers()
        deltas = [event for event in events if isinstance(event, TextDelta)]
        assert "".join(delta.text for delta in deltas) == " ".join(f"w{i}" for i in range(1000))
        assert [token for delta in deltas for token in delta.tokens] == list(range(1000))
        assert len(deltas) < 100 and isinstance(events[-1], Finished)


def test_worker_simulated_imports_no_mlx() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        if sys.platform == "linux":
            maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
            assert "mlx" not in maps and "numpy" not in maps


def test_worker_chunks_may_be_mixed_with_other_frames() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        frames = submit_frames(1, words(1, text="long " * 200_000))
        for number, frame in enumerate(frames):
            worker.socket.sendall(frame)
            worker.send(Submit(request_id=100 + number, request=words(1)))
        admitted = [event for event in worker.answers(len(frames) + 1) if isinstance(event, Admitted)]
        prompt_tokens = {event.request_id: event.prompt_tokens for event in admitted}
        assert prompt_tokens.pop(1) == 200_000 and set(prompt_tokens.values()) == {1}


def test_worker_missing_chunk_is_a_breach() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(Chunk(request_id=1, blob=0, index=1, last=True, data=b"x"))
        assert worker.wait() == 1 and "chunk 1 of request 1 came where 0 was due" in worker.stderr()


def test_worker_cancel_while_it_prepares_answers_at_once() -> None:
    with raw_worker("--bare", engine=BROKEN) as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(1, "forever")), Cancel(request_id=1))
        event = next(worker.events())
        assert isinstance(event, Finished) and event.reason == "cancelled"


def test_worker_cancel_takes_effect_within_a_step() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load(ttft_s=1000.0))
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(1)))
        assert isinstance(next(worker.events()), Admitted)
        worker.send(Cancel(request_id=1))
        event = next(worker.events())
        assert isinstance(event, Finished) and event.reason == "cancelled"


def test_worker_request_that_cannot_be_prepared_fails_alone() -> None:
    with raw_worker("--bare", engine=BROKEN) as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(1, "unprepared")))
        event = next(worker.events())
        assert isinstance(event, Failed) and event.error.code == "internal_error"
        worker.send(Submit(request_id=2, request=words(1)))
        assert isinstance(next(worker.events()), Admitted)


def test_worker_engine_that_breaks_fails_what_it_had_begun_and_exits() -> None:
    with raw_worker("--bare", engine=BROKEN) as worker:
        worker.send(simulated_load(tokens_per_s=100.0))
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(100_000)))
        assert isinstance(next(worker.events()), Admitted)
        worker.send(Submit(request_id=2, request=words(1, "break")))
        ends = [event for event in worker.events() if not isinstance(event, TextDelta)]
        assert [(type(event), event.request_id) for event in ends] == [
            (Failed, 1)
        ]  # 2 had not begun: another may serve it
        assert isinstance(ends[0], Failed) and ends[0].error.code == "worker_died"
        assert "divided by zero" in ends[0].error.message
        assert worker.wait() == 1 and "Traceback" in worker.stderr()


@pytest.mark.parametrize(
    ("spec", "engine", "code", "words"),
    [
        (
            ModelSpec(id="m", task="stt", format="safetensors", paths=()),
            "-",
            "model_load_failed",
            "no engine serves task stt",
        ),
        (ModelSpec(id="m", task="text", format="sim", paths=()), "no.such.module", "model_load_failed", "no.such|'no'"),
        (
            ModelSpec(id="unbuildable", task="text", format="sim", paths=()),
            BROKEN,
            "model_load_failed",
            "divided by zero",
        ),
    ],
)
def test_worker_load_that_fails_says_why_and_exits(spec: ModelSpec, engine: str, code: str, words: str) -> None:
    with raw_worker("--bare", engine=engine) as worker:
        worker.send(LoadModel(spec=spec))
        failed = worker.next(LoadFailed)
        assert failed.error.code == code and any(word in failed.error.message for word in words.split("|"))
        assert worker.wait() == 1


def test_worker_asks_for_growth_once_and_takes_it_back() -> None:
    """Two requests lack room. The first is denied for ever and fails; the second is met; a third is cancelled."""
    with raw_worker("--bare") as worker:
        worker.send(replace(simulated_load(kv_bytes_per_token=10), grant_bytes=100))
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(50)), Submit(request_id=2, request=words(19)))
        assert worker.next(GrowRequest) == GrowRequest(request_id=1, bytes=410)
        worker.send(DenyGrowth(request_id=1, most_bytes=300))
        (failed,) = worker.answers()
        assert isinstance(failed, Failed) and failed.error.code == "context_length_exceeded"
        assert worker.next(GrowRequest) == GrowRequest(request_id=2, bytes=100)
        worker.send(SetGrant(grant_bytes=200))
        assert isinstance(worker.answers()[-1], Finished)
        worker.send(Submit(request_id=3, request=words(50)))
        assert worker.next(GrowRequest) == GrowRequest(request_id=3, bytes=310)
        worker.send(Cancel(request_id=3))
        assert worker.next(GrowRequest) == GrowRequest(request_id=3, bytes=0)


@linux_only
def test_worker_whose_requests_wait_for_growth_uses_no_cpu() -> None:
    with raw_worker("--bare") as worker:
        worker.send(replace(simulated_load(kv_bytes_per_token=10), grant_bytes=100))
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(50)))
        worker.next(GrowRequest)
        until(CpuIdle(worker.process.pid))
        worker.send(SetGrant(grant_bytes=1000))
        assert isinstance(worker.answers()[-1], Finished)


def test_worker_reports_its_memory_each_second_and_as_it_changes() -> None:
    with raw_worker("--bare") as worker:
        worker.send(replace(simulated_load(kv_bytes_per_token=10, tokens_per_s=100.0), grant_bytes=100_000))
        worker.next(Ready)
        idle = worker.next(MemoryReport)
        assert (idle.static, idle.kv, idle.prompt_cache, idle.mlx_cache) == (1000, 0, 0, 0)
        worker.send(Submit(request_id=1, request=words(9000)))  # 90 s
        readings = [worker.next(MemoryReport).kv for _ in range(4)]
        assert readings == sorted(readings) and readings[-1] >= 50
        began = time.monotonic()
        worker.send(Cancel(request_id=1))
        while worker.next(MemoryReport).kv:
            pass
        assert time.monotonic() - began < BOUND_S


def test_worker_reports_at_once_what_shedding_brought() -> None:
    with raw_worker("--bare", engine="tests.engines.helpers_swelling_engine") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(1, "hoard 3")))
        while worker.next(MemoryReport).prompt_cache != 3 * 2**20:
            pass
        worker.send(Shed(bytes=2 * 2**20))
        assert worker.next(MemoryReport).prompt_cache == 2**20


def test_worker_hears_of_its_cores() -> None:
    with raw_worker("--bare", engine=BROKEN) as worker:
        load = simulated_load()
        worker.send(LoadModel(spec=load.spec, cores=4))
        worker.next(Ready)
        for cores in (4, 3):
            worker.send(SetCores(cores=cores), Submit(request_id=cores, request=words(1, "cores")))
            assert [e.prompt_tokens for e in worker.answers() if isinstance(e, Admitted)] == [cores]


def test_worker_ends_when_the_gateway_closes_the_socket() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load(hang_after_tokens=0))
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(1)))  # the device thread hangs: the end does not wait for it
        worker.socket.close()
        assert worker.wait() == 0


def test_worker_ends_with_the_gateway_also_when_nobody_reads_its_stderr() -> None:
    with raw_worker("--bare", engine=BROKEN) as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        assert worker.process.stderr is not None
        worker.process.stderr.close()
        worker.send(Submit(request_id=1, request=words(1, "unprepared")))  # which it logs
        worker.answers()
        worker.socket.close()
        assert worker.wait() == 0


def test_worker_library_that_ends_its_thread_ends_the_worker() -> None:
    with raw_worker("--bare", engine=BROKEN) as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(1, "exit")))
        assert list(worker.events()) == [] and worker.wait() == 1


def test_worker_ignores_the_terminals_interrupt() -> None:
    with raw_worker("--bare") as worker:
        worker.next(Hello)
        os.kill(worker.process.pid, signal.SIGINT)
        worker.send(simulated_load())
        assert worker.next(Ready)


def test_worker_that_is_not_its_parents_exits_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engines.worker", "--fd", "0", "--parent", "1"],
        cwd=PROJECT,
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0 and done.stderr == b""


@linux_only
def test_worker_pauses_while_the_gateway_does_not_read() -> None:
    """It stops stepping at the bound, and what it made before arrives whole."""
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        worker.next(Ready)
        worker.send(Submit(request_id=1, request=words(2_000_000)))
        until(CpuIdle(worker.process.pid))
        worker.send(Cancel(request_id=1))
        events = worker.answers()
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        last = events[-1]
        assert isinstance(last, Finished) and last.reason == "cancelled"
        assert last.usage.completion_tokens < 200_000
        assert text == " ".join(f"w{i}" for i in range(last.usage.completion_tokens))


@linux_only
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_worker_does_not_outlive_a_killed_gateway(stopped: bool) -> None:
    """A stopped worker cannot see the end of file: only the parent-death signal ends it."""
    code = (
        "import subprocess, sys\n"
        "from engines.wire import Ready\n"
        "from tests.engines.helpers_worker import RawWorker, simulated_load\n"
        "worker = RawWorker('--bare')\n"
        "worker.send(simulated_load())\n"
        "worker.next(Ready)\n"
        "print(worker.process.pid, flush=True)\n"
        "worker.process.wait()\n"
    )
    gateway = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    pid = int(gateway.stdout.readline())
    if stopped:
        stop(pid)
    gateway.kill()
    gateway.communicate()
    until(lambda: not lives(pid))


@linux_only
def test_worker_spare_imports_at_low_priority_and_works_at_its_own() -> None:
    with raw_worker("--spare", text_stack="tests.engines.helpers_niceness") as worker:
        worker.next(Hello)
        worker.send(Close())
        assert worker.wait() == 0
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert f"niceness of the importing thread {min(19, own + 10) - own}, of the main thread 0" in worker.stderr()
