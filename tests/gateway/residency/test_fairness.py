"""Fairness: a head that has waited drains leased residents, and never cuts a lease."""

from __future__ import annotations

from gateway.errors import QueueTimeout
from gateway.residency import messages as m
from gateway.residency.states import Cause, State

from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


def test_fairness_steady_traffic_gives_way() -> None:
    world = World(model("a", 6), model("b", 6))
    old = world.serve("a")
    rival = world.request("b")
    for _ in range(9):  # a lease always overlaps the next
        world.advance(1.0)
        new = world.request("a")
        world.release(old)
        old = new
    world.advance(1.0)
    queued = world.request("a")
    assert world.state("a") is D and queued not in world.granted
    world.release(old)
    world.exit("a")
    world.ready("b")
    assert rival in world.granted
    world.release(rival)
    world.exit("b")
    world.ready("a")
    assert queued in world.granted


def test_fairness_an_endless_stream_is_never_cut() -> None:
    world = World(model("a", 6), model("b", 6, queue_timeout_s=120))
    stream = world.serve("a")
    rival = world.request("b")
    drains = 0
    while rival not in world.failed:
        world.advance(5.0)
        drains = sum(e.to_state == "draining" for e in world.logged(m.EmitTransition))
        assert world.house.leases and stream in world.granted
    assert isinstance(world.failed[rival], QueueTimeout) and drains == 2
    assert world.state("a") is LD and not world.logged(m.CancelLease) and not world.ended


def test_fairness_a_victim_whose_drain_failed_is_immune_for_a_while() -> None:
    world = World(model("a", 6), model("b", 6))
    world.serve("a")
    world.request("b")
    world.advance(70.0)
    assert world.state("a") is LD
    world.advance(9.9)
    assert world.state("a") is LD
    world.advance(0.1)
    assert world.state("a") is D


def test_fairness_all_victims_leave_in_the_step_that_decides() -> None:
    world = World(model("idle", 4), model("a", 4), model("big", 9))
    world.load("idle")
    lease = world.serve("a")
    rival = world.request("big")
    world.advance(10.0)
    assert world.states() == {"idle": UG, "a": D, "big": U} and not world.logged(m.SendClose)
    queued = world.request("idle")
    world.release(lease)
    assert {e.key for e in world.seen(m.SendClose)} == {"idle", "a"}
    world.exit("idle")
    world.exit("a")
    world.ready("big")
    assert rival in world.granted and queued not in world.granted


def test_fairness_bytes_found_otherwise_end_the_drain() -> None:
    world = World(model("a", 4), model("c", 4), model("big", 6))
    world.serve("a")
    other = world.serve("c")
    world.request("big")
    world.advance(10.0)
    drained = "a" if world.state("a") is D else "c"
    assert drained == "a"  # both have one lease; a is the least recently used
    world.release(other)
    assert world.states() == {"a": LD, "c": UG, "big": U}


def test_fairness_spares_pins() -> None:
    world = World(model("a", 4), model("p", 4), model("b", 6))
    world.serve("p")
    world.serve("a")
    world.pin("p")
    world.request("b")
    world.advance(10.0)
    assert world.states() == {"a": D, "p": LD, "b": U}


def test_fairness_drains_several_when_one_does_not_suffice() -> None:
    world = World(model("a", 3), model("b", 3), model("c", 3), model("big", 7))
    leases = {id: world.serve(id) for id in ("a", "b", "c")}
    world.request("a")
    rival = world.request("big")
    world.advance(10.0)
    assert world.states() == {"a": LD, "b": D, "c": D, "big": U}
    world.release(leases["b"])
    assert world.state("b") is UG and not world.logged(m.SendClose)  # held until c is drained too
    world.release(leases["c"])
    assert {e.key for e in world.seen(m.SendClose)} == {"b", "c"}
    world.exit("b")
    world.exit("c")
    world.ready("big")
    assert rival in world.granted


def test_fairness_the_clock_does_not_run_while_somebody_else_is_the_head() -> None:
    world = World(model("a", 6), model("b", 6), model("c", 6))
    lease = world.serve("a")
    first = world.request("b")
    world.request("c")
    world.advance(9.0)
    world.release(lease)
    world.exit("a")
    world.ready("b")
    assert first in world.granted
    world.advance(9.0)
    assert world.state("b") is LD
    world.advance(1.0)
    assert world.state("b") is D and world.resident("b").cause is Cause.FAIRNESS


def test_fairness_operators_and_preloads_drain_nobody() -> None:
    world = World(model("a", 6), model("b", 6))
    world.serve("a")
    world.admin_load("b")
    world.advance(60.0)
    assert world.state("a") is LD


def test_fairness_a_death_in_the_drain_serves_the_rival() -> None:
    world = World(model("a", 6), model("b", 6))
    lease = world.serve("a")
    world.admit(lease)
    rival = world.request("b")
    world.advance(10.0)
    world.exit("a", detail="signal 9")
    assert world.state("b") is LG and rival in world.resident("b").joiners


def test_fairness_a_held_model_is_still_measured() -> None:
    world = World(model("idle", 4), model("a", 4), model("big", 9))
    world.load("idle")
    world.serve("a")
    rival = world.request("big")
    world.advance(10.0)
    before = world.charged
    world.report("idle", kv=1000)
    assert world.charged == before + 1000
    world.cancel(rival)
    assert world.states() == {"idle": LD, "a": LD, "big": U}


def test_fairness_a_shutdown_ends_the_drain() -> None:
    world = World(model("idle", 4), model("a", 4), model("big", 9))
    world.load("idle")
    world.serve("a")
    world.request("big")
    world.advance(10.0)
    world.shutdown()
    assert world.states() == {"idle": UG, "a": D, "big": U} and not world.house.intents
    assert world.resident("a").cause is Cause.SHUTDOWN and world.resident("idle").sent


def test_fairness_a_reload_of_a_victim_sets_the_others_free() -> None:
    world = World(model("idle", 4), model("a", 4), model("big", 9))
    world.load("idle")
    world.serve("a")
    rival = world.request("big")
    world.advance(10.0)
    world.registry(model("idle", 4), model("a", 4, key="a2"), model("big", 9))
    assert world.state("idle") is LD and world.resident("a").cause is Cause.RELOAD
    assert rival in world.house.waiters


def test_fairness_nobody_drains_while_another_load_holds_the_slot() -> None:
    world = World(model("a", 6), model("slow", 3), model("b", 6))
    world.serve("a")
    world.request("slow")
    world.request("b")
    world.advance(30.0)
    assert world.state("a") is LD
    world.ready("slow")
    assert world.state("a") is D


def test_fairness_a_held_model_whose_worker_dies_is_not_waited_for_in_vain() -> None:
    world = World(model("idle", 4), model("a", 4), model("big", 9))
    world.load("idle")
    world.serve("a")
    world.request("big")
    world.advance(10.0)
    world.exit("idle", held=GIB)
    assert world.state("idle") is UG and world.charged == 5 * GIB
    world.advance(20.0)
    assert world.state("idle") is U and world.manager.statistics(world.now).budget.unreleased_bytes == GIB
