"""What happened, for whoever watches: each watcher reads at its own pace from a buffer of its own.

A watcher that lets its buffer fill is *behind*: it gets nothing more, so that nobody's slowness costs the gateway memory and no
gap passes unseen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["EventFeed", "FeedEvent", "Notice", "Subscription", "Transition"]

BUFFER = 1024  # events a watcher may be behind
_NOTICES_KEPT = 16


@dataclass(frozen=True, slots=True)
class Transition:
    """A model went from one state to another, or a state goes on and somebody should know (then both are equal).

    ``at`` is in seconds since the epoch; ``charged_bytes`` what the resident is charged after the step.
    """

    at: float
    model: str
    from_state: str
    to_state: str
    cause: str
    charged_bytes: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Something went wrong that stops nobody: the state directory cannot be written. ``at`` as above."""

    at: float
    message: str


FeedEvent = Transition | Notice


class Subscription:
    """One watcher's buffer. One reader."""

    def __init__(self, waiting: Iterator[FeedEvent] | deque[FeedEvent], limit: int) -> None:
        self._waiting = deque(waiting)
        self._limit = limit
        self._changed = asyncio.Event()
        self.behind = False  # it was too slow: events were lost, and none will follow
        self.ended = False  # nothing will be put any more

    def put(self, event: FeedEvent) -> None:
        """Never blocks."""
        if self.ended:
            return
        if len(self._waiting) >= self._limit:
            self.behind = True
            self.end()
            return
        self._waiting.append(event)
        self._changed.set()

    def end(self) -> None:
        """What waits can still be taken."""
        self.ended = True
        self._changed.set()

    def take(self) -> list[FeedEvent]:
        """All that waits, oldest first."""
        events = list(self._waiting)
        self._waiting.clear()
        self._changed.clear()
        return events

    async def wait(self, seconds: float) -> bool:
        """Until something waits or it ended; False when ``seconds`` passed first."""
        if self._waiting or self.ended:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class EventFeed:
    """One writer: the event loop's thread. A new watcher is first given the last notices, which it could not have seen."""

    def __init__(self, limit: int = BUFFER) -> None:
        self._limit = limit
        self._watchers: set[Subscription] = set()
        self._notices: deque[FeedEvent] = deque(maxlen=_NOTICES_KEPT)
        self._closed = False

    def __len__(self) -> int:
        return len(self._watchers)

    def publish(self, event: FeedEvent) -> None:
        """Gives it to every watcher."""
        if isinstance(event, Notice):
            self._notices.append(event)
        for watcher in self._watchers:
            watcher.put(event)

    @contextmanager
    def watch(self) -> Iterator[Subscription]:
        """A watcher, from now to the end of the block."""
        watcher = Subscription(self._notices, self._limit)
        if self._closed:
            watcher.end()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """Nothing will happen any more: every watcher ends when it has read what waits."""
        self._closed = True
        for watcher in self._watchers:
            watcher.end()
