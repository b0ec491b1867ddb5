"""The manager when loads fail, workers die, the registry changes and the gateway ends."""

from __future__ import annotations

from gateway.errors import Conflict, GatewayError
from gateway.residency import messages as m
from gateway.residency.states import Cause, State

from .helpers_core import World, model

U, LG, LD, D, UG, F = State


# --- failure


def test_manager_a_failed_load_is_tried_again_after_the_backoff() -> None:
    world = World(model("a", 6))
    first = world.request("a")
    world.fail("a", "a.gguf: truncated")
    world.exit("a", detail="exit 1")
    assert "a.gguf" in world.failed[first].message
    assert world.request("a") in world.failed
    world.advance(1.0)
    world.request("a")
    assert world.state("a") is LG
    world.fail("a")
    world.exit("a")
    error = world.failed[world.request("a")]
    assert error.retry_after_s == 2.0
    world.unload("a")
    assert world.request("a") not in world.failed


def test_manager_an_error_that_is_not_transient_is_repeated_as_it_is() -> None:
    world = World(model("a", 6))
    world.request("a")
    world.do(m.LoadFailed("a", 1, GatewayError("needs an extra", code="missing_extra")))
    world.exit("a")
    error = world.failed[world.request("a")]
    assert error.code == "missing_extra" and error.message == "needs an extra"


def test_manager_a_death_with_streams_and_a_queue() -> None:
    world = World(model("a", 6))
    streams = [world.serve("a")] + [world.request("a") for _ in range(2)]
    for stream in streams:
        world.admit(stream)
    queued = world.request("a")
    world.exit("a", detail="signal 9")
    assert len(world.ended) == 3 and all(error.retry is False for error in world.ended.values())
    world.ready("a")
    assert world.granted[queued].generation == 2
    world.admit(queued)
    late = world.request("a")
    world.exit("a", detail="signal 9")  # the second within five minutes
    assert world.state("a") is F and world.ended[world.granted[late].lease].retry_after_s == 1.0


def test_manager_a_requeued_caller_keeps_its_place() -> None:
    world = World(model("a", 6), model("b", 6))
    begun = world.serve("a")
    world.admit(begun)
    waiting = world.request("a")
    world.request("b")
    world.exit("a")
    assert world.state("a") is LG and waiting in world.resident("a").joiners
    assert [row.model for row in world.manager.statistics(world.now).queue] == ["b"]


def test_manager_a_requeued_caller_that_leaves_is_forgotten() -> None:
    world = World(model("a", 6))
    world.admit(world.serve("a"))
    waiting = world.request("a")
    world.exit("a")
    world.cancel(waiting)
    world.ready("a")
    assert not world.house.waiters and not world.house.leases


def test_manager_unload_and_request_at_the_same_time_serve_or_refuse() -> None:
    for order in range(2):
        world = World(model("a", 6))
        world.load("a")
        waiter = 0
        if order:
            waiter = world.request("a")
        admin = world.unload("a")
        if not order:
            waiter = world.request("a")
        if waiter in world.granted:
            world.release(waiter)
        world.exit("a")
        assert isinstance(world.answers[admin], m.AdminAnswer)
        if not order:
            world.ready("a")
            assert waiter in world.granted


# --- registry


def test_manager_a_runtime_pin_survives_a_reload_and_ends_with_the_id() -> None:
    world = World(model("a", 6), model("b", 6))
    world.pin("a")
    world.registry(model("a", 6, key="a2"), model("b", 6))
    assert world.resident("a2").pinned
    world.registry(model("b", 6))
    world.registry(model("a", 6), model("b", 6))
    assert not world.resident("a").pinned


def test_manager_an_unpin_holds_until_the_registry_changes_its_pin() -> None:
    world = World(model("a", 6, pin=True))
    world.unpin("a")
    world.registry(model("a", 6, pin=True, ttl_s=5))
    assert not world.resident("a").pinned
    world.registry(model("a", 6))
    world.registry(model("a", 6, pin=True))
    assert world.resident("a").pinned


def test_manager_unload_of_a_reloaded_id_reaches_what_it_had() -> None:
    world = World(model("a", 6))
    lease = world.serve("a")
    world.registry(model("a", 6, key="a2"))
    admin = world.unload("a", "abort")
    assert world.seen(m.CancelLease)
    world.release(lease)
    world.exit("a")
    assert isinstance(world.answers[admin], m.AdminAnswer)


def test_manager_unload_deadline_of_a_reloaded_one_keeps_draining() -> None:
    world = World(model("a", 6))
    world.serve("a")
    world.registry(model("a", 6, key="a2"))
    admin = world.unload("a", deadline=5.0)
    assert world.resident("a").cause is Cause.ADMIN
    world.advance(5.0)
    assert isinstance(world.answers[admin], Conflict) and world.resident("a").cause is Cause.RELOAD


def test_manager_generations_grow_for_ever() -> None:
    world = World(model("a", 6))
    for expected in (1, 2, 3):
        lease = world.serve("a")
        assert world.granted[lease].generation == expected
        world.release(lease)
        world.registry()
        world.exit("a")
        world.registry(model("a", 6))


# --- shutdown


def test_manager_shutdown_ends_everything_within_the_grace() -> None:
    world = World(model("a", 3), model("b", 3), model("c", 3), model("d", 3))
    stream = world.serve("a")
    world.load("b")
    loading = world.request("c")
    queued = world.request("d")
    world.shutdown(30.0)
    assert world.states() == {"a": D, "b": UG, "c": UG, "d": U}
    assert {loading, queued} <= set(world.failed)
    world.exit("b")
    world.exit("c")
    world.advance(27.0)
    assert world.granted[stream].lease in world.ended and world.state("a") is UG
    world.exit("a")
    assert world.seen(m.ShutdownComplete) and world.charged == 0


def test_manager_a_second_shutdown_shortens_the_grace() -> None:
    world = World(model("a", 3))
    world.serve("a")
    world.shutdown(30.0)
    world.shutdown(0.0)
    assert world.ended and set(world.logged(m.KillWorker)) == {m.KillWorker("a", 1)}
    assert len(world.logged(m.ShutdownComplete)) == 1


def test_manager_shutdown_with_nothing_loaded_is_complete_at_once() -> None:
    world = World(model("a", 3))
    world.shutdown()
    assert world.seen(m.ShutdownComplete)
    answer = world.answers[world.admin_load("a")]
    assert isinstance(answer, GatewayError) and answer.code == "shutting_down"
