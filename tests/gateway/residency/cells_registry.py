"""Cells: what a changed registry and a shutdown do."""

from __future__ import annotations

from gateway.errors import Conflict, ModelNotFound, ShuttingDown
from gateway.residency import messages as m
from gateway.residency.states import Cause, State, Trigger

from .helpers_cells import cell, fails_with
from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


def done(world: World, admin: int, state: str = "unloaded") -> bool:
    answer = world.answers.get(admin)
    return isinstance(answer, m.AdminAnswer) and answer.state == state


# --- registry


@cell(U, of=Trigger.LOAD_KEYS_CHANGED)
def the_queue_follows(world: World) -> None:
    world.serve("y")
    queued, load = world.request("x"), world.admin_load("x")
    world.registry(model("x", 3, key="x2"), model("y", 6))
    assert world.resident("x2").state is LG and queued in world.resident("x2").joiners
    world.ready("x2")
    assert queued in world.granted and done(world, load, "loaded")
    assert "x" not in world.house.residents


@cell(LG, of=Trigger.LOAD_KEYS_CHANGED)
def waiters_move_and_the_load_is_aborted(world: World) -> None:
    world.registry(model("x", 6, key="x2"), model("y", 6))
    assert world.resident("x").state is UG and world.seen(m.KillWorker)
    assert world.resident("x2").state is U
    world.exit("x")
    assert world.resident("x2").state is LG and 1 in world.resident("x2").joiners


@cell(LG, of=Trigger.LOAD_KEYS_CHANGED)
def another_id_keeps_the_load(world: World) -> None:
    world.cancel(1)
    world.registry(model("x", 6), model("x-too", 6, key="x"))
    first, second = world.request("x"), world.request("x-too")
    world.registry(model("x", 1, key="x2"), model("x-too", 6, key="x"))
    assert world.resident("x").state is LG
    world.ready("x")
    assert second in world.granted
    world.ready("x2")
    assert world.granted[first].key == "x2"


@cell(LD, of=Trigger.LOAD_KEYS_CHANGED)
def drains_and_loads_the_new_one_after(world: World) -> None:
    world.registry(model("x", 6, key="x2"), model("y", 6), model("z", 1))
    assert world.resident("x").state is D and world.resident("x").cause is Cause.RELOAD
    queued = world.request("x")
    other = world.request("z")
    assert world.state("z") is LG  # others never wait for it
    world.ready("z")
    assert other in world.granted
    world.advance(100.0)
    world.release(1)
    world.exit("x")
    world.ready("x2")
    assert world.granted[queued].key == "x2" and "x" not in world.house.residents


@cell(LD, of=Trigger.LOAD_KEYS_CHANGED)
def loads_the_new_one_beside_where_both_fit(world: World) -> None:
    world.registry(model("x", 4, key="x2"))
    queued = world.request("x")
    world.ready("x2")
    assert queued in world.granted and world.resident("x").state is D


@cell(LD, of=Trigger.LOAD_KEYS_CHANGED)
def another_id_keeps_it_loaded(world: World) -> None:
    world.registry(model("x-too", 6, key="x"), model("x", 3, key="x2"))
    assert world.resident("x").state is LD


@cell(D, of=Trigger.LOAD_KEYS_CHANGED)
def the_cause_becomes_reload(world: World) -> None:
    queued = world.request("x")
    world.registry(model("x", 6, key="x2"))
    assert world.resident("x").cause is Cause.RELOAD and world.house.waiters[queued].key == "x2"
    world.advance(1000.0)
    assert world.resident("x").state is D and isinstance(world.answers[2], Conflict)


@cell(UG, of=Trigger.LOAD_KEYS_CHANGED)
def the_queue_of_a_teardown_follows(world: World) -> None:
    queued = world.request("x")
    world.registry(model("x", 6, key="x2"))
    assert world.house.waiters[queued].key == "x2"
    world.exit("x")
    assert world.resident("x2").state is LG and done(world, 2)


@cell(F, of=Trigger.LOAD_KEYS_CHANGED)
def a_repaired_file_is_a_new_key(world: World) -> None:
    world.registry(model("x", 6, key="x2"))
    assert "x" not in world.house.residents
    world.request("x")
    assert world.resident("x2").state is LG


