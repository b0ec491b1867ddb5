"""Cells: what workers, deadlines and plans do."""

from __future__ import annotations

from gateway.errors import Conflict, ModelLoadFailed, ModelUnloaded, ShuttingDown, WorkerDied
from gateway.residency import messages as m
from gateway.residency.states import Cause, State, Trigger

from .helpers_cells import cell, fails_with
from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


@cell(LG, of=Trigger.LOAD_DONE)
def everybody_who_waits_is_granted_in_the_same_step(world: World) -> None:
    second, gone, admin = world.request("x"), world.request("x"), world.admin_load("x")
    world.cancel(gone)
    world.ready("x")
    assert {grant.waiter for grant in world.seen(m.GrantLease)} == {1, second}
    assert world.answers[admin] == m.AdminAnswer("x", "loaded", 1)


@cell(LG, of=Trigger.LOAD_FAILED)
def one_error_for_everybody(world: World) -> None:
    second, admin = world.request("x"), world.admin_load("x")
    world.fail("x", "bad magic")
    for waiter in (1, second):
        fails_with(world, waiter, ModelLoadFailed, "bad magic")
    assert world.failed[1] is not world.failed[second]
    assert isinstance(world.answers[admin], ModelLoadFailed)
    assert world.state("x") is UG and world.resident("x").target is F and world.charged == 6 * GIB
    world.exit("x")
    assert world.state("x") is F and world.charged == 0


@cell(LG, of=Trigger.LOAD_FAILED)
def progress_extends_the_timeout(world: World) -> None:
    world.advance(299.0)
    world.do(m.LoadProgress("x", 1, 0.5))
    world.advance(299.0)
    assert world.state("x") is LG
    world.advance(1.0)
    assert world.state("x") is UG and world.logged(m.KillWorker)
    fails_with(world, 1, ModelLoadFailed, "no progress")


@cell(LG, of=Trigger.WORKER_EXITED)
def a_worker_that_dies_while_loading(world: World) -> None:
    world.exit("x", detail="signal 9")
    fails_with(world, 1, ModelLoadFailed, "signal 9")
    steps = [(step.from_state, step.to_state) for step in world.seen(m.EmitTransition)]
    assert steps == [("loading", "unloading"), ("unloading", "failed")] and world.charged == 0
    assert not world.seen(m.KillWorker)


@cell(LD, of=Trigger.WORKER_EXITED)
def open_streams_get_an_error_and_what_had_not_begun_goes_on(world: World) -> None:
    second = world.request("x")
    world.admit(1)
    lease = world.granted[second].lease
    world.exit("x", detail="signal 6")
    error = world.ended["lease-1"]
    assert isinstance(error, WorkerDied) and error.retry is False and "signal 6" in error.message
    assert world.seen(m.RequeueLease) == [m.RequeueLease(lease, second)]
    assert world.state("x") is LG  # the first death in five minutes after a served request: no backoff
    world.ready("x")
    assert world.granted[second].generation == 2


@cell(LD, of=Trigger.WORKER_EXITED)
def a_worker_that_served_nobody_has_a_backoff(world: World) -> None:
    world.exit("x")
    assert world.state("x") is F
    error = world.ended["lease-1"]
    assert isinstance(error, WorkerDied) and error.retry_after_s == 1.0


@cell(LD, of=Trigger.WORKER_EXITED)
def bytes_that_outlive_the_worker_stay_charged(world: World) -> None:
    world.exit("x", held=2 * GIB)
    assert world.state("x") is F and world.charged == 2 * GIB
    assert world.seen(m.ObserveRelease) == [m.ObserveRelease("x", 1)]
    assert world.manager.statistics(world.now).budget.unreleased_bytes == 2 * GIB
    world.free("x")
    assert world.charged == 0


@cell(D, of=Trigger.WORKER_EXITED)
def a_drain_ends_with_its_worker(world: World) -> None:
    world.admit(1)
    world.exit("x")
    assert world.state("x") is U and isinstance(world.ended["lease-1"], WorkerDied)
    assert isinstance(world.answers[2], m.AdminAnswer)


