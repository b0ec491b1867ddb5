"""Answers in Anthropic's shape: the events of a stream, and a body.

::

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

Each run of text and of thinking is a block, and so is each call; blocks are numbered from 0. A block of thinking ends with its
signature. ``ping`` may come anywhere; an ``error`` is the last event of its stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engines.wire import Finished, Usage
from gateway.errors import GatewayError
from gateway.protocols.anthropic_thinking import Thoughts, signature_of
from gateway.protocols.completion import AnswerHead, Call, Completion, Part, Text, Thought
from gateway.protocols.envelopes import anthropic_error
from gateway.protocols.partial_json import whole_part
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece

__all__ = ["MessageStream", "render_body", "render_count"]

_encode = msgspec.json.Encoder().encode


class MessageStream:
    """One streamed answer. It begins with the first :meth:`render`, whether there is anything to render or not.

    ``max_tokens`` is what the request allowed.
    """

    media_type = "text/event-stream; charset=utf-8"
    keepalive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(
        self, head: AnswerHead, request_id: str, *, max_tokens: int | None, thoughts: Thoughts = "shown"
    ) -> None:
        self._head = head
        self._request_id = request_id
        self._max_tokens = max_tokens
        self._thoughts = thoughts
        self._prompt_tokens = 0
        self._begun = False
        self._block: type[Piece] | None = None  # what the open block is of
        self._index = -1  # of the open block, or of the last one
        self._thought: list[str] = []  # of the open block

    def admitted(self, prompt_tokens: int) -> None:
        """The prompt has so many tokens; what begins before this was known says 0, and the end says it again."""
        self._prompt_tokens = prompt_tokens

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """The events of these pieces."""
        events: list[bytes] = []
        if not self._begun:
            self._begun = True
            message = _message(self._head, [], None, Usage(prompt_tokens=self._prompt_tokens), None)
            events.append(_event("message_start", message=message))
        for piece in pieces:
            self._add(piece, events)
        return b"".join(events)

    def end(self) -> bytes:
        """The last event."""
        return _event("message_stop")

    def failure(self, error: GatewayError) -> bytes:
        """The error, which nothing follows."""
        return b"event: error\ndata: %b\n\n" % _encode(anthropic_error(error, self._request_id))

    def _add(self, piece: Piece, events: list[bytes]) -> None:
        match piece:
            case TextPiece():
                if piece.text:
                    self._open(TextPiece, {"type": "text", "text": ""}, events)
                    events.append(self._delta("text_delta", "text", piece.text))
            case ThoughtPiece() if self._thoughts != "hidden":
                self._open(ThoughtPiece, {"type": "thinking", "thinking": "", "signature": ""}, events)
                self._thought.append(piece.text)
                if self._thoughts == "shown":
                    events.append(self._delta("thinking_delta", "thinking", piece.text))
            case CallPiece():
                self._close(events)
                self._open(CallPiece, {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}, events)
            case ArgumentsPiece():
                events.append(self._delta("input_json_delta", "partial_json", piece.text))
            case EndPiece():
                self._close(events)
                reason, stop = _stop(piece.finish, self._max_tokens)
                delta = {"stop_reason": reason, "stop_sequence": stop}
                events.append(_event("message_delta", delta=delta, usage=_usage(piece.finish.usage)))

    def _open(self, kind: type[Piece], block: dict[str, Any], events: list[bytes]) -> None:
        if self._block is kind:
            return
        self._close(events)
        self._block = kind
        self._index += 1
        events.append(_event("content_block_start", index=self._index, content_block=block))

    def _close(self, events: list[bytes]) -> None:
        if self._block is None:
            return
        if self._block is ThoughtPiece:
            thought, self._thought = "".join(self._thought), []
            signature = signature_of(thought, shown=self._thoughts == "shown")
            events.append(self._delta("signature_delta", "signature", signature))
        self._block = None
        events.append(_event("content_block_stop", index=self._index))

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, field: text})


def render_body(
    head: AnswerHead, completions: Sequence[Completion], *, max_tokens: int | None, thoughts: Thoughts = "shown"
) -> bytes:
    """The unstreamed answer, of one completion."""
    (completion,) = completions
    content = [block for part in completion.parts if (block := _block(part, thoughts)) is not None]
    reason, stop = _stop(completion.finish, max_tokens)
    return _encode(_message(head, content, reason, completion.finish.usage, stop))


def render_count(prompt_tokens: int) -> bytes:
    """The answer to a request for a count."""
    return _encode({"input_tokens": prompt_tokens})


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def _message(
    head: AnswerHead, content: list[dict[str, Any]], reason: str | None, usage: Usage, stop: str | None
) -> dict[str, Any]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": _usage(usage),
    }


def _block(part: Part, thoughts: Thoughts) -> dict[str, Any] | None:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text} if text else None
        case Thought(text=thought):
            if thoughts == "hidden":
                return None
            shown = thoughts == "shown"
            signature = signature_of(thought, shown=shown)
            return {"type": "thinking", "thinking": thought if shown else "", "signature": signature}
        case Call():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.arguments)}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; of those that broke off, what is whole of them."""
    value = whole_part(arguments)
    return value if isinstance(value, dict) else {}


def _stop(finish: Finished, max_tokens: int | None) -> tuple[str, str | None]:
    """Why it ended, and the stop sequence where one matched.

    1. A call the client should make.
    2. One of ``stop_sequences``.
    3. All of ``max_tokens``; with fewer tokens it was the context, or the memory for it, that was full.
    4. The model's own end.
    """
    if finish.reason == "tool_calls":
        return "tool_use", None
    if finish.stop_sequence is not None:
        return "stop_sequence", finish.stop_sequence
    if finish.reason == "length":
        full = max_tokens is not None and finish.usage.completion_tokens < max_tokens
        return ("model_context_window_exceeded" if full else "max_tokens"), None
    return "end_turn", None


def _usage(usage: Usage) -> dict[str, Any]:
    """Counts; Anthropic's ``input_tokens`` are those that no cache had."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
