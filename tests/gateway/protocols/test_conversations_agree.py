"""The same conversation in every protocol's words is the same request to a worker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.wire import ChatPrompt, TextRequest
from gateway.protocols import anthropic_request, ollama_chat, openai_chat, responses_request
from gateway.protocols.options import Limits
from gateway.registry.catalog import RequestSettings

SETTINGS = RequestSettings()
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FUNCTIONS = [{"name": name, "description": f"It is {name}.", "parameters": PARAMETERS} for name in ("one", "two")]
CALLS = (("c1", "one", {"n": 1}), ("c2", "two", {"n": 2}))
RESULTS = (("c2", "two", "second"), ("c1", "one", "first"))

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "I call.",
            "reasoning_content": "Two calls.",
            "tool_calls": [
                {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for id, name, arguments in CALLS
            ],
        },
        *({"role": "tool", "tool_call_id": id, "content": text} for id, _, text in RESULTS),
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Again ünïcödé 🦊."},
    ],
    "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "seed": 3,
    "stop": ["END"],
}
RESPONSES: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Two calls."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I call."}]},
        *(
            {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(arguments)}
            for id, name, arguments in CALLS
        ),
        *({"type": "function_call_output", "call_id": id, "output": text} for id, _, text in RESULTS),
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": [{"type": "input_text", "text": "Again ünïcödé 🦊."}]},
    ],
    "tools": [{"type": "function", **function} for function in FUNCTIONS],
    "max_output_tokens": 5,
    **{name: CHAT[name] for name in ("temperature", "top_p", "top_k", "seed", "stop")},
}
ANTHROPIC: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two calls.", "signature": "s"},
                {"type": "text", "text": "I call."},
                *({"type": "tool_use", "id": id, "name": name, "input": arguments} for id, name, arguments in CALLS),
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": id, "content": text} for id, _, text in RESULTS],
        },
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": [{"type": "text", "text": "Again ünïcödé 🦊."}]},
    ],
    "tools": [
        {"name": function["name"], "description": function["description"], "input_schema": PARAMETERS}
        for function in FUNCTIONS
    ],
    "max_tokens": 5,
    "stop_sequences": ["END"],
    **{name: CHAT[name] for name in ("temperature", "top_p", "top_k", "seed")},
}
OLLAMA: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "I call.",
            "thinking": "Two calls.",
            "tool_calls": [
                {"id": id, "function": {"name": name, "arguments": arguments}} for id, name, arguments in CALLS
            ],
        },
        *({"role": "tool", "tool_name": name, "content": text} for _, name, text in RESULTS),
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Again ünïcödé 🦊."},
    ],
    "tools": CHAT["tools"],
    "options": {
        "num_predict": 5,
        **{name: CHAT[name] for name in ("temperature", "top_p", "top_k", "seed", "stop")},
    },
}


def asked_by_chat(body: bytes) -> TextRequest:
    (request,) = openai_chat.parse(body).ask.text_requests(SETTINGS, itertools.count(1))
    return request


def asked_by_responses(body: bytes) -> TextRequest:
    wish = responses_request.parse(body)
    ask = wish.with_items((), wish.own_items({}, "salt"), Limits())
    (request,) = ask.text_requests(SETTINGS, itertools.count(1))
    return request


def asked_by_anthropic(body: bytes) -> TextRequest:
    (request,) = anthropic_request.parse(body).text_requests(SETTINGS, itertools.count(1))
    return request


def asked_by_ollama(body: bytes) -> TextRequest:
    (request,) = ollama_chat.parse(body).text_requests(SETTINGS, itertools.count(1))
    return request


@pytest.mark.parametrize(
    ("asked", "body"),
    [(asked_by_responses, RESPONSES), (asked_by_anthropic, ANTHROPIC), (asked_by_ollama, OLLAMA)],
    ids=["responses", "anthropic", "ollama"],
)
def test_the_same_conversation_is_the_same_request(asked: Callable[[bytes], TextRequest], body: dict[str, Any]) -> None:
    chat = asked_by_chat(json.dumps({"model": "m", **CHAT}).encode())
    other = asked(json.dumps({"model": "m", **body}).encode())
    assert isinstance(chat.prompt, ChatPrompt) and isinstance(other.prompt, ChatPrompt)
    for message, same in zip(other.prompt.messages, chat.prompt.messages, strict=True):
        assert message == same
    assert (other.prompt, other.tools) == (chat.prompt, chat.tools)
    assert (other.sampling, other.max_tokens, other.stop) == (chat.sampling, chat.max_tokens, chat.stop)


def test_results_name_their_functions_in_every_protocol() -> None:
    """Some templates read the name, of which OpenAI's formats have only the call's id."""
    prompt = asked_by_chat(json.dumps({"model": "m", **CHAT}).encode()).prompt
    assert isinstance(prompt, ChatPrompt)
    results = [message.extra for message in prompt.messages if message.role == "tool"]
    assert results == [{"tool_call_id": id, "name": name} for id, name, _ in RESULTS]
