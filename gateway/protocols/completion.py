"""What formats render: pieces of completions as they come, and whole ones. And what every format can do.

``index`` numbers the choices of one request from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from engines.wire import Finished, Usage
from gateway.errors import GatewayError

__all__ = ["BodyFormat", "Completion", "Piece", "StreamFormat", "total_usage"]


class Piece(msgspec.Struct, frozen=True):
    """Text that may be sent, and the end of its choice when that is known."""

    index: int
    text: str
    finish: Finished | None = None


class Completion(msgspec.Struct, frozen=True):
    """All of one choice."""

    index: int
    text: str
    finish: Finished


class StreamFormat(Protocol):
    """One streamed answer of a protocol. Holds what depends on what was sent before."""

    @property
    def media_type(self) -> str: ...

    @property
    def keepalive(self) -> bytes:
        """Bytes that every reader of this format skips."""
        ...

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """These pieces, in order."""
        ...

    def end(self) -> bytes:
        """What follows the last piece: usage where it was asked for, then the end marker."""
        ...

    def failure(self, error: GatewayError) -> bytes:
        """The error as an event of the stream, then the end marker."""
        ...


class BodyFormat(Protocol):
    """One unstreamed answer of a protocol."""

    def __call__(self, completions: Sequence[Completion]) -> bytes: ...


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The sum over the choices of a request."""
    prompt = completion = cached = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
