"""Simulated embedding models and rerankers: vectors and scores of the right shape, and no model.

A text has as many tokens as words. Its vector counts its words in :data:`DIMENSIONS` places, so that texts which share words are
nearer; a document's score is the share of the query's words that it has, from -2 to 2. Requests are served one after another;
each takes ``ttft_s`` and then ``1 / tokens_per_s`` a token. Vectors may be cut to fewer dimensions, prompts are not put before
anything, and instructions are refused. Memory, timing and faults are those of :mod:`engines.simulated`, with the tokens of inputs
in the place of tokens of answers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.errors import CheckpointError, ContextLengthExceeded, InvalidField, RequestError
from engines.interface import EngineInfo, ReportProgress
from engines.simulated import UNLIMITED_CONTEXT, Clock, RealClock
from engines.simulated_faults import abort_process, hang_thread
from engines.wire import (
    Admitted,
    EmbedRequest,
    Event,
    Finished,
    GrowRequest,
    LoadModel,
    MemoryReport,
    ScoreRequest,
    Scores,
    SimulateSpec,
    Truncate,
    Usage,
    Vectors,
)

__all__ = ["DIMENSIONS", "SimulatedTextsEngine", "build"]

DIMENSIONS = 32
_LOAD_STEPS = 20
_LONGEST_SLEEP_S = 0.01
_EVENT_INPUTS = 512  # in one event


@dataclass(eq=False)
class _Work:
    request: EmbedRequest | ScoreRequest
    inputs: list[list[str]]  # words; of a pair the query's, a separator and the document's
    request_id: int = 0
    due: float | None = None  # when it is done; None: not begun
    cancelled: bool = False

    @property
    def tokens(self) -> int:
        return sum(map(len, self.inputs))


def build(load: LoadModel, report: ReportProgress, clock: Clock | None = None) -> SimulatedTextsEngine:
    """Lasts ``load_s``, reporting as it goes. CheckpointError when the entry says ``fail_load``."""
    spec = load.spec
    simulate = spec.simulate or SimulateSpec(weights_bytes=0)
    clock = clock or RealClock()
    for done in range(_LOAD_STEPS if simulate.load_s > 0 else 0):
        clock.sleep(simulate.load_s / _LOAD_STEPS)
        report((done + 1) / _LOAD_STEPS)
    if simulate.fail_load is not None:
        raise CheckpointError(f"{spec.id}: {simulate.fail_load}")
    return SimulatedTextsEngine(simulate, embeds=spec.task == "embedding", context=spec.context, clock=clock)


class SimulatedTextsEngine:
    """A :class:`engines.interface.EmbeddingEngine` or a :class:`engines.interface.RerankEngine`."""

    prepares_at_once = True

    def __init__(
        self,
        simulate: SimulateSpec,
        *,
        embeds: bool,
        context: int | None,
        clock: Clock,
        abort: Callable[[], None] = abort_process,
        hang: Callable[[], None] = hang_thread,
    ) -> None:
        self._simulate = simulate
        self._embeds = embeds
        self._context = context or UNLIMITED_CONTEXT
        self._clock = clock
        self._abort = abort
        self._hang = hang
        self._queue: list[_Work] = []
        self._served = 0  # tokens, of all requests

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(kv_bytes_per_token=0, context=self._context, width=1, kernels="simulated", device="simulated")

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def prepare(self, request: EmbedRequest | ScoreRequest) -> _Work:
        """ContextLengthExceeded and InvalidField as of a real engine; RequestError for a request of the other kind."""
        if isinstance(request, EmbedRequest) != self._embeds:
            raise RequestError(
                f"This model {'makes vectors of texts' if self._embeds else 'scores documents'}, and nothing else."
            )
        if request.instruction is not None:
            raise InvalidField("this model's prompt takes no instruction", param="instruction")
        if isinstance(request, EmbedRequest):
            dims = request.dimensions
            if dims is not None and not 1 <= dims <= DIMENSIONS:
                raise InvalidField(
                    f"dimensions is {dims}; this model allows from 1 to {DIMENSIONS}", param="dimensions"
                )
            inputs = [
                text.split() if isinstance(text, str) else [f"w{token}" for token in text] for text in request.inputs
            ]
            return _Work(request, [self._fit(words, request.truncate, i, "input") for i, words in enumerate(inputs)])
        if len(request.queries) not in (1, len(request.documents)):
            raise InvalidField("there is one query for all documents, or one for each", param="query")
        queries = request.queries * len(request.documents) if len(request.queries) == 1 else request.queries
        pairs = [
            [*query.split(), "|", *document.split()[: request.document_tokens]]
            for query, document in zip(queries, request.documents, strict=True)
        ]
        return _Work(request, [self._fit(words, request.truncate, i, "documents") for i, words in enumerate(pairs)])

    def submit(self, request_id: int, prepared: _Work) -> None:
        prepared.request_id = request_id
        self._queue.append(prepared)

    def cancel(self, request_id: int) -> None:
        for work in self._queue:
            work.cancelled = work.cancelled or work.request_id == request_id

    def step(self) -> Sequence[Event]:
        """The first request begins, or ends when it is due; until then this waits a little."""
        self._break_down()
        events: list[Event] = [
            Finished(request_id=work.request_id, reason="cancelled", usage=Usage())
            for work in self._queue
            if work.cancelled
        ]
        self._queue = [work for work in self._queue if not work.cancelled]
        if not self._queue:
            return events
        work, now = self._queue[0], self._clock.now()
        if work.due is None:
            speed = self._simulate.tokens_per_s
            work.due = now + self._simulate.ttft_s + (work.tokens / speed if speed > 0 else 0.0)
            return [*events, Admitted(request_id=work.request_id, prompt_tokens=work.tokens)]
        if now < work.due:
            if not events:
                self._clock.sleep(min(work.due - now, _LONGEST_SLEEP_S))
            return events
        self._queue.pop(0)
        self._served += work.tokens
        usage = Usage(prompt_tokens=work.tokens)
        return [*events, *_answers(work), Finished(request_id=work.request_id, reason="stop", usage=usage)]

    def set_grant(self, grant_bytes: int) -> None:
        """Nothing to do: it needs none."""

    def growth(self) -> GrowRequest | None:
        return None

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        """Nothing to do: it never asks."""

    def shed(self, byte_count: int) -> None:
        """Nothing to do: it keeps no caches."""

    def memory(self) -> MemoryReport:
        weights = self._simulate.weights_bytes
        return MemoryReport(static=weights, kv=0, prompt_cache=0, mlx_cache=0, peak=weights)

    def close(self) -> None:
        self._queue.clear()

    def _fit(self, words: list[str], truncate: Truncate, index: int, param: str) -> list[str]:
        most = self._context
        if len(words) <= most:
            return words
        if truncate == "none":
            raise ContextLengthExceeded(
                f"{param} {index} has {len(words)} tokens; this model reads {most} at most.",
                param=param,
                tokens=len(words),
                most_tokens=most,
            )
        return words[-most:] if truncate == "start" else words[:most]

    def _break_down(self) -> None:
        abort_after, hang_after = self._simulate.abort_after_tokens, self._simulate.hang_after_tokens
        if hang_after is not None and self._served >= hang_after:
            self._hang()
        if abort_after is not None and self._served >= abort_after:
            self._abort()


def _answers(work: _Work) -> list[Event]:
    events: list[Event] = []
    for first in range(0, len(work.inputs), _EVENT_INPUTS):
        part = work.inputs[first : first + _EVENT_INPUTS]
        tokens = tuple(map(len, part))
        if isinstance(work.request, EmbedRequest):
            dims = work.request.dimensions or DIMENSIONS
            data = b"".join(_vector(words, dims, work.request.normalize) for words in part)
            events.append(Vectors(request_id=work.request_id, first=first, dims=dims, data=data, tokens=tokens))
        else:
            raw = tuple(map(_score, part))
            sigmoid = tuple(1 / (1 + math.exp(-score)) for score in raw)
            events.append(Scores(request_id=work.request_id, first=first, raw=raw, sigmoid=sigmoid, tokens=tokens))
    return events


def _vector(words: Sequence[str], dims: int, normalize: bool) -> bytes:
    counts = [0.0] * DIMENSIONS
    counts[0] = 0.5  # so that no vector is 0, whatever it is cut to
    for word in words:
        counts[zlib.crc32(word.lower().encode("utf-8", "surrogatepass")) % DIMENSIONS] += 1.0
    counts = counts[:dims]
    length = math.sqrt(sum(count * count for count in counts)) if normalize else 1.0
    return struct.pack(f"<{dims}f", *(count / length for count in counts))


def _score(words: Sequence[str]) -> float:
    at = words.index("|") if "|" in words else len(words)
    query, document = ({word.lower().strip(".,?!") for word in part} for part in (words[:at], words[at + 1 :]))
    return 4.0 * len(query & document) / max(1, len(query)) - 2.0
