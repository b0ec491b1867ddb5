"""What formats render: pieces of completions as they come, and whole ones. And what every format can do.

``index`` numbers the completions of one request from 0: those of the first prompt, then those of the next. Completions of one
prompt are *siblings*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from engines.wire import Finished, TokenLogprob, Usage
from gateway.errors import GatewayError

__all__ = ["BodyFormat", "Completion", "Piece", "StreamFormat", "total_usage"]


class Piece(msgspec.Struct, frozen=True):
    """Text that may be sent, the tokens it covers where their log-probabilities were asked for, and the end of its completion
    when that is known.
    """

    index: int
    text: str
    finish: Finished | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Completion(msgspec.Struct, frozen=True):
    """All of one."""

    index: int
    text: str
    finish: Finished
    logprobs: tuple[TokenLogprob, ...] = ()


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


def total_usage(usages: Mapping[int, Usage], siblings: int = 1) -> Usage:
    """The sum over the completions of a request, by index, ``siblings`` of each prompt.

    A prompt counts once. What was cached of it is what its first completion found: that its siblings share the prompt saves
    their reading it, and is no cache of an earlier request's.
    """
    prompt = completion = cached = reasoning = 0
    for index, usage in usages.items():
        completion += usage.completion_tokens
        reasoning += usage.reasoning_tokens
        if index % siblings == 0:
            prompt += usage.prompt_tokens
            cached += usage.cached_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, reasoning_tokens=reasoning)
