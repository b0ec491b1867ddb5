"""OpenAI chat: what is read, what is refused and how, and the bytes of answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.wire import ChatMessage, ChatPrompt, Finished, Sampling, TextRequest, TokenLogprob, Usage
from gateway.errors import GatewayError, InvalidRequest, RequestTooLarge, UnsupportedModality, UnsupportedParameter
from gateway.protocols import openai_chat, openai_completions
from gateway.protocols.completion import AnswerHead, Completion, Text, completions_of
from gateway.protocols.options import Limits
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece
from gateway.registry.catalog import RequestSettings

NO_SETTINGS = RequestSettings()
HELLO = [{"role": "user", "content": "hello"}]
HEAD = AnswerHead(id="chatcmpl-1", created=1700000000, model="a")
USAGE = Usage(prompt_tokens=3, completion_tokens=2)


def parse(**options: Any) -> openai_chat.ChatRequest:
    body: dict[str, Any] = {"model": "a", "messages": HELLO, **options}
    return openai_chat.parse(json.dumps(body).encode())


def requests_of(chat: openai_chat.ChatRequest, settings: RequestSettings = NO_SETTINGS) -> list[TextRequest]:
    return chat.ask.text_requests(settings, itertools.count(1))


def stop(reason: Any = "stop") -> Finished:
    return Finished(request_id=1, reason=reason, usage=USAGE)


def test_parse_minimal_leaves_all_else_open() -> None:
    (request,) = requests_of(parse())
    assert request.sampling == Sampling()
    assert request.max_tokens is None
    assert request.stop == ()
    assert request.prompt == ChatPrompt(messages=(ChatMessage(role="user", content="hello"),))


def test_parse_every_honoured_option() -> None:
    chat = parse(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, seed=7, max_completion_tokens=5, stop="END",
        stream=True, stream_options={"include_usage": True}, n=1, chat_template_kwargs={"enable_thinking": False},
        frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.1, logit_bias={"5": -100, "0": 2.5},
        logprobs=True, top_logprobs=3, priority="batch", add_generation_prompt=True, continue_final_message=False,
    )  # fmt: skip
    (request,) = requests_of(chat)
    assert request.sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, seed=7, frequency_penalty=0.5, presence_penalty=-0.5,
        repetition_penalty=1.1, logit_bias={5: -100.0, 0: 2.5},
    )  # fmt: skip
    assert (request.max_tokens, request.stop, request.logprobs, request.priority) == (5, ("END",), 3, "batch")
    assert (chat.stream.wanted, chat.stream.include_usage) == (True, True)
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_kwargs == {"enable_thinking": False}


def test_parse_null_counts_as_absent() -> None:
    names = openai_chat.OPTIONS.honoured | openai_chat.OPTIONS.hints | set(openai_chat.OPTIONS.refused)
    chat = parse(**dict.fromkeys(names - {"model", "messages"}))
    assert chat == parse()


def test_tables_do_not_overlap() -> None:
    tables = openai_chat.OPTIONS
    assert not tables.honoured & tables.hints
    assert not (tables.honoured | tables.hints) & set(tables.refused)


def test_parse_hints_are_named() -> None:
    assert set(parse(user="u", metadata={"a": "b"}, store=True).ask.ignored) == {"user", "metadata", "store"}
    obfuscated = parse(stream=True, stream_options={"include_obfuscation": True})
    assert obfuscated.ask.ignored == ("stream_options.include_obfuscation",)
    assert parse(stream=True, stream_options={"include_obfuscation": False}).ask.ignored == ()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", 2.1, "0 to 2"),
        ("temperature", -0.1, "0 to 2"),
        ("temperature", True, "true"),
        ("temperature", "1", "'1'"),
        ("top_p", 1.01, "0 to 1"),
        ("top_k", -1, "0 to"),
        ("top_k", 1.5, "an integer"),
        ("min_p", 2, "0 to 1"),
        ("max_tokens", 0, "1 to"),
        ("max_completion_tokens", 2**40, str(2**40)),
        ("seed", "x", "an integer"),
        ("seed", 2**63, "an integer"),
        ("stop", [""], "1 to 1024"),
        ("stop", ["x"] * 17, "16"),
        ("stop", [1], "string"),
        ("stop", {}, "string"),
        ("stream", "yes", "true or false"),
        ("stream_options", {"include_usage": True}, "stream is true"),
        ("stream_options", {"include_more": True}, "include_more"),
        ("messages", [], "at least one"),
        ("messages", "hi", "array"),
        ("n", 0, "1 to 128"),
        ("n", 129, "1 to 128"),
        ("n", True, "an integer"),
        ("frequency_penalty", 2.1, "-2 to 2"),
        ("presence_penalty", -2.1, "-2 to 2"),
        ("repetition_penalty", 0, "0.01 to 10"),
        ("logit_bias", [], "an object"),
        ("logit_bias", {"x": 1}, "token id"),
        ("logit_bias", {"05": 1}, "token id"),
        ("logit_bias", {"5": 101}, "-100 to 100"),
        ("logit_bias", {"5": "1"}, "-100 to 100"),
        ("logit_bias", {str(i): 1 for i in range(10_001)}, "at most 10000"),
        ("logprobs", 3, "true or false"),
        ("top_logprobs", 21, "0 to 20"),
        ("top_logprobs", 3, "logprobs is true"),
        ("priority", "urgent", "interactive, normal, batch"),
        ("priority", 5, "interactive, normal, batch"),
        ("add_generation_prompt", 1, "true or false"),
        ("continue_final_message", True, "last message"),
        ("model", "", "at least one character"),
        ("model", 5, "string"),
        ("chat_template_kwargs", [], "an object"),
    ],
)
def test_parse_out_of_range_names_field_value_and_range(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{field: value})
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(field)
    assert field in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repeat_penalty", 1.1),
        ("moderation", {}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("audio", {}),
        ("tempurature", 1),
    ],
)
def test_parse_unsupported_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        parse(**{field: value})
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("repeat_penalty", 1.1, "repetition_penalty"),
        ("functions", [{"name": "f"}], "tools"),
        ("function_call", {"name": "f"}, "tool_choice"),
    ],
)
def test_parse_another_name_is_refused_with_ours(field: str, value: Any, instead: str) -> None:
    with pytest.raises(UnsupportedParameter, match=f"use {instead}"):
        parse(**{field: value})


def test_parse_unknown_name_suggests_nearest() -> None:
    with pytest.raises(UnsupportedParameter, match="did you mean 'temperature'"):
        parse(tempurature=1)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": False, "top_logprobs": 0},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {}},
        {"repeat_penalty": 1, "ignore_eos": False, "add_generation_prompt": True, "priority": "normal"},
    ],
)
def test_parse_neutral_values_ask_for_nothing(options: dict[str, Any]) -> None:
    assert requests_of(parse(**options)) == requests_of(parse())


def test_choices_share_a_number_and_count_on_from_the_seed() -> None:
    numbers = itertools.count(7)
    requests = parse(n=3, seed=-1, temperature=0.5).ask.text_requests(NO_SETTINGS, numbers)
    assert [request.siblings for request in requests] == [7, 7, 7]
    assert [request.sampling.seed for request in requests] == [2**63 - 1, 0, 1]
    unseeded = parse(n=2).ask.text_requests(NO_SETTINGS, numbers)
    assert [(request.siblings, request.sampling.seed) for request in unseeded] == [(8, None), (8, None)]
    (alone,) = parse(n=1, seed=5).ask.text_requests(NO_SETTINGS, numbers)
    assert (alone.siblings, alone.sampling.seed) == (None, 5)


ASKED, BEGUN = {"role": "user", "content": "go"}, {"role": "assistant", "content": "Once"}
CALLED = {
    "role": "assistant",
    "content": "x",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("last", "options", "begins"),
    [
        (ASKED, {}, True),
        (ASKED, {"add_generation_prompt": False}, False),
        (ASKED, {"continue_final_message": False}, True),
        (CALLED, {}, True),
        (BEGUN, {}, False),
        (BEGUN, {"add_generation_prompt": False}, False),
        (BEGUN, {"add_generation_prompt": False, "continue_final_message": True}, False),
        (BEGUN, {"continue_final_message": True}, False),
        (BEGUN, {"add_generation_prompt": True}, True),
        (BEGUN, {"continue_final_message": False}, True),
    ],
)
def test_assistant_message_at_the_end_is_gone_on_with(last: Any, options: dict[str, Any], begins: bool) -> None:
    (request,) = requests_of(parse(messages=[ASKED, last], **options))
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.add_generation_prompt is begins


@pytest.mark.parametrize(
    ("last", "options"),
    [
        (BEGUN, {"add_generation_prompt": True, "continue_final_message": True}),
        (BEGUN, {"add_generation_prompt": False, "continue_final_message": False}),
        (CALLED, {"continue_final_message": True}),
    ],
)
def test_turns_that_contradict_are_refused(last: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        parse(messages=[ASKED, last], **options)


def test_parse_two_token_limits_must_agree() -> None:
    assert parse(max_tokens=5, max_completion_tokens=5).ask.options.max_tokens == 5
    with pytest.raises(InvalidRequest, match="give one"):
        parse(max_tokens=5, max_completion_tokens=6)


def test_parse_missing_model_or_messages() -> None:
    for body, field in ((b'{"messages": []}', "model"), (b'{"model": "a"}', "messages")):
        with pytest.raises(InvalidRequest) as caught:
            openai_chat.parse(body)
        assert caught.value.param == field


def test_messages_parts_join_and_roles_map() -> None:
    chat = parse(
        messages=[
            {"role": "developer", "content": "be brief"},
            {
                "role": "user",
                "name": "eve",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            },
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "42"},
            {"role": "assistant", "content": None, "refusal": "No."},
        ]
    )
    assert [message.role for message in chat.ask.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert chat.ask.messages[4].content == "No."
    assert chat.ask.messages[1].content == "one\ntwo"
    assert chat.ask.messages[1].extra == {"name": "eve"}
    assert chat.ask.messages[2].content is None
    assert chat.ask.messages[3].extra == {"tool_call_id": "1", "name": "f"}


def calling(**fields: Any) -> dict[str, Any]:
    """An assistant's message with one call."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_messages_of_a_tool_answer_a_call_that_was_made_before_them() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "42"}
    chat = parse(
        messages=[*HELLO, calling(), result, calling(id="2", function={"name": "f", "arguments": "{x"}), result]
    )
    assert [message.role for message in chat.ask.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_call_id is '1'") as caught:
        parse(messages=[*HELLO, result, calling()])
    assert caught.value.param == "messages[1].tool_call_id"


@pytest.mark.parametrize(
    ("fields", "thought"),
    [
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning_content": "hm"}, "hm"),
        ({"reasoning_content": "hm", "reasoning": "other"}, "hm"),
        ({"reasoning": None, "reasoning_details": [{"type": "reasoning.text"}]}, None),
    ],
)
def test_messages_carry_thoughts_to_the_template(fields: dict[str, Any], thought: str | None) -> None:
    message = parse(messages=[*HELLO, {"role": "assistant", "content": "x", **fields}]).ask.messages[1]
    assert message.extra == ({} if thought is None else {"reasoning_content": thought})


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "god", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": "x", "name": 5}, "messages[0].name"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "messages[0].tool_calls[0]"),
        (calling(id=None), "messages[0].tool_calls[0].id"),
        (calling(id=""), "messages[0].tool_calls[0].id"),
        (calling(function={"arguments": "{}"}), "messages[0].tool_calls[0].function.name"),
        (calling(function={"name": "f"}), "messages[0].tool_calls[0].function.arguments"),
        (calling(function={"name": "f", "arguments": {}}), "messages[0].tool_calls[0].function.arguments"),
        (calling(type="custom"), "messages[0].tool_calls[0].type"),
        ({"role": "tool", "content": "42"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "42", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "42", "tool_call_id": 1}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": "x", "reasoning": 1}, "messages[0].reasoning"),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour"),
        ("x", "messages[0]"),
        (None, "messages[0]"),
    ],
)
def test_messages_wrong_shape_names_place(message: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(messages=[message])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "name": "f", "content": "42"}, "messages[0].role"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f"}}, "messages[0].function_call"),
    ],
)
def test_messages_of_functions_are_refused_by_name(message: Any, param: str) -> None:
    with pytest.raises(UnsupportedParameter, match="tool_calls") as caught:
        parse(messages=[message])
    assert caught.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_messages_other_modalities_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedModality) as caught:
        parse(messages=[{"role": "user", "content": [{"type": kind}]}])
    assert caught.value.code == "unsupported_modality"


