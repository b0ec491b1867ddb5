"""Bodies of Ollama's two routes: what is read of them, and what is refused by name. Whole exchanges are transcripts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from engines.wire import ChatPrompt, InfillPrompt, TextPrompt, TextRequest
from gateway.errors import GatewayError, InvalidRequest, RequestTooLarge, UnsupportedModality, UnsupportedParameter
from gateway.protocols import ollama_chat, ollama_generate
from gateway.protocols.ollama_options import check_context
from gateway.protocols.ollama_request import OllamaRequest
from gateway.protocols.options import MAX_TOKENS, Limits
from gateway.registry.catalog import RequestSettings

USER = {"role": "user", "content": "hi"}


def chat(limits: Limits = Limits(), **fields: Any) -> OllamaRequest:  # noqa: B008 (frozen)
    return ollama_chat.parse(json.dumps({"model": "m", "messages": [USER], **fields}).encode(), limits)


def generate(limits: Limits = Limits(), **fields: Any) -> OllamaRequest:  # noqa: B008 (frozen)
    return ollama_generate.parse(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), limits)


def asked(request: OllamaRequest, settings: RequestSettings = RequestSettings()) -> TextRequest:  # noqa: B008 (frozen)
    (only,) = request.text_requests(settings, itertools.count(1))
    return only


# --- options ---


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 20}, "top_k", 20),
        ({"seed": -1}, "seed", None),
        ({"seed": 0}, "seed", 0),
        ({"repeat_penalty": 1.1}, "repetition_penalty", 1.1),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, "repetition_penalty", 1.1),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, "repetition_penalty", 1.0),
        ({"presence_penalty": 1, "repeat_last_n": 0}, "presence_penalty", 0.0),
    ],
)
def test_options_become_sampling(options: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(asked(chat(options=options)).sampling, field) == value


@pytest.mark.parametrize(("count", "most"), [(5, 5), (0, MAX_TOKENS), (-1, MAX_TOKENS), (-2, MAX_TOKENS), (None, 99)])
def test_num_predict_is_a_bound_and_its_special_values_are_none(count: int | None, most: int) -> None:
    options = {} if count is None else {"num_predict": count}
    request = asked(chat(options=options), RequestSettings(max_tokens=99))
    assert (request.max_tokens, request.clamp) == (most, True)


def test_settings_of_the_model_hold_where_options_are_silent() -> None:
    settings = RequestSettings(sampling={"temperature": 0.3, "repetition_penalty": 1.2})
    sampling = asked(chat(options={"temperature": 0.9}), settings).sampling
    assert (sampling.temperature, sampling.repetition_penalty) == (0.9, 1.2)
    assert asked(chat(options={"repeat_last_n": 0}), settings).sampling.repetition_penalty == 1.0


def test_hints_are_named_with_where_they_stand() -> None:
    options = {"num_gpu": 1, "num_thread": None, "num_ctx": 512, "repeat_last_n": 64, "repeat_penalty": 1.0}
    assert chat(options=options).ask.ignored == ("options.num_gpu", "options.repeat_last_n", "options.num_ctx")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"nonsense": 1}, "options.nonsense"),
        ({"temperatur": 1}, "options.temperatur"),
        ({"mirostat": 1}, "options.mirostat"),
        ({"tfs_z": 0.5}, "options.tfs_z"),
        ({"typical_p": 0.5}, "options.typical_p"),
        ({"penalize_newline": False}, "options.penalize_newline"),
        ({"temperature": 3}, "options.temperature"),
        ({"stop": [""]}, "options.stop[0]"),
        ({"num_predict": -3}, "options.num_predict"),
        ({"num_ctx": 0}, "options.num_ctx"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "options.repeat_last_n"),
        ({"repeat_last_n": 64, "frequency_penalty": 1}, "options.repeat_last_n"),
        ([], "options"),
    ],
)
def test_options_are_refused_by_name(options: Any, param: str) -> None:
    for parse in (chat, generate):
        with pytest.raises(InvalidRequest) as refusal:
            parse(options=options)
        assert refusal.value.param == param
        assert param.partition("[")[0] in refusal.value.message


@pytest.mark.parametrize(("asked_for", "context", "fits"), [(None, 8, True), (8, 8, True), (9, 0, True), (9, 8, False)])
def test_num_ctx_must_not_exceed_the_models_context(asked_for: int | None, context: int, fits: bool) -> None:
    if fits:
        check_context(asked_for, "m", context)
        return
    with pytest.raises(InvalidRequest, match=r"num_ctx is 9.*has 8 tokens") as refusal:
        check_context(asked_for, "m", context)
    assert refusal.value.param == "options.num_ctx"


# --- the rest of the body ---


def test_streams_unless_told_not_to() -> None:
    assert chat().stream and chat(stream=None).stream and chat(stream=True).stream
    assert not chat(stream=False).stream and not generate(stream=False).stream


@pytest.mark.parametrize(
    ("value", "grammar"),
    [
        (None, None),
        ("", None),
        ("json", ("json_object", "")),
        ({"type": "object"}, ("json_schema", '{"type":"object"}')),
    ],
)
def test_format_becomes_a_grammar(value: Any, grammar: tuple[str, str] | None) -> None:
    for request in (chat(format=value), generate(format=value)):
        read = asked(request).grammar
        assert (None if read is None else (read.kind, read.source)) == grammar


@pytest.mark.parametrize(
    ("think", "enabled", "effort", "lenient"),
    [(None, None, None, False), (True, True, None, False), (False, False, None, False), ("low", True, "low", True)],
)
def test_think_says_whether_or_how_much(think: Any, enabled: Any, effort: Any, lenient: bool) -> None:
    for request in (chat(think=think), generate(think=think)):
        reasoning = asked(request).reasoning
        assert (reasoning.enabled, reasoning.effort, reasoning.lenient) == (enabled, effort, lenient)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"format": "yaml"}, "format"),
        ({"format": True}, "format"),
        ({"think": "none"}, "think"),
        ({"think": 1}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"stream": "yes"}, "stream"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"model": ""}, "model"),
        ({"truncate": True}, "truncate"),
        ({"shift": True}, "shift"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_fields_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for parse in (chat, generate):
        with pytest.raises(InvalidRequest) as refusal:
            parse(**fields)
        assert refusal.value.param == param


@pytest.mark.parametrize("messages", [None, []])
def test_chat_without_messages_is_a_load_or_an_unload(messages: Any) -> None:
    load, unload = chat(messages=messages), chat(messages=messages, keep_alive=0)
    assert load.idle and not load.unloads
    assert unload.idle and unload.unloads
    assert not chat(keep_alive="0s").unloads


@pytest.mark.parametrize(
    ("message", "error", "param"),
    [
        ("hi", InvalidRequest, "messages[0]"),
        ({"role": "function", "content": "x"}, InvalidRequest, "messages[0].role"),
        ({"content": "x"}, InvalidRequest, "messages[0].role"),
        ({"role": "user", "content": ["x"]}, InvalidRequest, "messages[0].content"),
        ({"role": "user", "content": "x", "images": ["aGk="]}, UnsupportedModality, "messages[0].images"),
        ({"role": "user", "content": "x", "images": "aGk="}, InvalidRequest, "messages[0].images"),
        ({"role": "user", "content": "x", "audio": "aGk="}, UnsupportedParameter, "messages[0].audio"),
        ({"role": "assistant", "thinking": 1}, InvalidRequest, "messages[0].thinking"),
        ({"role": "assistant", "tool_calls": {}}, InvalidRequest, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, InvalidRequest, "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            InvalidRequest,
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            InvalidRequest,
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]},
            InvalidRequest,
            "messages[0].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "output": "x"}}]},
            UnsupportedParameter,
            "messages[0].tool_calls[0].function.output",
        ),
    ],
)
def test_messages_are_refused_by_place(message: Any, error: type[GatewayError], param: str) -> None:
    with pytest.raises(error) as refusal:
        chat(messages=[message])
    assert refusal.value.param == param


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}, **more}


def results(*messages: dict[str, Any]) -> list[tuple[str | None, str | None]]:
    """Id and name of each tool's result."""
    prompt = asked(chat(messages=list(messages))).prompt
    assert isinstance(prompt, ChatPrompt)
    tools = [message for message in prompt.messages if message.role == "tool"]
    return [(message.extra.get("tool_call_id"), message.extra.get("name")) for message in tools]


