"""Worker to gateway."""

from __future__ import annotations

from typing import Literal

import msgspec

from engines.errors import ContextLengthExceeded, EngineError
from engines.wire.message import Message
from engines.wire.scheduling import CapacityReport, CapacityRow, SchedulingReport

__all__ = [
    "Admitted",
    "Closed",
    "Event",
    "Events",
    "Failed",
    "FinishReason",
    "Finished",
    "GrowRequest",
    "Hello",
    "LoadFailed",
    "LoadProgress",
    "MemoryReport",
    "Ready",
    "ReasoningDelta",
    "Scores",
    "TextDelta",
    "ToGateway",
    "TokenLogprob",
    "ToolCallDelta",
    "ToolCallStarted",
    "TopLogprob",
    "Usage",
    "Vectors",
    "WireError",
    "to_wire",
]

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class WireError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An :class:`~engines.errors.EngineError` on the wire: its code, its sentence, the field at fault.

    ``tokens`` and ``most_tokens`` are a :class:`~engines.errors.ContextLengthExceeded`'s.
    """

    code: str
    message: str
    param: str | None = None
    tokens: int | None = None
    most_tokens: int | None = None


def to_wire(error: EngineError) -> WireError:
    """The wire form of an engine error."""
    wire = WireError(code=error.code, message=error.message, param=error.param)
    if isinstance(error, ContextLengthExceeded):
        wire = msgspec.structs.replace(wire, tokens=error.tokens, most_tokens=error.most_tokens)
    return wire


class Hello(Message, frozen=True):
    """The process is up and its imports are done; no device has been touched yet."""

    pid: int
    imports_s: float = 0.0


class LoadProgress(Message, frozen=True):
    """How far the load is, from 0 to 1; sent at least when it grows by 0.05. Extends the load timeout."""

    fraction: float


class Ready(Message, frozen=True):
    """The model answers. Static bytes are the growth over the reading before the model was built."""

    static_bytes: int
    baseline_bytes: int
    kv_bytes_per_token: int
    context: int  # tokens
    width: int  # rows decoded together at most
    kernels: str  # which kernels compute the quantised products: "portable", "cpu-avx512", "cuda", "simulated", …
    device: str  # "cpu", "gpu"
    load_s: float
    capacity: tuple[CapacityRow, ...] = ()  # for 1, 2, 4, 8, 16 and 32 rows; empty where nothing bounds the KV


class LoadFailed(Message, frozen=True):
    """The model could not be built; the worker exits after this."""

    error: WireError


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one request. ``cached_tokens`` are some of the prompt's, ``reasoning_tokens`` some of the completion's."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One alternative at a token's place. ``raw`` are the token's own, which need not be whole code points."""

    token: int
    raw: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token of the text and how probable the model itself held it, before temperature, filters, penalties and bias.

    ``logprob`` is None for the first token of an echoed prompt. ``top`` is by falling probability, and holds the alternatives
    that were asked for, the token itself among them where it is one.
    """

    token: int
    raw: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()


class Admitted(Message, frozen=True):
    """Prefill of this request begins: it is no longer queued, and never replayed on another worker."""

    request_id: int
    prompt_tokens: int


class TextDelta(Message, frozen=True):
    """Text ready to be sent: whole code points, past every possible stop. ``tokens`` are the answer's that it covers.

    ``logprobs``, where asked for, has one entry a token. An echoed prompt's tokens have entries too, and are not among ``tokens``.
    """

    request_id: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(Message, frozen=True):
    """Text of the model's thinking, without the marks around it."""

    request_id: int
    text: str
    tokens: tuple[int, ...] = ()


class ToolCallStarted(Message, frozen=True):
    """A tool call begins: what comes next with this ``index`` (from 0, in order) are its arguments."""

    request_id: int
    index: int
    id: str
    name: str
    tokens: tuple[int, ...] = ()


class ToolCallDelta(Message, frozen=True):
    """A fragment of a call's arguments; all fragments of a call in a row are one JSON object."""

    request_id: int
    index: int
    arguments: str
    tokens: tuple[int, ...] = ()


class Vectors(Message, frozen=True):
    """The vectors of the inputs from ``first`` (an index into the request's) on, one for each of ``tokens``.

    A large answer comes as several, in order. ``data`` are float32 numbers, little-endian, ``dims`` a vector.
    """

    request_id: int
    first: int
    dims: int
    data: bytes
    tokens: tuple[int, ...]  # of each input, with the prompt and what the tokenizer puts around it


class Scores(Message, frozen=True):
    """The scores of the documents from ``first`` on, one for each of ``tokens``. A large answer comes as several, in order.

    ``raw`` is the model's own number (of a reranker that says yes or no, the difference of the two logits), and
    ``sigmoid`` the same between 0 and 1.
    """

    request_id: int
    first: int
    raw: tuple[float, ...]
    sigmoid: tuple[float, ...]
    tokens: tuple[int, ...]  # of each pair


class Finished(Message, frozen=True):
    """Terminal. ``stop_sequence`` is the stop text that matched, when one did."""

    request_id: int
    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None


class Failed(Message, frozen=True):
    """Terminal: this request failed, others are not affected."""

    request_id: int
    error: WireError
    usage: Usage = Usage()


Event = Admitted | TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | Vectors | Scores | Finished | Failed


class Events(Message, frozen=True):
    """All that one tick brought forth, in order."""

    events: tuple[Event, ...]


class MemoryReport(Message, frozen=True):
    """Measured bytes, each second and at ±5 %.

    ``static`` is what the model holds at rest, ``kv`` what is allocated for rows, ``mlx_cache`` MLX's unused buffers and the
    temporaries of steps, ``peak`` the most there has been.
    """

    static: int
    kv: int
    prompt_cache: int
    mlx_cache: int
    peak: int


class GrowRequest(Message, frozen=True):
    """A request needs this many bytes more than the grant. The last one sent holds; 0 takes it back."""

    bytes: int
    request_id: int


class Closed(Message, frozen=True):
    """State is persisted and the engine stopped; the process exits next."""


ToGateway = (
    Hello
    | LoadProgress
    | Ready
    | LoadFailed
    | Events
    | MemoryReport
    | GrowRequest
    | SchedulingReport
    | CapacityReport
    | Closed
)
