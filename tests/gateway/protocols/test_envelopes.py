"""Every error in every protocol's envelope."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.errors import GatewayError, InvalidApiKey, InvalidRequest, ServerOverloaded, WorkerDied
from gateway.protocols.envelopes import render

OPENAI = {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_request_error"}}
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}, "request_id": "r"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", OPENAI),
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/api/chat", {"error": "no"}),
        ("/admin/status", OPENAI),
        ("/nowhere", OPENAI),
    ],
)
def test_envelope_of_a_path(path: str, body: object) -> None:
    rendered = render(InvalidRequest("no", param="n"), path, "r")
    assert (rendered.status, rendered.media_type) == (400, "application/json")
    assert json.loads(rendered.body) == body


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics"])
def test_envelope_of_text_routes_is_text(path: str) -> None:
    assert render(InvalidRequest("no"), path, "r").body == b"no\n"


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "from_wire"])
@pytest.mark.parametrize("path", ["/v1/x", "/v1/messages", "/api/x", "/health"])
def test_every_error_has_an_answer(name: str, path: str) -> None:
    kind: type[GatewayError] = getattr(errors, name)
    rendered = render(kind("why"), path, "r")
    assert 400 <= rendered.status < 600
    assert b"why" in rendered.body


def test_headers_say_when_and_whether_to_retry() -> None:
    assert render(ServerOverloaded("full", retry_after_s=0.2), "/v1/x", "r").headers == {"retry-after": "1"}
    assert render(ServerOverloaded("full", retry_after_s=2.1), "/v1/x", "r").headers == {"retry-after": "3"}
    assert render(WorkerDied("gone", retry=False), "/v1/x", "r").headers["x-should-retry"] == "false"
    assert render(InvalidApiKey("who"), "/v1/x", "r").headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("name", "anthropic", "ollama"),
    [
        ("response_format", "output_config.format", "format"),
        ("tools[3].function.parameters", "tools[3].input_schema", "tools[3].function.parameters"),
        ("tools[3].function.name", "tools[3].name", "tools[3].function.name"),
        ("reasoning", "thinking", "think"),
        ("reasoning_effort", "output_config.effort", "think"),
        ("stop", "stop_sequences", "options.stop"),
        ("max_tokens", "max_tokens", "options.num_predict"),
        ("messages", "messages", "messages"),
    ],
)
def test_what_a_worker_names_by_chats_options_has_the_protocols_own_name(
    name: str, anthropic: str, ollama: str
) -> None:
    error = InvalidRequest(f"{name}: cannot be", param=name)
    assert json.loads(render(error, "/v1/messages", "r").body)["error"]["message"] == f"{anthropic}: cannot be"
    assert json.loads(render(error, "/api/chat", "r").body)["error"] == f"{ollama}: cannot be"
    assert json.loads(render(error, "/v1/chat/completions", "r").body)["error"]["message"] == f"{name}: cannot be"


def test_a_message_that_does_not_begin_with_the_name_stays() -> None:
    error = InvalidRequest("stop what is stopped", param="suffix")
    assert json.loads(render(error, "/api/chat", "r").body) == {"error": "stop what is stopped"}
    assert json.loads(render(InvalidRequest("stopped", param="stop"), "/api/chat", "r").body) == {"error": "stopped"}
