"""Cells: what operators do."""

from __future__ import annotations

from gateway.errors import Conflict, ModelUnloaded
from gateway.residency import messages as m
from gateway.residency.states import Cause, State, Trigger

from .cells_workers import held
from .helpers_cells import cell, fails_with
from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


def done(world: World, admin: int, state: str = "unloaded") -> bool:
    answer = world.answers.get(admin)
    return isinstance(answer, m.AdminAnswer) and answer.state == state


# --- load


@cell(U, of=Trigger.ADMIN_LOAD)
@cell(F, of=Trigger.ADMIN_LOAD)
def plans(world: World) -> None:
    before = world.resident("x").generation
    admin = world.admin_load("x")
    assert world.state("x") is LG and world.resident("x").generation == before + 1
    world.ready("x")
    assert done(world, admin, "loaded") and world.state("x") is LD


@cell(U, of=Trigger.ADMIN_LOAD)
def preloads(world: World) -> None:
    world.registry(model("x", 6, preload=True), model("y", 6))
    assert world.state("x") is LG
    world.advance(60.0)
    assert world.state("x") is LG  # not abandoned


@cell(LG, of=Trigger.ADMIN_LOAD)
def joins(world: World) -> None:
    admin = world.admin_load("x")
    world.cancel(1)
    world.advance(60.0)
    world.ready("x")
    assert done(world, admin, "loaded")


@cell(LD, of=Trigger.ADMIN_LOAD)
def is_loaded_already(world: World) -> None:
    assert done(world, world.admin_load("x"), "loaded")


@cell(D, UG, of=Trigger.ADMIN_LOAD)
def queues(world: World) -> None:
    admin = world.admin_load("x")
    assert admin not in world.answers
    if world.state("x") is D:
        world.release(1)
    world.exit("x")
    world.ready("x")
    assert done(world, admin, "loaded")


# --- unload


@cell(U, of=Trigger.UNLOAD_DRAIN)
def is_unloaded_already(world: World) -> None:
    assert done(world, world.unload("x"))


@cell(U, of=Trigger.UNLOAD_ABORT)
def aborts_the_queue(world: World) -> None:
    unload_and_fail_queue(world, "abort")


@cell(U, of=Trigger.UNLOAD_FORCE)
def forces_the_queue(world: World) -> None:
    unload_and_fail_queue(world, "force")


def unload_and_fail_queue(world: World, mode: m.UnloadMode) -> None:
    world.serve("y")
    queued, load = world.request("x"), world.admin_load("x")
    assert done(world, world.unload("x", mode))
    fails_with(world, queued, ModelUnloaded)
    assert isinstance(world.answers[load], ModelUnloaded) and not len(world.house.queue)


@cell(LG, of=Trigger.UNLOAD_DRAIN)
def serves_who_waits_and_then_unloads(world: World) -> None:
    admin = world.unload("x")
    world.ready("x")
    assert 1 in world.granted and world.state("x") is D
    world.release(1)
    world.exit("x")
    answer = world.answers[admin]
    assert isinstance(answer, m.AdminAnswer) and answer.waited_for == ("lease-1",)


@cell(LG, of=Trigger.UNLOAD_DRAIN)
def with_nobody_waiting_it_is_aborted(world: World) -> None:
    world.cancel(1)
    admin = world.unload("x")
    assert world.state("x") is UG and world.seen(m.KillWorker)
    world.exit("x")
    assert done(world, admin) and world.state("x") is U


@cell(LG, of=Trigger.UNLOAD_ABORT)
def aborts_the_load(world: World) -> None:
    abort_load(world, "abort")


@cell(LG, of=Trigger.UNLOAD_FORCE)
def forces_the_load(world: World) -> None:
    world.pin("x")
    abort_load(world, "force")


def abort_load(world: World, mode: m.UnloadMode) -> None:
    admin = world.unload("x", mode)
    fails_with(world, 1, ModelUnloaded)
    assert world.state("x") is UG and world.seen(m.KillWorker)
    world.do(m.WorkerReady("x", 1, 6 * GIB))  # too late: counted, nothing changes
    assert world.state("x") is UG
    world.exit("x")
    assert done(world, admin)


@cell(LG, LD, of=Trigger.UNLOAD_DRAIN)
def a_pin_refuses_a_drain(world: World) -> None:
    refused_by_pin(world, "drain")


@cell(LG, LD, of=Trigger.UNLOAD_ABORT)
def a_pin_refuses_an_abort(world: World) -> None:
    refused_by_pin(world, "abort")


def refused_by_pin(world: World, mode: m.UnloadMode) -> None:
    state = world.state("x")
    world.pin("x")
    answer = world.answers[world.unload("x", mode)]
    assert isinstance(answer, Conflict) and answer.code == "model_pinned" and "'x'" in answer.message
    assert world.state("x") is state


@cell(LD, of=Trigger.UNLOAD_DRAIN)
def drains(world: World) -> None:
    admin = world.unload("x")
    assert world.state("x") is D and world.resident("x").cause is Cause.ADMIN and not world.seen(m.CancelLease)
    world.release(1)
    assert world.state("x") is UG
    world.exit("x")
    assert done(world, admin)


@cell(LD, of=Trigger.UNLOAD_DRAIN)
def an_idle_one_unloads_at_once(world: World) -> None:
    world.release(1)
    world.unload("x")
    assert world.state("x") is UG and world.seen(m.SendClose)


@cell(LD, of=Trigger.UNLOAD_ABORT)
def cancels_the_leases(world: World) -> None:
    world.unload("x", "abort")
    (cancel,) = world.seen(m.CancelLease)
    assert cancel.lease == "lease-1" and isinstance(cancel.error, ModelUnloaded)
    assert world.state("x") is D
    world.release(1)
    assert world.state("x") is UG


