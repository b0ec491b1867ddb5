"""Reading and adding headers in ASGI's form: pairs of bytes, names in lower case."""

from __future__ import annotations

from starlette.types import Message, Scope

__all__ = ["add_headers", "header", "headers"]


def headers(scope: Scope, name: bytes) -> list[str]:
    """Every value of this header, in order."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def header(scope: Scope, name: bytes) -> str | None:
    """The first value of this header."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1").strip()
            return text
    return None


def add_headers(message: Message, *pairs: tuple[bytes, bytes]) -> None:
    """Adds headers to a response that is about to start; other messages are left alone."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message.get("headers", ()), *pairs]
