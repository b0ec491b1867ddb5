"""What OpenAI's two text formats share: the options of streams, their events and end, usage, the frame of a body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engines.wire import Usage
from gateway.errors import GatewayError, InvalidRequest
from gateway.protocols.completion import AnswerHead, Completion, total_usage
from gateway.protocols.envelopes import openai_error
from gateway.protocols.options import read_boolean, read_object, shown
from gateway.protocols.piece import EndPiece, Piece

__all__ = ["OpenAIStream", "StreamOptions", "encode_body", "read_stream_options"]

_DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether an answer is streamed, and whether it ends with the usage. ``ignored`` names the hints beside that."""

    wanted: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()


def read_stream_options(options: Mapping[str, Any]) -> StreamOptions:
    """``stream``, and ``stream_options`` which is allowed only beside it. InvalidRequest names the field."""
    wanted = read_boolean(options, "stream") or False
    beside = read_object(options, "stream_options", ("include_usage", "include_obfuscation"))
    if beside and not wanted:
        raise InvalidRequest("stream_options is allowed only when stream is true", param="stream_options")
    for name, value in beside.items():
        if not isinstance(value, bool | None):
            field = f"stream_options.{name}"
            raise InvalidRequest(f"{field} is {shown(value)}; it must be true or false", param=field)
    # Obfuscation hides the lengths of tokens from who watches an encrypted line; padding cannot change the text.
    ignored = ("stream_options.include_obfuscation",) if beside.get("include_obfuscation") else ()
    return StreamOptions(wanted, beside.get("include_usage") or False, ignored)


class OpenAIStream(ABC):
    """A streamed answer. A subclass says what the choice of a chunk looks like.

    With ``include_usage`` every chunk has ``usage: null``, and one more with the counts and no choices comes last.
    ``siblings``: how many choices each prompt has.
    """

    media_type = "text/event-stream; charset=utf-8"
    keepalive = b": keep-alive\n\n"
    object_name: str

    def __init__(self, head: AnswerHead, *, include_usage: bool = False, siblings: int = 1) -> None:
        self._head = _head_object(head, self.object_name)
        # Every event of a piece is the same but for its one choice, so what stands around that is encoded once.
        head_bytes = _encode(self._head).removesuffix(b"}")
        self._before = b'data: %b,"choices":[' % head_bytes
        self._after = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._include_usage = include_usage
        self._siblings = siblings
        self._usages: dict[int, Usage] = {}

    @abstractmethod
    def _choices(self, piece: Piece) -> list[dict[str, Any]]:
        """The choices of the chunks that carry this piece, one a chunk."""

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """Events of these pieces."""
        parts: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, EndPiece):
                self._usages[piece.index] = piece.finish.usage
            for choice in self._choices(piece):
                parts += (self._before, _encode(choice), self._after)
        return b"".join(parts)

    def end(self) -> bytes:
        """The usage chunk, where asked for, and the end marker."""
        if not self._include_usage:
            return _DONE
        usage = _usage_object(total_usage(self._usages, self._siblings))
        return _event({**self._head, "choices": [], "usage": usage}) + _DONE

    def failure(self, error: GatewayError) -> bytes:
        """The error as an event, then the end marker."""
        return _event(openai_error(error)) + _DONE


def encode_body(
    head: AnswerHead,
    object_name: str,
    choices: Sequence[dict[str, Any]],
    completions: Sequence[Completion],
    siblings: int = 1,
) -> bytes:
    """An unstreamed answer with these choices, and the usage of all completions that were made, ``siblings`` of each prompt."""
    usages = {completion.index: completion.finish.usage for completion in completions}
    usage = _usage_object(total_usage(usages, siblings))
    return _encode({**_head_object(head, object_name), "choices": choices, "usage": usage})


def _head_object(head: AnswerHead, object_name: str) -> dict[str, Any]:
    """What is the same in every chunk of an answer, and in a body."""
    return {
        "id": head.id,
        "object": object_name,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(body)


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
