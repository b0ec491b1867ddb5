"""The manager as a whole: the failures that users of multi-model servers have met, as far as the core decides them."""

from __future__ import annotations

import pytest

from gateway.errors import Conflict, ModelLoadFailed, ModelNotFound, ModelTooLarge, NoRoomBesidePinned, QueueTimeout
from gateway.residency import messages as m
from gateway.residency.states import State

from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State


# --- callers


def test_manager_a_stream_finishes_before_its_model_is_evicted() -> None:
    world = World(model("a", 6), model("b", 6))
    stream = world.serve("a")
    waiter = world.request("b")
    assert world.states() == {"a": LD, "b": U}
    world.release(stream)
    assert [type(e) for e in world.effects[:2]] == [m.EmitTransition, m.SendClose]
    world.exit("a")
    world.ready("b")
    assert waiter in world.granted


def test_manager_a_request_during_the_teardown_is_never_sent_to_the_dying_worker() -> None:
    world = World(model("a", 6), model("b", 6))
    world.load("a")
    first = world.request("b")
    second = world.request("a")
    assert world.state("a") is UG
    world.exit("a")
    world.ready("b")
    world.release(first)
    world.exit("b")
    world.ready("a")
    assert world.granted[second].generation == 2


def test_manager_two_models_in_turn_each_load_serves_somebody() -> None:
    world = World(model("a", 6), model("b", 6))
    previous = None
    for turn in range(20):
        id = "ab"[turn % 2]
        waiter = world.request(id)
        if previous is not None:
            world.exit(previous)
        world.ready(id)
        assert waiter in world.granted
        world.admit(waiter)
        world.release(waiter)
        previous = id
    assert len(world.logged(m.StartWorker)) == 20


def test_manager_a_caller_that_left_gives_back_a_grant_already_made() -> None:
    world = World(model("a", 6), model("b", 6))
    waiter = world.serve("a")
    queued = world.request("b")
    world.cancel(waiter)
    assert not world.house.leases and world.state("a") is UG and queued in world.house.waiters
    world.release(waiter)  # late: counted
    world.cancel(waiter)
    assert world.house.counts["release of no lease"] == 1 and world.house.counts["cancel of no waiter"] == 1


def test_manager_ten_callers_one_load() -> None:
    world = World(model("a", 6))
    waiters = [world.request("a") for _ in range(10)]
    world.ready("a")
    assert len(world.logged(m.StartWorker)) == 1 and set(waiters) == set(world.granted)


def test_manager_an_unregistered_name_loads_nothing() -> None:
    world = World(model("a", 6), model("b", 6))
    error = world.failed[world.request("c")]
    assert isinstance(error, ModelNotFound) and "a, b" in error.message
    assert isinstance(world.answers[world.admin_load("c")], ModelNotFound)
    for admin in (world.unload("c"), world.pin("c"), world.unpin("c")):
        assert isinstance(world.answers[admin], ModelNotFound)
    assert not world.logged(m.StartWorker)
    with pytest.raises(ModelNotFound):
        world.manager.plan("c", world.now)


def test_manager_a_model_that_cannot_be_used_says_why() -> None:
    world = World(model("a", 6, error=ModelLoadFailed("a.gguf: truncated at byte 12")))
    error = world.failed[world.request("a")]
    assert isinstance(error, ModelLoadFailed) and "a.gguf" in error.message
    assert isinstance(world.answers[world.admin_load("a")], ModelLoadFailed)
    world.registry(model("a", 6, key="repaired"))
    assert world.request("a") not in world.failed


def test_manager_a_slow_load_may_exceed_the_queue_timeout() -> None:
    world = World(model("a", 6, queue_timeout_s=10, load_timeout_s=300))
    waiter = world.request("a")
    world.advance(200.0)
    world.ready("a")
    assert waiter in world.granted


# --- room


