"""Errors in each protocol's own shape, and which protocol a path belongs to.

===========  =========================================================================
envelope     body
===========  =========================================================================
OpenAI       ``{"error": {"message", "type", "param", "code"}}``; also of every path that is in no other row
Anthropic    ``{"type": "error", "error": {"type", "message"}, "request_id"}``
Ollama       ``{"error": message}``
plain        the message and a newline, for routes whose answers are text
===========  =========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import ContextExceeded, GatewayError
from gateway.protocols.own_terms import ANTHROPIC, OLLAMA

__all__ = ["Rendered", "anthropic_error", "is_anthropic", "ollama_error", "openai_error", "render"]

_JSON = "application/json"
_PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Rendered:
    """An error as bytes, with the headers that go with it."""

    status: int
    media_type: str
    body: bytes
    headers: dict[str, str]


def render(error: GatewayError, path: str, request_id: str) -> Rendered:
    """The error in the envelope of this path's protocol."""
    media_type, body = _envelope(path)(error, request_id)
    return Rendered(error.status, media_type, body, _headers(error))


def _headers(error: GatewayError) -> dict[str, str]:
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.retry is not None:
        headers["x-should-retry"] = "true" if error.retry else "false"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def openai_error(error: GatewayError) -> dict[str, Any]:
    """OpenAI's error object."""
    return {
        "error": {
            "message": error.message,
            "type": _OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error"),
            "param": error.param,
            "code": error.code,
        }
    }


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _openai(error: GatewayError, _request_id: str) -> tuple[str, bytes]:
    return _JSON, msgspec.json.encode(openai_error(error))


def anthropic_error(error: GatewayError, request_id: str) -> dict[str, Any]:
    """Anthropic's error object. A prompt that is too long is told in its words, by which agents know to shorten theirs."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = ANTHROPIC.message(error)
    if isinstance(error, ContextExceeded) and error.tokens is not None:
        message = f"prompt is too long: {error.tokens} tokens > {error.most_tokens} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def _anthropic(error: GatewayError, request_id: str) -> tuple[str, bytes]:
    return _JSON, msgspec.json.encode(anthropic_error(error, request_id))


def ollama_error(error: GatewayError) -> dict[str, Any]:
    """Ollama's error object."""
    return {"error": OLLAMA.message(error)}


def _ollama(error: GatewayError, _request_id: str) -> tuple[str, bytes]:
    return _JSON, msgspec.json.encode(ollama_error(error))


def _plain(error: GatewayError, _request_id: str) -> tuple[str, bytes]:
    return _PLAIN, f"{error.message}\n".encode()


def is_anthropic(path: str) -> bool:
    """Whether a path is of Anthropic's protocol."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


_Envelope = Callable[[GatewayError, str], tuple[str, bytes]]
_PLAIN_PATHS = frozenset({"/", "/health", "/ready", "/metrics"})


def _envelope(path: str) -> _Envelope:
    if path in _PLAIN_PATHS:
        return _plain
    if path.startswith("/api/"):
        return _ollama
    if is_anthropic(path):
        return _anthropic
    return _openai
