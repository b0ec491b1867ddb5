"""The queue: order, earmarks, overtaking, caps, timeouts, the load slot, abandoned loads."""

from __future__ import annotations

import pytest

from gateway.errors import QueueTimeout, ServerOverloaded
from gateway.residency import messages as m
from gateway.residency.place import LAG_S
from gateway.residency.states import State

from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


def test_queue_is_in_the_order_of_first_callers() -> None:
    world = World(model("a", 10), model("b", 10), model("c", 10))
    world.serve("a")
    world.request("c")
    world.request("b")
    world.request("c")
    rows = world.manager.statistics(world.now).queue
    assert [(row.model, row.position, row.waiting) for row in rows] == [("c", 1, 2), ("b", 2, 1)]


def test_queue_callers_stand_before_operators() -> None:
    world = World(model("a", 10), model("b", 10), model("c", 10))
    world.serve("a")
    world.admin_load("b")
    world.request("c")
    assert [row.model for row in world.manager.statistics(world.now).queue] == ["c", "b"]


def test_queue_estimates_when_loads_have_been_timed() -> None:
    world = World(model("a", 10), model("b", 10))
    for id in ("a", "b"):
        waiter = world.request(id)
        world.advance(4.0)
        world.ready(id)
        world.release(waiter)
        world.unload(id)
        world.exit(id)
    world.request("a")
    world.request("b")
    world.advance(1.0)
    (row,) = world.manager.statistics(world.now).queue
    assert row.eta_s == pytest.approx(3.0 + 4.0) and row.waited_s == pytest.approx(1.0)


def test_queue_a_later_model_overtakes_where_it_harms_nobody() -> None:
    world = World(model("a", 6), model("b", 6), model("c", 3))
    world.serve("a")
    world.request("b")
    overtaker = world.request("c")
    world.ready("c")
    assert overtaker in world.granted and world.house.queue.head == "b"


def test_queue_bytes_that_free_for_the_head_are_earmarked() -> None:
    world = World(model("a", 4), model("b", 4), model("big", 9), model("c", 2, load_timeout_s=10**4), model("d", 3))
    first = world.serve("a")
    world.serve("b")
    world.request("big")  # needs both
    world.release(first)
    world.unload("a")
    world.exit("a")  # 4 GiB freed while "big" is the head, 2 were free before
    world.request("d")
    assert world.state("d") is U
    world.request("c")
    assert world.state("c") is LG


def test_queue_earmark_lapses_with_the_heads_last_caller() -> None:
    world = World(model("a", 4), model("b", 4), model("big", 9), model("d", 3))
    first = world.serve("a")
    world.serve("b")
    head = world.request("big")
    world.release(first)
    world.unload("a")
    world.exit("a")
    world.request("d")
    world.cancel(head)
    assert world.state("d") is LG


def test_queue_what_a_plan_counts_on_is_earmarked() -> None:
    world = World(model("a", 8), model("b", 9), model("c", 2))
    world.load("a")
    world.request("b")  # evicts a: 8 come, 1 of the 2 free ones is needed
    assert world.state("a") is UG
    world.request("c")
    assert world.state("c") is U
    world.exit("a")
    assert world.state("b") is LG


def test_queue_only_the_head_evicts() -> None:
    world = World(model("a", 6), model("idle", 3), model("b", 8), model("c", 4))
    world.serve("a")
    world.load("idle")
    world.request("b")
    world.request("c")  # would fit if "idle" went
    assert world.state("idle") is LD


def test_queue_the_slot_is_one_and_waiting_never_holds_it() -> None:
    world = World(model("a", 2), model("b", 2), model("c", 7))
    world.request("a")
    world.request("b")
    assert world.states() == {"a": LG, "b": U, "c": U}
    world.ready("a")
    assert world.state("b") is LG
    world.ready("b")
    world.request("c")  # waits for leases
    world.unload("b", "abort")
    world.advance(30.0)
    world.exit("b")
    assert world.state("c") is LG


def test_queue_eviction_waits_for_the_slot_so_that_nobody_stops_serving_early() -> None:
    world = World(model("a", 5), model("slow", 4), model("b", 5))
    world.load("a")
    world.request("slow")
    world.request("b")
    assert world.state("a") is LD
    assert world.manager.acquire_nowait(900, "a", "c", "r", world.now) is not None


def test_queue_acquiring_a_loaded_model_never_waits() -> None:
    world = World(model("a", 2), model("b", 9), model("c", 2))
    world.serve("a")
    world.request("b")
    world.request("c")
    for waiter in (900, 901):
        assert world.manager.acquire_nowait(waiter, "a", "c", "r", world.now) is not None
    world.manager.check_integrity()