def test_manager_evicts_enough_and_no_more() -> None:
    world = World(model("a", 4), model("b", 4), model("c", 7))
    world.load("a")
    world.load("b")
    world.request("c")
    assert world.states() == {"a": UG, "b": UG, "c": U}
    world = World(model("a", 4), model("b", 4), model("c", 6))
    world.load("a")
    world.load("b")
    world.request("c")
    assert world.states() == {"a": UG, "b": LD, "c": U}


def test_manager_nobody_is_evicted_for_a_model_that_never_fits() -> None:
    world = World(model("a", 4), model("big", 11))
    world.load("a")
    error = world.failed[world.request("big")]
    assert isinstance(error, ModelTooLarge) and error.status == 507 and world.state("a") is LD


def test_manager_a_pin_that_takes_the_room_refuses_who_waits_for_it() -> None:
    world = World(model("a", 7), model("b", 4))
    world.serve("a")
    waiter = world.request("b")
    world.pin("a")
    error = world.failed[waiter]
    assert isinstance(error, NoRoomBesidePinned) and "a" in error.message and world.state("a") is LD


def test_manager_an_explicit_load_is_no_pin() -> None:
    world = World(model("a", 6), model("b", 6))
    world.load("a")
    world.request("b")
    assert world.state("a") is UG


def test_manager_charges_do_not_wait_for_measurements() -> None:
    world = World(model("a", 6), model("b", 6))
    world.request("a")
    world.ready("a", static_bytes=1)  # not yet touched
    world.request("b")
    assert world.charged == 6 * GIB and world.state("b") is U


def test_manager_held_memory_stays_charged_and_what_does_not_fit_waits() -> None:
    world = World(model("a", 6), model("b", 6), model("c", 3))
    world.load("a")
    waiter = world.request("b")
    world.exit("a", held=6 * GIB)
    world.advance(20.0)
    assert "unreleased" in [e.cause for e in world.logged(m.EmitTransition)]
    assert world.state("a") is U and world.state("b") is U
    world.cancel(world.request("c"))  # fits, and is aborted since b needs the slot
    world.exit("c")
    (row,) = [row for row in world.manager.statistics(world.now).models if row.id == "a"]
    assert row.state == "unloaded" and row.charged_bytes == 6 * GIB
    world.free("a", held=1 * GIB)
    assert world.state("b") is LG and waiter in world.resident("b").joiners and world.charged == 7 * GIB


# --- sharing


def test_manager_ids_of_one_key_share_a_resident() -> None:
    world = World(model("a", 6, key="k", pin=True), model("a2", 6, key="k", ttl_s=1))
    lease = world.request("a2")
    world.ready("k")
    assert lease in world.granted and world.charged == 6 * GIB
    answer = world.answers[world.unload("a2")]
    assert isinstance(answer, Conflict) and answer.code == "model_pinned" and "'a'" in answer.message
    rows = {row.id: row for row in world.manager.statistics(world.now).models}
    assert (rows["a"].charged_bytes, rows["a"].shares) == (6 * GIB, None)
    assert (rows["a2"].charged_bytes, rows["a2"].shares, rows["a2"].leases) == (0, "a", 1)
    world.release(lease)
    world.advance(100.0)
    assert world.state("a") is LD


def test_manager_the_longest_ttl_of_the_ids_used_rules() -> None:
    world = World(
        model("a", 6, key="k", ttl_s=100), model("b", 6, key="k", ttl_s=10), model("c", 6, key="k", ttl_s=10**6)
    )
    for id in ("a", "b"):
        world.release(world.serve(id))
    world.advance(99.0)
    assert world.state("a") is LD
    world.advance(1.0)
    assert world.state("a") is UG


def test_manager_removing_one_id_leaves_the_resident() -> None:
    world = World(model("a", 6, key="k"), model("b", 6, key="k"))
    stays, goes = world.request("a"), world.request("b")
    world.registry(model("a", 6, key="k"))
    assert isinstance(world.failed[goes], ModelNotFound)
    world.ready("k")
    assert stays in world.granted


# --- idle clock


