"""The text engine over a GGUF model: requests in, events out. Glue of template, tokenizer, model and batcher."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx

from engines.errors import ContextLengthExceeded, EngineError, EngineFailed, OutOfMemory, RequestError
from engines.gguf import kernels
from engines.interface import EngineInfo
from engines.scheduling.admission import KvAdmission, KvCost
from engines.scheduling.capacity import decode_width, depths
from engines.scheduling.pacing import Pacer
from engines.scheduling.settings import SchedulingSettings
from engines.text.adapt import FusedAttention
from engines.text.batcher import Batcher, LanguageModel
from engines.text.constraints.planner import ConstraintPlanner
from engines.text.constraints.vocabulary import GrammarVocabulary
from engines.text.echo import EchoedPrompt
from engines.text.logprobs import TokenScore
from engines.text.preparation import PreparedText, PromptEncoder, RequestPreparer, Tokenizer
from engines.text.row import (
    Row,
    RowEvent,
    RowFailed,
    RowOutOfMemory,
    RowPrompt,
    RowRead,
    RowRefused,
    RowStarted,
    RowStopped,
    RowToken,
)
from engines.text.scheduling_report import scheduling_report
from engines.text.sequence import TextSequence
from engines.wire import (
    Admitted,
    CapacityRow,
    Event,
    Failed,
    Finished,
    FinishReason,
    GrowRequest,
    MemoryReport,
    SchedulingReport,
    TextRequest,
    TokenLogprob,
    TopLogprob,
    to_wire,
)

__all__ = ["GgufTextEngine"]

log = logging.getLogger(__name__)

_TRANSIENT_SHARE = (
    1 / 8
)  # of the grant at most is kept for a step's temporaries: MLX's buffers are held within the rest


class GgufTextEngine:
    """A :class:`engines.interface.TextEngine`.

    Errors of one request end that request. After a memory error all go on from what they have said. Any other error of the
    model's forward pass ends all of them (``Failed``), and the next step raises EngineFailed.

    Args:
        model: the mlx-lm model.
        tokenizer: of the same checkpoint.
        chat: a chat prompt to token ids, by the model's template.
        eos_ids: every token that ends an answer.
        info: what is announced; its context is obeyed, and its width as far as the grant holds so many rows.
        kv_cost: what a row's caches take.
        grant_bytes: what KV may hold; None: no bound.
        scheduling: what an operator has set.
        transient_bytes: what a step takes beside the KV while it runs.
        pass_bytes: what a decode step reads however few rows it has; None: not known.
        runs_ahead: False where the model's kernels compute in the call (see :class:`Batcher`).
        device_headroom: bytes that the device has left; None where it does not say.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        chat: PromptEncoder,
        eos_ids: frozenset[int],
        info: EngineInfo,
        kv_cost: KvCost,
        grant_bytes: int | None = None,
        *,
        scheduling: SchedulingSettings | None = None,
        transient_bytes: int = 0,
        pass_bytes: int | None = None,
        runs_ahead: bool = True,
        device_headroom: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._attention = FusedAttention()
        self._attention.open()
        self._most_width = info.width
        self._kv_cost = kv_cost
        self._transient_bytes = transient_bytes
        scheduling = scheduling or SchedulingSettings()
        self._info = info
        self._info = replace(info, width=self._width(grant_bytes))
        self._tokenizer = tokenizer
        planner = ConstraintPlanner(GrammarVocabulary(tokenizer, eos_ids))
        self._preparer = RequestPreparer(tokenizer, chat, planner, info.context)
        self._batcher = Batcher(
            model,
            width=self._info.width,
            eos_ids=eos_ids,
            admission=KvAdmission(kv_cost, grant_bytes, self._transient(grant_bytes)),
            pacer=Pacer(scheduling),
            defer_ceiling_s=scheduling.defer_ceiling_s,
            pass_bytes=pass_bytes,
            measures_cost=True,
            runs_ahead=runs_ahead,
            device_headroom=device_headroom,
        )
        self._sequences: dict[int, TextSequence] = {}
        self._ended: list[Event] = []  # events that the next step answers, and nothing else: the last ones of requests
        self._failure: EngineFailed | None = None

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def capacity(self) -> tuple[CapacityRow, ...]:
        """What the grant holds."""
        grant = self._batcher.admission.grant_bytes
        if grant is None:
            return ()
        return tuple(CapacityRow(*depth) for depth in depths(self._kv_cost, grant, self._info.context))

    def scheduling(self) -> SchedulingReport:
        return scheduling_report(self._batcher)

    @property
    def busy(self) -> bool:
        return bool(self._ended) or self._batcher.busy or self._failure is not None

    # --- any thread ---

    def prepare(self, request: TextRequest) -> PreparedText:
        """Template, tokenise, check (:class:`RequestPreparer`)."""
        return self._preparer.prepare(request)

    # --- device thread ---

    def submit(self, request_id: int, prepared: PreparedText) -> None:
        """Queues a prepared request. One that asks for nothing but its prompt is answered by the next step."""
        sequence = TextSequence(
            request_id,
            len(prepared.tokens),
            self._tokenizer.detokenizer(keep_leading_space=prepared.continues, shown=prepared.shown),
            prepared.stop,
            prepared.parser(),
            one_call=prepared.one_call,
        )
        scores_prompt = prepared.echo is not None and prepared.sampling.logprobs is not None
        if prepared.echo is not None:
            sequence.echo = EchoedPrompt(
                request_id,
                prepared.echo,
                prepared.tokens,
                self._tokenizer.detokenizer(),
                waits_for_scores=scores_prompt,
            )
        self._sequences[request_id] = sequence
        if prepared.max_tokens == 0 and not scores_prompt:
            self._ended += self._start(sequence, 0) + self._finish(sequence, "length")
            return
        self._batcher.submit(
            Row(
                id=request_id,
                tokens=prepared.tokens,
                max_tokens=prepared.max_tokens,
                least_tokens=prepared.least_tokens,
                expected_tokens=prepared.expected_tokens,
                sampling=prepared.sampling,
                constraint=prepared.constraint,
                siblings=prepared.siblings,
                scores_prompt=scores_prompt,
                priority=prepared.priority,
            )
        )

    def cancel(self, request_id: int) -> None:
        """Ends this request now; the next step answers its terminal event, and does nothing else before."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._batcher.cancel(request_id)
            self._ended += self._finish(sequence, "cancelled")

    def step(self) -> list[Event]:
        """One tick. Raises EngineFailed in the step after the one that answered ``Failed`` to every request."""
        if self._ended:
            events, self._ended = self._ended, []
            return events
        if self._failure is not None:
            raise self._failure
        try:
            row_events = self._batcher.step()
        except Exception as error:  # whatever the forward pass raises, every row depends on it
            log.exception("the forward pass failed")
            return self._fail_all(error)
        self._bound_cache()
        events = []
        for row_event in row_events:
            events += self._answer(row_event)
        return events

    def _bound_cache(self) -> None:
        """MLX's unused buffers count in the grant too, beside the KV."""
        grant = self._batcher.admission.grant_bytes
        if grant is not None and self._batcher.kv_bytes + mx.get_cache_memory() > grant:
            mx.clear_cache()

    def set_cores(self, cores: int) -> None:
        """This worker's share of the CPU cores."""
        kernels.set_cores(cores)

    def set_grant(self, grant_bytes: int) -> None:
        """Holds for rows that run too: the youngest give way, and start again when there is room."""
        self._info = replace(self._info, width=self._width(grant_bytes))
        reception = self._batcher.reception
        reception.set_grant(grant_bytes, self._transient(grant_bytes))
        reception.width = self._info.width

    def _width(self, grant_bytes: int | None) -> int:
        return decode_width(self._kv_cost, grant_bytes, self._info.context, self._most_width)

    def _transient(self, grant_bytes: int | None) -> int:
        return 0 if grant_bytes is None else min(self._transient_bytes, int(grant_bytes * _TRANSIENT_SHARE))

    def growth(self) -> GrowRequest | None:
        growth = self._batcher.growth()
        return None if growth is None else GrowRequest(request_id=growth[0], bytes=growth[1])

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        """A request that has begun ends with ``length`` where the grant ends; one that has not fails, unless it can do with so
        much."""
        for event in self._batcher.deny_growth(request_id, most_bytes):
            self._ended += self._answer(event)

    def shed(self, byte_count: int) -> None:
        """A prompt that is kept for siblings goes, and MLX's own unused buffers: there are no other caches yet."""
        self._batcher.watch.shed()

    def memory(self) -> MemoryReport:
        return MemoryReport(
            static=0,
            kv=self._batcher.kv_bytes,
            prompt_cache=0,
            mlx_cache=mx.get_cache_memory(),
            peak=mx.get_peak_memory(),
        )

    def close(self) -> None:
        """Ends what runs as cancelled (the next step answers it) and lets the caches go."""
        for request_id in list(self._sequences):
            self.cancel(request_id)
        self._batcher.clear()
        self._attention.close()
        mx.clear_cache()

    # --- events ---

    def _answer(self, event: RowEvent) -> list[Event]:
        """The events of one row's event. What goes wrong with one row's text ends only that row."""
        sequence = self._sequences.get(event.id)
        if sequence is None:  # ended by an earlier event of the same tick
            return []
        try:
            match event:
                case RowStarted(cached_tokens=cached_tokens):
                    return self._start(sequence, cached_tokens)
                case RowPrompt():
                    return self._report_prompt(sequence, event)
                case RowRead():
                    return self._finish(sequence, "length")
                case RowToken():
                    return self._advance(sequence, event)
                case RowStopped():
                    sequence.end()
                    return self._finish(sequence, "length")
                case RowFailed(reason=reason):
                    return self._fail(sequence, RequestError(f"The answer was broken off: {reason}."))
                case RowOutOfMemory():
                    return self._fail(sequence, _out_of_memory(event))
                case RowRefused():
                    return self._fail(sequence, _too_long_for_grant(event))
        except Exception as error:
            log.exception("request %d failed", sequence.request_id)
            self._batcher.cancel(sequence.request_id)
            return self._fail(sequence, EngineError(f"This request failed in the engine: {_describe(error)}"))

    def _start(self, sequence: TextSequence, cached_tokens: int) -> list[Event]:
        if sequence.admitted:
            return []
        sequence.admitted = True
        sequence.cached_tokens = cached_tokens
        events: list[Event] = [Admitted(request_id=sequence.request_id, prompt_tokens=sequence.prompt_tokens)]
        if sequence.echo is not None and not sequence.echo.waits_for_scores:
            events.append(sequence.echo.whole())
        return events

    def _report_prompt(self, sequence: TextSequence, event: RowPrompt) -> list[Event]:
        assert sequence.echo is not None
        tokens = sequence.echo.tokens[event.start : event.start + len(event.scores)]
        entries = [self._logprob(token, score) for token, score in zip(tokens, event.scores, strict=True)]
        delta = sequence.echo.scored(event.start, entries)
        return [] if delta is None else [delta]

    def _advance(self, sequence: TextSequence, event: RowToken) -> list[Event]:
        if event.finish == "stop":
            sequence.end(event.token)
            return self._finish(sequence, sequence.reason)
        sequence.push(event.token, None if event.score is None else self._logprob(event.token, event.score))
        if sequence.over:
            self._batcher.cancel(sequence.request_id)
            return self._finish(sequence, sequence.reason)
        if event.finish == "length":
            sequence.end()
            return self._finish(sequence, "length")
        return [*sequence.take()]

    def _logprob(self, token: int, score: TokenScore | None) -> TokenLogprob:
        """As the wire has it. A model may have more logits than its vocabulary has tokens."""
        raw, vocabulary = self._tokenizer.token_bytes, self._tokenizer.vocab_size
        if score is None:
            return TokenLogprob(token, raw(token), None)
        top = tuple(TopLogprob(id, raw(id), logprob) for id, logprob in score.top if id < vocabulary)
        return TokenLogprob(token, raw(token), score.logprob, top)

    def _finish(self, sequence: TextSequence, reason: FinishReason) -> list[Event]:
        """The last deltas and the terminal event. Text that completed a stop string at its very end stopped by it."""
        events: list[Event] = []
        if reason != "cancelled":
            if sequence.over:
                reason = sequence.reason
            events += sequence.take()
        del self._sequences[sequence.request_id]
        events.append(
            Finished(
                request_id=sequence.request_id,
                reason=reason,
                usage=sequence.usage,
                stop_sequence=sequence.stop_sequence,
            )
        )
        return events

    def _fail(self, sequence: TextSequence, error: EngineError) -> list[Event]:
        self._sequences.pop(sequence.request_id, None)
        return [Failed(request_id=sequence.request_id, error=to_wire(error), usage=sequence.usage)]

    def _fail_all(self, error: Exception) -> list[Event]:
        self._failure = EngineFailed(f"The model's forward pass failed: {_describe(error)}")
        self._batcher.clear()
        return [event for s in list(self._sequences.values()) for event in self._fail(s, self._failure)]


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _out_of_memory(event: RowOutOfMemory) -> OutOfMemory:
    return OutOfMemory(
        f"Memory ran out over this request, which had come to {event.held_tokens} tokens, after other requests had given way. "
        "Try again later, shorten the prompt, or lower the model's kv_grant or context."
    )


def _too_long_for_grant(event: RowRefused) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"Prompt and answer need {event.needed_tokens} tokens of KV cache; the memory that this model can be granted holds "
        f"{event.granted_tokens}. Ask for fewer max_tokens, shorten the prompt, or raise the memory budget.",
        tokens=event.needed_tokens,
        most_tokens=event.granted_tokens,
    )
