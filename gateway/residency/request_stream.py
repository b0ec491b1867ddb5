"""The events of one request, between the worker that makes them and the one reader that takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from engines.wire import Admitted, Event, Failed, Finished, TextDelta

__all__ = ["RequestLost", "RequestStream"]

_MERGE_FROM = 1024  # events waiting: a reader that is only late, not stuck, gets each


class RequestLost(Exception):
    """The worker ended before this request's terminal event.

    ``admitted`` False: its prefill had not begun, so another worker may still serve it. ``why`` completes "The model's worker …".
    """

    def __init__(self, why: str, *, admitted: bool) -> None:
        super().__init__(why)
        self.why = why
        self.admitted = admitted


class RequestStream(AsyncIterator[Event]):
    """``async for event in stream`` until the terminal event; RequestLost when the worker ends before it, or the error that
    ``cancel`` or ``fail`` was given.

    The worker never waits for the reader. A reader that falls behind gets the text it missed in one TextDelta, so that it
    catches up and at most the text itself is kept.
    """

    def __init__(self, request_id: int, on_cancel: Callable[[RequestStream], None]) -> None:
        self.request_id = request_id
        self.admitted = False
        self.ended = False  # the terminal event is in, or the worker is gone
        self.cancelled = False
        self._on_cancel = on_cancel
        self._on_admitted: list[Callable[[], None]] = []
        self._on_end: list[Callable[[], None]] = []
        self._waiting: deque[Event] = deque()
        self._error: Exception | None = None  # raised to the reader after what is waiting
        self._error_at_end: Exception | None = None  # in place of the terminal event
        self._arrival = asyncio.Event()

    # --- the reader ---

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self.ended:
                raise StopAsyncIteration
            self._arrival.clear()
            await self._arrival.wait()
        event = self._waiting.popleft()
        if isinstance(event, TextDelta) and len(self._waiting) >= _MERGE_FROM:
            return self._merged(event)
        return event

    def cancel(self, error: Exception | None = None) -> None:
        """Asks the worker to stop; events go on until its terminal one, in whose place the reader gets ``error``, if given.

        Idempotent; the first error counts.
        """
        if self.ended:
            return
        self._error_at_end = self._error_at_end or error
        if not self.cancelled:
            self.cancelled = True
            self._on_cancel(self)

    def when_admitted(self, callback: Callable[[], None]) -> None:
        """Calls it once, when the worker says that prefill begins."""
        self._on_admitted.append(callback)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Calls it once, as soon as ``ended`` holds: now, if it does."""
        if self.ended:
            callback()
        else:
            self._on_end.append(callback)

    # --- the worker host ---

    def put(self, event: Event) -> None:
        """One event from the worker. What follows a terminal event is dropped."""
        if self.ended:
            return
        if isinstance(event, Finished | Failed) and self._error_at_end is not None:
            self.fail(self._error_at_end)
            return
        self._waiting.append(event)
        self._arrival.set()
        if isinstance(event, Admitted):
            self.admitted = True
            callbacks, self._on_admitted = self._on_admitted, []
            for callback in callbacks:
                callback()
        if isinstance(event, Finished | Failed):
            self._end()

    def lose(self, why: str) -> None:
        """The worker is gone."""
        self.fail(self._error_at_end or RequestLost(why, admitted=self.admitted))

    def fail(self, error: Exception) -> None:
        """Ends it now, whatever the worker still does: the reader gets what is waiting, then ``error``."""
        if not self.ended:
            self._error = error
            self._arrival.set()
            self._end()

    def _end(self) -> None:
        self.ended = True
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def _merged(self, first: TextDelta) -> TextDelta:
        texts = [first.text]
        tokens = list(first.tokens)
        logprobs = list(first.logprobs)
        while self._waiting and isinstance(delta := self._waiting[0], TextDelta):
            self._waiting.popleft()
            texts.append(delta.text)
            tokens.extend(delta.tokens)
            logprobs.extend(delta.logprobs)
        return TextDelta(
            request_id=first.request_id, text="".join(texts), tokens=tuple(tokens), logprobs=tuple(logprobs)
        )
