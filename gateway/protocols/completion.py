"""What formats render: pieces of completions as they come, and whole ones. And what every format can do.

``index`` numbers the completions of one request from 0: those of the first prompt, then those of the next. Completions of one
prompt are *siblings*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Protocol

import msgspec

from engines.wire import Finished, TokenLogprob, Usage
from gateway.errors import GatewayError
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece

__all__ = [
    "AnswerHead",
    "BodyFormat",
    "Call",
    "Completion",
    "Part",
    "StreamFormat",
    "Text",
    "Thought",
    "completions_of",
    "total_usage",
]


@dataclass(frozen=True)
class AnswerHead:
    """What an answer goes by: ``id``, ``created`` (seconds since the epoch), the model's id, and a fingerprint of the model's
    file and load parameters, with which alone a seed means the same text.
    """

    id: str
    created: int
    model: str
    fingerprint: str | None = None


class Text(msgspec.Struct, frozen=True):
    """A run of the answer's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Thought(msgspec.Struct, frozen=True):
    """A run of thinking."""

    text: str


class Call(msgspec.Struct, frozen=True):
    """A tool call. ``arguments`` are a JSON object as text, but for the last call of an answer that ran out of tokens."""

    id: str
    name: str
    arguments: str


Part = Text | Thought | Call


class Completion(msgspec.Struct, frozen=True):
    """All of one: its parts in the order in which the model made them."""

    index: int
    parts: tuple[Part, ...]
    finish: Finished

    @property
    def text(self) -> str:
        """The answer proper."""
        return "".join([part.text for part in self.parts if isinstance(part, Text)])

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Of the answer proper, where asked for."""
        return tuple([token for part in self.parts if isinstance(part, Text) for token in part.logprobs])

    @property
    def thought(self) -> str:
        """All thinking."""
        return "".join([part.text for part in self.parts if isinstance(part, Thought)])

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls, in order."""
        return tuple([part for part in self.parts if isinstance(part, Call)])


def completions_of(pieces: Iterable[Piece]) -> list[Completion]:
    """What these pieces of whole completions make up, by index."""
    by_index = groupby(sorted(pieces, key=attrgetter("index")), attrgetter("index"))
    return [_completion(index, list(own)) for index, own in by_index]


def _completion(index: int, pieces: Sequence[Piece]) -> Completion:
    *pieces, end = pieces
    assert isinstance(end, EndPiece)
    parts: list[Part] = []
    for kind, run in groupby(pieces, _kind):
        own = list(run)
        text = "".join([piece.text for piece in own if not isinstance(piece, CallPiece | EndPiece)])
        first = own[0]
        if isinstance(first, CallPiece):
            parts.append(Call(first.id, first.name, text))
        elif kind is ThoughtPiece:
            parts.append(Thought(text))
        else:
            tokens = tuple([token for piece in own if isinstance(piece, TextPiece) for token in piece.logprobs])
            parts.append(Text(text, tokens))
    return Completion(index, tuple(parts), end.finish)


def _kind(piece: Piece) -> object:
    """What neighbours share that belong to one part."""
    return piece.call if isinstance(piece, CallPiece | ArgumentsPiece) else type(piece)


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

    A prompt counts once. What was cached of it is what the sibling that read it found, which is the least that any of them
    found, and whichever it was: that the others share the prompt saves their reading it, and is no cache of an earlier
    request's.
    """
    prompts = {index // siblings: usage.prompt_tokens for index, usage in usages.items()}
    cached: dict[int, int] = {}
    for index, usage in usages.items():
        group = index // siblings
        cached[group] = min(usage.cached_tokens, cached.get(group, usage.cached_tokens))
    return Usage(
        prompt_tokens=sum(prompts.values()),
        completion_tokens=sum(usage.completion_tokens for usage in usages.values()),
        cached_tokens=sum(cached.values()),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages.values()),
    )