@cell(LD, of=Trigger.UNLOAD_FORCE)
def ignores_the_pin_and_kills_at_the_deadline(world: World) -> None:
    world.pin("x")
    admin = world.unload("x", "force", deadline=5.0)
    assert world.state("x") is D and world.seen(m.CancelLease)
    world.advance(5.0)
    assert world.state("x") is UG and world.logged(m.KillWorker) and "lease-1" in world.ended
    world.exit("x")
    assert done(world, admin)


@cell(LD, of=Trigger.UNLOAD_FORCE)
def kills_a_teardown_at_the_deadline(world: World) -> None:
    world.unload("x", "force", deadline=5.0)
    world.release(1)
    assert world.state("x") is UG and not world.logged(m.KillWorker)
    world.advance(5.0)
    assert world.logged(m.KillWorker) == [m.KillWorker("x", 1)]


@cell(D, UG, of=Trigger.UNLOAD_DRAIN)
@cell(UG, of=Trigger.UNLOAD_ABORT)
def joins_what_is_under_way(world: World) -> None:
    mode: m.UnloadMode = "drain" if world.state("x") is D else "abort"
    queued, admin = world.request("x"), world.unload("x", mode)
    assert admin not in world.answers and queued not in world.failed
    if world.state("x") is D:
        world.release(1)
    world.exit("x")
    assert done(world, admin) and done(world, 2)


@cell(D, of=Trigger.UNLOAD_DRAIN)
def takes_a_fairness_drain_over(world: World) -> None:
    world.release(1)
    world.exit("x")
    world.serve("x")
    rival = world.request("y")
    world.advance(10.0)
    world.unload("x")
    assert world.resident("x").cause is Cause.ADMIN
    world.cancel(rival)
    assert world.state("x") is D


@cell(UG, of=Trigger.UNLOAD_DRAIN)
def sends_what_was_held(world: World) -> None:
    held_world, _ = held()
    held_world.unload("x")
    assert held_world.seen(m.SendClose) == [m.SendClose("x", 1)]
    assert held_world.state("v") is D  # still needed, in a drain of its own


@cell(UG, of=Trigger.UNLOAD_DRAIN)
def clears_a_failure(world: World) -> None:
    world.exit("x")
    world.request("x")
    world.fail("x")
    admin = world.unload("x")
    queued = world.request("x")
    world.exit("x")
    assert done(world, admin) and world.state("x") is LG and queued not in world.failed


@cell(D, of=Trigger.UNLOAD_ABORT)
def upgrades(world: World) -> None:
    queued = world.request("x")
    world.unload("x", "abort")
    assert world.seen(m.CancelLease) and world.state("x") is D
    fails_with(world, queued, ModelUnloaded)


@cell(D, of=Trigger.UNLOAD_FORCE)
def upgrades_and_kills(world: World) -> None:
    queued, admin = world.request("x"), world.unload("x", "force")
    assert world.state("x") is UG and world.seen(m.KillWorker) and isinstance(world.ended["lease-1"], ModelUnloaded)
    fails_with(world, queued, ModelUnloaded)
    world.exit("x")
    assert done(world, admin) and done(world, 2)


@cell(UG, of=Trigger.UNLOAD_FORCE)
def kills(world: World) -> None:
    world.unload("x", "force")
    assert world.seen(m.KillWorker) == [m.KillWorker("x", 1)] and world.state("x") is UG


@cell(F, of=Trigger.UNLOAD_DRAIN)
def forgets_the_failure(world: World) -> None:
    assert done(world, world.unload("x")) and world.state("x") is U
    world.request("x")
    assert world.state("x") is LG


@cell(F, of=Trigger.UNLOAD_ABORT)
def forgets_the_failure_and_fails_the_queue(world: World) -> None:
    forget_with_queue(world, "abort")


@cell(F, of=Trigger.UNLOAD_FORCE)
def forces_the_failure_away(world: World) -> None:
    forget_with_queue(world, "force")


def forget_with_queue(world: World, mode: m.UnloadMode) -> None:
    world.serve("y")
    world.advance(1.0)
    queued = world.request("x")
    assert world.state("x") is F  # its backoff is over, there is no room
    assert done(world, world.unload("x", mode)) and world.state("x") is U
    fails_with(world, queued, ModelUnloaded)


# --- pins


@cell(U, LG, LD, D, UG, F, of=Trigger.PIN)
def sets_a_flag(world: World) -> None:
    state = world.state("x")
    admin = world.pin("x")
    assert done(world, admin, state.value) and world.state("x") is state and world.resident("x").pinned


@cell(U, LG, LD, D, UG, F, of=Trigger.UNPIN)
def clears_a_flag(world: World) -> None:
    world.pin("x")
    state = world.state("x")
    admin = world.unpin("x")
    assert done(world, admin, state.value) and world.state("x") is state and not world.resident("x").pinned


@cell(D, of=Trigger.PIN)
def takes_a_fairness_drain_back(world: World) -> None:
    world.release(1)
    world.exit("x")
    world.serve("x")
    world.request("y")
    world.advance(10.0)
    assert world.state("x") is D
    world.pin("x")
    assert world.state("x") is LD


@cell(UG, of=Trigger.PIN)
def takes_back_what_was_not_sent(world: World) -> None:
    held_world, rival = held()
    held_world.pin("x")
    assert held_world.state("x") is LD and held_world.state("v") is LD
    assert rival in held_world.failed  # 9 GiB beside a pinned 4 of 10
