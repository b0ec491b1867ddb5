"""Anthropic's requests: what is read, what is refused and how it is named."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from engines.wire import ChatMessage, ChatPrompt, Reasoning, Sampling, TextRequest
from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedModality, UnsupportedParameter
from gateway.protocols.anthropic_request import COUNT_OPTIONS, OPTIONS, MessagesRequest, parse, parse_count
from gateway.protocols.openapi_anthropic import COUNT, MESSAGES
from gateway.protocols.openapi_options import body_schema
from gateway.protocols.options import Limits
from gateway.registry.catalog import RequestSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "é"}}]}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
BODY = body_schema(OPTIONS, MESSAGES, ("model", "messages", "max_tokens"))


def read(**options: Any) -> MessagesRequest:
    """The parsed request; its body must be one that ``/openapi.json`` describes."""
    body = {"model": "m", "max_tokens": 9, "messages": HI, **options}
    request = parse(json.dumps(body).encode())
    jsonschema_rs.validate(BODY, body)
    return request


def asked(settings: RequestSettings = RequestSettings(), **options: Any) -> TextRequest:  # noqa: B008 (frozen)
    (request,) = read(**options).text_requests(settings, iter(()))
    return request


def messages(*turns: Any, **options: Any) -> list[ChatMessage]:
    prompt = asked(messages=list(turns), **options).prompt
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


def result(content: Any = "42", **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "t1", **({} if content is None else {"content": content}), **fields}
    return {"role": "user", "content": [block]}


# --- messages -------------------------------------------------------------------------------------------------------


def test_system_as_text_or_blocks_comes_first() -> None:
    said = [ChatMessage(role="system", content="Be\nbrief."), ChatMessage(role="user", content="hi")]
    assert messages(*HI, system="Be\nbrief.") == said
    blocks = [
        {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief."},
    ]
    assert messages(*HI, system=blocks) == said
    assert messages(*HI, system="") == messages(*HI, system=[]) == said[1:]


def test_system_of_the_model_stands_where_the_request_has_none() -> None:
    settings = RequestSettings(system="You are kind.")
    for options, system in (({}, "You are kind."), ({"system": "Be brief."}, "Be brief.")):
        prompt = asked(settings, **options).prompt
        assert isinstance(prompt, ChatPrompt)
        assert [m.content for m in prompt.messages] == [system, "hi"]


def test_billing_block_of_the_system_is_left_out_and_named() -> None:
    blocks = [{"type": "text", "text": f"x-anthropic-billing-header: cch={i};"} for i in range(2)]
    request = read(system=[blocks[0], {"type": "text", "text": "You help."}])
    assert request.ask.messages[0] == ChatMessage(role="system", content="You help.")
    assert request.ask.ignored == ("x-anthropic-billing-header",)
    assert read(system=blocks[1:]).ask.messages == read().ask.messages


def test_turns_of_one_role_in_a_row_are_one() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
        result(),
    ]
    user, assistant, tool = messages(*turns)
    assert user == ChatMessage(role="user", content="a\nb\nc")
    assert (assistant.content, assistant.extra["tool_calls"][0]["id"]) == ("d", "t1")
    assert tool == ChatMessage(role="tool", content="42", extra={"tool_call_id": "t1", "name": "f"})


def test_system_turn_in_between_stays_where_it_is() -> None:
    turns = [*HI, {"role": "system", "content": "Now in French."}, {"role": "user", "content": "ho"}]
    assert [message.role for message in messages(*turns)] == ["user", "system", "user"]


def test_tool_use_is_a_call_with_its_input_as_text() -> None:
    _, assistant, _ = messages(*HI, CALL, result())
    function = {"name": "f", "arguments": '{"a": "é"}'}
    assert assistant.content is None
    assert assistant.extra == {"tool_calls": [{"id": "t1", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("content", "fields", "text"),
    [
        ("42", {}, "42"),
        (None, {}, ""),
        ([], {}, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {"is_error": False}, "a\nb"),
        ("no such file", {"is_error": True}, "Error: no such file"),
        (None, {"is_error": True}, "Error"),
        ([{"type": "tool_reference", "tool_name": "g"}], {}, "Tool available: g"),
        (
            [{"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "x"}]}],
            {},
            "T\ns\nx",
        ),
    ],
)
def test_tool_result_is_a_message_of_the_tool(content: Any, fields: dict[str, Any], text: str) -> None:
    assert messages(*HI, CALL, result(content, **fields))[-1].content == text


def test_tool_results_come_before_the_texts_of_their_turn() -> None:
    (block,) = result()["content"]
    turn = {"role": "user", "content": [{"type": "text", "text": "and?"}, block]}
    assert [(m.role, m.content) for m in messages(*HI, CALL, turn)[2:]] == [("tool", "42"), ("user", "and?")]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "x"}, "T\nC\nx"),
        ({"type": "content", "content": "x"}, "T\nC\nx"),
        ({"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}, "T\nC\nx\ny"),
    ],
)
def test_document_of_text_is_read(source: Any, text: str) -> None:
    block = {"type": "document", "source": source, "title": "T", "context": "C", "citations": {"enabled": True}}
    request = read(messages=[{"role": "user", "content": [block]}])
    assert request.ask.messages[0].content == text
    assert request.ask.ignored == ("citations",)


def test_thinking_goes_back_to_the_model_and_another_servers_secret_does_not() -> None:
    blocks = [
        {"type": "thinking", "thinking": "One.", "signature": "EqQBCkYIARgCIkD"},
        {"type": "redacted_thinking", "data": "EqQBCkYIARgCIkD"},
        {"type": "thinking", "thinking": "", "signature": "EqQBCkYIARgCIkD"},
        {"type": "thinking", "thinking": "", "signature": "innkeeper.VHdvLg=="},
        {"type": "text", "text": "So."},
    ]
    turns = [*HI, {"role": "assistant", "content": blocks}, *HI]
    assert messages(*turns)[1] == ChatMessage(
        role="assistant", content="So.", extra={"reasoning_content": "One.\nTwo."}
    )


def test_last_text_of_the_assistant_is_gone_on_with() -> None:
    def begins(*turns: Any) -> bool:
        return read(messages=list(turns)).ask.add_generation_prompt

    assert begins(*HI)
    assert not begins(*HI, {"role": "assistant", "content": "Well"})
    assert begins(*HI, CALL)
    contents: list[Any] = ["", []]
    empty: list[Any] = [{"role": "assistant", "content": content} for content in contents]
    for turn in empty:
        assert begins(*HI, turn)
        assert messages(*HI, turn) == messages(*HI)
        assert [m.content for m in messages(*HI, turn, *HI)] == ["hi", "", "hi"]


# --- options --------------------------------------------------------------------------------------------------------


def test_max_tokens_is_a_bound() -> None:
    request = asked(max_tokens=32_000)
    assert (request.max_tokens, request.clamp) == (32_000, True)


def test_sampling_and_stops_reach_the_worker() -> None:
    request = asked(temperature=1, top_p=0.5, top_k=5, seed=3, stop_sequences=["a", "b"])
    assert request.sampling == Sampling(temperature=1, top_p=0.5, top_k=5, seed=3)
    assert request.stop == ("a", "b")


@pytest.mark.parametrize(
    ("options", "reasoning", "thoughts"),
    [
        ({}, Reasoning(), "shown"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Reasoning(enabled=True, budget=1024), "shown"),
        ({"thinking": {"type": "enabled"}}, Reasoning(enabled=True), "shown"),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, Reasoning(enabled=True), "shown"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, Reasoning(enabled=True), "omitted"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, Reasoning(enabled=False), "hidden"),
        ({"output_config": {"effort": "medium"}}, Reasoning(enabled=True, effort="medium"), "shown"),
        ({"output_config": {"effort": "max"}}, Reasoning(enabled=True, effort="high"), "shown"),
    ],
)
def test_thinking_is_a_wish(options: dict[str, Any], reasoning: Reasoning, thoughts: str) -> None:
    request = read(**options)
    (text_request,) = request.text_requests(RequestSettings(), iter(()))
    assert text_request.reasoning == Reasoning(
        enabled=reasoning.enabled, effort=reasoning.effort, budget=reasoning.budget, lenient=True
    )
    assert request.thoughts == thoughts


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", None, True)),
        ({"type": "auto"}, ("auto", None, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", None, False)),
        ({"type": "any"}, ("required", None, True)),
        ({"type": "tool", "name": "f"}, ("required", "f", False)),
        ({"type": "tool", "name": "f", "disable_parallel_tool_use": False}, ("required", "f", True)),
        ({"type": "none"}, ("none", None, True)),
    ],
)
def test_tool_choice(choice: Any, expected: tuple[str, str | None, bool]) -> None:
    tools = asked(tools=[TOOL], tool_choice=choice).tools
    assert tools is not None
    assert (tools.choice, tools.name, tools.parallel) == expected


def test_tools_are_read_with_their_hints() -> None:
    tool = {
        **TOOL,
        "type": "custom",
        "description": "Does f.",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
        "eager_input_streaming": True,
        "input_examples": [{}],
        "allowed_callers": ["direct", "code_execution_20250825"],
    }
    request = read(tools=[tool], metadata={"user_id": "me"})
    assert request.ask.tools is not None
    (read_tool,) = request.ask.tools.tools
    assert (read_tool.name, read_tool.description, read_tool.strict) == ("f", "Does f.", True)
    assert read_tool.parameters == TOOL["input_schema"]
    assert request.ask.ignored == ("metadata", "cache_control", "eager_input_streaming", "input_examples")


def test_deferred_tool_is_shown_once_a_result_refers_to_it() -> None:
    tools = [TOOL, {**TOOL, "name": "g", "defer_loading": True}, {**TOOL, "name": "h", "defer_loading": True}]

    def names(*turns: Any) -> list[str]:
        use = asked(messages=list(turns), tools=tools).tools
        return [] if use is None else [tool.name for tool in use.tools]

    assert names(*HI) == ["f"]
    assert names(*HI, CALL, result([{"type": "tool_reference", "tool_name": "g"}])) == ["f", "g"]
    assert asked(tools=tools[1:]).tools is None


def test_output_format_under_both_names() -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    newer, older = asked(output_config={"format": wanted}), asked(output_format=wanted)
    assert newer.grammar == older.grammar is not None
    assert asked(output_config={"format": wanted}, output_format=wanted).grammar == newer.grammar
    with pytest.raises(InvalidRequest, match="output_format is not what") as refusal:
        read(output_config={"format": wanted}, output_format={**wanted, "schema": {}})
    assert refusal.value.param == "output_format"


def test_what_claude_code_sends_is_served() -> None:
    ephemeral = {"type": "ephemeral", "ttl": "1h"}
    request = read(
        max_tokens=32_000,
        stream=True,
        temperature=1,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37; cch=fa690;"},
            {"type": "text", "text": "You are a coding agent.", "cache_control": ephemeral},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Fix it.", "cache_control": ephemeral}]},
            CALL,
            result([{"type": "text", "text": "done"}], cache_control=ephemeral),
        ],
        tools=[{**TOOL, "cache_control": ephemeral}],
        thinking={"type": "adaptive"},
        output_config={"effort": "high", "task_budget": {"type": "tokens", "total": 50_000}},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "user_1"},
        service_tier="auto",
        mcp_servers=[],
    )
    assert request.stream
    assert set(request.ask.ignored) == {
        "cache_control",
        "context_management",
        "metadata",
        "output_config.task_budget",
        "service_tier",
        "x-anthropic-billing-header",
    }


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [CALL["content"][0]]}]}, "messages[0].content[0]"),
        ({"messages": [*HI, result()]}, "messages[1].content[0].tool_use_id"),
        ({"messages": [*HI, CALL, result(is_error="yes")]}, "messages[2].content[0].is_error"),
        ({"messages": [*HI, CALL, result([{"type": "thinking"}])]}, "messages[2].content[0].content[0]"),
        (
            {"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}]},
            "messages[1].content[0].input",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "thinking", "thinking": "", "signature": "innkeeper.é"}],
                    }
                ]
            },
            "messages[0].content[0].signature",
        ),
        ({"system": 5}, "system"),
        ({"system": [{"type": "tool_reference", "tool_name": "x"}]}, "system[0]"),
        ({"temperature": 3}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"stream": "yes"}, "stream"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_wrong_values_are_named(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(json.dumps({"model": "m", "max_tokens": 9, "messages": HI, **options}).encode())
    assert (type(refusal.value), refusal.value.param) == (InvalidRequest, param)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"compaction": {}}, "compaction"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{**TOOL, "colour": "red"}]}, "tools[0].colour"),
        ({"messages": [{**HI[0], "name": "me"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]},
            "messages[0].content[0].y",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use", "id": "x"}]}]},
            "messages[0].content[0]",
        ),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"output_config": {"colour": "red"}}, "output_config.colour"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
    ],
)
def test_what_is_not_there_is_refused_by_name(options: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as refusal:
        parse(json.dumps({"model": "m", "max_tokens": 9, "messages": HI, **options}).encode())
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        {"type": "document", "source": {"type": "url", "url": "http://x"}},
        {"type": "container_upload", "file_id": "f"},
    ],
)
def test_what_a_text_model_cannot_read_is_an_unsupported_modality(block: dict[str, Any]) -> None:
    for turns in ([{"role": "user", "content": [block]}], [*HI, CALL, result([block])]):
        with pytest.raises(UnsupportedModality, match="text models"):
            parse(json.dumps({"model": "m", "max_tokens": 9, "messages": turns}).encode())


def test_characters_of_messages_tools_and_schema_are_bounded_together() -> None:
    def send(**options: Any) -> None:
        body = {"model": "m", "max_tokens": 9, "messages": HI, **options}
        parse(json.dumps(body).encode(), Limits(max_chars=100))

    send(messages=[{"role": "user", "content": "x" * 100}])
    tool = {"name": "f", "description": "x" * 60, "input_schema": {}}
    send(tools=[tool])
    for options, param in (
        ({"messages": [{"role": "user", "content": "x" * 101}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 60}], "tools": [tool]}, "tools"),
        ({"output_format": {"type": "json_schema", "schema": {"title": "x" * 100}}}, "output_config"),
    ):
        with pytest.raises(RequestTooLarge) as refusal:
            send(**options)
        assert refusal.value.param == param


# --- counts ---------------------------------------------------------------------------------------------------------


def test_count_asks_for_the_prompt_of_the_same_request() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "system": "Be brief.",
        "messages": HI,
        "tools": [TOOL],
        "thinking": {"type": "disabled"},
    }
    request = asked(**{**body, "max_tokens": 9})
    what = parse_count(json.dumps(body).encode()).what(RequestSettings())
    assert (what.prompt, what.tools, what.reasoning) == (request.prompt, request.tools, request.reasoning)
    assert (what.add_special, what.continues) == (True, True)
    jsonschema_rs.validate(body_schema(COUNT_OPTIONS, COUNT, ("model", "messages")), body)


def test_count_takes_what_an_answer_needs_for_hints() -> None:
    body = {"model": "m", "messages": HI, "max_tokens": 5, "stream": True, "betas": ["x"]}
    assert parse_count(json.dumps(body).encode()).ask.ignored == ("max_tokens", "stream", "betas")