def test_manager_the_idle_clock_starts_when_the_lease_ends() -> None:
    world = World(model("a", 6, ttl_s=1))
    lease = world.serve("a")
    world.advance(5.0)
    assert world.state("a") is LD
    world.release(lease)
    world.advance(0.9)
    assert world.state("a") is LD
    world.advance(0.1)
    assert world.state("a") is UG


def test_manager_a_preloaded_model_nobody_asks_for_is_unloaded_at_its_ttl() -> None:
    world = World(model("a", 6, ttl_s=1, preload=True))
    world.ready("a")
    world.advance(1.0)
    assert world.state("a") is UG
    world.exit("a")
    world.registry(model("a", 6, ttl_s=2, preload=True))  # what the registry wanted before is not loaded again
    assert world.state("a") is U


def test_manager_a_ttl_of_zero_unloads_at_the_last_release() -> None:
    world = World(model("a", 6, ttl_s=0))
    lease = world.serve("a")
    world.release(lease)
    assert world.state("a") is UG


@pytest.mark.parametrize(("seconds", "stays"), [(0.0, 0.0), (5.0, 10.0), (50.0, 50.0)])
def test_manager_keep_alive_sets_the_later_deadline(seconds: float, stays: float) -> None:
    world = World(model("a", 6, ttl_s=10))
    lease = world.serve("a")
    world.do(m.KeepAlive("a", seconds))
    world.release(lease)
    if stays:
        world.advance(stays - 0.1)
        assert world.state("a") is LD
        world.advance(0.1)
    assert world.state("a") is UG


def test_manager_keep_alive_for_ever_and_of_nothing() -> None:
    world = World(model("a", 6, ttl_s=10))
    world.do(m.KeepAlive("a", -1))
    world.do(m.KeepAlive("nobody", 5))
    assert world.house.counts["keep_alive of nothing loaded"] == 2
    lease = world.serve("a")
    world.do(m.KeepAlive("a", -1))
    world.release(lease)
    world.advance(10**6)
    assert world.state("a") is LD


def test_manager_tells_when_a_model_expires() -> None:
    world = World(model("a", 6, ttl_s=10))

    def expires_s() -> float | None:
        (row,) = world.manager.statistics(world.now).models
        return row.expires_s

    assert expires_s() is None
    lease = world.serve("a")
    assert expires_s() == 10  # if it were released now
    world.release(lease)
    world.advance(4.0)
    assert expires_s() == 6
    world.do(m.KeepAlive("a", 60))
    assert expires_s() == 56
    world.do(m.KeepAlive("a", -1))
    assert expires_s() is None
    world.do(m.KeepAlive("a", 0))  # nobody has a lease: at once
    assert (world.state("a"), expires_s()) == (UG, None)


def test_manager_a_pinned_model_stays_whatever_keep_alive_says() -> None:
    world = World(model("a", 6, pin=True))
    world.release(world.serve("a"))
    world.do(m.KeepAlive("a", 0))
    world.advance(10**6)
    assert world.state("a") is LD


def test_manager_a_reload_applies_a_new_ttl_at_once() -> None:
    world = World(model("a", 6, ttl_s=1000))
    world.release(world.serve("a"))
    world.advance(20.0)
    world.registry(model("a", 6, ttl_s=10))
    assert world.state("a") is UG


# --- what is shown


def test_manager_transitions_carry_cause_and_bytes() -> None:
    world = World(model("a", 6))
    world.release(world.serve("a"))
    world.advance(900.0)
    world.exit("a")
    shown = [(e.from_state, e.to_state, e.cause, e.charged_bytes) for e in world.logged(m.EmitTransition)]
    assert shown == [
        ("unloaded", "loading", "request", 6 * GIB),
        ("loading", "loaded", "load done", 6 * GIB),
        ("loaded", "unloading", "idle", 6 * GIB),
        ("unloading", "unloaded", "worker exited", 0),
    ]


