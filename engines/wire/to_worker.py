"""Gateway to worker."""

from __future__ import annotations

from engines.wire.message import Message
from engines.wire.requests import ModelSpec, Request

__all__ = [
    "Cancel",
    "Chunk",
    "Close",
    "DenyGrowth",
    "LoadModel",
    "SetCores",
    "SetGrant",
    "Shed",
    "Submit",
    "ToWorker",
]


class LoadModel(Message, frozen=True):
    """Build this model. ``grant_bytes`` bounds KV and caches; ``cores`` is this worker's share of the CPU."""

    spec: ModelSpec
    grant_bytes: int | None = None
    cores: int | None = None


class Submit(Message, frozen=True):
    """Serve this request.

    A request too large for one frame is sent as ``REQUEST_BLOB`` chunks before (its msgpack body, cut), and ``request`` is
    None.
    """

    request_id: int
    request: Request | None = None


class Cancel(Message, frozen=True):
    """Stop this request within one step and answer its terminal event. Unknown and finished ids are ignored."""

    request_id: int


class Chunk(Message, frozen=True):
    """Part ``index`` (from 0) of blob ``blob`` of a request that is about to be submitted; at most CHUNK_BYTES of data."""

    request_id: int
    blob: int
    index: int
    last: bool
    data: bytes


class SetGrant(Message, frozen=True):
    """From now on KV and caches may hold this many bytes. Unlike the device, the grant is what the worker obeys."""

    grant_bytes: int


class DenyGrowth(Message, frozen=True):
    """The answer to a GrowRequest that can never be met: the grant can be no larger than ``most_bytes``.

    The request must do with so much: it asks for less, ends where it is, or fails.
    """

    request_id: int
    most_bytes: int


class Shed(Message, frozen=True):
    """Give back at least this many bytes of caches, if there are so many."""

    bytes: int


class SetCores(Message, frozen=True):
    """This worker's share of the CPU cores changed."""

    cores: int


class Close(Message, frozen=True):
    """Persist what is eligible, stop, answer Closed and exit. Live requests end as cancelled."""


ToWorker = LoadModel | Submit | Cancel | Chunk | SetGrant | DenyGrowth | Shed | SetCores | Close