def test_queue_times_out_until_the_load_starts() -> None:
    world = World(model("a", 6), model("b", 6, queue_timeout_s=20), model("c", 3, queue_timeout_s=20))
    world.serve("a")
    waiter, admin = world.request("b"), world.admin_load("b")
    world.advance(19.9)
    assert waiter not in world.failed
    world.advance(0.1)
    assert isinstance(world.failed[waiter], QueueTimeout) and isinstance(world.answers[admin], QueueTimeout)
    slow = world.request("c")
    world.advance(200.0)
    world.ready("c")
    assert slow in world.granted


def test_queue_cap_counts_callers_without_service() -> None:
    world = World(model("a", 6, queue_limit=3), model("b", 6))
    waiters = [world.request("a") for _ in range(4)]
    assert isinstance(world.failed[waiters[3]], ServerOverloaded)
    world.ready("a")
    assert world.request("a") in world.failed  # three leased, none admitted
    world.admit(waiters[0])
    assert world.request("a") in world.granted


def test_queue_cap_keeps_a_quarter_from_batch() -> None:
    world = World(model("a", 6, queue_limit=8))
    flood = [world.request("a", "batch") for _ in range(9)]
    assert [w for w in flood if w in world.failed] == flood[6:]
    assert "before one of priority batch" in world.failed[flood[6]].message
    others = [world.request("a", priority) for priority in ("normal", "interactive", "interactive")]
    assert [w for w in others if w in world.failed] == others[2:]
    assert "priority" not in world.failed[others[2]].message
    world.ready("a")
    for waiter in others[:2]:
        world.admit(waiter)
    assert world.request("a", "batch") in world.failed  # six of it are leased, none admitted
    world.admit(flood[0])
    assert world.request("a", "batch") in world.granted


def test_queue_cap_of_few_places_keeps_none() -> None:
    world = World(model("a", 6, queue_limit=3))
    flood = [world.request("a", "batch") for _ in range(4)]
    assert [w for w in flood if w in world.failed] == flood[3:]


def test_queue_cap_follows_the_decode_width() -> None:
    world = World(model("a", 6))
    waiters = [world.request("a") for _ in range(65)]
    assert [w for w in waiters if w in world.failed] == waiters[64:]  # 64 before the first load
    world.ready("a", width=20)
    for waiter in waiters[:64]:
        world.release(waiter)
    more = [world.request("a") for _ in range(41)]
    assert [w for w in more if w in world.failed] == more[40:]


def test_queue_cap_says_when_to_come_back() -> None:
    """Two served in four seconds, and three wait; then a load that has three of its four seconds to go."""
    world = World(model("a", 6, queue_limit=3))
    waiter = world.request("a")
    world.advance(4.0)
    world.ready("a")
    world.release(waiter)  # was never begun: says nothing about the rate
    assert [world.request("a") for _ in range(3)]
    refused = world.request("a")
    assert world.failed[refused].retry_after_s == 2.0
    for waiter in (2, 3):
        world.admit(waiter)
        world.advance(2.0)
        world.release(waiter)
        world.request("a")
    refused = world.request("a")
    assert world.failed[refused].retry_after_s == pytest.approx(3 / 0.5)
    assert "3 requests wait for model 'a'" in world.failed[refused].message
    world.exit("a")
    assert world.state("a") is LG  # whoever had not begun waits for it
    world.advance(1.0)
    assert world.failed[world.request("a")].retry_after_s == pytest.approx(3.0 + 3 / 0.5)


def test_queue_cap_of_all_counts_what_all_serve() -> None:
    world = World(model("a", 2), model("b", 2), global_queue_limit=8)
    for id, count in (("a", 4), ("b", 1)):  # that many served in one second
        world.serve(id)
        waiters = [world.granted[w].waiter for w in (*world.granted,) if world.granted[w].model == id]
        waiters += [world.request(id) for _ in range(count - 1)]
        for waiter in waiters:
            world.admit(waiter)
        world.advance(1.0)
        for waiter in waiters:
            world.release(waiter)
    crowd = [world.request("a") for _ in range(9)]
    error = world.failed[crowd[8]]
    assert error.retry_after_s == 2.0 and "8 requests wait in this server" in error.message  # 8 / 5 a second
    world.advance(4.0)  # and nothing ends: 4 in five seconds, 1 in one
    assert world.failed[world.request("a")].retry_after_s == pytest.approx(8 / (4 / 5 + 1))


