"""Between an engine's ticks and the frames: the text of answers that nobody reads before their end leaves in few events, and so
do their thinking and the arguments of their calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engines.wire import Event, Failed, Finished, ReasoningDelta, TextDelta, ToolCallDelta

__all__ = ["HOLD_CHARACTERS", "HOLD_S", "HOLD_TOKENS", "Gatherer"]

HOLD_S = 0.25  # so that counts of what was made, and a request cut short, are at most this far behind
HOLD_TOKENS = 256
HOLD_CHARACTERS = 16 * 1024


_Delta = TextDelta | ReasoningDelta | ToolCallDelta


class _Held:
    """The deltas of one answer that have not left yet, in order; all of one kind."""

    def __init__(self) -> None:
        self.deltas: list[_Delta] = []
        self.until = 0.0  # set with the first of ``deltas``, as the counts
        self.tokens = 0
        self.characters = 0
        self.begun = False  # the first delta has left


class Gatherer:
    """``join`` takes a tick's events and returns those that leave now; the others come with a later tick's.

    Only answers that ``hold`` named are gathered. Their first delta leaves at once, since its time is measured; what follows of
    one kind is joined until the end of the answer, any other event of it, or a bound (HOLD_S, HOLD_TOKENS, HOLD_CHARACTERS).
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held: dict[int, _Held] = {}

    def hold(self, request_id: int) -> None:
        """From now to its terminal event this request's text is gathered."""
        self._held[request_id] = _Held()

    def join(self, events: Sequence[Event]) -> Sequence[Event]:
        """What leaves of these events and of those before, in each request's order."""
        if not self._held:
            return events
        leaving: list[Event] = []
        for event in events:
            held = self._held.get(event.request_id)
            if held is None:
                leaving.append(event)
            elif isinstance(event, _Delta) and held.begun:
                if held.deltas and not _joins(held.deltas[0], event):
                    _release(held, leaving)
                self._keep(held, event, leaving)
            else:
                held.begun = held.begun or isinstance(event, _Delta)
                _release(held, leaving)
                leaving.append(event)
                if isinstance(event, Finished | Failed):
                    del self._held[event.request_id]
        return leaving

    def _keep(self, held: _Held, delta: _Delta, leaving: list[Event]) -> None:
        now = self._now()
        if not held.deltas:
            held.until = now + HOLD_S
        held.deltas.append(delta)
        held.tokens += len(delta.tokens)
        held.characters += len(_text(delta))
        if now >= held.until or held.tokens >= HOLD_TOKENS or held.characters >= HOLD_CHARACTERS:
            _release(held, leaving)


def _release(held: _Held, leaving: list[Event]) -> None:
    if not held.deltas:
        return
    deltas, held.deltas = held.deltas, []
    held.tokens = held.characters = 0
    first, request_id = deltas[0], deltas[0].request_id
    text = "".join([_text(delta) for delta in deltas])
    tokens = tuple([token for delta in deltas for token in delta.tokens])
    match first:
        case TextDelta():
            entries = tuple([entry for delta in deltas if isinstance(delta, TextDelta) for entry in delta.logprobs])
            leaving.append(TextDelta(request_id=request_id, text=text, tokens=tokens, logprobs=entries))
        case ReasoningDelta():
            leaving.append(ReasoningDelta(request_id=request_id, text=text, tokens=tokens))
        case ToolCallDelta():
            leaving.append(ToolCallDelta(request_id=request_id, index=first.index, arguments=text, tokens=tokens))


def _joins(held: _Delta, delta: _Delta) -> bool:
    """Whether they are of one kind, and of one call."""
    if isinstance(held, ToolCallDelta) and isinstance(delta, ToolCallDelta):
        return held.index == delta.index
    return type(held) is type(delta)


def _text(delta: _Delta) -> str:
    return delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