def test_manager_statistics_add_up() -> None:
    world = World(model("a", 3), model("b", 3), model("c", 6))
    lease = world.serve("a")
    world.do(m.WorkerStarted("a", 1, 4711))
    world.report("a", static=3 * GIB, kv=0)
    world.load("b")
    world.request("c")
    world.advance(2.0)
    statistics = world.manager.statistics(world.now)
    rows = {row.id: row for row in statistics.models}
    assert rows["b"].state == "unloading" and rows["b"].cause == "evicted" and rows["b"].evictions == 1
    assert rows["a"].leases == 1 and rows["a"].measured_bytes == 3 * GIB and rows["a"].idle_s is None
    assert rows["c"].waiting == 1 and statistics.waiting == 2
    assert sum(row.charged_bytes for row in statistics.models) == statistics.budget.charged_bytes == 6 * GIB
    (shown,) = statistics.leases
    assert (shown.id, shown.model, shown.age_s, shown.client) == (world.granted[lease].lease, "a", 2.0, "client")
    assert [worker.model for worker in statistics.workers] == ["a", "b"] and statistics.workers[0].pid == 4711


def test_manager_set_timer_names_the_next_deadline() -> None:
    world = World(model("a", 6, ttl_s=10))
    lease = world.serve("a")
    assert world.due is None
    world.release(lease)
    assert world.seen(m.SetTimer) == [m.SetTimer(world.now + 10)]
    world.do(m.Tick())
    assert world.seen(m.SetTimer) == [m.SetTimer(world.now + 10)]  # told again, in case the shell's timer was early


def test_manager_a_pinned_load_counts_as_pinned() -> None:
    world = World(model("a", 7, pin=True, preload=True), model("b", 4))
    assert world.state("a") is LG
    assert isinstance(world.failed[world.request("b")], NoRoomBesidePinned)


def test_manager_an_unload_that_waits_for_a_load_has_what_it_wants_when_that_fails() -> None:
    world = World(model("a", 6))
    first = world.request("a")
    admin = world.unload("a")
    queued = world.request("a")
    world.fail("a")
    world.exit("a")
    assert first in world.failed and isinstance(world.answers[admin], m.AdminAnswer)
    assert world.state("a") is LG and queued in world.resident("a").joiners


def test_manager_a_probe_that_reports_more_than_was_charged_does_not_raise_the_charge() -> None:
    world = World(model("a", 6))
    world.load("a")
    world.exit("a", held=100 * GIB)
    assert world.charged == 6 * GIB


def test_manager_another_try_does_not_extend_the_unload_timeout() -> None:
    world = World(model("a", 6))
    world.load("a")
    world.unload("a")
    world.advance(15.0)
    world.unload("a", "force")
    world.advance(5.0)
    assert world.state("a") is U


def test_manager_a_new_key_waits_for_the_old_one_without_evicting_others_or_delaying_them() -> None:
    world = World(model("a", 5), model("idle", 4), model("other", 4))
    world.load("idle")
    world.serve("a")
    world.registry(model("a", 5, key="a2"), model("idle", 4), model("other", 4))
    queued = world.request("a")
    world.advance(20.0)
    assert world.state("idle") is LD
    other = world.request("other")
    world.exit("idle")
    world.ready("other")
    assert other in world.granted and queued in world.house.waiters


def test_manager_a_release_of_a_live_worker_is_not_believed() -> None:
    world = World(model("a", 6))
    world.load("a")
    world.unload("a")
    world.free("a")
    assert world.state("a") is UG and world.charged == 6 * GIB


def test_manager_a_preload_that_cannot_be_loaded_is_an_event() -> None:
    world = World(model("a", 11, preload=True))
    assert [(e.from_state, e.to_state, e.cause) for e in world.logged(m.EmitTransition)] == [
        ("unloaded", "unloaded", "model_too_large")
    ]


def test_manager_callers_that_move_to_a_key_in_its_backoff_get_its_error() -> None:
    world = World(model("a", 6), model("bad", 6, key="k"), model("busy", 6))
    world.request("bad")
    world.fail("k", "bad magic")
    world.exit("k")
    world.serve("busy")
    waiter = world.request("a")
    world.registry(model("a", 6, key="k"), model("bad", 6, key="k"), model("busy", 6))
    error = world.failed[waiter]
    assert isinstance(error, ModelLoadFailed) and "bad magic" in error.message


