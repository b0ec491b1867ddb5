"""What crosses the socket between gateway and worker: frozen msgspec Structs, encoded as msgpack.

A frame is a 4-byte big-endian length followed by one msgpack map, at most :data:`MAX_FRAME_BYTES`. Every Struct is tagged
with its class name. Two unions say who may send what:

- :data:`ToWorker`: ``LoadModel``, ``Submit``, ``Cancel``, ``Chunk``, ``SetGrant``, ``DenyGrowth``, ``Shed``, ``SetCores``,
  ``Close``
- :data:`ToGateway`: ``Hello``, ``LoadProgress``, ``Ready``, ``LoadFailed``, ``Events``, ``MemoryReport``,
  ``GrowRequest``, ``Closed``

Life of a worker: ``Hello`` (imports done) → ``LoadModel`` → ``LoadProgress``… → ``Ready`` or ``LoadFailed`` → any number
of ``Submit`` / ``Cancel`` / ``Events`` → ``Close`` → ``Closed`` → end of file and process exit.

Life of a request: ``Submit`` → ``Admitted`` (prefill begins) → ``TextDelta``… → exactly one *terminal* event: ``Finished``
or ``Failed``. A cancelled request ends with ``Finished(reason="cancelled")``. Nothing follows a terminal event. One
``Events`` frame a decode tick carries the events of every row. Request ids are per connection, 64-bit, never reused.

Growth: a request that the grant could not hold even alone waits in the worker, which asks with ``GrowRequest``. The answer is
``SetGrant``, at once or when bytes come free; ``DenyGrowth`` when no grant could ever be so large; until then none, and
nothing is asked twice.

Bytes larger than a frame (audio, images) travel before their ``Submit`` as ``Chunk`` frames of the same request id, numbered
from 0; control frames may come between them. Sizes are in bytes and times in seconds throughout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from engines.errors import EngineError

__all__ = [
    "CHUNK_BYTES",
    "MAX_FRAME_BYTES",
    "REQUEST_BLOB",
    "Admitted",
    "Cancel",
    "ChatMessage",
    "ChatPrompt",
    "Chunk",
    "Close",
    "Closed",
    "DenyGrowth",
    "Event",
    "Events",
    "Failed",
    "FinishReason",
    "Finished",
    "FrameDecoder",
    "FrameError",
    "GrowRequest",
    "Hello",
    "LoadFailed",
    "LoadModel",
    "LoadProgress",
    "MemoryReport",
    "ModelSpec",
    "Ready",
    "Sampling",
    "SetCores",
    "SetGrant",
    "Shed",
    "SimulateSpec",
    "Submit",
    "Task",
    "TextDelta",
    "TextPrompt",
    "TextRequest",
    "ToGateway",
    "ToWorker",
    "TokenPrompt",
    "Usage",
    "WireError",
    "decode_request",
    "decode_to_gateway",
    "decode_to_worker",
    "encode_frame",
    "events_frames",
    "submit_frames",
    "to_wire",
]

MAX_FRAME_BYTES = 256 * 1024
CHUNK_BYTES = 192 * 1024
REQUEST_BLOB = 0  # the request's own msgpack body; 1 and up are its media, in order

Task = Literal["text", "vision", "embedding", "rerank", "stt", "tts"]
FinishReason = Literal["stop", "length", "cancelled"]


class FrameError(Exception):
    """The peer sent something that is not a frame: too long, not msgpack, or of no known type."""


class _Wire(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    pass


class WireError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An :class:`~engines.errors.EngineError` on the wire: its code, its sentence, the field at fault."""

    code: str
    message: str
    param: str | None = None


def to_wire(error: EngineError) -> WireError:
    """The wire form of an engine error."""
    return WireError(code=error.code, message=error.message, param=error.param)


# --- what to load ---------------------------------------------------------------------------------------------------


class SimulateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The ``simulate`` mapping of a registry entry, resolved to bytes and seconds (see ``engines/simulated.py``)."""

    weights_bytes: int
    kv_bytes_per_token: int = 0
    load_s: float = 0.0
    ttft_s: float = 0.0
    tokens_per_s: float = 0.0  # 0: as fast as it goes
    fail_load: str | None = None
    abort_after_tokens: int | None = None  # counted per worker
    abort_times: int | None = None  # None: every time
    hang_after_tokens: int | None = None
    hold_memory_s: float = 0.0


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to build one resident: files and load parameters; no request settings."""

    id: str
    task: Task
    format: Literal["gguf", "safetensors", "sim"]
    paths: tuple[str, ...]  # absolute; for a split GGUF all of its parts, in order; empty for sim
    context: int | None = None  # tokens; None: what the checkpoint says
    concurrency: int | None = None  # rows decoded together; None: the engine's choice
    kv_bits: int | None = None
    dtype: str | None = None  # compute dtype; None: float32 on CPU, the checkpoint's elsewhere
    adapter: str | None = None
    mmproj: str | None = None
    simulate: SimulateSpec | None = None


# --- requests -------------------------------------------------------------------------------------------------------


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a chat, as the template will see it.

    ``content`` is the text (parts already joined); ``extra`` carries what templates read beside it (``tool_calls``,
    ``tool_call_id``, ``name``, ``reasoning_content``) in the OpenAI shape.
    """

    role: str
    content: str | None
    extra: dict[str, Any] = {}


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat", kw_only=True, omit_defaults=True):
    """Messages for the model's chat template. ``template`` replaces the checkpoint's own."""

    messages: tuple[ChatMessage, ...]
    template: str | None = None
    template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True  # False with a trailing assistant message: that message is continued


class TextPrompt(msgspec.Struct, frozen=True, tag="text", kw_only=True):
    """Plain text, tokenised with the BOS rule of the tokenizer; special tokens in it are plain text."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens", kw_only=True):
    """Token ids, used as they are."""

    tokens: tuple[int, ...]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is drawn. ``temperature`` 0 is greedy. Ranges are checked by the protocol parsers."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None  # None: the worker draws one


class TextRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completion of one prompt. ``stop`` matches text, over any token split."""

    prompt: ChatPrompt | TextPrompt | TokenPrompt
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  # None: to the end of the context
    stop: tuple[str, ...] = ()


# --- gateway to worker ----------------------------------------------------------------------------------------------


class LoadModel(_Wire, frozen=True):
    """Build this model. ``grant_bytes`` bounds KV and caches; ``cores`` is this worker's share of the CPU."""

    spec: ModelSpec
    grant_bytes: int | None = None
    cores: int | None = None


class Submit(_Wire, frozen=True):
    """Serve this request.

    A request too large for one frame is sent as ``REQUEST_BLOB`` chunks before (its msgpack body, cut), and ``request`` is
    None.
    """

    request_id: int
    request: TextRequest | None = None


class Cancel(_Wire, frozen=True):
    """Stop this request within one step and answer its terminal event. Unknown and finished ids are ignored."""

    request_id: int


class Chunk(_Wire, frozen=True):
    """Part ``index`` (from 0) of blob ``blob`` of a request that is about to be submitted; at most CHUNK_BYTES of data."""

    request_id: int
    blob: int
    index: int
    last: bool
    data: bytes


class SetGrant(_Wire, frozen=True):
    """From now on KV and caches may hold this many bytes. Unlike the device, the grant is what the worker obeys."""

    grant_bytes: int


class DenyGrowth(_Wire, frozen=True):
    """The answer to a GrowRequest that can never be met: the grant can be no larger than ``most_bytes``.

    The request must do with so much: it asks for less, ends where it is, or fails.
    """

    request_id: int
    most_bytes: int


class Shed(_Wire, frozen=True):
    """Give back at least this many bytes of caches, if there are so many."""

    bytes: int


class SetCores(_Wire, frozen=True):
    """This worker's share of the CPU cores changed."""

    cores: int


class Close(_Wire, frozen=True):
    """Persist what is eligible, stop, answer Closed and exit. Live requests end as cancelled."""


ToWorker = LoadModel | Submit | Cancel | Chunk | SetGrant | DenyGrowth | Shed | SetCores | Close


# --- worker to gateway ----------------------------------------------------------------------------------------------


class Hello(_Wire, frozen=True):
    """The process is up and its imports are done; no device has been touched yet."""

    pid: int
    imports_s: float = 0.0


class LoadProgress(_Wire, frozen=True):
    """How far the load is, from 0 to 1; sent at least when it grows by 0.05. Extends the load timeout."""

    fraction: float


class Ready(_Wire, frozen=True):
    """The model answers. Static bytes are the growth over the reading before the model was built."""

    static_bytes: int
    baseline_bytes: int
    kv_bytes_per_token: int
    context: int  # tokens
    width: int  # rows decoded together at most
    kernels: str  # which kernels compute the quantised products: "portable", "cpu-avx512", "cuda", "simulated", …
    device: str  # "cpu", "gpu"
    load_s: float


class LoadFailed(_Wire, frozen=True):
    """The model could not be built; the worker exits after this."""

    error: WireError


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Admitted(_Wire, frozen=True):
    """Prefill of this request begins: it is no longer queued, and never replayed on another worker."""

    request_id: int
    prompt_tokens: int


class TextDelta(_Wire, frozen=True):
    """Text ready to be sent: whole code points, past every possible stop. ``tokens`` ids are covered by it."""

    request_id: int
    text: str
    tokens: tuple[int, ...] = ()


class Finished(_Wire, frozen=True):
    """Terminal. ``stop_sequence`` is the stop text that matched, when one did."""

    request_id: int
    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None


class Failed(_Wire, frozen=True):
    """Terminal: this request failed, others are not affected."""

    request_id: int
    error: WireError
    usage: Usage = Usage()


Event = Admitted | TextDelta | Finished | Failed


class Events(_Wire, frozen=True):
    """All that one tick brought forth, in order."""

    events: tuple[Event, ...]


class MemoryReport(_Wire, frozen=True):
    """Measured bytes, each second and at ±5 %.

    ``static`` is what the model holds at rest, ``kv`` what is allocated for rows, ``mlx_cache`` MLX's unused buffers and the
    temporaries of steps, ``peak`` the most there has been.
    """

    static: int
    kv: int
    prompt_cache: int
    mlx_cache: int
    peak: int


class GrowRequest(_Wire, frozen=True):
    """A request needs this many bytes more than the grant. The last one sent holds; 0 takes it back."""

    bytes: int
    request_id: int


class Closed(_Wire, frozen=True):
    """State is persisted and the engine stopped; the process exits next."""


ToGateway = Hello | LoadProgress | Ready | LoadFailed | Events | MemoryReport | GrowRequest | Closed


# --- frames ---------------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_to_worker_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_gateway_decoder: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def encode_frame(message: ToWorker | ToGateway) -> bytes:
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


_request_decoder = msgspec.msgpack.Decoder(TextRequest)


def decode_request(body: bytes) -> TextRequest:
    """The request in a reassembled REQUEST_BLOB."""
    try:
        return _request_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a request: {error}") from error


def submit_frames(request_id: int, request: TextRequest) -> list[bytes]:
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
        case TextDelta(text=text, tokens=tokens) if len(text) > 1 or len(tokens) > 1:
            at, cut = len(text) // 2, len(tokens) // 2
            return [
                TextDelta(request_id=event.request_id, text=text[:at], tokens=tokens[:cut]),
                TextDelta(request_id=event.request_id, text=text[at:], tokens=tokens[cut:]),
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
