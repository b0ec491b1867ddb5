"""What a real worker process does when memory runs out or steps are slow, and what it says of its scheduling."""

from __future__ import annotations

from dataclasses import dataclass

from engines.wire import (
    Admitted,
    Cancel,
    CapacityReport,
    Event,
    Failed,
    Finished,
    LoadModel,
    ModelSpec,
    Ready,
    Sampling,
    SchedulingReport,
    SetGrant,
    Submit,
    TextDelta,
    TextRequest,
    TokenPrompt,
)
from tests.engines.helpers_faulty_engine import KV_BYTES, MARK
from tests.engines.helpers_worker import RawWorker, raw_worker, simulated_load, words

ROW_BYTES = 2048 * KV_BYTES
FAULTY = "tests.engines.helpers_faulty_engine"


def loaded(worker: RawWorker, faults: str, rows: int = 4) -> Ready:
    spec = ModelSpec(id=faults, task="text", format="sim", paths=())
    worker.send(LoadModel(spec=spec, grant_bytes=rows * ROW_BYTES))
    return worker.next(Ready)


def request(prompt: list[int], seed: int, tokens: int = 24) -> TextRequest:
    sampling = Sampling(temperature=0.8, seed=seed, logit_bias={96: -99.0, MARK: -99.0})
    return TextRequest(prompt=TokenPrompt(tokens=tuple(prompt)), sampling=sampling, max_tokens=tokens)


@dataclass
class Answer:
    text: str
    end: Event


def answers(events: list[Event]) -> dict[int, Answer]:
    texts = dict[int, str]()
    ends = dict[int, Event]()
    for event in events:
        if isinstance(event, TextDelta):
            texts[event.request_id] = texts.get(event.request_id, "") + event.text
        elif isinstance(event, Finished | Failed):
            assert event.request_id not in ends
            ends[event.request_id] = event
    return {id: Answer(texts.get(id, ""), end) for id, end in ends.items()}


def rested(worker: RawWorker) -> SchedulingReport:
    while True:
        report = worker.next(SchedulingReport)
        if (report.decoding, report.prefilling, report.waiting) == (0, 0, 0):
            return report


def test_worker_memory_errors_pause_answers_and_change_none() -> None:
    prompts = [([5, 6, 7], 1), (list(range(20, 50)), 2), ([9] * 12, 3)]
    with raw_worker("--bare", engine=FAULTY) as worker:
        ready = loaded(worker, "errors 3 20")  # over the second row, and over the first
        assert ready.width == 4 and [row.rows for row in ready.capacity] == [1, 2, 4, 8, 16, 32]
        assert ready.capacity[0].tokens == ready.capacity[2].tokens == 2048
        for id, (prompt, seed) in enumerate(prompts, start=1):
            worker.send(Submit(request_id=id, request=request(prompt, seed)))
        events = worker.answers(3)
        assert sum(isinstance(event, Admitted) for event in events) == 3
        first = answers(events)
        report = rested(worker)
        assert report.preemptions >= 2 and report.failures_by_memory == 0 and report.band == "red"
        assert report.ttft.count == 3 and report.inter_token.count == 3 * 23

        # The errors are over: the same requests again, and beside them one over which memory always runs out.
        worker.send(Submit(request_id=10, request=request([4, MARK, 4], 1)))
        for id, (prompt, seed) in enumerate(prompts, start=11):
            worker.send(Submit(request_id=id, request=request(prompt, seed)))
        again = answers(worker.answers(4))
        failed = again.pop(10).end
        assert isinstance(failed, Failed) and failed.error.code == "out_of_memory"
        assert [again[id + 10].text for id in first] == [first[id].text for id in first]
        for id, answer in first.items():
            assert isinstance(answer.end, Finished) and answer.end.reason == "length"
            assert answer.end.usage.completion_tokens == 24 and id in (1, 2, 3)
        assert rested(worker).failures_by_memory == 1

        worker.send(SetGrant(grant_bytes=ROW_BYTES))
        told = worker.next(CapacityReport)
        assert told.width == 1 and told.capacity[0].tokens == 2048 and told.capacity[2].tokens == 512


def test_worker_whose_steps_are_slow_answers_a_cancel_and_tells_their_cost() -> None:
    with raw_worker("--bare", engine=FAULTY) as worker:
        loaded(worker, "slow 0.05")
        worker.send(Submit(request_id=1, request=request([5, 6], 1, tokens=2000)))
        while (report := worker.next(SchedulingReport)).step_cost_s == 0:
            pass
        assert report.decoding == 1 and report.step_cost_s >= 0.05 and report.frontier_tokens > 2
        assert report.band == "green" and report.headroom_bytes == 4 * ROW_BYTES - 256 * KV_BYTES
        assert report.bytes_per_row_token >= KV_BYTES
        worker.send(Cancel(request_id=1))
        end = worker.answers()[-1]
        assert isinstance(end, Finished) and end.reason == "cancelled" and end.usage.completion_tokens < 2000
        assert rested(worker).decode_tokens_s > 0


def test_worker_of_a_simulated_model_tells_its_scheduling_once_it_rests() -> None:
    with raw_worker("--bare") as worker:
        worker.send(simulated_load())
        assert worker.next(Ready).capacity == ()
        for id in range(1, 6):
            worker.send(Submit(request_id=id, request=words(30)))
        report = rested(worker)
        while report.ttft.count < 5:
            report = rested(worker)
        assert report.inter_token.count == 5 * 29 and report.queue_wait.count == 5