def test_parse_too_many_characters_is_413() -> None:
    body = json.dumps({"model": "a", "messages": HELLO}).encode()
    with pytest.raises(RequestTooLarge, match=r"server\.max_chars allows 4"):
        openai_chat.parse(body, Limits(max_chars=4))


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "x" * 200}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", [{"role": "assistant", "content": None, "tool_calls": [CALL]}]),
        ("messages", [{"role": "assistant", "content": "x", "reasoning_content": "x" * 100}]),
        ("messages", [{"role": "user", "content": ""}] * 101),
        ("chat_template_kwargs", {"notes": ["x" * 50, {"y" * 50: 1}]}),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"description": "x" * 100}}}]),
        ("response_format", {"type": "json_object", "schema": {"description": "x" * 100}}),
    ],
)
def test_parse_counts_whatever_reaches_the_template(field: str, value: Any) -> None:
    body = json.dumps({"model": "a", "messages": HELLO, field: value}).encode()
    openai_chat.parse(body, Limits(max_chars=1000))
    with pytest.raises(RequestTooLarge, match=r"server\.max_chars allows 100") as caught:
        openai_chat.parse(body, Limits(max_chars=100))
    assert caught.value.param == field


@pytest.mark.parametrize("parse", [openai_chat.parse, openai_completions.parse])
def test_parse_refuses_more_values_than_characters_allow(parse: Any) -> None:
    body = json.dumps({"model": "a", "metadata": [1] * 10_300}).encode()
    with pytest.raises(RequestTooLarge, match="values"):
        parse(body, Limits(max_chars=100))