@cell(U, of=Trigger.LAST_ID_REMOVED)
def the_queue_is_not_found(world: World) -> None:
    world.serve("y")
    queued, load = world.request("x"), world.admin_load("x")
    world.registry(model("y", 6))
    fails_with(world, queued, ModelNotFound, "y")
    assert isinstance(world.answers[load], ModelNotFound) and "x" not in world.house.residents


@cell(LG, of=Trigger.LAST_ID_REMOVED)
def the_load_is_abandoned(world: World) -> None:
    world.registry(model("y", 6))
    fails_with(world, 1, ModelNotFound)
    assert world.resident("x").state is UG and world.seen(m.KillWorker)
    world.exit("x")
    assert "x" not in world.house.residents and world.charged == 0


@cell(LD, of=Trigger.LAST_ID_REMOVED)
def finishes_its_leases(world: World) -> None:
    world.registry(model("y", 6))
    assert world.resident("x").state is D and world.resident("x").cause is Cause.REMOVED
    (row,) = [row for row in world.manager.statistics(world.now).models if row.id == "x"]
    assert row.state == "draining" and row.charged_bytes == 6 * GIB
    world.release(1)
    world.exit("x")
    assert "x" not in world.house.residents


@cell(D, of=Trigger.LAST_ID_REMOVED)
def the_cause_becomes_removed(world: World) -> None:
    queued = world.request("x")
    world.registry(model("y", 6))
    fails_with(world, queued, ModelNotFound)
    assert world.resident("x").cause is Cause.REMOVED


@cell(UG, of=Trigger.LAST_ID_REMOVED)
def is_forgotten_after_its_teardown(world: World) -> None:
    queued = world.request("x")
    world.registry(model("y", 6))
    fails_with(world, queued, ModelNotFound)
    world.exit("x")
    assert "x" not in world.house.residents and done(world, 2)


@cell(F, of=Trigger.LAST_ID_REMOVED)
def is_forgotten(world: World) -> None:
    world.registry(model("y", 6))
    assert "x" not in world.house.residents
    world.registry(model("x", 6))
    world.request("x")
    assert world.resident("x").generation == 2  # generations grow for ever


# --- shutdown


@cell(U, of=Trigger.SHUTDOWN)
def the_queue_is_sent_away(world: World) -> None:
    lease = world.serve("y")
    queued, load = world.request("x"), world.admin_load("x")
    world.shutdown()
    fails_with(world, queued, ShuttingDown)
    assert isinstance(world.answers[load], ShuttingDown) and world.state("y") is D
    world.release(lease)
    world.exit("y")
    assert world.seen(m.ShutdownComplete)


@cell(LG, of=Trigger.SHUTDOWN)
def the_load_is_aborted(world: World) -> None:
    load = world.admin_load("x")
    world.shutdown()
    fails_with(world, 1, ShuttingDown)
    assert isinstance(world.answers[load], ShuttingDown) and world.state("x") is UG and world.seen(m.KillWorker)


@cell(LD, of=Trigger.SHUTDOWN)
def leases_run_on(world: World) -> None:
    world.shutdown()
    assert world.state("x") is D and world.resident("x").cause is Cause.SHUTDOWN and not world.seen(m.CancelLease)
    world.release(1)
    assert world.state("x") is UG and world.seen(m.SendClose)


@cell(D, of=Trigger.SHUTDOWN)
def the_cause_becomes_shutdown(world: World) -> None:
    world.shutdown()
    assert world.resident("x").cause is Cause.SHUTDOWN
    world.unload("x")
    assert world.resident("x").cause is Cause.SHUTDOWN


@cell(UG, of=Trigger.SHUTDOWN)
def is_bounded_by_the_grace(world: World) -> None:
    world.shutdown(8.0)
    world.advance(7.0)
    assert world.logged(m.KillWorker) == [m.KillWorker("x", 1)]
    world.advance(1.0)
    assert world.logged(m.ShutdownComplete)


@cell(F, of=Trigger.SHUTDOWN)
def is_forgotten_and_complete(world: World) -> None:
    world.shutdown()
    assert world.state("x") is U and world.seen(m.ShutdownComplete)
