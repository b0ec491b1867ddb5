"""Between the gateway and its tokenizer process, which turns text into token ids and back for models that need not be loaded.

Two unions say who may send what: :data:`ToTokenizer` and :data:`FromTokenizer`. Life of the process: ``Hello``, then any
number of requests, until the gateway closes the socket. Life of a request: ``Ask`` → exactly one of ``Answered`` and
``Refused``, in any order among requests; after ``Forget`` it may be none. Ids are per connection and never reused.

A request or an answer too large for one frame goes before its ``Ask`` or ``Answered`` as chunks, which then carries None.
"""

from __future__ import annotations

import msgspec

from engines.wire.frames import CHUNK_BYTES, REQUEST_BLOB, FrameError, encode_frame
from engines.wire.message import Message
from engines.wire.requests import ChatPrompt, Reasoning, ToolUse
from engines.wire.to_gateway import Hello, WireError
from engines.wire.to_worker import Chunk

__all__ = [
    "Answered",
    "Ask",
    "DecodeTokens",
    "EncodeChat",
    "EncodeText",
    "Forget",
    "FromTokenizer",
    "Refused",
    "ToTokenizer",
    "TokenizerAnswer",
    "TokenizerRequest",
    "TokenizerSource",
    "answer_frames",
    "ask_frames",
    "decode_answer",
    "decode_from_tokenizer",
    "decode_to_tokenizer",
    "decode_tokenizer_request",
]


class TokenizerSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose tokenizer. ``key`` names the content: another file, or the same one changed, has another key."""

    key: str
    path: str | None  # the GGUF file, or the first part of a split one; None for a simulated model


class EncodeText(msgspec.Struct, frozen=True, tag="text", kw_only=True):
    """Plain text. ``add_special`` puts BOS first where the tokenizer asks for one; ``parse_special`` reads control tokens that
    are spelled out as these tokens."""

    text: str
    add_special: bool
    parse_special: bool


class EncodeChat(msgspec.Struct, frozen=True, tag="chat", kw_only=True):
    """A conversation through the model's template, with its tools, as a worker of this model would read it.

    ``add_special`` False leaves out the BOS that a tokenizer adds to a template which writes none. ``continues`` False
    closes a last message of the assistant's where the prompt has no generation prompt; True leaves it open, as an answer does.
    """

    prompt: ChatPrompt
    add_special: bool
    continues: bool
    tools: ToolUse | None = None
    reasoning: Reasoning = Reasoning()


class DecodeTokens(msgspec.Struct, frozen=True, tag="tokens", kw_only=True):
    """Token ids to their text, control tokens spelled out."""

    tokens: tuple[int, ...]


class TokenizerRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. ``texts`` asks for the tokens as the vocabulary writes them, ``pieces`` for the bytes they stand for."""

    source: TokenizerSource
    what: EncodeText | EncodeChat | DecodeTokens
    texts: bool = False
    pieces: bool = False


class TokenizerAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``tokens`` of what was encoded, or ``text`` of what was decoded; ``texts`` and ``pieces``, one a token, where asked for."""

    tokens: tuple[int, ...] = ()
    text: str = ""
    texts: tuple[str, ...] = ()
    pieces: tuple[bytes, ...] = ()


class Ask(Message, frozen=True):
    """Answer this; the request is None where it came in chunks."""

    request_id: int
    request: TokenizerRequest | None = None


class Forget(Message, frozen=True):
    """Nobody waits for this answer any more. Unknown and answered ids are ignored."""

    request_id: int


class Answered(Message, frozen=True):
    """The answer, None where it came in chunks."""

    request_id: int
    answer: TokenizerAnswer | None = None


class Refused(Message, frozen=True):
    """There is no answer to this request; others are not affected."""

    request_id: int
    error: WireError


ToTokenizer = Ask | Forget | Chunk
FromTokenizer = Hello | Answered | Refused | Chunk

_encoder = msgspec.msgpack.Encoder()
_to_tokenizer: msgspec.msgpack.Decoder[ToTokenizer] = msgspec.msgpack.Decoder(ToTokenizer)
_from_tokenizer: msgspec.msgpack.Decoder[FromTokenizer] = msgspec.msgpack.Decoder(FromTokenizer)
_request = msgspec.msgpack.Decoder(TokenizerRequest)
_answer = msgspec.msgpack.Decoder(TokenizerAnswer)


def ask_frames(request_id: int, request: TokenizerRequest) -> list[bytes]:
    """The frames that ask: one, or chunks and then the Ask."""
    body = _encoder.encode(request)
    if len(body) <= CHUNK_BYTES:
        return [encode_frame(Ask(request_id=request_id, request=request))]
    return [*_chunks(request_id, body), encode_frame(Ask(request_id=request_id))]


def answer_frames(request_id: int, answer: TokenizerAnswer) -> list[bytes]:
    """The frames that answer: one, or chunks and then the Answered."""
    body = _encoder.encode(answer)
    if len(body) <= CHUNK_BYTES:
        return [encode_frame(Answered(request_id=request_id, answer=answer))]
    return [*_chunks(request_id, body), encode_frame(Answered(request_id=request_id))]


def _chunks(request_id: int, body: bytes) -> list[bytes]:
    cuts = range(0, len(body), CHUNK_BYTES)
    return [
        encode_frame(
            Chunk(
                request_id=request_id,
                blob=REQUEST_BLOB,
                index=index,
                last=index == len(cuts) - 1,
                data=body[at : at + CHUNK_BYTES],
            )
        )
        for index, at in enumerate(cuts)
    ]


def decode_to_tokenizer(body: bytes) -> ToTokenizer:
    """The message in a frame's body, on the process's side."""
    try:
        return _to_tokenizer.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a message for the tokenizer process: {error}") from error


def decode_from_tokenizer(body: bytes) -> FromTokenizer:
    """The message in a frame's body, on the gateway's side."""
    try:
        return _from_tokenizer.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a message from the tokenizer process: {error}") from error


def decode_tokenizer_request(body: bytes) -> TokenizerRequest:
    """The request whose chunks were put together."""
    try:
        return _request.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a request: {error}") from error


def decode_answer(body: bytes) -> TokenizerAnswer:
    """The answer whose chunks were put together."""
    try:
        return _answer.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not an answer: {error}") from error