@cell(D, of=Trigger.WORKER_EXITED)
def a_victim_of_fairness_that_dies_has_failed(world: World) -> None:
    world.unpin("x")
    world.release(1)
    world.exit("x")
    first = world.serve("x")
    rival = world.request("y")
    world.advance(10.0)
    assert world.state("x") is D and world.resident("x").cause is Cause.FAIRNESS
    queued = world.request("x")
    world.exit("x")
    assert world.state("x") is F and world.state("y") is LG
    assert isinstance(world.ended[world.granted[first].lease], WorkerDied)
    fails_with(world, queued, WorkerDied)
    assert rival not in world.failed


@cell(UG, of=Trigger.WORKER_EXITED)
def is_released(world: World) -> None:
    queued = world.request("x")
    world.exit("x")
    assert isinstance(world.answers[2], m.AdminAnswer)
    assert world.state("x") is LG and queued in world.resident("x").joiners


@cell(UG, of=Trigger.RELEASE_OBSERVED)
def credits_when_the_bytes_are_free(world: World) -> None:
    world.exit("x", held=5 * GIB)
    assert world.state("x") is UG and world.charged == 5 * GIB
    queued = world.request("x")
    world.free("x", held=1 * GIB)
    assert world.state("x") is UG and world.charged == 1 * GIB
    world.free("x")
    assert world.state("x") is LG and queued in world.resident("x").joiners


@cell(UG, of=Trigger.RELEASE_OBSERVED)
def who_queued_for_a_failed_one_gets_its_error(world: World) -> None:
    world.exit("x")
    world.request("x")
    world.fail("x", "bad magic")
    queued = world.request("x")
    assert world.state("x") is UG and queued not in world.failed
    world.exit("x", held=GIB)
    world.free("x")
    assert world.state("x") is F
    fails_with(world, queued, ModelLoadFailed, "bad magic")


@cell(LD, of=Trigger.IDLE_TIMEOUT)
def is_unloaded_after_its_ttl(world: World) -> None:
    world.advance(5000.0)
    assert world.state("x") is LD  # leased
    world.release(1)
    world.advance(899.0)
    assert world.state("x") is LD
    world.advance(1.0)
    assert world.state("x") is UG and world.resident("x").cause is Cause.IDLE


@cell(LD, of=Trigger.IDLE_TIMEOUT)
def a_pinned_one_stays(world: World) -> None:
    world.pin("x")
    world.release(1)
    world.advance(5000.0)
    assert world.state("x") is LD
    world.unpin("x")
    assert world.state("x") is UG


@cell(LG, of=Trigger.EVICT)
def an_operators_load_yields_to_callers(world: World) -> None:
    world.cancel(1)
    world.advance(10.0)
    world.exit("x")
    admin = world.admin_load("x")
    waiter = world.request("y")
    assert world.state("x") is UG and world.seen(m.KillWorker) and not isinstance(world.answers[admin], m.AdminAnswer)
    world.exit("x")
    world.ready("y")
    assert waiter in world.granted


@cell(LG, of=Trigger.EVICT)
def a_load_with_callers_is_protected(world: World) -> None:
    world.request("y")
    world.advance(100.0)
    assert world.state("x") is LG


@cell(LD, of=Trigger.EVICT)
def only_without_leases(world: World) -> None:
    world.request("y")
    assert world.state("x") is LD
    world.release(1)
    assert world.state("x") is UG and world.resident("x").cause is Cause.EVICTED
    assert world.resident("x").evictions == 1


@cell(LD, of=Trigger.FAIRNESS)
def drains_for_a_head_that_has_waited(world: World) -> None:
    world.request("y")
    world.advance(9.9)
    assert world.state("x") is LD
    world.advance(0.1)
    assert world.state("x") is D and world.resident("x").cause is Cause.FAIRNESS
    queued = world.request("x")
    assert queued not in world.granted


@cell(D, of=Trigger.INTENT_CANCELLED)
def serves_again(world: World) -> None:
    world.release(1)
    world.exit("x")
    world.serve("x")
    rival = world.request("y")
    world.advance(10.0)
    queued = world.request("x")
    assert world.state("x") is D
    world.cancel(rival)
    assert world.state("x") is LD and queued in world.granted


@cell(UG, of=Trigger.INTENT_CANCELLED)
def a_held_one_that_was_not_sent_serves_again(world: World) -> None:
    held_world, rival = held()
    held_world.cancel(rival)
    assert held_world.states() == {"x": LD, "v": LD, "r": U}
    assert not held_world.logged(m.SendClose)


