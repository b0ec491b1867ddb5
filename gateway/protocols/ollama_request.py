"""A request of ``/api/chat`` or ``/api/generate``, whichever it came by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from engines.wire import InfillPrompt, Reasoning, TextPrompt, TextRequest
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.completion import AnswerHead, BodyFormat
from gateway.protocols.ollama_answer import OllamaStream, Shape, render_body
from gateway.protocols.ollama_times import AnswerTimes
from gateway.protocols.text_options import text_requests
from gateway.registry.catalog import RequestSettings

__all__ = ["OllamaRequest"]

_AS_IT_COMES = Reasoning(split=False)  # without a template nobody knows how its model marks thinking


class OllamaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request.

    Attributes:
        ask: what is asked of the model; without messages nothing, but that it be loaded or let go.
        prompt: what is asked in place of the messages, past the template.
        shape: of the answer.
        stream: whether it is streamed.
        keep_alive_s: how long the model is to stay after it; None: as it would.
        context: tokens of context that the client counts on.
    """

    ask: ChatAsk
    prompt: TextPrompt | InfillPrompt | None = None
    shape: Shape
    stream: bool = True
    keep_alive_s: float | None = None
    context: int | None = None

    @property
    def idle(self) -> bool:
        """Nothing is to be answered."""
        return self.prompt is None and not self.ask.messages

    @property
    def unloads(self) -> bool:
        """Nothing is to be answered, and the model may go."""
        return self.idle and self.keep_alive_s == 0

    def text_requests(self, settings: RequestSettings, siblings: Iterator[int]) -> list[TextRequest]:
        """What the worker is asked. ``num_predict`` is a bound: the answer may end before it where the context does."""
        ask = self.ask
        if self.prompt is None:
            requests = ask.text_requests(settings, siblings)
            # A level is a wish, as "think" alone is not: models that only know whether to think do so.
            lenient = ask.reasoning.effort is not None
            return [
                msgspec.structs.replace(request, reasoning=msgspec.structs.replace(request.reasoning, lenient=lenient))
                for request in requests
            ]
        return text_requests(
            self.prompt,
            ask.options,
            settings,
            choices=1,
            siblings=siblings,
            logprobs=ask.logprobs,
            clamp=True,
            grammar=ask.grammar,
            reasoning=_AS_IT_COMES,
        )

    def stream_format(
        self, head: AnswerHead, times: AnswerTimes, now: Callable[[], float] = time.time
    ) -> OllamaStream | None:
        """How the answer is streamed, None where it is not. ``now`` gives seconds since the epoch."""
        return OllamaStream(head, self.shape, times, now) if self.stream else None

    def body_format(self, head: AnswerHead, times: AnswerTimes, now: Callable[[], float] = time.time) -> BodyFormat:
        """How an unstreamed answer looks."""
        return partial(render_body, head, shape=self.shape, times=times, now=now)