def test_manager_a_chain_of_reloads_waits_for_the_resident_that_holds_the_bytes() -> None:
    world = World(model("a", 5), model("idle", 4))
    world.load("idle")
    world.serve("a")
    world.registry(model("a", 5, key="a2"), model("idle", 4))
    world.registry(model("a", 5, key="a3"), model("idle", 4))
    queued = world.request("a")
    world.advance(20.0)
    assert world.state("idle") is LD and queued in world.house.waiters
    (row, _) = world.manager.statistics(world.now).models
    assert (row.state, row.cause, row.charged_bytes, row.leases) == ("draining", "reload", 5 * GIB, 1)
    unload = world.unload("a", "force")
    world.exit("a")
    assert isinstance(world.answers[unload], m.AdminAnswer)
    world.ready("a3")
    assert queued in world.granted and world.state("idle") is LD


def test_manager_statistics_count_the_leases_of_a_resident_that_a_reload_left_behind() -> None:
    world = World(model("a", 3))
    world.serve("a")
    world.registry(model("a", 3, key="a2"))
    world.serve("a")
    statistics = world.manager.statistics(world.now)
    (row,) = statistics.models
    assert (row.state, row.leases, row.charged_bytes) == ("loaded", 2, 6 * GIB)
    assert len(statistics.leases) == 2


def test_manager_statistics_show_ids_removed_one_after_the_other_on_one_row() -> None:
    world = World(model("a", 3, key="k"), model("b", 3, key="k"), model("c", 1))
    world.serve("a")
    world.serve("b")
    world.registry(model("b", 3, key="k"), model("c", 1))
    (row, _) = world.manager.statistics(world.now).models
    assert (row.id, row.state, row.leases, row.charged_bytes) == ("b", "loaded", 2, 3 * GIB)
    world.registry(model("c", 1))
    (_, row) = world.manager.statistics(world.now).models
    assert (row.id, row.state, row.cause, row.leases) == ("b", "draining", "removed", 2)


def test_manager_ids_that_a_reload_moved_share_the_bytes_they_left_behind() -> None:
    world = World(model("a", 3, key="k"), model("b", 3, key="k"))
    world.serve("b")
    world.registry(model("a", 3, key="k2"), model("b", 3, key="k2"))
    rows = world.manager.statistics(world.now).models
    assert [(row.charged_bytes, row.shares, row.leases) for row in rows] == [(3 * GIB, None, 0), (0, "a", 1)]


def test_manager_a_load_whose_callers_left_ends_at_once_for_an_unload() -> None:
    world = World(model("a", 3, abandon_grace_s=60))
    served = world.request("a")
    unload = world.unload("a")
    queued = world.request("a")
    world.cancel(served)
    assert world.state("a") is UG
    world.exit("a")
    assert isinstance(world.answers[unload], m.AdminAnswer)
    world.ready("a")
    assert queued in world.granted


def test_manager_a_reload_does_not_begin_the_queue_timeout_anew() -> None:
    world = World(model("a", 10), model("b", 10, queue_timeout_s=30.0))
    world.serve("a")
    queued = world.request("b")
    world.advance(20.0)
    world.registry(model("a", 10), model("b", 10, key="b2", queue_timeout_s=30.0))
    world.advance(10.5)
    assert isinstance(world.failed[queued], QueueTimeout)


def test_manager_an_id_that_comes_back_with_another_key_waits_for_the_bytes_it_left() -> None:
    world = World(model("a", 5), model("idle", 4))
    world.load("idle")
    lease = world.serve("a")
    world.registry(model("idle", 4))
    world.registry(model("a", 5, key="a2"), model("idle", 4))
    queued = world.request("a")
    (row, _) = world.manager.statistics(world.now).models
    assert (row.state, row.cause, row.leases, row.charged_bytes) == ("draining", "removed", 1, 5 * GIB)
    assert world.state("idle") is LD
    world.release(lease)
    world.exit("a")
    world.ready("a2")
    assert queued in world.granted and world.state("idle") is LD
