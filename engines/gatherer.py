"""Between an engine's ticks and the frames: the text of answers that nobody reads before their end leaves in few events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engines.wire import Event, Failed, Finished, TextDelta

__all__ = ["HOLD_CHARACTERS", "HOLD_S", "HOLD_TOKENS", "Gatherer"]

HOLD_S = 0.25  # so that counts of what was made, and a request cut short, are at most this far behind
HOLD_TOKENS = 256
HOLD_CHARACTERS = 16 * 1024


class _Held:
    """The deltas of one answer that have not left yet, in order."""

    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.until = 0.0  # set with the first of ``deltas``, as the counts
        self.tokens = 0
        self.characters = 0
        self.begun = False  # the first delta has left


class Gatherer:
    """``join`` takes a tick's events and returns those that leave now; the others come with a later tick's.

    Only answers that ``hold`` named are gathered. Their first text leaves at once, since its time is measured; what follows is
    joined until the end of the answer, any other event of it, or a bound (HOLD_S, HOLD_TOKENS, HOLD_CHARACTERS).
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
            elif isinstance(event, TextDelta) and held.begun:
                self._keep(held, event, leaving)
            else:
                held.begun = held.begun or isinstance(event, TextDelta)
                _release(held, leaving)
                leaving.append(event)
                if isinstance(event, Finished | Failed):
                    del self._held[event.request_id]
        return leaving

    def _keep(self, held: _Held, delta: TextDelta, leaving: list[Event]) -> None:
        now = self._now()
        if not held.deltas:
            held.until = now + HOLD_S
        held.deltas.append(delta)
        held.tokens += len(delta.tokens)
        held.characters += len(delta.text)
        if now >= held.until or held.tokens >= HOLD_TOKENS or held.characters >= HOLD_CHARACTERS:
            _release(held, leaving)


def _release(held: _Held, leaving: list[Event]) -> None:
    if not held.deltas:
        return
    deltas, held.deltas = held.deltas, []
    held.tokens = held.characters = 0
    leaving.append(
        TextDelta(
            request_id=deltas[0].request_id,
            text="".join([delta.text for delta in deltas]),
            tokens=tuple([token for delta in deltas for token in delta.tokens]),
            logprobs=tuple([entry for delta in deltas for entry in delta.logprobs]),
        )
    )