def test_results_belong_to_the_call_of_their_id_else_of_their_name_else_of_their_turn() -> None:
    calls = {"role": "assistant", "tool_calls": [call("f", id="one"), call("g"), call("f"), call("h", id="four")]}
    told = results(
        calls,
        {"role": "tool", "content": "", "tool_call_id": "four"},
        {"role": "tool", "content": "", "tool_name": "f"},
        {"role": "tool", "content": "", "name": "f"},
        {"role": "tool", "content": ""},
        {"role": "tool", "content": "", "tool_name": "nobody"},
    )
    assert told == [("four", "h"), ("one", "f"), ("call00002", "f"), ("call00001", "g"), (None, "nobody")]


def test_tools_are_functions_whether_they_say_so_or_not() -> None:
    request = asked(chat(tools=[{"type": "function", "function": {"name": "f"}}, {"function": {"name": "g"}}]))
    assert request.tools is not None
    assert ([tool.name for tool in request.tools.tools], request.tools.choice) == (["f", "g"], "auto")
    with pytest.raises(UnsupportedParameter) as refusal:
        chat(tools=[{"type": "web_search"}])
    assert refusal.value.param == "tools[0].type"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"raw": True}, TextPrompt(text="hi", parse_special=True)),
        ({"suffix": "end"}, InfillPrompt(prefix="hi", suffix="end")),
        ({"prompt": "", "suffix": "end"}, InfillPrompt(prefix="", suffix="end")),
    ],
)
def test_generate_goes_past_the_template(fields: dict[str, Any], prompt: Any) -> None:
    request = asked(generate(**fields), RequestSettings(system="The model's own."))
    assert (request.prompt, request.reasoning.split) == (prompt, False)