def test_queue_interactive_callers_go_before_batch_ones_that_have_not_waited_long() -> None:
    world = World(model("a", 10), model("b", 10), model("c", 10), model("d", 10))
    world.serve("a")
    world.request("b", "batch")
    world.advance(5.0)
    world.request("c")
    world.request("d", "interactive")
    assert queue_order(world) == ["d", "c", "b"]
    world.advance(26.0)  # a fairness drain for d began
    world.request("c", "interactive")
    assert queue_order(world)[0] == "d"


def test_queue_no_priority_passes_whoever_has_waited_longer_than_its_lag() -> None:
    world = World(model("a", 10), model("b", 10), model("c", 10), model("d", 10))
    world.serve("a")
    world.request("b", "batch")
    world.advance(LAG_S["batch"] + 0.1)
    world.request("c", "interactive")
    world.request("d")
    assert queue_order(world) == ["b", "c", "d"]


def test_queue_bytes_kept_for_the_head_stay_with_it_whoever_comes_later() -> None:
    world = World(model("a", 4), model("b", 4), model("big", 9), model("c", 9))
    first = world.serve("a")
    world.serve("b")
    world.request("big", "batch")  # needs both
    world.release(first)
    world.unload("a")
    world.exit("a")
    world.request("c", "interactive")
    assert world.house.queue.head == "big"


def test_queue_grants_of_one_load_are_in_turn() -> None:
    world = World(model("a", 4))
    waiters = [world.request("a", priority) for priority in ("batch", "normal", "interactive", "normal")]
    world.ready("a")
    assert [grant.waiter for grant in world.seen(m.GrantLease)] == [waiters[i] for i in (2, 1, 3, 0)]


def queue_order(world: World) -> list[str]:
    return [row.model for row in world.manager.statistics(world.now).queue]


def test_queue_global_cap() -> None:
    world = World(model("a", 2), model("b", 2), global_queue_limit=3)
    for id in ("a", "a", "b"):
        world.request(id)
    assert world.manager.queue_is_full
    assert world.request("b") in world.failed
    world.cancel(1)
    assert world.request("b") not in world.failed


def test_queue_an_abandoned_load_yields_at_once_to_whoever_needs_it() -> None:
    world = World(model("slow", 6), model("b", 6))
    gone = world.request("slow")
    world.cancel(gone)
    assert world.state("slow") is LG
    waiter = world.request("b")
    assert world.state("slow") is UG and world.seen(m.KillWorker)
    world.exit("slow")
    world.ready("b")
    assert waiter in world.granted


def test_queue_a_pinned_load_is_not_abandoned() -> None:
    world = World(model("a", 4, pin=True), model("b", 4))
    world.cancel(world.request("a"))
    world.request("b")
    world.advance(60.0)
    assert world.state("a") is LG


def test_queue_an_operators_load_keeps_its_slot_where_bytes_suffice() -> None:
    world = World(model("a", 4), model("b", 4))
    world.admin_load("a")
    world.request("b")
    assert world.states() == {"a": LG, "b": U}


def test_queue_a_real_model_needs_bytes_that_the_device_really_has() -> None:
    free = [3 * GIB]
    world = World(model("a", 4, simulated=False), model("sim", 4), device_free=lambda: free[0])
    waiter = world.request("a")
    assert world.state("a") is U
    world.serve("sim")  # takes no real memory
    free[0] = 4 * GIB
    world.advance(1.0)
    assert world.state("a") is LG and waiter in world.resident("a").joiners


def test_queue_a_head_whose_room_is_being_made_stays_the_head() -> None:
    world = World(model("x", 4), model("y", 4), model("b", 6))
    world.load("y")
    world.admit(world.serve("x"))
    older = world.request("x")  # leased, and not begun
    newer = world.request("b")
    assert world.state("y") is UG
    world.exit("x")  # its caller comes back to the queue, to an older place
    assert world.states() == {"x": F, "y": UG, "b": LG}
    world.exit("y")
    world.ready("b")
    assert world.state("x") is LG and older in world.resident("x").joiners and newer in world.granted


def test_queue_an_older_caller_that_comes_back_goes_before_a_head_that_only_waits() -> None:
    world = World(model("x", 6), model("b", 9), model("d", 3))
    world.admit(world.serve("x"))
    world.request("x")
    world.request("b")
    world.exit("x")
    assert world.states() == {"x": LG, "b": U, "d": U}
    world.ready("x")
    world.request("d")  # what was freed for b is used, so nothing is earmarked any more
    assert world.state("d") is LG
