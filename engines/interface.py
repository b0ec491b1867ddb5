"""What a worker asks of an engine. One engine holds one resident model.

Threads: ``build`` (one per engine module) and every method but ``prepare`` are called on the worker's device thread and nowhere
else, since MLX streams belong to threads. ``prepare`` is called on other threads, several at a time, and touches no MLX.

The loop that drives a text engine (``engines/worker.py``) reads like this::

    prepared = engine.prepare(request)          # template, tokenise: any thread; RequestError is the client's answer
    engine.submit(request_id, prepared)         # device thread; queues it
    while engine.busy:
        send(Events(engine.step()))             # admit, prefill a chunk, decode one token a row
        send(engine.growth())                   # when it changed: the grant is too small for a request
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from engines.wire import (
    CapacityRow,
    EmbedRequest,
    Event,
    GrowRequest,
    LoadModel,
    MemoryReport,
    SchedulingReport,
    ScoreRequest,
    TextRequest,
)

__all__ = [
    "BuildEngine",
    "EmbeddingEngine",
    "Engine",
    "EngineInfo",
    "PreparesAtOnce",
    "ReportProgress",
    "RerankEngine",
    "SchedulesRows",
    "ServingEngine",
    "SharesCores",
    "SttEngine",
    "TextEngine",
    "TtsEngine",
]


@dataclass(frozen=True)
class EngineInfo:
    """What is known once a model is built."""

    kv_bytes_per_token: int
    context: int  # tokens
    width: int  # rows decoded together at most, as far as the grant now goes
    kernels: str  # "portable", "cpu-avx512", "cuda", "metal", "simulated"
    device: str  # "cpu" or "gpu"


ReportProgress = Callable[[float], None]
"""Called with a fraction from 0 to 1 as a model is built."""


class BuildEngine(Protocol):
    """An engine module's ``build(load, report)``: makes the resident engine, or raises CheckpointError, MissingExtra,
    BackendError."""

    def __call__(self, load: LoadModel, report: ReportProgress) -> Engine: ...


class Engine(Protocol):
    """What every engine has, whatever its task."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def busy(self) -> bool:
        """True while a step would do something; a request that only a larger grant could help does not count."""
        ...

    def step(self) -> Sequence[Event]:
        """One tick, at most about a second long; the events it brought forth, in order."""
        ...

    def cancel(self, request_id: int) -> None:
        """Ends this request: the next step answers its terminal event. Unknown ids are ignored."""
        ...

    def set_grant(self, grant_bytes: int) -> None:
        """KV and caches may hold this many bytes from now on."""
        ...

    def growth(self) -> GrowRequest | None:
        """What is lacking to the request that the grant could not hold even alone; None where there is none such."""
        ...

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        """The grant will never be larger than this: the request asks for less, or the next step answers its end."""
        ...

    def shed(self, byte_count: int) -> None:
        """Gives back at least this many bytes of caches, if there are so many."""
        ...

    def memory(self) -> MemoryReport:
        """Measured bytes now. ``static`` is filled in by the worker, which took the reading before the build."""
        ...

    def close(self) -> None:
        """Persists what is eligible and lets the model go."""
        ...


@runtime_checkable
class SharesCores(Protocol):
    """An engine whose kernels run on several CPU threads; one without this method keeps its own count."""

    def set_cores(self, cores: int) -> None:
        """This worker's share of the cores from now on. Device thread."""
        ...


@runtime_checkable
class SchedulesRows(Engine, Protocol):
    """An engine that decodes several rows together, and says how. Device thread."""

    @property
    def capacity(self) -> tuple[CapacityRow, ...]:
        """What the grant holds now; empty where nothing bounds the KV."""
        ...

    def scheduling(self) -> SchedulingReport:
        """Of now."""
        ...


class ServingEngine(Engine, Protocol):
    """One that serves requests: each kind says which."""

    def prepare(self, request: Any) -> Any:
        """An opaque value for ``submit``. Any thread. RequestError when the request cannot be served."""
        ...

    def submit(self, request_id: int, prepared: Any) -> None:
        """Queues a prepared request; its events come from ``step``."""
        ...


class TextEngine(ServingEngine, Protocol):
    """Chat and completion. Vision models are text engines too."""

    def prepare(self, request: TextRequest) -> Any:
        """Template and tokenise."""
        ...


@runtime_checkable
class PreparesAtOnce(Protocol):
    """A text engine that says how long ``prepare`` takes; of one without this attribute it may take long."""

    prepares_at_once: bool  # microseconds for a request that fits a frame: it is called where frames are read


class EmbeddingEngine(ServingEngine, Protocol):
    """Texts to vectors."""

    def prepare(self, request: EmbedRequest) -> Any:
        """Prompt and tokenise. ContextLengthExceeded where a text is too long, InvalidField for what the model cannot do."""
        ...


class RerankEngine(ServingEngine, Protocol):
    """A query and documents to scores."""

    def prepare(self, request: ScoreRequest) -> Any:
        """Tokenise the pairs. ContextLengthExceeded where one is too long, InvalidField for what the model cannot do."""
        ...


class SttEngine(Engine, Protocol):
    """Audio to text. Its request and event types come with the engine."""


class TtsEngine(Engine, Protocol):
    """Text to audio. Its request and event types come with the engine."""