def held() -> tuple[World, int]:
    """``r`` needs idle ``x`` and leased ``v``: the first is held, the second drains."""
    world = World(model("x", 4), model("v", 4), model("r", 9))
    world.load("x")
    world.serve("v")
    rival = world.request("r")
    world.advance(10.0)
    assert world.state("x") is UG and not world.resident("x").sent and world.state("v") is D
    return world, rival


@cell(LG, of=Trigger.DRAIN_DEADLINE)
def an_unload_does_not_wait_for_a_load_for_ever(world: World) -> None:
    admin = world.unload("x", deadline=30.0)
    queued = world.request("x")
    world.advance(30.0)
    answer = world.answers[admin]
    assert isinstance(answer, Conflict) and answer.code == "model_busy"
    world.ready("x")
    assert world.state("x") is LD and {1, queued} <= set(world.granted)


@cell(D, of=Trigger.DRAIN_DEADLINE)
def an_admin_drain_gives_up(world: World) -> None:
    queued = world.request("x")
    world.advance(119.0)
    again = world.request("x")
    world.advance(881.0)
    answer = world.answers[2]
    assert isinstance(answer, Conflict) and answer.code == "model_busy" and "lease-1" in answer.message
    assert world.state("x") is LD and queued in world.failed and again in world.failed  # their queue timeout


@cell(D, of=Trigger.DRAIN_DEADLINE)
def a_fairness_drain_gives_up(world: World) -> None:
    world.release(1)
    world.exit("x")
    world.serve("x")
    rival = world.request("y")
    world.advance(10.0)
    queued = world.request("x")
    world.advance(59.9)
    assert world.state("x") is D
    world.advance(0.1)
    assert world.state("x") is LD and queued in world.granted
    assert rival in world.house.waiters and world.house.queue.head == "y"


@cell(D, of=Trigger.DRAIN_DEADLINE)
def a_reload_drain_lasts(world: World) -> None:
    world.registry(model("x", 6, key="x2"), model("y", 6))
    world.advance(60.0)
    assert world.resident("x").state is D
    events = [e for e in world.logged(m.EmitTransition) if e.from_state == e.to_state == "draining"]
    assert [event.cause for event in events] == ["reload", "reload"]  # the change of cause, and the drain_timeout_s


@cell(D, of=Trigger.DRAIN_DEADLINE)
def an_abort_kills(world: World) -> None:
    admin = world.unload("x", "abort", deadline=5.0)
    world.advance(5.0)
    assert world.state("x") is UG and world.logged(m.KillWorker) == [m.KillWorker("x", 1)]
    assert isinstance(world.ended["lease-1"], ModelUnloaded)
    world.exit("x")
    answer = world.answers[admin]
    assert isinstance(answer, m.AdminAnswer) and answer.waited_for == ("lease-1",)


@cell(D, of=Trigger.DRAIN_DEADLINE)
def a_shutdown_kills(world: World) -> None:
    world.shutdown(30.0)
    world.advance(26.9)
    assert world.state("x") is D
    world.advance(0.1)
    assert world.state("x") is UG and isinstance(world.ended["lease-1"], ShuttingDown)
    world.exit("x")
    assert world.seen(m.ShutdownComplete)


@cell(UG, of=Trigger.UNLOAD_TIMED_OUT)
def is_killed_and_its_bytes_are_unreleased(world: World) -> None:
    world.advance(19.9)
    assert not world.logged(m.KillWorker)
    world.advance(0.1)
    assert world.state("x") is U and world.logged(m.KillWorker) == [m.KillWorker("x", 1)]
    assert world.charged == 6 * GIB and world.manager.statistics(world.now).budget.unreleased_bytes == 6 * GIB
    assert "unreleased" in [event.cause for event in world.logged(m.EmitTransition)]
    waiter = world.request("x")
    assert world.state("x") is U  # does not fit beside them
    world.exit("x", generation=1)
    assert world.charged == 6 * GIB and world.state("x") is LG and waiter in world.resident("x").joiners


@cell(UG, of=Trigger.UNLOAD_TIMED_OUT)
def goes_to_failed_where_it_was_bound_for_that(world: World) -> None:
    world.exit("x")
    world.request("x")
    world.fail("x")
    world.exit("x", held=GIB)
    world.advance(20.0)
    assert world.state("x") is F and world.charged == GIB
