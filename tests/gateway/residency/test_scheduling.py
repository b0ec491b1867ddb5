"""What is told of scheduling: estimates of what is not loaded, a worker's own words of what is, nothing that is out of date."""

from __future__ import annotations

from typing import Any

from engines.footprint import Footprint
from engines.scheduling.capacity import CAPACITY_ROWS, Depth
from engines.wire import CapacityRow, Ready
from gateway.errors import ModelLoadFailed
from gateway.residency import messages as m
from gateway.residency.scheduling import announced, estimated

from .helpers_core import World, model

KIB = 1024


def ready(**fields: int) -> Ready:
    sizes: dict[str, Any] = {
        "static_bytes": 1,
        "baseline_bytes": 0,
        "kv_bytes_per_token": 1,
        "context": 4096,
        "width": 8,
    } | fields
    return Ready(**sizes, kernels="k", device="cpu", load_s=1.0)


def test_estimate_is_of_the_header_and_the_grant() -> None:
    footprint = Footprint(static_bytes=0, kv_bytes_per_token=KIB, transient_bytes=0, context=8192)
    told = estimated(footprint, grant_bytes=8192 * KIB, width=None, queue_limit=64)
    depths = dict(told.depths)
    assert told.estimate and list(depths) == list(CAPACITY_ROWS)
    assert depths[1] == 8192
    for rows, tokens in told.depths:
        assert tokens <= 8192 // rows  # never more than the grant holds
    assert depths[2] >= 2048 and depths[32] <= 256


def test_estimate_counts_a_window_as_a_window() -> None:
    footprint = Footprint(0, 0, 0, 8192, kv_window_tokens=512, kv_window_bytes_per_token=KIB)
    told = estimated(footprint, grant_bytes=4 * 1024 * KIB, width=3, queue_limit=16)
    assert dict(told.depths)[4] == 8192 and told.width == 3


def test_estimate_counts_a_state_once_a_row() -> None:
    footprint = Footprint(0, 0, 0, 8192, state_bytes=100 * KIB)
    told = estimated(footprint, grant_bytes=500 * KIB, width=None, queue_limit=64)
    assert dict(told.depths) == {1: 8192, 2: 8192, 4: 8192, 8: 0, 16: 0, 32: 0}


def test_estimate_is_bounded_by_the_context_where_nothing_grows() -> None:
    told = estimated(Footprint(0, 0, 0, 1000), grant_bytes=1, width=None, queue_limit=64)
    assert {tokens for _, tokens in told.depths} == {1000}


def test_worker_s_own_words_go_before_and_without_them_only_the_context_bounds() -> None:
    rows = (CapacityRow(1, 4096), CapacityRow(2, 512))
    told = announced(ready(), rows, 2, grant_bytes=7, queue_limit=16)
    assert told.depths == (Depth(1, 4096), Depth(2, 512)) and (told.width, told.grant_bytes) == (2, 7)
    assert not told.estimate
    free = announced(ready(), (), 8, grant_bytes=7, queue_limit=16)
    assert free.depths == tuple(Depth(count, 4096) for count in CAPACITY_ROWS)


def test_core_estimates_what_the_next_load_would_hold() -> None:
    world = World(model("a", 1, kv_per_token=KIB, context=2048), model("torn", error=ModelLoadFailed("torn")))
    before = world.manager.estimate("a")
    assert before is not None and (before.width, before.queue_limit) == (None, 64)
    assert before.grant_bytes == 4 * 2048 * KIB and dict(before.depths)[1] == 2048
    world.load("a")
    world.do(m.WidthChanged("a", 1, 12))
    after = world.manager.estimate("a")
    assert after is not None and (after.width, after.queue_limit) == (12, 24)
    assert world.manager.estimate("torn") is None and world.manager.estimate("nobody") is None


def test_queue_limit_follows_the_width_of_the_present_grant() -> None:
    world = World(model("a", 1), model("own", 1, queue_limit=5))
    world.serve("a")
    world.do(m.WidthChanged("a", 1, 20))
    world.do(m.WidthChanged("a", 7, 99))  # of another generation
    world.do(m.WidthChanged("nobody", 1, 99))
    limits = {row.id: (row.queue_limit, row.key) for row in world.manager.statistics(world.now).models}
    assert limits == {"a": (40, "a"), "own": (5, "own")}
    crowd = [world.request("a") for _ in range(40)]
    assert crowd[-1] in world.failed and crowd[-2] in world.granted
