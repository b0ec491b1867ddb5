"""Cells: what callers do."""

from __future__ import annotations

import pytest

from gateway.errors import (
    ModelLoadFailed,
    ModelNotFound,
    ModelTooLarge,
    NoRoomBesidePinned,
    ServerOverloaded,
    ShuttingDown,
)
from gateway.residency import messages as m
from gateway.residency.states import State, Trigger

from .helpers_cells import cell, fails_with
from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


@cell(U, of=Trigger.REQUEST)
def starts_at_once(world: World) -> None:
    waiter = world.request("x")
    (start,) = world.seen(m.StartWorker)
    assert (start.key, start.generation, start.charged_bytes) == ("x", 1, 6 * GIB)
    assert world.state("x") is LG and waiter not in world.granted


@cell(U, of=Trigger.REQUEST)
def queues_where_there_is_no_room(world: World) -> None:
    world.serve("y")
    world.request("x")
    assert world.state("x") is U and len(world.house.queue) == 1


@cell(U, of=Trigger.REQUEST)
def refuses_what_can_never_fit(world: World) -> None:
    world.registry(model("x", 11), model("y", 6))
    fails_with(world, world.request("x"), ModelTooLarge, str(11 * GIB), str(10 * GIB))
    assert not len(world.house.queue)


@cell(U, of=Trigger.REQUEST)
def refuses_what_never_fits_beside_pins(world: World) -> None:
    world.load("y")
    world.pin("y")
    fails_with(world, world.request("x"), NoRoomBesidePinned, "y", str(4 * GIB))
    assert world.state("y") is LD


@cell(LG, of=Trigger.REQUEST)
def joins_the_load(world: World) -> None:
    waiter = world.request("x")
    assert not world.seen(m.StartWorker)
    world.ready("x")
    assert waiter in world.granted and 1 in world.granted


@cell(LG, of=Trigger.REQUEST)
def queues_behind_an_unload_intent(world: World) -> None:
    world.unload("x")
    waiter = world.request("x")
    world.ready("x")
    assert world.state("x") is D and waiter not in world.granted
    assert world.house.waiters[waiter].lease is None


@cell(LD, of=Trigger.REQUEST)
def leases(world: World) -> None:
    waiter = world.request("x")
    assert world.granted[waiter].generation == 1
    assert [type(effect) for effect in world.effects] == [m.GrantLease]


@cell(LD, of=Trigger.REQUEST)
def leases_without_an_event(world: World) -> None:
    grant = world.manager.acquire_nowait(77, "x", "c", "r", world.now)
    assert grant is not None and grant.waiter == 77
    world.manager.check_integrity()


@cell(D, UG, of=Trigger.REQUEST)
def queues_behind_the_drain(world: World) -> None:
    waiter = world.request("x")
    assert waiter not in world.granted and waiter not in world.failed
    if world.state("x") is D:
        world.release(1)
    world.exit("x")
    assert world.state("x") is LG
    world.ready("x")
    assert world.granted[waiter].generation == 2


@cell(D, of=Trigger.REQUEST)
def a_removed_model_is_not_found(world: World) -> None:
    world.registry(model("y", 6))
    fails_with(world, world.request("x"), ModelNotFound, "y")


@cell(D, of=Trigger.REQUEST)
def nothing_new_in_a_shutdown(world: World) -> None:
    world.shutdown()
    fails_with(world, world.request("x"), ShuttingDown)
    assert world.manager.acquire_nowait(77, "x", "c", "r", world.now) is None


@cell(F, of=Trigger.REQUEST)
def is_told_the_rest_of_the_backoff(world: World) -> None:
    world.advance(0.25)
    waiter = world.request("x")
    fails_with(world, waiter, ModelLoadFailed, "truncated file")
    assert world.failed[waiter].retry_after_s == pytest.approx(0.75)


@cell(F, of=Trigger.REQUEST)
def loads_again_after_the_backoff(world: World) -> None:
    world.advance(1.0)
    world.request("x")
    assert world.state("x") is LG and world.resident("x").generation == 2


@cell(U, of=Trigger.WAITER_CANCELS)
@cell(D, UG, of=Trigger.WAITER_CANCELS)
def dequeues_one(world: World) -> None:
    if world.state("x") is U:
        world.serve("y")
    state = world.state("x")
    first, second = world.request("x"), world.request("x")
    world.cancel(first)
    assert next(iter(world.house.queue)).waiters.keys() == {second} and world.state("x") is state


@cell(LG, of=Trigger.WAITER_CANCELS)
def the_load_goes_on_for_the_others(world: World) -> None:
    other = world.request("x")
    world.cancel(1)
    world.advance(60.0)
    world.ready("x")
    assert other in world.granted and 1 not in world.granted


@cell(U, of=Trigger.LAST_WAITER_CANCELS)
def takes_its_fairness_drain_with_it(world: World) -> None:
    world.serve("y")
    waiter = world.request("x")
    world.advance(10.0)
    assert world.state("y") is D
    queued = world.request("y")
    world.cancel(waiter)
    assert world.state("y") is LD and queued in world.granted and not len(world.house.queue)


@cell(LG, of=Trigger.LAST_WAITER_CANCELS)
def is_aborted_after_the_grace(world: World) -> None:
    world.cancel(1)
    world.advance(9.9)
    assert world.state("x") is LG
    world.advance(0.1)
    assert world.state("x") is UG and world.logged(m.KillWorker) == [m.KillWorker("x", 1)]
    world.exit("x")
    assert world.state("x") is U and world.charged == 0


@cell(LG, of=Trigger.LAST_WAITER_CANCELS)
def is_rejoined_within_the_grace(world: World) -> None:
    world.cancel(1)
    world.advance(9.0)
    waiter = world.request("x")
    world.advance(60.0)
    world.ready("x")
    assert world.granted[waiter].generation == 1


@cell(LG, of=Trigger.LAST_WAITER_CANCELS)
def is_aborted_at_once_when_another_needs_the_slot(world: World) -> None:
    other = world.request("z")
    assert world.state("z") is U  # room enough, but the slot is taken
    world.cancel(1)
    assert world.state("x") is UG and world.state("z") is LG
    world.ready("z")
    assert other in world.granted


@cell(D, UG, of=Trigger.LAST_WAITER_CANCELS)
def dequeues_the_last(world: World) -> None:
    state = world.state("x")
    world.cancel(world.request("x"))
    assert not len(world.house.queue) and world.state("x") is state


@cell(LD, of=Trigger.LAST_LEASE_RELEASED)
def starts_the_idle_clock_and_plans(world: World) -> None:
    world.advance(50.0)
    waiter = world.request("y")
    world.release(1)
    assert world.state("x") is UG and world.resident("x").cause is not None
    world.exit("x")
    world.ready("y")
    assert waiter in world.granted


@cell(D, of=Trigger.LAST_LEASE_RELEASED)
def unloads(world: World) -> None:
    world.release(1)
    assert world.state("x") is UG and world.seen(m.SendClose) == [m.SendClose("x", 1)]


@cell(LD, of=Trigger.REQUEST)
def is_refused_above_the_cap(world: World) -> None:
    for _ in range(15):  # max(16, 2 × decode width), one is there
        world.request("x")
    fails_with(world, world.request("x"), ServerOverloaded)
    assert world.manager.acquire_nowait(77, "x", "c", "r", world.now) is None
    world.admit(1)
    assert world.request("x") in world.granted