def test_settings_yield_to_request_fields() -> None:
    settings = RequestSettings(
        sampling={"temperature": 0.2, "top_k": 20},
        system="be kind",
        chat_template="TEMPLATE",
        chat_template_kwargs={"a": 1, "b": 1},
        max_tokens=9,
    )
    assert requests_of(parse(max_tokens=5), settings)[0].max_tokens == 5
    (request,) = requests_of(parse(temperature=0.7, chat_template_kwargs={"b": 2}), settings)
    assert (request.max_tokens, requests_of(parse())[0].max_tokens) == (9, None)
    assert request.sampling == Sampling(temperature=0.7, top_k=20)
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template == "TEMPLATE"
    assert request.prompt.template_kwargs == {"a": 1, "b": 2}
    assert [message.role for message in request.prompt.messages] == ["system", "user"]
    (request,) = requests_of(parse(messages=[{"role": "developer", "content": "own"}, *HELLO]), settings)
    assert isinstance(request.prompt, ChatPrompt)
    assert [message.content for message in request.prompt.messages] == ["own", "hello"]


def test_stream_without_usage_says_nothing_of_it() -> None:
    stream = openai_chat.ChatStream(HEAD)
    sent = stream.render([TextPiece(0, "x"), EndPiece(0, stop())]) + stream.end()
    assert b"usage" not in sent
    assert sent.endswith(b"data: [DONE]\n\n")


