"""Answers of ``/api/chat`` and ``/api/generate``: lines of JSON as they come, or one object. They differ in where the text stands.

A stream has a line for each piece and a last one with ``done``, the reason and the times. A call is told when it is whole, with its
arguments as an object; what is left of one that ran out of tokens is told as text, so that nobody takes it for a call.

Source of the shapes: Ollama's API documentation and its Go types ``ChatResponse`` and ``GenerateResponse``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from engines.wire import Finished, TokenLogprob
from gateway.errors import GatewayError
from gateway.protocols.completion import AnswerHead, Call, Completion, Text, Thought
from gateway.protocols.envelopes import ollama_error
from gateway.protocols.ollama_times import AnswerTimes
from gateway.protocols.openai_logprobs import chat_logprobs
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece

__all__ = ["NDJSON", "OllamaStream", "Shape", "render_body", "render_idle", "timestamp"]

NDJSON = "application/x-ndjson"
Shape = Literal["chat", "generate"]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_REASONS = {"length": "length"}  # what else an answer may end for is a stop


def timestamp(seconds: float) -> str:
    """RFC 3339, in UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class OllamaStream:
    """A streamed answer. ``now`` gives seconds since the epoch."""

    media_type = NDJSON
    keepalive = (
        b" "  # before a line's object, where JSON may have it; a line of its own every reader would take for an answer
    )

    def __init__(
        self, head: AnswerHead, shape: Shape, times: AnswerTimes, now: Callable[[], float] = time.time
    ) -> None:
        self._model = head.model
        self._shape = shape
        self._times = times
        self._now = now
        self._call: CallPiece | None = None  # whose arguments are coming
        self._arguments: list[str] = []
        self._calls = 0

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """Lines of these pieces."""
        return b"".join([line for piece in pieces for line in self._lines(piece)])

    def end(self) -> bytes:
        """Nothing: the last piece's line says that it is the last."""
        return b""

    def failure(self, error: GatewayError) -> bytes:
        """The error as a line."""
        return b"%b\n" % _encode(ollama_error(error))

    def _lines(self, piece: Piece) -> list[bytes]:
        if isinstance(piece, ArgumentsPiece):
            self._arguments.append(piece.text)
            return []
        lines = self._whole_call()
        match piece:
            case TextPiece():
                lines.append(self._line(_said(self._shape, text=piece.text), _logprobs(piece.logprobs)))
            case ThoughtPiece():
                lines.append(self._line(_said(self._shape, thought=piece.text)))
            case CallPiece():
                self._call = piece
            case EndPiece():
                lines.append(self._line(_said(self._shape), _ending(piece.finish, self._times)))
        return lines

    def _whole_call(self) -> list[bytes]:
        """The line of the call whose arguments have come."""
        if self._call is None:
            return []
        call = Call(self._call.id, self._call.name, "".join(self._arguments))
        self._call, self._arguments = None, []
        shown = _call(call, self._calls)
        if shown is None:
            return [self._line(_said(self._shape, text=_as_text(call)))]
        self._calls += 1
        return [self._line(_said(self._shape, calls=[shown]))]

    def _line(self, said: Mapping[str, Any], more: Mapping[str, Any] = {}) -> bytes:
        return b"%b\n" % _encode({**_head(self._model, self._now()), **said, "done": False, **more})


def render_body(
    head: AnswerHead,
    completions: Sequence[Completion],
    *,
    shape: Shape,
    times: AnswerTimes,
    now: Callable[[], float] = time.time,
) -> bytes:
    """The unstreamed answer."""
    (completion,) = completions
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in completion.parts:
        match part:
            case Text(text=text):
                texts.append(text)
            case Call() if (shown := _call(part, len(calls))) is not None:
                calls.append(shown)
            case Call():
                texts.append(_as_text(part))
            case Thought():
                pass  # joined below
    said = _said(shape, text="".join(texts), thought=completion.thought, calls=calls)
    ending = _ending(completion.finish, times)
    return _encode({**_head(head.model, now()), **said, **ending, **_logprobs(completion.logprobs)})


def render_idle(model: str, shape: Shape, reason: Literal["load", "unload"], times: AnswerTimes) -> bytes:
    """The answer to a request that has nothing to answer: it loaded the model, or let it go."""
    head = _head(model, time.time())
    return _encode({**head, **_said(shape), "done": True, "done_reason": reason, **times.fields()})


def _head(model: str, seconds: float) -> dict[str, Any]:
    return {"model": model, "created_at": timestamp(seconds)}


def _said(
    shape: Shape, *, text: str = "", thought: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, dict[str, Any] | str]:
    """Where the two formats have text, thinking and calls; the last two only where there are any."""
    beside: dict[str, Any] = {"thinking": thought} if thought else {}
    if shape == "generate":
        return {"response": text, **beside}
    if calls:
        beside["tool_calls"] = calls
    return {"message": {"role": "assistant", "content": text, **beside}}


def _call(call: Call, index: int) -> dict[str, Any] | None:
    """A call with its arguments as an object; None where they are none."""
    try:
        arguments = _decode(call.arguments or "{}")
    except msgspec.MsgspecError:
        return None
    if not isinstance(arguments, dict):
        return None
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}


def _as_text(call: Call) -> str:
    """What has come of a call that broke off."""
    return f'{{"name": {_encode(call.name).decode()}, "arguments": {call.arguments}'


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"logprobs": chat_logprobs(tokens)["content"]} if tokens else {}


def _ending(finish: Finished, times: AnswerTimes) -> dict[str, Any]:
    reason = _REASONS.get(finish.reason, "stop")
    return {"done": True, "done_reason": reason, **times.fields(finish.usage)}
