"""Watchers of the event feed: each at its own pace, none at the gateway's cost."""

from __future__ import annotations

import asyncio

from gateway.residency.event_feed import EventFeed, Notice, Transition
from tests.gateway.residency.helpers_workers import BOUND_S


def transition(number: int) -> Transition:
    return Transition(float(number), "a", "unloaded", "loading", "request", number)


async def test_feed_gives_each_watcher_everything_in_order() -> None:
    feed = EventFeed()
    with feed.watch() as first, feed.watch() as second:
        feed.publish(transition(1))
        assert first.take() == [transition(1)]
        feed.publish(transition(2))
        assert (first.take(), second.take()) == ([transition(2)], [transition(1), transition(2)])
    assert len(feed) == 0


async def test_feed_wait_ends_with_an_event_or_the_time() -> None:
    feed = EventFeed()
    with feed.watch() as watcher:
        assert not await watcher.wait(0.001)
        waiting = asyncio.create_task(watcher.wait(BOUND_S))
        await asyncio.sleep(0)
        feed.publish(transition(1))
        assert await waiting
        assert await watcher.wait(0)  # what waits is there at once


async def test_feed_slow_watcher_is_behind_and_gets_no_more() -> None:
    feed = EventFeed(limit=3)
    with feed.watch() as slow, feed.watch() as quick:
        for number in range(5):
            feed.publish(transition(number))
            quick.take()
        assert (slow.behind, slow.ended) == (True, True)
        assert slow.take() == [transition(0), transition(1), transition(2)]
        feed.publish(transition(9))
        assert slow.take() == [] and quick.take() == [transition(9)]


async def test_feed_new_watcher_is_told_the_last_notices_but_no_old_transitions() -> None:
    feed = EventFeed()
    feed.publish(Notice(1.0, "the disk is full"))
    feed.publish(transition(2))
    with feed.watch() as watcher:
        assert watcher.take() == [Notice(1.0, "the disk is full")]


async def test_feed_close_ends_watchers_after_what_waits() -> None:
    feed = EventFeed()
    with feed.watch() as watcher:
        feed.publish(transition(1))
        feed.close()
        assert (watcher.ended, watcher.behind, watcher.take()) == (True, False, [transition(1)])
        assert await watcher.wait(0)
    with feed.watch() as late:
        assert late.ended
