"""Background runs: their events from any place on, their ends, and how many there may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, InternalError, ModelTooLarge, RateLimited, ServerOverloaded
from gateway.responses import runs as runs_module
from gateway.responses.runs import BackgroundRuns, Run

BOUND_S = 30.0


def make_run(id: str = "r", owner: str = "me") -> tuple[Run, list[GatewayError]]:
    errors: list[GatewayError] = []

    async def failed(error: GatewayError) -> bytes:
        errors.append(error)
        return b"event: end\n\n"

    return Run(id, owner, snapshot=lambda: b"{}", failed=failed), errors


class Answer:
    """Says what it is told to, until its client leaves."""

    def __init__(self) -> None:
        self.say: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.scope: Any = None
        self.left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(self._leave(receive))
        try:
            while not self.left:
                said = asyncio.create_task(self.say.get())
                await asyncio.wait((said, leaving), return_when=asyncio.FIRST_COMPLETED)
                if self.left:
                    said.cancel()
                    return
                match said.result():
                    case None:
                        return
                    case bytes() as body:
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                    case error:
                        raise error
        finally:
            leaving.cancel()

    async def _leave(self, receive: Receive) -> None:
        assert (await receive())["type"] == "http.disconnect"
        self.left = True


async def performed(answer: Answer) -> tuple[Run, list[GatewayError], asyncio.Task[None]]:
    run, errors = make_run()
    return run, errors, asyncio.create_task(run.perform(answer, "/v1/responses", "key-1"))


async def bounded(wait: Any) -> Any:
    async with asyncio.timeout(BOUND_S):
        return await wait


async def test_events_are_read_from_any_place_by_several_readers() -> None:
    answer = Answer()
    run, errors, task = await performed(answer)
    late = asyncio.create_task(run.watch(2, BOUND_S))
    answer.say.put_nowait(b"event: a\n\nevent: b\n\n")
    answer.say.put_nowait(b": keep-alive\n\n")
    answer.say.put_nowait(b"event: c\n\n")
    answer.say.put_nowait(None)
    assert await bounded(late) == [b"event: c\n\n"]
    await bounded(task)
    assert await run.watch(0, 0) == [b"event: a\n\n", b"event: b\n\n", b"event: c\n\n"]
    assert await run.watch(3, BOUND_S) == []  # at once: none will follow
    assert (run.ended, errors, answer.scope["path"]) == (True, [], "/v1/responses")
    assert answer.scope["state"] == {"client": "key-1"}


async def test_watch_gives_up_after_a_while_without_events() -> None:
    run, _ = make_run()
    assert await run.watch(0, 0.001) == []


async def test_cancel_is_the_clients_departure() -> None:
    answer = Answer()
    run, errors, task = await performed(answer)
    answer.say.put_nowait(b"event: a\n\n")
    await bounded(run.watch(0, BOUND_S))
    run.cancel()
    await bounded(run.over())
    await task
    assert answer.left
    assert len(errors) == 1
    assert run.events == [b"event: a\n\n", b"event: end\n\n"]
    run.cancel()


@pytest.mark.parametrize(
    ("raised", "kind"), [(ModelTooLarge("too large"), ModelTooLarge), (ValueError("a defect"), InternalError)]
)
async def test_what_the_answer_raises_is_its_end(raised: Exception, kind: type[GatewayError]) -> None:
    answer = Answer()
    run, errors, task = await performed(answer)
    answer.say.put_nowait(raised)
    await bounded(task)
    assert [type(error) for error in errors] == [kind]
    assert run.events == [b"event: end\n\n"]


async def test_runs_are_found_by_their_owner_while_and_after_they_are_made() -> None:
    runs, answer = BackgroundRuns(), Answer()
    run, _ = make_run()
    runs.start(run, answer, "/", "me")
    assert len(runs) == 1
    assert runs.find("me", "r") is run and runs.find("you", "r") is None
    answer.say.put_nowait(None)
    await bounded(runs.wait_idle())
    assert len(runs) == 0
    assert runs.find("me", "r") is run
    runs.forget("r")
    assert runs.find("me", "r") is None


async def test_events_of_ended_runs_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "KEPT_BYTES", 30)
    runs = BackgroundRuns()
    for number in range(4):
        answer = Answer()
        run, _ = make_run(str(number))
        runs.start(run, answer, "/", "me")
        answer.say.put_nowait(b"event: abc\n\n")  # 12 bytes
        answer.say.put_nowait(None)
        await bounded(runs.wait_idle())
    assert [runs.find("me", str(number)) is not None for number in range(4)] == [False, False, True, True]


async def test_room_is_bounded_for_a_key_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "MAX_RUNS", 2)
    runs, answers = BackgroundRuns(), []
    for number in range(2):
        runs.check_room("me", 2)
        answers.append(Answer())
        runs.start(make_run(str(number))[0], answers[-1], "/", "me")
    with pytest.raises(RateLimited):
        runs.check_room("me", 2)
    with pytest.raises(ServerOverloaded):
        runs.check_room("you", None)
    for answer in answers:
        answer.say.put_nowait(None)
    await bounded(runs.wait_idle())
    runs.check_room("me", 2)