@pytest.mark.parametrize(("system", "read"), [("Mine.", "Mine."), ("", "The model's own.")])
def test_generate_has_the_models_system_prompt_unless_it_has_one(system: str, read: str) -> None:
    prompt = asked(generate(system=system), RequestSettings(system="The model's own.")).prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message.content for message in prompt.messages] == [read, "hi"]


@pytest.mark.parametrize("fields", [{"prompt": ""}, {"prompt": None}, {"prompt": "", "raw": True}])
def test_generate_without_a_prompt_is_a_load_or_an_unload(fields: dict[str, Any]) -> None:
    assert generate(**fields).idle and generate(**fields, keep_alive=0).unloads


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"raw": True, "system": "x"}, "system"),
        ({"suffix": "x", "system": "x"}, "system"),
        ({"raw": True, "think": True}, "think"),
        ({"raw": True, "suffix": "x"}, "suffix"),
        ({"template": "x"}, "template"),
        ({"context": [1]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"width": 512}, "width"),
        ({"prompt": ["hi"]}, "prompt"),
        ({"tools": []}, "tools"),
    ],
)
def test_generate_refuses_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        generate(**fields)
    assert refusal.value.param == param


def test_what_asks_for_nothing_is_taken() -> None:
    assert generate(template="", context=[], images=[], width=0, suffix="", system="", raw=False).ask.ignored == ()


def test_characters_are_bounded() -> None:
    limits = Limits(max_chars=10)
    for fields, param in (({}, None), ({"messages": [{"role": "user", "content": "x" * 11}]}, "messages")):
        if param is None:
            chat(limits, **fields)
            continue
        with pytest.raises(RequestTooLarge) as refusal:
            chat(limits, **fields)
        assert refusal.value.param == param
    for field in ("prompt", "suffix", "system"):
        with pytest.raises(RequestTooLarge) as refusal:
            generate(limits, **{field: "x" * 11})
        assert refusal.value.param == field
    with pytest.raises(RequestTooLarge) as refusal:
        chat(limits, format={"type": "object"})
    assert refusal.value.param == "format"
