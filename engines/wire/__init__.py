"""What crosses the socket between gateway and worker: frozen msgspec Structs, encoded as msgpack.

A frame is a 4-byte big-endian length followed by one msgpack map, at most :data:`MAX_FRAME_BYTES`. Every Struct is tagged
with its class name. Two unions say who may send what:

- :data:`ToWorker`: ``LoadModel``, ``Submit``, ``Cancel``, ``Chunk``, ``SetGrant``, ``DenyGrowth``, ``Shed``, ``SetCores``,
  ``Close``
- :data:`ToGateway`: ``Hello``, ``LoadProgress``, ``Ready``, ``LoadFailed``, ``Events``, ``MemoryReport``,
  ``GrowRequest``, ``SchedulingReport``, ``CapacityReport``, ``Closed``

Life of a worker: ``Hello`` (imports done) → ``LoadModel`` → ``LoadProgress``… → ``Ready`` or ``LoadFailed`` → any number
of ``Submit`` / ``Cancel`` / ``Events`` → ``Close`` → ``Closed`` → end of file and process exit.

Life of a request: ``Submit`` → ``Admitted`` (prefill begins) → ``TextDelta``, ``ReasoningDelta``, ``ToolCallStarted`` and
``ToolCallDelta`` as the model makes them → exactly one *terminal* event: ``Finished`` or ``Failed``. A cancelled request ends with
``Finished(reason="cancelled")``. Nothing follows a terminal event. One ``Events`` frame a decode tick carries the
events of every row. Request ids are per connection, 64-bit, never reused.

Growth: a request that the grant could not hold even alone waits in the worker, which asks with ``GrowRequest``. The answer is
``SetGrant``, at once or when bytes come free; ``DenyGrowth`` when no grant could ever be so large; until then none, and
nothing is asked twice.

Bytes larger than a frame (audio, images) travel before their ``Submit`` as ``Chunk`` frames of the same request id, numbered
from 0; control frames may come between them. Sizes are in bytes and times in seconds throughout.

:mod:`engines.wire.tokens` has what is said with the tokenizer process, in the same frames.
"""

from __future__ import annotations

from engines.wire.frames import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    REQUEST_BLOB,
    FrameDecoder,
    FrameError,
    decode_request,
    decode_to_gateway,
    decode_to_worker,
    encode_frame,
    events_frames,
    submit_frames,
)
from engines.wire.requests import (
    ChatMessage,
    ChatPrompt,
    Grammar,
    InfillPrompt,
    ModelSpec,
    Priority,
    Prompt,
    Reasoning,
    Sampling,
    SimulateSpec,
    Task,
    TextPrompt,
    TextRequest,
    TokenPrompt,
    Tool,
    ToolUse,
)
from engines.wire.scheduling import Band, CapacityReport, CapacityRow, PriorityCounts, SchedulingReport
from engines.wire.to_gateway import (
    Admitted,
    Closed,
    Event,
    Events,
    Failed,
    Finished,
    FinishReason,
    GrowRequest,
    Hello,
    LoadFailed,
    LoadProgress,
    MemoryReport,
    Ready,
    ReasoningDelta,
    TextDelta,
    ToGateway,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    TopLogprob,
    Usage,
    WireError,
    to_wire,
)
from engines.wire.to_worker import (
    Cancel,
    Chunk,
    Close,
    DenyGrowth,
    LoadModel,
    SetCores,
    SetGrant,
    Shed,
    Submit,
    ToWorker,
)
from engines.wire.tokens import (
    Answered,
    Ask,
    DecodeTokens,
    EncodeChat,
    EncodeText,
    Forget,
    FromTokenizer,
    Refused,
    TokenizerAnswer,
    TokenizerRequest,
    TokenizerSource,
    ToTokenizer,
    answer_frames,
    ask_frames,
    decode_answer,
    decode_from_tokenizer,
    decode_to_tokenizer,
    decode_tokenizer_request,
)

__all__ = [
    "CHUNK_BYTES",
    "MAX_FRAME_BYTES",
    "REQUEST_BLOB",
    "Admitted",
    "Answered",
    "Ask",
    "Band",
    "Cancel",
    "CapacityReport",
    "CapacityRow",
    "ChatMessage",
    "ChatPrompt",
    "Chunk",
    "Close",
    "Closed",
    "DecodeTokens",
    "DenyGrowth",
    "EncodeChat",
    "EncodeText",
    "Event",
    "Events",
    "Failed",
    "FinishReason",
    "Finished",
    "Forget",
    "FrameDecoder",
    "FrameError",
    "FromTokenizer",
    "Grammar",
    "GrowRequest",
    "Hello",
    "InfillPrompt",
    "LoadFailed",
    "LoadModel",
    "LoadProgress",
    "MemoryReport",
    "ModelSpec",
    "Priority",
    "PriorityCounts",
    "Prompt",
    "Ready",
    "Reasoning",
    "ReasoningDelta",
    "Refused",
    "Sampling",
    "SchedulingReport",
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
    "ToTokenizer",
    "ToWorker",
    "TokenLogprob",
    "TokenPrompt",
    "TokenizerAnswer",
    "TokenizerRequest",
    "TokenizerSource",
    "Tool",
    "ToolCallDelta",
    "ToolCallStarted",
    "ToolUse",
    "TopLogprob",
    "Usage",
    "WireError",
    "answer_frames",
    "ask_frames",
    "decode_answer",
    "decode_from_tokenizer",
    "decode_request",
    "decode_to_gateway",
    "decode_to_tokenizer",
    "decode_to_worker",
    "decode_tokenizer_request",
    "encode_frame",
    "events_frames",
    "submit_frames",
    "to_wire",
]
