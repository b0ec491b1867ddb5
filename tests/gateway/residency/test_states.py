"""The state × event table: every cell does what it says, and no step is taken that is not in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.errors import ModelLoadFailed
from gateway.residency import messages as m
from gateway.residency.states import TABLE, IllegalTransition, State, Trigger, check, render_table

from . import cells_callers, cells_operators, cells_registry, cells_workers
from .helpers_cells import CELLS, Cell, touches_x, world_in
from .helpers_core import World

assert cells_callers and cells_operators and cells_registry and cells_workers  # imported for what they register
U, LG, LD, D, UG, F = State


def _at(cell: tuple[State, Trigger]) -> str:
    state, trigger = cell
    return f"{state.value}-{trigger.value}"


@pytest.mark.parametrize(
    ("state", "test"),
    [pytest.param(at[0], test, id=f"{_at(at)}-{test.__name__}") for at, tests in CELLS.items() for test in tests],
)
def test_cell(state: State, test: Cell) -> None:
    test(world_in(state))


def test_every_cell_has_a_test() -> None:
    acting = {at for at, cell in TABLE.items() if not cell.ignored}
    assert {_at(at) for at in acting} == {_at(at) for at in CELLS}


def _rival_comes(world: World) -> None:
    world.request("y")


def _rival_waits(world: World) -> None:
    world.request("y")
    world.advance(11.0)


def _rival_leaves(world: World) -> None:
    world.cancel(world.request("y"))


def _unload_deadline(world: World) -> None:
    if world.state("x") is UG:
        world.unload("x", deadline=5.0)
    world.advance(5.0)


STIMULI: dict[Trigger, Callable[[World], object]] = {
    Trigger.LOAD_DONE: lambda w: w.do(m.WorkerReady("x", w.resident("x").generation, 1)),
    Trigger.LOAD_FAILED: lambda w: w.fail("x"),
    Trigger.WORKER_EXITED: lambda w: w.exit("x"),
    Trigger.RELEASE_OBSERVED: lambda w: w.free("x"),
    Trigger.WAITER_CANCELS: lambda w: w.cancel(4711),
    Trigger.LAST_WAITER_CANCELS: lambda w: w.cancel(4711),
    Trigger.LAST_LEASE_RELEASED: lambda w: w.release("lease-4711"),
    Trigger.IDLE_TIMEOUT: lambda w: w.advance(15.0),
    Trigger.EVICT: _rival_comes,
    Trigger.FAIRNESS: _rival_waits,
    Trigger.INTENT_CANCELLED: _rival_leaves,
    Trigger.DRAIN_DEADLINE: _unload_deadline,
    Trigger.UNLOAD_TIMED_OUT: lambda w: w.advance(20.0),
}


@pytest.mark.parametrize("at", [at for at, cell in TABLE.items() if cell.ignored], ids=_at)
def test_ignored_cell_changes_nothing(at: tuple[State, Trigger]) -> None:
    state, trigger = at
    world = world_in(state, ttl_s=10)
    before = world.resident("x")
    leases, generation, charge = set(before.leases), before.generation, before.charge
    begun = len(world.log)
    STIMULI[trigger](world)
    after = world.resident("x")
    assert (after.state, set(after.leases), after.generation, after.charge) == (state, leases, generation, charge)
    assert not [effect for effect in world.log[begun:] if touches_x(effect)]


@pytest.mark.parametrize("state", State)
def test_events_of_an_old_generation_are_counted_and_dropped(state: State) -> None:
    world = world_in(U)
    world.serve("x")
    world.release(1)
    world.unload("x", "force")
    world.exit("x")
    new = world_in_again(world, state)
    before = world.resident("x").charge
    for event in (
        m.WorkerReady("x", 1, 1),
        m.LoadProgress("x", 1, 0.5),
        m.LoadFailed("x", 1, ModelLoadFailed("late")),
        m.WorkerExited("x", 1),
        m.ReleaseObserved("x", 1),
        m.MemoryReport("x", 1, 10**12, 10**12),
        m.GrowRequest("x", 1, 10, 1),
        m.WorkerStarted("x", 1, 4711),
    ):
        counted = sum(world.house.counts.values())
        world.do(event)
        assert sum(world.house.counts.values()) == counted + 1, event
    assert world.state("x") is state and world.resident("x").charge == before and new >= 1


def world_in_again(world: World, state: State) -> int:
    """The same world, with ``x`` once more brought into ``state``; returns its generation."""
    if state is not U:
        waiter = world.request("x")
        if state is F:
            world.fail("x")
            world.exit("x")
        elif state is not LG:
            world.ready("x")
            if state is UG:
                world.release(waiter)
            if state is not LD:
                world.unload("x", deadline=1000.0)
    assert world.state("x") is state
    return world.resident("x").generation


def test_a_step_that_is_not_in_the_table_is_refused() -> None:
    check(LG, Trigger.LOAD_DONE, LD)
    with pytest.raises(IllegalTransition, match="load done must not lead from UNLOADED to LOADED"):
        check(U, Trigger.LOAD_DONE, LD)


def test_the_table_renders_as_markdown() -> None:
    lines = render_table().splitlines()
    assert lines[0] == "| event | UNLOADED | LOADING | LOADED | DRAINING | UNLOADING | FAILED |"
    assert len(lines) == 2 + len(Trigger)
    assert all(line.count("|") == 8 for line in lines)
    assert "| load done | – | LOADED; every live waiter granted in the same step | – | – | – | – |" in lines
