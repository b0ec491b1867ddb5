"""``priority``, which every text protocol takes under the same name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.wire import TextRequest
from gateway.errors import GatewayError, InvalidRequest
from gateway.protocols import (
    anthropic_request,
    ollama_chat,
    ollama_generate,
    openai_chat,
    openai_completions,
    responses_request,
)
from gateway.registry.catalog import RequestSettings

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
PROTOCOLS: list[tuple[str, Callable[[bytes], Any], dict[str, Any]]] = [
    ("chat", openai_chat.parse, HELLO),
    ("completions", openai_completions.parse, {"prompt": "hello"}),
    ("responses", responses_request.parse, {"input": "hello"}),
    ("messages", anthropic_request.parse, {**HELLO, "max_tokens": 5}),
    ("ollama chat", ollama_chat.parse, HELLO),
    ("ollama generate", ollama_generate.parse, {"prompt": "hello"}),
]
each_protocol = pytest.mark.parametrize(
    ("parse", "body"), [(parse, body) for _, parse, body in PROTOCOLS], ids=[name for name, _, _ in PROTOCOLS]
)


def asked(parse: Callable[[bytes], Any], body: dict[str, Any], settings: RequestSettings) -> TextRequest:
    wish = parse(json.dumps({"model": "m", **body}).encode())
    text_requests = getattr(wish, "text_requests", None) or wish.ask.text_requests
    requests: list[TextRequest] = text_requests(settings, itertools.count(1))
    return requests[0]


@each_protocol
def test_priority_is_the_request_s_else_the_model_s(parse: Callable[[bytes], Any], body: dict[str, Any]) -> None:
    of_model = RequestSettings(priority="batch")
    assert asked(parse, body, of_model).priority == "batch"
    assert asked(parse, {**body, "priority": None}, of_model).priority == "batch"
    for priority in ("interactive", "normal", "batch"):
        assert asked(parse, {**body, "priority": priority}, of_model).priority == priority


@each_protocol
@pytest.mark.parametrize("wrong", ["urgent", "Batch", "", 1, True, ["batch"]])
def test_priority_of_another_name_is_refused_with_the_names(
    parse: Callable[[bytes], Any], body: dict[str, Any], wrong: Any
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps({"model": "m", **body, "priority": wrong}).encode())
    error: GatewayError = caught.value
    assert (error.param, error.status, error.code) == ("priority", 400, "invalid_request_error")
    assert error.message.startswith("priority is ") and "interactive, normal, batch" in error.message
