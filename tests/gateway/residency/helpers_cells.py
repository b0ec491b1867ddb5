"""The cells of the state × event table as tests: each is a function of a world in which resident ``x`` is in that state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.residency import messages as m
from gateway.residency.states import State, Trigger

from .helpers_core import World, model

__all__ = ["CELLS", "Cell", "cell", "fails_with", "world_in"]

Cell = Callable[[World], None]
CELLS: dict[tuple[State, Trigger], list[Cell]] = {}


def cell(*states: State, of: Trigger) -> Callable[[Cell], Cell]:
    """Registers a test of this event in each of these states."""

    def register(test: Cell) -> Cell:
        for state in states:
            CELLS.setdefault((state, of), []).append(test)
        return test

    return register


def world_in(state: State, **policy: Any) -> World:
    """Room for one of ``x`` and ``y`` (``z`` is small); ``x`` is in ``state``, and nobody but its lease or load needs it.

    UNLOADED; LOADING for waiter 1; LOADED with the lease of waiter 1; DRAINING(admin) with that lease, for long; UNLOADING
    by an unload, sent; FAILED after a load that failed.
    """
    world = World(model("x", 6, **policy), model("y", 6), model("z", 1), unload_timeout_s=20.0)
    if state is State.LOADING:
        world.request("x")
    elif state in (State.LOADED, State.DRAINING):
        world.serve("x")
        if state is State.DRAINING:
            world.unload("x", deadline=1000.0)
    elif state is State.UNLOADING:
        world.load("x")
        world.unload("x")
    elif state is State.FAILED:
        world.request("x")
        world.fail("x")
        world.exit("x")
    assert world.state("x") is state
    return world


def fails_with(world: World, waiter: int, kind: type[Exception], *parts: str) -> None:
    """The caller got this error, which says these things."""
    error = world.failed[waiter]
    assert type(error) is kind, error
    for part in parts:
        assert part in error.message, error.message


def touches_x(effect: m.Effect) -> bool:
    """Whether an effect is about resident ``x`` or its callers."""
    match effect:
        case m.EmitTransition():
            return effect.model == "x"
        case m.StartWorker() | m.SendClose() | m.KillWorker() | m.SetGrant() | m.Shed() | m.ObserveRelease():
            return effect.key == "x"
        case m.EndLease() | m.CancelLease() | m.RequeueLease():
            return True
        case _:
            return False