def test_stream_failure_is_event_then_end_marker() -> None:
    error = InvalidRequest("no", param="stop")
    assert openai_chat.ChatStream(HEAD).failure(error) == (
        b'data: {"error":{"message":"no","type":"invalid_request_error","param":"stop","code":"invalid_request_error"}}\n\n'
        b"data: [DONE]\n\n"
    )


def test_body_has_log_probabilities_where_asked_for() -> None:
    whole = Completion(0, (Text("hi", (TokenLogprob(5, b"hi", -0.5),)),), stop())
    with_them = json.loads(openai_chat.render_body(HEAD, [whole], logprobs=True))
    without = json.loads(openai_chat.render_body(HEAD, [whole]))
    assert with_them["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    assert without["choices"][0]["logprobs"] is None


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted(openai_chat.OPTIONS.honoured | openai_chat.OPTIONS.hints | set(openai_chat.OPTIONS.refused))
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "refusal"])}, optional={"text": ANY_JSON})
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool"]) | ANY_JSON,
        "content": ANY_JSON | st.lists(PART, max_size=2),
    },
    optional={"tool_calls": ANY_JSON, "name": ANY_JSON},
)


@given(st.dictionaries(st.sampled_from(NAMES), ANY_JSON | st.lists(MESSAGE, max_size=2), max_size=6))
def test_parse_any_json_is_request_or_400(options: dict[str, Any]) -> None:
    body = json.dumps({"model": "a", "messages": HELLO, **options}).encode()
    try:
        chat = openai_chat.parse(body)
    except GatewayError as error:
        assert error.status == 400
        assert "\n" not in error.message
    else:
        requests_of(chat)


