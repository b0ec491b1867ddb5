"""Frames: messages to bytes and back, and what is too large for one frame."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from engines.wire.message import Message
from engines.wire.requests import Request
from engines.wire.to_gateway import (
    Event,
    Events,
    Failed,
    ReasoningDelta,
    TextDelta,
    ToGateway,
    ToolCallDelta,
    WireError,
)
from engines.wire.to_worker import Chunk, Submit, ToWorker

__all__ = [
    "CHUNK_BYTES",
    "MAX_FRAME_BYTES",
    "REQUEST_BLOB",
    "FrameDecoder",
    "FrameError",
    "decode_request",
    "decode_to_gateway",
    "decode_to_worker",
    "encode_frame",
    "events_frames",
    "submit_frames",
]

MAX_FRAME_BYTES = 256 * 1024
CHUNK_BYTES = 192 * 1024
REQUEST_BLOB = 0  # the request's own msgpack body; 1 and up are its media, in order


class FrameError(Exception):
    """The peer sent something that is not a frame: too long, not msgpack, or of no known type."""


_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_to_worker_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_gateway_decoder: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def encode_frame(message: Message) -> bytes:
    """One frame, length prefix included. FrameError when it would exceed MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} takes {len(body)} bytes; a frame holds at most {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode_to_worker(body: bytes) -> ToWorker:
    """The message in a frame's body, on the worker's side."""
    try:
        return _to_worker_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a message for a worker: {error}") from error


def decode_to_gateway(body: bytes) -> ToGateway:
    """The message in a frame's body, on the gateway's side."""
    try:
        return _to_gateway_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a message for the gateway: {error}") from error


_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def decode_request(body: bytes) -> Request:
    """The request in a reassembled REQUEST_BLOB."""
    try:
        return _request_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a request: {error}") from error


def submit_frames(request_id: int, request: Request) -> list[bytes]:
    """The frames that submit a request: one, or its chunks and then the Submit."""
    body = _encoder.encode(request)
    if len(body) <= CHUNK_BYTES:
        return [encode_frame(Submit(request_id=request_id, request=request))]
    cuts = range(0, len(body), CHUNK_BYTES)
    chunks = [
        Chunk(
            request_id=request_id, blob=REQUEST_BLOB, index=i, last=i == len(cuts) - 1, data=body[at : at + CHUNK_BYTES]
        )
        for i, at in enumerate(cuts)
    ]
    return [*map(encode_frame, chunks), encode_frame(Submit(request_id=request_id))]


def events_frames(events: Sequence[Event]) -> list[bytes]:
    """The frames that carry one tick's events, in order: one, or more where they exceed MAX_FRAME_BYTES."""
    try:
        return [encode_frame(Events(events=tuple(events)))]
    except FrameError:
        if len(events) > 1:
            middle = len(events) // 2
            return events_frames(events[:middle]) + events_frames(events[middle:])
        return events_frames(_halves(events[0]))


def _halves(event: Event) -> list[Event]:
    """An event too large for a frame of its own, as smaller ones that say the same. FrameError if it has no long text."""
    match event:
        case TextDelta(text=text, tokens=tokens, logprobs=logprobs) if max(map(len, (text, tokens, logprobs))) > 1:
            at, cut, half = len(text) // 2, len(tokens) // 2, len(logprobs) // 2
            return [
                TextDelta(request_id=event.request_id, text=text[:at], tokens=tokens[:cut], logprobs=logprobs[:half]),
                TextDelta(request_id=event.request_id, text=text[at:], tokens=tokens[cut:], logprobs=logprobs[half:]),
            ]
        case ReasoningDelta(text=text, tokens=tokens) if len(text) > 1 or len(tokens) > 1:
            at, cut = len(text) // 2, len(tokens) // 2
            return [
                ReasoningDelta(request_id=event.request_id, text=text[:at], tokens=tokens[:cut]),
                ReasoningDelta(request_id=event.request_id, text=text[at:], tokens=tokens[cut:]),
            ]
        case ToolCallDelta(index=index, arguments=text, tokens=tokens) if len(text) > 1 or len(tokens) > 1:
            at, cut = len(text) // 2, len(tokens) // 2
            return [
                ToolCallDelta(request_id=event.request_id, index=index, arguments=text[:at], tokens=tokens[:cut]),
                ToolCallDelta(request_id=event.request_id, index=index, arguments=text[at:], tokens=tokens[cut:]),
            ]
        case Failed(error=error) if len(error.message) > 1:
            shorter = WireError(code=error.code, message=error.message[: len(error.message) // 2], param=error.param)
            return [Failed(request_id=event.request_id, error=shorter, usage=event.usage)]
        case _:
            raise FrameError(f"one {type(event).__name__} exceeds a frame")


class FrameDecoder:
    """Cuts a byte stream into frame bodies, however the stream was split."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by ``data``. FrameError on a length above MAX_FRAME_BYTES."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes was announced; at most {MAX_FRAME_BYTES} are allowed")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return bodies
