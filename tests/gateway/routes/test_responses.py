"""The Responses API as its official client sees it, over a real socket; workers are fakes, the store is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from starlette.applications import Starlette

from engines.wire import (
    ChatPrompt,
    Event,
    Failed,
    ReasoningDelta,
    TextRequest,
    TokenizerAnswer,
    ToolCallDelta,
    ToolCallStarted,
    WireError,
)
from gateway.app import create_app
from gateway.errors import InvalidRequest, ModelTooLarge, ShuttingDown
from gateway.residency.event_feed import Notice
from gateway.responses.database_file import FILE
from gateway.settings import ApiKey
from tests.gateway.helpers_app import client_of, make_catalog, make_settings
from tests.gateway.helpers_residency import BOUND_S, FakeResidency, delta, failed, finished, refusing
from tests.gateway.helpers_server import serving

HELLO: dict[str, Any] = {"model": "a", "input": "hello"}


def talking() -> FakeResidency:
    return FakeResidency(delta("Hel"), delta("lo 🦊"), finished("stop", prompt=3, completion=2))


@dataclass(frozen=True)
class House:
    """An app behind a socket, and its clients."""

    residency: FakeResidency
    app: Starlette
    http: httpx.AsyncClient
    client: openai.AsyncOpenAI

    @property
    def responses(self) -> Any:
        return self.client.responses

    def asked(self, place: int = -1) -> TextRequest:
        request: TextRequest = self.residency.leases[place].requests[-1]
        return request

    def messages(self, place: int = -1) -> list[tuple[str, str | None]]:
        prompt = self.asked(place).prompt
        assert isinstance(prompt, ChatPrompt)
        return [(message.role, message.content) for message in prompt.messages]


@asynccontextmanager
async def house(
    residency: FakeResidency | None = None, *, state: Path | None = None, **server: Any
) -> AsyncIterator[House]:
    residency = residency or talking()
    app = create_app(make_settings(**server), make_catalog(), residency, state=state)
    async with (
        serving(app) as served,
        httpx.AsyncClient(base_url=served.url, timeout=BOUND_S) as http,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-one", max_retries=0, timeout=BOUND_S) as client,
    ):
        yield House(residency, app, http, client)
    async with asyncio.timeout(BOUND_S):
        await app.state.services.runs.wait_idle()
        await app.state.services.responses.close()


class Held:
    """A residency whose answers say a word, then wait for ``go_on``."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.said = asyncio.Event()
        self.residency = FakeResidency()
        self.residency.script = self._script

    async def _script(self, _request: TextRequest) -> AsyncIterator[Event]:
        yield delta("Hel")
        self.said.set()
        await self.go_on.wait()
        yield delta("lo")
        yield finished()


async def bounded(wait: Any) -> Any:
    async with asyncio.timeout(BOUND_S):
        return await wait


# --- making them ---


async def test_input_tokens_are_counted_with_what_came_before() -> None:
    async with house() as inn:
        first = await inn.client.responses.create(model="a", input="Hi", instructions="Be brief.")
        leases = len(inn.residency.leases)
        inn.residency.tokenizer.answer = TokenizerAnswer(tokens=(5, 6, 7))
        count = await inn.client.responses.input_tokens.count(
            model="a", input="And?", previous_response_id=first.id, instructions="Be kind."
        )
        hinted = await inn.http.post("/v1/responses/input_tokens", json={"model": "a", "input": "x", "user": "u"})
        with pytest.raises(openai.BadRequestError) as gone:
            await inn.client.responses.input_tokens.count(model="a", input="x", previous_response_id="resp_none")
        inn.residency.tokenizer.refusal = InvalidRequest("messages: the template refuses", param="messages")
        with pytest.raises(openai.BadRequestError) as refused:
            await inn.client.responses.input_tokens.count(model="a", input="x")
        missing = await inn.http.get("/v1/responses/input_tokens")
    assert (count.object, count.input_tokens) == ("response.input_tokens", 3)
    what: Any = inn.residency.tokenizer.asked[0][1]
    assert [(message.role, message.content) for message in what.prompt.messages] == [
        ("system", "Be kind."), ("user", "Hi"), ("assistant", first.output_text), ("user", "And?"),
    ]  # fmt: skip
    assert len(inn.residency.leases) == leases
    assert hinted.headers["x-innkeeper-ignored"] == "user"
    assert gone.value.code == "previous_response_not_found"
    assert refused.value.param == "input" and "input: the template refuses" in refused.value.message
    assert missing.status_code == 404  # it is the id of no response