def test_stream_of_calls_has_id_and_name_first_then_fragments() -> None:
    stream = openai_chat.ChatStream(HEAD)
    pieces: list[Piece] = [
        CallPiece(0, 0, "c0", "f"), ArgumentsPiece(0, 0, '{"a"'), ArgumentsPiece(0, 0, ":1}"),
        CallPiece(0, 1, "c1", "g"), ArgumentsPiece(0, 1, "{}"), EndPiece(0, stop("tool_calls")),
    ]  # fmt: skip
    deltas = deltas_of(stream.render(pieces))
    assert deltas[0] == {"role": "assistant", "content": None}
    assert deltas[-1] == {}
    calls = [delta["tool_calls"][0] for delta in deltas[1:-1]]
    assert [call["index"] for call in calls] == [0, 0, 0, 1, 1]
    begun = {"id": "c1", "type": "function", "function": {"name": "g", "arguments": ""}}
    assert calls[3] == {"index": 1, **begun}
    assert "".join(call["function"]["arguments"] for call in calls if call["index"] == 0) == '{"a":1}'
    assert all(set(call) == {"index", "function"} for call in calls if "id" not in call)


def test_thoughts_are_told_apart_or_left_out() -> None:
    pieces: list[Piece] = [ThoughtPiece(0, "hm"), TextPiece(0, "so"), EndPiece(0, stop())]
    told = deltas_of(openai_chat.ChatStream(HEAD).render(pieces))
    assert told == [{"role": "assistant", "content": None}, {"reasoning_content": "hm"}, {"content": "so"}, {}]
    left_out = deltas_of(openai_chat.ChatStream(HEAD, thoughts=False).render(pieces))
    assert left_out == [{"role": "assistant", "content": ""}, {"content": "so"}, {}]
    whole = completions_of(pieces)
    message = json.loads(openai_chat.render_body(HEAD, whole))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "so", "refusal": None, "reasoning_content": "hm"}
    message = json.loads(openai_chat.render_body(HEAD, whole, thoughts=False))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "so", "refusal": None}


def deltas_of(sent: bytes) -> list[Any]:
    events = [json.loads(event.removeprefix("data: ")) for event in sent.decode().split("\n\n") if event]
    return [event["choices"][0]["delta"] for event in events]


@given(st.binary(max_size=64))
def test_parse_any_bytes_is_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        openai_chat.parse(body)
