"""The Responses API: what is read of a request, what is refused and how."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from engines.wire import ChatMessage, ChatPrompt, Grammar, Tool, ToolUse
from gateway.errors import InvalidRequest, NotFound, RequestTooLarge, UnsupportedModality, UnsupportedParameter
from gateway.protocols.options import Limits
from gateway.protocols.responses_chat import messages_of
from gateway.protocols.responses_items import Item, named, parse_items
from gateway.protocols.responses_options import INCLUDES
from gateway.protocols.responses_request import OPTIONS, ResponseRequest, Shape, parse
from gateway.protocols.responses_thoughts import sealed, thought_of
from gateway.registry.catalog import RequestSettings
from gateway.registry.reasoning_settings import ReasoningSettings

FUNCTION = {"type": "function", "name": "clock"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def wish(**options: Any) -> ResponseRequest:
    return parse(json.dumps({"model": "a", "input": "hello", **options}).encode())


def test_parse_minimal_is_one_user_message_that_is_stored() -> None:
    request = wish()
    ask = request.with_items((), request.own_items({}, "s"), Limits())
    (asked,) = ask.text_requests(RequestSettings(), itertools.count(1))
    assert asked.prompt == ChatPrompt(messages=(ChatMessage(role="user", content="hello"),))
    assert (asked.max_tokens, asked.clamp, asked.tools, asked.grammar, asked.logprobs) == (None, True, None, None, None)
    assert (request.store, request.background, request.stream, request.truncate) == (True, False, False, False)
    assert request.shape == Shape()


def test_null_counts_as_absent() -> None:
    names = OPTIONS.honoured | OPTIONS.hints | set(OPTIONS.refused)
    assert wish(**dict.fromkeys(names - {"model", "input"})) == wish()


def test_tables_do_not_overlap() -> None:
    assert not OPTIONS.honoured & OPTIONS.hints
    assert not (OPTIONS.honoured | OPTIONS.hints) & set(OPTIONS.refused)
    assert set(OPTIONS.instead) <= set(OPTIONS.refused)


def test_hints_are_named() -> None:
    request = wish(
        user="u",
        max_tool_calls=1,
        text={"verbosity": "low"},
        include=["web_search_call.results"],
        reasoning={"summary": "concise"},
        stream=True,
        stream_options={"include_obfuscation": True},
    )
    assert set(request.ask.ignored) == {
        "user",
        "max_tool_calls",
        "text.verbosity",
        "include.web_search_call.results",
        "reasoning.summary",
        "stream_options.include_obfuscation",
    }
    assert wish(include=["message.output_text.logprobs"], text={"format": {"type": "text"}}).ask.ignored == ()


def test_what_coding_agents_send_is_read() -> None:
    request = wish(
        instructions="You are an agent.",
        input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        tools=[{**FUNCTION, "description": "d", "strict": False, "parameters": SCHEMA}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning=None,
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="a-conversation",
        text={"verbosity": "medium"},
        client_metadata={"installation": "a"},
    )
    assert (request.store, request.stream, request.shape.sealed) == (False, True, True)
    assert set(request.ask.ignored) == {"client_metadata", "prompt_cache_key", "text.verbosity"}


@pytest.mark.parametrize(
    ("options", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 3}, 3),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, 2),
    ],
)
def test_logprobs_are_asked_for_by_either_option(options: dict[str, Any], logprobs: int | None) -> None:
    request = wish(**options)
    assert request.ask.logprobs == logprobs
    assert request.shape.logprobs == (logprobs is not None)


@pytest.mark.parametrize(
    ("reasoning", "asked", "summary"),
    [
        ({}, ReasoningSettings(), False),
        ({"effort": "none"}, ReasoningSettings(enabled=False), False),
        ({"effort": "high", "summary": "auto"}, ReasoningSettings(enabled=True, effort="high"), True),
        ({"enabled": False}, ReasoningSettings(enabled=False), False),
        ({"max_tokens": 0, "generate_summary": "detailed"}, ReasoningSettings(budget=0), True),
        ({"context": "auto", "mode": "standard"}, ReasoningSettings(), False),
    ],
)
def test_reasoning(reasoning: dict[str, Any], asked: ReasoningSettings, summary: bool) -> None:
    request = wish(reasoning=reasoning)
    assert (request.ask.reasoning, request.shape.summary) == (asked, summary)


@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar(kind="json_object")),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
            Grammar(kind="json_schema", source=json.dumps(SCHEMA, separators=(",", ":"))),
        ),
    ],
)
def test_text_format(form: dict[str, Any], grammar: Grammar | None) -> None:
    assert wish(text={"format": form}).ask.grammar == grammar


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


TOOLS = [{**FUNCTION, "description": "Tells.", "parameters": SCHEMA, "strict": True}, {**FUNCTION, "name": "sun"}]
READ = (Tool(name="clock", description="Tells.", parameters=SCHEMA, strict=True), Tool(name="sun"))


@pytest.mark.parametrize(
    ("options", "use"),
    [
        ({"tools": []}, None),
        ({"tools": TOOLS}, ToolUse(tools=READ)),
        ({"tools": TOOLS, "tool_choice": "required"}, ToolUse(tools=READ, choice="required")),
        ({"tools": TOOLS, "tool_choice": "none"}, ToolUse(tools=READ, choice="none")),
        ({"tools": TOOLS, "parallel_tool_calls": False}, ToolUse(tools=READ, parallel=False)),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "sun"}},
            ToolUse(tools=READ, choice="required", name="sun", parallel=False),
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("sun", mode="required")},
            ToolUse(tools=READ[1:], choice="required"),
        ),
        ({"tools": [{**FUNCTION, "defer_loading": False}]}, ToolUse(tools=(Tool(name="clock"),))),
    ],
)
def test_tools(options: dict[str, Any], use: ToolUse | None) -> None:
    assert wish(**options).ask.tools == use


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"input": 5}, "input", "string or an array"),
        ({"input": []}, "input", "is empty"),
        ({"input": None}, "input", "is missing"),
        ({"input": [3]}, "input[0]", "object"),
        ({"input": [{"type": 5}]}, "input[0].type", "one of"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "user, system"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]", "object"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type", "input_text"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "missing",
        ),
        ({"input": [{"role": "user", "content": "x", "status": "odd"}]}, "input[0].status", "in_progress"),
        ({"input": [{"role": "user", "content": "x", "id": ""}]}, "input[0].id", "1 to 256"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name", "missing"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "missing"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output", "5"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "array"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id", "missing"),
        ({"instructions": 5}, "instructions", "string"),
        ({"previous_response_id": 5}, "previous_response_id", "string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1 to"),
        ({"temperature": 3}, "temperature", "0 to 2"),
        ({"top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ({"truncation": "middle"}, "truncation", "auto, disabled"),
        ({"store": "no"}, "store", "true or false"),
        ({"background": True, "store": False}, "background", "store must be true"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream is true"),
        ({"include": "x"}, "include", "array"),
        ({"include": ["x"]}, "include[0]", "'x'"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", "17 pairs"),
        ({"metadata": {"k" * 65: "x"}}, "metadata." + "k" * 64, "64 characters"),
        ({"metadata": {"k": 5}}, "metadata.k", "strings of up to 512"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": "json"}}, "text.format", "object"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "missing"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "JSON Schema"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", "low, medium"),
        ({"reasoning": {"effort": "great"}}, "reasoning.effort", "minimal"),
        ({"reasoning": {"effort": "low", "enabled": False}}, "reasoning.enabled", "agree"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "auto"),
        ({"tools": [{"type": 5}]}, "tools[0].type", "function"),
        ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name", "'a b'"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'any'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "moon"}}, "tool_choice", "one of tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name", "one of tools"),
        ({"tools": TOOLS, "tool_choice": allowed("moon")}, "tool_choice.tools", "one of tools"),
        ({"tools": TOOLS, "tool_choice": allowed()}, "tool_choice.tools", "at least one"),
        ({"tools": TOOLS, "tool_choice": allowed("sun", mode="none")}, "tool_choice.mode", "auto or required"),
        ({"tool_choice": "required"}, "tool_choice", "tools must hold"),
    ],
)
def test_mistake_names_its_place_and_what_is_allowed(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wish(**options)
    assert caught.value.param == param
    assert says in caught.value.message


BUILT_IN = (
    "web_search", "web_search_preview", "file_search", "computer_use_preview", "code_interpreter", "image_generation",
    "mcp", "local_shell", "custom", "shell", "apply_patch",
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "param"),
    [
        *(({"tools": [{"type": kind}]}, "tools[0].type") for kind in BUILT_IN),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [{**FUNCTION, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"response_format": {}}, "response_format"),
        ({"context_management": [{}]}, "context_management"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"nonsense": 1}, "nonsense"),
        ({"text": {"style": 1}}, "text.style"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "x", "mood": "good"}]}, "input[0].mood"),
    ],
)
def test_what_is_not_there_is_refused_by_name(options: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        wish(**options)
    assert caught.value.param == param


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_other_modalities_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModality) as caught:
        wish(input=[{"role": "user", "content": [{"type": kind}]}])
    assert caught.value.param == "input[0].content[0]"


def test_context_management_of_nothing_is_nothing() -> None:
    assert wish(context_management=[]) == wish()


@pytest.mark.parametrize("name", INCLUDES)
def test_every_include_is_known(name: str) -> None:
    wish(include=[name])


def test_characters_are_limited_over_all_fields_and_the_conversation() -> None:
    body = json.dumps({"model": "a", "input": "x" * 60, "instructions": "y" * 50}).encode()
    with pytest.raises(RequestTooLarge, match=r"server\.max_chars allows 100"):
        parse(body, Limits(max_chars=100))
    request = wish(previous_response_id="resp_1")
    earlier = named(parse_items("x" * 96), "e")
    with pytest.raises(RequestTooLarge) as caught:
        request.with_items(earlier, request.own_items({}, "s"), Limits(max_chars=100))
    assert caught.value.param == "previous_response_id"


def test_previous_response_may_come_without_input_but_not_without_a_conversation() -> None:
    request = parse(json.dumps({"model": "a", "previous_response_id": "resp_1"}).encode())
    assert request.items == ()
    with pytest.raises(InvalidRequest, match="holds no message"):
        request.with_items((), (), Limits())


# --- items ---


def test_items_are_kept_in_one_shape_with_ids_of_their_own() -> None:
    items = named(
        parse_items(
            [
                {"role": "user", "content": "hi"},
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "mine",
                    "content": [{"type": "refusal", "refusal": "no"}],
                },
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{", "caller": {"x": 1}},
                {"type": "function_call_output", "call_id": "c", "output": "1", "status": "incomplete"},
                {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            ]
        ),
        "s",
    )
    assert items == (
        {
            "id": "msg_si0000",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        },
        {
            "id": "mine",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "no"}],
        },
        {
            "id": "fc_si0002",
            "type": "function_call",
            "status": "completed",
            "call_id": "c",
            "name": "f",
            "arguments": "{",
        },
        {"id": "fco_si0003", "type": "function_call_output", "status": "incomplete", "call_id": "c", "output": "1"},
        {"id": "rs_si0004", "type": "reasoning", "status": "completed", "summary": [], "content": []},
    )
    assert parse_items(list(items)) == items


def test_references_stand_for_stored_items_and_are_404_where_there_is_none() -> None:
    request = wish(input=[{"id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}, {"role": "user", "content": "x"}])
    assert request.references == ["msg_1", "msg_2"]
    found: dict[str, Item] = {
        id: {"id": id, "type": "message", "role": "user", "content": []} for id in ("msg_1", "msg_2")
    }
    assert [item["id"] for item in request.own_items(found, "s")] == ["msg_1", "msg_2", "msg_si0002"]
    with pytest.raises(NotFound) as caught:
        request.own_items({"msg_1": found["msg_1"]}, "s")
    assert caught.value.param == "input[1].id"


# --- messages ---


def message(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def call(id: str) -> Item:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}


def result(id: str) -> Item:
    return {"type": "function_call_output", "call_id": id, "output": f"of {id}"}


def thought(text: str) -> Item:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def told(*items: Item, instructions: str | None = None) -> list[tuple[str, str | None, list[str]]]:
    return [(m.role, m.content, sorted(m.extra)) for m in messages_of(instructions, items)]


def test_instructions_and_first_system_messages_are_one_and_later_ones_stay() -> None:
    items = (message("developer", "b"), message("system", "c"), message("user", "x"), message("developer", "d"))
    assert told(*items, instructions="a") == [
        ("system", "a\n\nb\n\nc", []),
        ("user", "x", []),
        ("system", "d", []),
    ]


def test_an_answers_items_are_one_message() -> None:
    items = (thought("t"), message("assistant", "say"), call("1"), call("2"), result("2"), result("1"))
    assert told(message("user", "x"), *items) == [
        ("user", "x", []),
        ("assistant", "say", ["reasoning_content", "tool_calls"]),
        ("tool", "of 2", ["name", "tool_call_id"]),
        ("tool", "of 1", ["name", "tool_call_id"]),
    ]


def test_what_begins_another_answer_is_another_message() -> None:
    items = (message("assistant", "a"), message("assistant", "b"), call("1"), message("assistant", "c"), thought("t"))
    assert told(*items) == [
        ("assistant", "a", []),
        ("assistant", "b", ["tool_calls"]),
        ("assistant", "c", []),
    ]


def test_thinking_that_led_to_nothing_is_left_out_and_calls_may_come_alone() -> None:
    assert told(thought("t"), message("user", "x"), call("1")) == [
        ("user", "x", []),
        ("assistant", None, ["tool_calls"]),
    ]


def test_output_without_its_call_is_a_400() -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of(None, (call("1"), result("2")))
    assert caught.value.param == "input[1].call_id"


def test_thinking_comes_back_by_content_or_seal_or_summary() -> None:
    summary = [{"type": "summary_text", "text": "s"}]
    item: Item = {"type": "reasoning", "summary": summary, "content": [], "encrypted_content": sealed("whole 🦊")}
    assert thought_of(item, "x") == "whole 🦊"
    del item["encrypted_content"]
    assert thought_of(item, "x") == "s"
    assert thought_of({**item, "content": [{"type": "reasoning_text", "text": "c"}]}, "x") == "c"


@pytest.mark.parametrize("seal", ["gAAAA", "innkeeper1.%%%", "innkeeper1._w=="])
def test_seal_of_another_server_is_a_400(seal: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of(None, ({"type": "reasoning", "summary": [], "content": [], "encrypted_content": seal},))
    assert caught.value.param == "input[0].encrypted_content"