async def test_create_whole_and_read_again() -> None:
    async with house() as it:
        response = await it.responses.create(**HELLO, metadata={"k": "v"})
        again = await it.responses.retrieve(response.id)
    assert (response.output_text, response.status, response.model, response.object) == (
        "Hello 🦊",
        "completed",
        "a",
        "response",
    )
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (3, 2, 5)
    assert response.metadata == {"k": "v"}
    assert again == response


async def test_create_streamed_by_the_plain_client_and_by_its_helper() -> None:
    async with house() as it:
        plain = [event async for event in await it.responses.create(**HELLO, stream=True)]
        async with it.responses.stream(**HELLO) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        kept = await it.responses.retrieve(final.id)
    assert [event.type for event in plain] == [event.type for event in events]
    assert [event.sequence_number for event in plain] == list(range(len(plain)))
    assert [event.snapshot for event in events if event.type == "response.output_text.delta"] == ["Hel", "Hello 🦊"]
    assert final.output_text == kept.output_text == "Hello 🦊"
    assert plain[-1].response.output_text == "Hello 🦊"


async def test_parse_with_a_model_of_pydantic() -> None:
    class Answer(BaseModel):
        x: int

    residency = FakeResidency(delta('{"x": '), delta("5}"), finished())
    async with house(residency) as it:
        parsed = await it.responses.parse(**HELLO, text_format=Answer)
        async with it.responses.stream(**HELLO, text_format=Answer) as stream:
            final = await stream.get_final_response()
        grammar = it.asked().grammar
    assert parsed.output_parsed == final.output_parsed == Answer(x=5)
    assert grammar is not None and grammar.kind == "json_schema"


def calling() -> FakeResidency:
    return FakeResidency(
        ReasoningDelta(request_id=1, text="Look.", tokens=(1,)),
        ToolCallStarted(request_id=1, index=0, id="call_a", name="clock"),
        ToolCallDelta(request_id=1, index=0, arguments='{"zone": "x"}'),
        finished("tool_calls"),
    )


TOOLS: list[Any] = [{"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": True}]


async def test_tool_loop_by_previous_response_and_by_items() -> None:
    async with house(calling()) as it:
        first = await it.responses.create(**HELLO, tools=TOOLS, instructions="Be quick.")
        thought, call = first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
        it.residency.say(delta("It is noon."), finished())
        second = await it.responses.create(model="a", previous_response_id=first.id, input=[result], tools=TOOLS)
        by_previous = it.asked().prompt
        history = [{"role": "user", "content": "hello"}, *first.output, result]
        await it.responses.create(model="a", input=history, tools=TOOLS)
        by_items = it.asked().prompt
    assert (thought.type, thought.content[0].text) == ("reasoning", "Look.")
    assert (call.type, call.name, call.arguments) == ("function_call", "clock", '{"zone": "x"}')
    assert second.output_text == "It is noon."
    assert by_previous == by_items
    assert isinstance(by_previous, ChatPrompt)
    roles = [message.role for message in by_previous.messages]  # instructions are not carried over
    assert roles == ["user", "assistant", "tool"]


async def test_items_are_referred_to_by_id() -> None:
    async with house() as it:
        first = await it.responses.create(**HELLO)
        said = {"type": "item_reference", "id": first.output[0].id}
        await it.responses.create(model="a", input=[said, {"role": "user", "content": "more"}])
        messages = it.messages()
        with pytest.raises(openai.NotFoundError) as missing:
            await it.responses.create(model="a", input=[{"type": "item_reference", "id": "msg_none"}])
    assert messages == [("assistant", "Hello 🦊"), ("user", "more")]
    assert missing.value.param == "input[0].id"


