"""Times of an answer as Ollama tells them: nanoseconds, measured where things happen and not where they are sent.

======================  =========================================================================================
field                   from, to
======================  =========================================================================================
``total_duration``      the request was read, the answer's last token came
``load_duration``       the request was read, the model was there for it: its load, and what it waited for that
``prompt_eval_duration``  the worker began with the prompt, the answer's first token came
``eval_duration``       the answer's first token, its last
======================  =========================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engines.wire import Admitted, Event, Failed, Finished, Usage

__all__ = ["AnswerTimes"]


class AnswerTimes:
    """Begins when it is made. ``clock`` gives nanoseconds of any origin."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._began = clock()
        self._leased: int | None = None
        self._admitted: int | None = None
        self._first: int | None = None
        self._ended: int | None = None

    def leased(self) -> None:
        """The model is there."""
        self._leased = self._clock()

    def seen(self, event: Event) -> None:
        """The worker's next event."""
        now = self._clock()
        match event:
            case Admitted():
                self._admitted = now
            case Finished() | Failed():
                self._ended = now
            case _ if self._first is None:
                self._first = now

    def fields(self, usage: Usage | None = None) -> dict[str, int]:
        """The fields of an answer's end; without ``usage``, nothing was asked but the load."""
        leased = self._began if self._leased is None else self._leased
        ended = self._clock() if self._ended is None else self._ended
        fields = {"total_duration": ended - self._began, "load_duration": leased - self._began}
        if usage is None:
            return fields
        admitted = leased if self._admitted is None else self._admitted
        first = ended if self._first is None else self._first
        return {
            **fields,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": first - admitted,
            "eval_count": usage.completion_tokens,
            "eval_duration": ended - first,
        }
