"""A leased response, driven by hand: what it sends when, and that its lease comes back however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from starlette.types import Message, Scope

from engines.wire import Admitted, Event, TextDelta, TextPrompt, TextRequest, TokenLogprob
from gateway.errors import GatewayError, ModelTooLarge, ServerOverloaded, ShuttingDown, WorkerDied
from gateway.leased_response import MAX_CHOICES_AT_ONCE, LeasedResponse
from gateway.metrics import Metrics
from gateway.outbox import SEPARATE_PIECES
from gateway.protocols import openai_completions
from gateway.protocols.completion import AnswerHead
from gateway.services import Services
from tests.gateway.helpers_app import make_catalog, make_settings, unused_store
from tests.gateway.helpers_residency import BOUND_S, FakeResidency, delta, failed, finished, refusing

HEAD = AnswerHead(id="cmpl-1", created=1, model="a")
FOREVER_S = 1000.0


class Call:
    """One call of a response: its client's end, and the task that answers it."""

    def __init__(
        self,
        residency: FakeResidency,
        *,
        stream: bool = True,
        choices: int = 1,
        requests: Sequence[TextRequest] | None = None,
        **server: Any,
    ) -> None:
        settings = make_settings(**{"keepalive_s": FOREVER_S, **server})
        self.residency = residency
        self.services = Services(settings, make_catalog(), residency, Metrics(), unused_store())
        self.response = LeasedResponse(
            self.services,
            self.services.catalog.resolve("a"),
            requests or [TextRequest(prompt=TextPrompt(text=str(i))) for i in range(choices)],
            stream=openai_completions.CompletionStream(HEAD) if stream else None,
            body=lambda completions: openai_completions.render_body(HEAD, completions),
            ignored=("user",),
            leased=lambda: self.told.append("leased"),
            seen=lambda event: self.told.append(type(event).__name__),
        )
        self.told: list[str] = []  # as it happened
        self.sent: list[Message] = []
        self.sending = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.left = asyncio.Event()
        self.scope: Scope = {"type": "http", "path": "/v1/completions", "client": ("1.2.3.4", 5), "state": {}}
        self.task = asyncio.create_task(self.response(self.scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.may_send.wait()
        self.sent.append(message)
        self.sending.set()

    async def done(self) -> None:
        async with asyncio.timeout(BOUND_S):
            await self.task

    async def sent_where(self, holds: Callable[[bytes], bool]) -> None:
        """Until what was sent so far is such that ``holds``."""
        async with asyncio.timeout(BOUND_S):
            while not holds(self.body):
                self.sending.clear()
                await self.sending.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def text(self) -> str:
        """The streamed text, without its events."""
        chunks = [json.loads(line[6:]) for line in self.body.decode().split("\n\n") if line.startswith("data: {")]
        return "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))

    @property
    def outcomes(self) -> list[str]:
        samples = self.services.metrics.as_json()["innkeeper_answers"]["samples"]
        return [s["labels"]["outcome"] for s in samples if s["name"].endswith("_total") and s["value"]]

    @property
    def tokens(self) -> dict[str, float]:
        """As they were counted, by kind."""
        samples = self.services.metrics.as_json()["innkeeper_tokens"]["samples"]
        return {s["labels"]["kind"]: s["value"] for s in samples if s["name"].endswith("_total")}

    def check_all_returned(self) -> None:
        assert self.residency.held == 0
        assert self.residency.waiting == 0
        assert len(self.services.live) == 0


def pausing(*events: Event) -> tuple[FakeResidency, asyncio.Event]:
    """A residency whose worker says ``events``, then waits for the returned event, then ends."""
    go_on = asyncio.Event()
    residency = FakeResidency()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        for event in events:
            yield event
        await go_on.wait()
        yield delta("later")
        yield finished()

    residency.script = script
    return residency, go_on


# --- whole answers --------------------------------------------------------------------------------------------------


async def test_stream_sends_headers_text_and_end_marker() -> None:
    call = Call(FakeResidency(Admitted(request_id=1, prompt_tokens=3), delta("a"), delta("b"), finished()))
    await call.done()
    headers = dict(call.sent[0]["headers"])
    assert call.sent[0]["status"] == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-innkeeper-ignored"] == b"user"
    assert call.text == "ab"
    assert call.body.endswith(b"data: [DONE]\n\n")
    assert call.sent[-1]["more_body"] is False
    assert call.outcomes == ["ok"]
    assert (call.residency.leases[0].client, call.residency.leases[0].route) == ("1.2.3.4", "/v1/completions")
    call.check_all_returned()


async def test_lease_and_events_are_told_as_they_come_and_not_as_they_are_sent() -> None:
    residency, go_on = pausing(Admitted(request_id=1, prompt_tokens=3), delta("a"))
    residency.admit = asyncio.Event()
    call = Call(residency)
    call.may_send.clear()  # a client that takes nothing
    await asyncio.sleep(0)
    assert call.told == []
    residency.admit.set()
    go_on.set()
    async with asyncio.timeout(BOUND_S):
        await call.residency.leased.wait()
        await call.residency.leases[0].released.wait()
    assert call.told == ["leased", "Admitted", "TextDelta", "TextDelta", "Finished"]
    assert call.sent == []
    call.may_send.set()
    await call.done()


@pytest.mark.parametrize("stream", [False, True])
async def test_worker_is_told_whether_anybody_reads_along(stream: bool) -> None:
    call = Call(FakeResidency(finished()), stream=stream)
    await call.done()
    assert [request.whole for request in call.residency.leases[0].requests] == [not stream]


async def test_body_sends_nothing_until_it_is_whole() -> None:
    residency, go_on = pausing(delta("first "))
    call = Call(residency, stream=False, keepalive_s=0.01)
    async with asyncio.timeout(BOUND_S):
        await residency.leased.wait()
    assert call.sent == []
    go_on.set()
    await call.done()
    assert [message["type"] for message in call.sent] == ["http.response.start", "http.response.body"]
    assert json.loads(call.body)["choices"][0]["text"] == "first later"
    call.check_all_returned()


async def test_choices_are_served_under_one_lease_some_at_a_time() -> None:
    residency = FakeResidency()
    active = peak = 0

    async def script(request: TextRequest) -> AsyncIterator[Event]:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        await asyncio.sleep(0)
        assert isinstance(request.prompt, TextPrompt)
        yield delta(request.prompt.text)
        active -= 1
        yield finished()

    residency.script = script
    call = Call(residency, stream=False, choices=20)
    await call.done()
    choices = json.loads(call.body)["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(i, str(i)) for i in range(20)]
    assert len(residency.leases) == 1
    assert peak == MAX_CHOICES_AT_ONCE
    call.check_all_returned()


def siblings_of(*numbers: int | None) -> list[TextRequest]:
    """Requests with these numbers, each with its index as its prompt."""
    return [TextRequest(prompt=TextPrompt(text=str(i)), siblings=number) for i, number in enumerate(numbers)]


async def test_siblings_are_submitted_together_and_prompts_in_turn() -> None:
    residency = FakeResidency()
    submitted: list[str] = []
    may_end = asyncio.Event()
    all_of_the_first = asyncio.Event()

    async def script(request: TextRequest) -> AsyncIterator[Event]:
        assert isinstance(request.prompt, TextPrompt)
        submitted.append(request.prompt.text)
        if len(submitted) == 12:
            all_of_the_first.set()
        await may_end.wait()
        yield delta(request.prompt.text)
        yield finished(prompt=5, completion=1)

    residency.script = script
    call = Call(residency, requests=siblings_of(*[7] * 12, *[8] * 12))
    async with asyncio.timeout(BOUND_S):
        await all_of_the_first.wait()
    assert submitted == [str(i) for i in range(12)]
    may_end.set()
    await call.done()
    assert submitted == [str(i) for i in range(24)]
    assert call.tokens == {"prompt": 10, "completion": 24}
    call.check_all_returned()


async def test_error_of_one_sibling_ends_all_and_is_raised_alone() -> None:
    residency = FakeResidency()

    async def script(request: TextRequest) -> AsyncIterator[Event]:
        assert isinstance(request.prompt, TextPrompt)
        if request.prompt.text == "1":
            yield failed("context_length_exceeded", "5 > 4")
        await asyncio.Event().wait()

    residency.script = script
    call = Call(residency, requests=siblings_of(1, 1, 2, 2), stream=False)
    with pytest.raises(GatewayError, match="5 > 4") as caught:
        await call.done()
    assert caught.value.code == "context_length_exceeded"
    call.check_all_returned()


async def test_log_probabilities_reach_the_client_with_their_text() -> None:
    entry = TokenLogprob(1, b"a", -0.5)
    event = TextDelta(request_id=1, text="a", tokens=(1,), logprobs=(entry,))
    call = Call(FakeResidency(event, finished()), requests=[TextRequest(prompt=TextPrompt(text=""), logprobs=0)])
    await call.done()
    assert b'"text":"a","index":0,"logprobs":{"tokens":["a"],"token_logprobs":[-0.5]' in call.body


async def test_choices_first_error_ends_all() -> None:
    residency = FakeResidency()

    async def script(request: TextRequest) -> AsyncIterator[Event]:
        assert isinstance(request.prompt, TextPrompt)
        if request.prompt.text == "1":
            yield failed("invalid_request_error", "bad prompt")
        await asyncio.Event().wait()

    residency.script = script
    call = Call(residency, choices=3)
    with pytest.raises(GatewayError, match="bad prompt"):
        await call.done()
    assert residency.leases[0].cancelled.is_set()
    call.check_all_returned()


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_error_before_text_is_raised_with_its_status(stream: bool) -> None:
    call = Call(refusing(ModelTooLarge("too large")), stream=stream)
    with pytest.raises(ModelTooLarge):
        await call.done()
    assert call.sent == []
    assert call.outcomes == ["error"]
    call.check_all_returned()


@pytest.mark.parametrize("stream", [True, False])
async def test_error_of_worker_before_text_is_raised(stream: bool) -> None:
    call = Call(FakeResidency(failed("context_length_exceeded", "5 > 4")), stream=stream)
    with pytest.raises(GatewayError) as caught:
        await call.done()
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    call.check_all_returned()


async def test_error_after_text_is_event_then_end_marker() -> None:
    residency, go_on = pausing(delta("text"))
    call = Call(residency)
    await call.sent_where(lambda body: b"text" in body)
    call.response.end_with(WorkerDied("signal 9", retry=False))
    go_on.set()
    await call.done()
    events = call.body.decode().split("\n\n")
    assert json.loads(events[-3][6:])["error"]["code"] == "worker_died"
    assert events[-2:] == ["data: [DONE]", ""]
    assert call.outcomes == ["error"]
    call.check_all_returned()


async def test_error_of_dead_worker_in_flight_is_not_to_be_retried() -> None:
    call = Call(FakeResidency(failed("worker_died", "signal 9")))
    with pytest.raises(WorkerDied) as caught:
        await call.done()
    assert caught.value.retry is False


async def test_error_of_memory_that_ran_out_in_flight_is_overload_and_not_to_be_retried() -> None:
    call = Call(FakeResidency(failed("out_of_memory", "no room was left for this request")))
    with pytest.raises(ServerOverloaded) as caught:
        await call.done()
    assert (caught.value.status, caught.value.retry) == (503, False)
    assert caught.value.message == "no room was left for this request"


async def test_queue_wait_is_counted_once_a_request_when_its_first_prompt_begins() -> None:
    call = Call(FakeResidency(*[Admitted(request_id=1, prompt_tokens=3)] * 2, delta("a"), finished()))
    never = Call(FakeResidency(finished()))
    await call.done()
    await never.done()
    for each, count in ((call, 1.0), (never, None)):
        samples = each.services.metrics.as_json()["innkeeper_queue_wait_seconds"]["samples"]
        counts = {s["labels"]["model"]: s["value"] for s in samples if s["name"].endswith("_count")}
        assert counts.get(each.response._model.id) == count


async def test_error_when_worker_ends_without_terminal_event() -> None:
    call = Call(FakeResidency(), stream=False)
    with pytest.raises(WorkerDied):
        await call.done()
    call.check_all_returned()


async def test_error_of_ours_is_logged_once_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    residency = FakeResidency()
    residency.refusal = ZeroDivisionError("ours")
    call = Call(residency)
    with pytest.raises(GatewayError) as caught:
        await call.done()
    assert (caught.value.status, caught.value.code) == (500, "internal_error")
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_end_with_before_headers_keeps_status() -> None:
    residency, _ = pausing()
    call = Call(residency)
    async with asyncio.timeout(BOUND_S):
        await residency.leased.wait()
    call.response.end_with(ShuttingDown("bye"))
    with pytest.raises(ShuttingDown):
        await call.done()
    assert residency.leases[0].cancelled.is_set()
    call.check_all_returned()


# --- keep-alives ----------------------------------------------------------------------------------------------------


async def test_keepalive_sends_headers_and_comments_while_waiting_for_the_model() -> None:
    residency, go_on = pausing()
    residency.admit = asyncio.Event()
    call = Call(residency, keepalive_s=0.01)
    await call.sent_where(lambda body: body.count(b": keep-alive\n\n") >= 3)
    assert call.sent[0]["status"] == 200
    residency.admit.set()
    go_on.set()
    await call.done()
    assert call.text == "later"
    call.check_all_returned()


async def test_keepalive_turns_later_refusal_into_event() -> None:
    residency = FakeResidency()
    residency.admit = asyncio.Event()
    call = Call(residency, keepalive_s=0.01)
    await call.sent_where(lambda body: b"keep-alive" in body)
    call.response.end_with(ShuttingDown("bye"))
    await call.done()
    assert b'"code":"shutting_down"' in call.body
    assert call.body.endswith(b"data: [DONE]\n\n")
    call.check_all_returned()


# --- clients that leave, and slow ones ------------------------------------------------------------------------------


async def test_disconnect_in_stream_cancels_in_worker() -> None:
    residency, _ = pausing(delta("text"))
    call = Call(residency)
    await call.sent_where(lambda body: b"text" in body)
    call.left.set()
    await call.done()
    assert residency.leases[0].cancelled.is_set()
    assert call.outcomes == ["cancelled"]
    call.check_all_returned()


async def test_disconnect_after_an_echo_counts_none_of_the_prompt_s_tokens() -> None:
    entry = TokenLogprob(3, b"prompt", None)
    echo = TextDelta(request_id=1, text="prompt", logprobs=(entry,))
    residency, _ = pausing(echo, delta(" one"))
    call = Call(residency)
    await call.sent_where(lambda body: b"one" in body)
    call.left.set()
    await call.done()
    assert call.tokens["completion"] == 1


async def test_first_text_is_not_an_echoed_prompt() -> None:
    call = Call(FakeResidency(TextDelta(request_id=1, text="prompt"), finished(completion=0)))
    await call.done()
    assert not call.services.metrics.as_json()["innkeeper_first_text_seconds"]["samples"]


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_before_first_byte_cancels_in_worker(stream: bool) -> None:
    residency, _ = pausing()
    call = Call(residency, stream=stream)
    async with asyncio.timeout(BOUND_S):
        await residency.leased.wait()
    call.left.set()
    await call.done()
    assert call.sent == []
    assert residency.held == 0
    assert call.outcomes == ["cancelled"]
    call.check_all_returned()


async def test_disconnect_while_queued_leaves_the_queue() -> None:
    residency = FakeResidency()
    residency.admit = asyncio.Event()
    call = Call(residency)
    call.left.set()
    await call.done()
    assert residency.leases == []
    call.check_all_returned()


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("how", ["disconnect", "cancel"])
async def test_leaving_at_any_step_returns_the_lease(steps: int, how: str) -> None:
    call = Call(FakeResidency(delta("a"), delta("b"), finished()))
    for _ in range(steps):
        await asyncio.sleep(0)
    if how == "disconnect":
        call.left.set()
    else:
        call.task.cancel()
    async with asyncio.timeout(BOUND_S):
        await asyncio.wait([call.task])
    assert all(lease.ended or lease.cancelled.is_set() or not lease.requests for lease in call.residency.leases)
    assert len(call.outcomes) <= 1
    call.check_all_returned()


async def test_slow_client_lease_ends_when_text_is_buffered() -> None:
    residency = FakeResidency(delta("a"), delta("b"), finished())
    call = Call(residency)
    call.may_send.clear()
    async with asyncio.timeout(BOUND_S):
        await residency.leased.wait()
        await residency.leases[0].released.wait()
    assert call.sent == []
    assert not call.task.done()
    call.may_send.set()
    await call.done()
    assert call.text == "ab"


async def test_slow_client_gets_what_waited_in_few_events() -> None:
    residency, go_on = pausing(*[delta("x")] * 1000)
    call = Call(residency)
    call.may_send.clear()
    async with asyncio.timeout(BOUND_S):
        await residency.leased.wait()
    go_on.set()
    async with asyncio.timeout(BOUND_S):
        await residency.leases[0].released.wait()
    call.may_send.set()
    await call.done()
    assert call.text == "x" * 1000 + "later"
    assert call.body.count(b'"text"') <= SEPARATE_PIECES + 1


async def test_slow_client_with_four_mebibytes_waiting_is_cut() -> None:
    residency, _ = pausing(*[delta("x" * 2**20)] * 5)
    call = Call(residency)
    call.may_send.clear()
    await call.done()
    assert residency.leases[0].cancelled.is_set()
    assert call.outcomes == ["cancelled"]
    call.check_all_returned()


async def test_body_may_be_larger_than_what_a_stream_lets_wait() -> None:
    call = Call(FakeResidency(*[delta("é" * 2**20)] * 5, finished()), stream=False)
    await call.done()
    assert len(json.loads(call.body)["choices"][0]["text"]) == 5 * 2**20