async def test_a_conversation_goes_on_though_its_beginning_was_deleted() -> None:
    async with house() as it:
        first = await it.responses.create(**HELLO)
        second = await it.responses.create(model="a", input="two", previous_response_id=first.id)
        await it.responses.delete(first.id)
        await it.responses.create(model="a", input="three", previous_response_id=second.id)
        messages = it.messages()
        with pytest.raises(openai.BadRequestError) as gone:
            await it.responses.create(model="a", input="x", previous_response_id=first.id)
    assert [text for role, text in messages if role == "user"] == ["hello", "two", "three"]
    assert (gone.value.code, gone.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_not_stored_is_not_there() -> None:
    async with house() as it:
        response = await it.responses.create(**HELLO, store=False)
        with pytest.raises(openai.NotFoundError):
            await it.responses.retrieve(response.id)
    assert response.store is False


async def test_too_long_is_400_or_truncated() -> None:
    residency = FakeResidency()

    async def script(request: TextRequest) -> AsyncIterator[Event]:
        assert isinstance(request.prompt, ChatPrompt)
        words = sum(len((message.content or "").split()) for message in request.prompt.messages)
        if words > 4:
            error = WireError(
                code="context_length_exceeded", message="too long", param="messages", tokens=words, most_tokens=4
            )
            yield Failed(request_id=1, error=error)
        else:
            yield delta("ok")
            yield finished()

    residency.script = script
    talk = [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": "four"}]
    talk += [{"role": "user", "content": "five six"}]
    async with house(residency) as it:
        with pytest.raises(openai.BadRequestError) as refused:
            await it.responses.create(model="a", input=talk)
        whole = await it.responses.create(model="a", input=talk, truncation="auto")
        async with it.responses.stream(model="a", input=talk, truncation="auto") as stream:
            streamed = await stream.get_final_response()
        messages = it.messages()
        with pytest.raises(openai.BadRequestError):
            await it.responses.create(model="a", input="a b c d e", truncation="auto")
        listed = [item.content[0].text async for item in it.responses.input_items.list(whole.id, order="asc")]
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    assert whole.output_text == streamed.output_text == "ok"
    assert messages == [("user", "five six")]
    assert listed == ["one two three", "four", "five six"]  # what was asked is what is stored


async def test_errors_before_and_after_the_first_event() -> None:
    async with house(refusing(ModelTooLarge("too large"))) as it:
        with pytest.raises(openai.APIStatusError) as refused:
            await it.responses.create(**HELLO, stream=True)
    assert refused.value.code == "model_too_large"
    begun = asyncio.Event()
    residency = FakeResidency()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        yield delta("Hel")
        await begun.wait()
        yield failed("worker_died", "signal 9")

    residency.script = script
    async with house(residency) as it:
        events = []
        async for event in await it.responses.create(**HELLO, stream=True):
            events.append(event)
            begun.set()
        kept = await it.responses.retrieve(events[0].response.id)
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2].code == "worker_died"
    assert (kept.status, kept.error.code, kept.output_text) == ("failed", "server_error", "Hel")


async def test_workers_errors_name_the_fields_of_this_api() -> None:
    error = WireError(
        code="invalid_request_error", message="response_format: nothing can match this schema", param="response_format"
    )
    async with house(FakeResidency(Failed(request_id=1, error=error))) as it:
        with pytest.raises(openai.BadRequestError) as refused:
            await it.responses.create(**HELLO)
    assert refused.value.param == "text.format"
    assert "text.format: nothing" in refused.value.message


async def test_client_that_leaves_ends_the_request_and_nothing_is_stored() -> None:
    held = Held()
    async with house(held.residency) as it:
        stream = await it.responses.create(**HELLO, stream=True)
        first = await bounded(anext(aiter(stream)))
        await stream.close()
        await bounded(held.residency.leases[0].cancelled.wait())
        with pytest.raises(openai.NotFoundError):
            await it.responses.retrieve(first.response.id)


async def test_hints_are_named_in_a_header_in_every_mode() -> None:
    async with house() as it:
        for more in ({}, {"stream": True}, {"background": True}):
            answer = await it.http.post("/v1/responses", json={**HELLO, "user": "me", **more})
            assert answer.headers["x-innkeeper-ignored"] == "user"


# --- reading them ---


async def test_input_items_are_paged_by_the_client() -> None:
    texts = [str(number) for number in range(7)]
    async with house() as it:
        response = await it.responses.create(model="a", input=[{"role": "user", "content": text} for text in texts])
        ascending = [
            item.content[0].text async for item in it.responses.input_items.list(response.id, limit=3, order="asc")
        ]
        default = [item.content[0].text async for item in it.responses.input_items.list(response.id)]
        with pytest.raises(openai.BadRequestError) as unknown:
            await it.responses.input_items.list(response.id, after="msg_none")
        with pytest.raises(openai.NotFoundError):
            await it.responses.input_items.list("resp_none")
    assert ascending == texts
    assert default == texts[::-1]
    assert unknown.value.param == "after"


async def test_delete_and_what_is_not_there() -> None:
    async with house() as it:
        response = await it.responses.create(**HELLO)
        await it.responses.delete(response.id)
        for call in (it.responses.retrieve, it.responses.delete, it.responses.cancel):
            with pytest.raises(openai.NotFoundError) as missing:
                await call(response.id)
            assert missing.value.param == "id"
        answer = await it.http.delete("/v1/responses/x")
    assert answer.status_code == 404


async def test_events_are_kept_of_background_responses_only() -> None:
    async with house() as it:
        response = await it.responses.create(**HELLO)
        with pytest.raises(openai.BadRequestError) as stream:
            await it.responses.retrieve(response.id, stream=True)
        with pytest.raises(openai.BadRequestError) as cancel:
            await it.responses.cancel(response.id)
    assert stream.value.param == "stream"
    assert "not made in the background" in cancel.value.message


KEYS = (ApiKey("sk-one"), ApiKey("sk-two"))


async def test_a_key_sees_its_own_only_also_after_they_changed_places(tmp_path: Path) -> None:
    async with house(state=tmp_path, api_keys=KEYS) as it:
        mine = await it.responses.create(**HELLO)
        other: Any = it.client.with_options(api_key="sk-two").responses
        for call in (other.retrieve, other.delete, other.cancel, other.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(mine.id)
        with pytest.raises(openai.BadRequestError):
            await other.create(model="a", input="x", previous_response_id=mine.id)
        with pytest.raises(openai.NotFoundError):
            await other.create(model="a", input=[{"type": "item_reference", "id": mine.output[0].id}])
    async with house(state=tmp_path, api_keys=KEYS[::-1]) as it:
        assert (await it.responses.retrieve(mine.id)).output_text == "Hello 🦊"
    assert b"sk-one" not in (tmp_path / FILE).read_bytes()


# --- the background ---


async def polled(it: House, id: str) -> Any:
    """The response once it is over, asked for again and again as clients do."""
    async with asyncio.timeout(BOUND_S):
        while (response := await it.responses.retrieve(id)).status in ("queued", "in_progress"):
            pass
    return response


async def test_background_goes_on_and_is_polled() -> None:
    held = Held()
    held.residency.admit = asyncio.Event()
    async with house(held.residency) as it:
        begun = await it.responses.create(**HELLO, background=True)
        waiting = await it.responses.retrieve(begun.id)
        held.residency.admit.set()
        await bounded(held.said.wait())
        working = await it.responses.retrieve(begun.id)
        with pytest.raises(openai.BadRequestError, match="is still queued"):
            await it.responses.create(model="a", input="x", previous_response_id=begun.id)
        held.go_on.set()
        done = await polled(it, begun.id)
        await it.responses.create(model="a", input="x", previous_response_id=begun.id)
        messages = it.messages()
    assert (begun.status, waiting.status, working.status) == ("queued", "queued", "in_progress")
    assert (done.status, done.output_text, done.background) == ("completed", "Hello", True)
    assert messages == [("user", "hello"), ("assistant", "Hello"), ("user", "x")]


async def test_background_stream_is_left_and_taken_up_again() -> None:
    held = Held()
    async with house(held.residency) as it:
        stream = await it.responses.create(**HELLO, background=True, stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        id = seen[0].response.id
        rest_of = await it.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
        held.go_on.set()
        rest = [event async for event in rest_of]
        again = [event async for event in await it.responses.retrieve(id, stream=True)]
        done = await it.responses.retrieve(id)
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert again == [*seen, *rest]
    assert [event.sequence_number for event in again] == list(range(len(again)))
    assert again[-1].response == done
    assert not held.residency.leases[0].cancelled.is_set()


async def test_background_is_followed_by_the_clients_stream_helper() -> None:
    async with house() as it:
        begun = await it.responses.create(**HELLO, background=True)
        async with it.responses.stream(response_id=begun.id) as stream:
            final = await stream.get_final_response()
    assert final.output_text == "Hello 🦊"


@pytest.mark.parametrize("waiting", [True, False])
async def test_background_is_cancelled_once(waiting: bool) -> None:
    held = Held()
    if waiting:
        held.residency.admit = asyncio.Event()
    async with house(held.residency) as it:
        begun = await it.responses.create(**HELLO, background=True)
        if not waiting:
            await bounded(held.said.wait())
            events = await it.responses.retrieve(begun.id, stream=True)
        cancelled = await it.responses.cancel(begun.id)
        again = await it.responses.cancel(begun.id)
        kept = await it.app.state.services.responses.read("", begun.id)
        if not waiting:
            last = [event async for event in events][-1]
            assert last.response.status == "cancelled"
            await bounded(held.residency.leases[0].cancelled.wait())
    assert cancelled.status == again.status == kept.status == "cancelled"
    assert held.residency.waiting == 0


async def test_background_that_is_over_stays_as_it_is_when_cancelled() -> None:
    async with house() as it:
        begun = await it.responses.create(**HELLO, background=True)
        await polled(it, begun.id)
        assert (await it.responses.cancel(begun.id)).status == "completed"


async def test_background_is_deleted_while_it_is_made() -> None:
    held = Held()
    async with house(held.residency) as it:
        begun = await it.responses.create(**HELLO, background=True)
        await bounded(held.said.wait())
        await it.responses.delete(begun.id)
        with pytest.raises(openai.NotFoundError):
            await it.responses.retrieve(begun.id)
        await bounded(held.residency.leases[0].released.wait())


@pytest.mark.parametrize("early", [True, False])
async def test_background_that_fails_says_why(early: bool) -> None:
    residency = (
        refusing(ModelTooLarge("too large")) if early else FakeResidency(delta("x"), failed("worker_died", "gone"))
    )
    async with house(residency) as it:
        begun = await it.responses.create(**HELLO, background=True)
        response = await polled(it, begun.id)
        events = [event async for event in await it.responses.retrieve(begun.id, stream=True)]
    assert (response.status, response.error.message) == ("failed", "too large" if early else "gone")
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]


async def test_shutdown_ends_background_responses_and_they_are_failed_afterwards(tmp_path: Path) -> None:
    held = Held()
    async with house(held.residency, state=tmp_path) as it:
        begun = await it.responses.create(**HELLO, background=True)
        await bounded(held.said.wait())
        it.app.state.services.live.end_all(ShuttingDown("the server is shutting down"))
        await bounded(it.app.state.services.runs.wait_idle())
        assert len(it.app.state.services.live) == 0
    async with house(state=tmp_path) as it:
        response = await it.responses.retrieve(begun.id)
    assert (response.status, response.error.message) == ("failed", "the server is shutting down")


async def test_a_key_has_no_more_under_way_than_it_may() -> None:
    held = Held()
    keys = (ApiKey("sk-one", concurrency=1), ApiKey("sk-two"))
    async with house(held.residency, api_keys=keys) as it:
        await it.responses.create(**HELLO, background=True)
        with pytest.raises(openai.RateLimitError) as limited:
            await it.responses.create(**HELLO, background=True)
        other: Any = it.client.with_options(api_key="sk-two").responses
        await other.create(**HELLO, background=True)
        held.go_on.set()
    assert limited.value.param == "background"


# --- a store that cannot be used ---


async def test_without_a_store_answers_are_given_and_it_is_told(tmp_path: Path) -> None:
    async with house(state=tmp_path) as first:
        await first.responses.create(**HELLO)
        async with house(state=tmp_path) as second:
            watcher_notices: list[str] = []
            with second.residency.events.watch() as watcher:
                answer = await second.http.post("/v1/responses", json=HELLO)
                streamed = await second.http.post("/v1/responses", json={**HELLO, "stream": True})
                background = await second.http.post("/v1/responses", json={**HELLO, "background": True})
                read = await second.http.get("/v1/responses/resp_1")
                await bounded(watcher.wait(BOUND_S))
                watcher_notices = [event.message for event in watcher.take() if isinstance(event, Notice)]
            unstored = await second.http.post("/v1/responses", json={**HELLO, "store": False})
        assert (await first.responses.create(**HELLO)).store is True
    assert answer.status_code == 200
    assert answer.json()["store"] is False
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello 🦊"
    assert "another gateway" in answer.headers["x-innkeeper-store"]
    last = json.loads(streamed.text.rstrip().rpartition("data: ")[2])
    assert (last["type"], last["response"]["store"]) == ("response.completed", False)
    for refused in (background, read):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert "another gateway" in refused.json()["error"]["message"]
    assert "x-innkeeper-store" not in unstored.headers
    assert len(watcher_notices) == 1 and "another gateway" in watcher_notices[0]


async def test_full_disk_is_told_and_what_was_stored_stays() -> None:
    async with house() as it:
        kept = await it.responses.create(**HELLO)
        database = it.app.state.services.responses._database
        with database.file.reading() as db:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {pages}")
        large = {"model": "a", "input": "word " * 20_000}
        answer = await it.http.post("/v1/responses", json=large)
        again = await it.responses.retrieve(kept.id)
    assert answer.status_code == 200
    assert "full" in answer.headers["x-innkeeper-store"]
    assert again.output_text == "Hello 🦊"


async def test_post_needs_json_and_a_text_model() -> None:
    app = create_app(make_settings(), make_catalog(), talking())
    async with client_of(app) as http:
        kind = await http.post("/v1/responses", json={**HELLO, "model": "embedder"})
        form = await http.post("/v1/responses", content="x=1")
        method = await http.patch("/v1/responses/x")
    assert (kind.json()["error"]["code"], form.status_code) == ("wrong_model_kind", 415)
    assert (method.status_code, method.headers["allow"]) == (405, "DELETE, GET, HEAD")
