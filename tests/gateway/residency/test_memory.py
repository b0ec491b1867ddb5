"""Grants, growth, overruns, learned values: the bytes of residents that are loaded."""

from __future__ import annotations

from gateway.errors import ModelTooLarge
from gateway.residency import messages as m
from gateway.residency.states import State

from .helpers_core import GIB, World, model

U, LG, LD, D, UG, F = State
ROW = 8192  # bytes of a row of 8192 tokens at one byte a token


def small(id: str, static: int, **details: object) -> m.ModelInfo:
    """A model of so many bytes, with one byte of KV a token."""
    return model(id, static / GIB, kv_per_token=1, context=32768, **details)  # type: ignore[arg-type]


def test_memory_the_grant_is_four_rows_where_there_is_room() -> None:
    world = World(small("a", 1000), budget=100_000)
    world.request("a")
    (start,) = world.seen(m.StartWorker)
    assert (start.grant_bytes, start.charged_bytes) == (4 * ROW, 1000 + 4 * ROW)


def test_memory_the_grant_shrinks_to_one_row_before_it_evicts() -> None:
    world = World(small("a", 1000), small("b", 1000), budget=2000 + 5 * ROW)
    world.load("a")
    world.request("b")
    assert world.logged(m.StartWorker)[-1].grant_bytes == ROW
    world = World(small("a", 1000), small("b", 1000), budget=2000 + 5 * ROW - 1)
    world.load("a")
    world.request("b")
    assert world.state("a") is UG


def test_memory_a_grant_shorter_than_a_row_where_leases_leave_no_more() -> None:
    world = World(small("a", 1000), small("b", 1000), budget=2000 + 4 * ROW + 3000)
    world.serve("a")
    world.request("b")
    assert world.logged(m.StartWorker)[-1].grant_bytes == 3000
    world = World(small("a", 1000), small("b", 1000), budget=2000 + 4 * ROW + 2047)
    world.serve("a")
    world.request("b")
    assert world.state("b") is U  # never below one row of 2048


def test_memory_the_charge_is_the_larger_of_estimate_and_measurement() -> None:
    world = World(small("a", 1000, kv_grant=500), budget=10_000)
    world.serve("a")
    world.report("a", static=900, kv=100)
    assert world.charged == 1500
    world.report("a", static=1200, kv=400, prompt_cache=50, mlx_cache=100)
    assert world.charged == 1750
    world.report("a", static=900, kv=0)
    assert world.charged == 1500


def test_memory_the_baseline_of_a_worker_is_charged_once_known() -> None:
    world = World(small("a", 1000, kv_grant=500, simulated=False), budget=10_000)
    world.do(m.OverheadMeasured(300, 70))
    world.request("a")
    assert world.charged == 1570
    world.ready("a", static_bytes=1000, baseline_bytes=80)
    assert world.charged == 1580
    budget = world.manager.statistics(world.now).budget
    assert (budget.total_bytes, budget.overhead_bytes, budget.available_bytes) == (9700, 300, 8120)


def test_memory_yielding_overhead_is_counted_as_far_as_it_takes_nothing_from_models() -> None:
    world = World(small("a", 1000, kv_grant=500), budget=2000)
    world.serve("a")
    for yielding, overhead in ((200, 200), (600, 500), (0, 0)):
        world.do(m.OverheadMeasured(0, yielding_bytes=yielding))
        budget = world.manager.statistics(world.now).budget
        assert (budget.overhead_bytes, budget.available_bytes) == (overhead, 500 - overhead)
        assert world.charged == 1500
    world.do(m.OverheadMeasured(600, yielding_bytes=100))
    assert world.manager.statistics(world.now).budget.overhead_bytes == 600


# --- growth


def test_memory_growth_is_granted_where_it_fits() -> None:
    world = World(small("a", 1000, kv_grant=500), budget=2000)
    world.serve("a")
    world.grow("a", 400)
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 900)] and world.charged == 1900


def test_memory_growth_evicts_idle_models_never_leased_ones() -> None:
    world = World(*(small(id, 1000, kv_grant=0) for id in "abc"), budget=3000)
    world.serve("a")
    world.load("b")
    leased = world.serve("c")
    world.grow("a", 1500)
    assert world.states() == {"a": LD, "b": LD, "c": LD}  # one idle would not do: deferred
    world.release(leased)
    assert world.states() == {"a": LD, "b": UG, "c": UG}
    world.exit("b")
    assert not world.seen(m.SetGrant)
    world.exit("c")
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 1500)]


def test_memory_growth_that_no_grant_could_hold_is_denied_with_the_number() -> None:
    world = World(small("a", 1000, kv_grant=500), small("p", 700, kv_grant=0, pin=True), budget=3000)
    world.load("p")
    world.serve("a")
    world.grow("a", 801, request=9)
    assert world.seen(m.DenyGrowth) == [m.DenyGrowth("a", 1, 9, most_bytes=1300)]
    world.grow("a", 800)
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 1300)]


def test_memory_growth_leaves_what_is_earmarked() -> None:
    world = World(small("a", 1000, kv_grant=0), small("b", 1000, kv_grant=0), small("c", 1900, kv_grant=0), budget=3000)
    world.serve("a")
    world.load("b")
    waiter = world.request("c")  # evicts b, and counts on 900 of the 1000 free bytes
    world.grow("a", 101)
    assert not world.seen(m.SetGrant)
    world.cancel(waiter)
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 101)]


def test_memory_growth_is_forgotten_with_the_last_lease() -> None:
    world = World(small("a", 1000, kv_grant=0), small("b", 1000, kv_grant=0), budget=2000)
    lease = world.serve("a")
    blocker = world.serve("b")
    world.grow("a", 500)
    world.release(lease)
    world.release(blocker)
    assert world.states() == {"a": LD, "b": LD} and not world.logged(m.SetGrant)
    world.grow("a", 500)
    assert world.house.counts["growth of nothing leased"] == 1


def test_memory_growth_that_is_taken_back_evicts_nobody() -> None:
    world = World(small("a", 1000, kv_grant=0), *(small(id, 500, kv_grant=0) for id in "bc"), budget=2000)
    world.serve("a")
    lease = world.serve("b")
    world.load("c")
    world.grow("a", 1000)
    assert world.state("c") is LD  # c alone would not do
    world.grow("a", 0)
    world.release(lease)
    assert world.states() == {"a": LD, "b": LD, "c": LD} and not world.logged(m.SetGrant)


def test_memory_growth_is_given_back_after_the_last_lease() -> None:
    world = World(small("a", 1000, kv_grant=500), budget=3000)
    first, second = world.serve("a"), world.serve("a")
    world.grow("a", 700)
    world.report("a", kv=1100)
    world.release(first)
    assert world.charged == 2200
    world.release(second)  # the last report still stands: what is in use is not taken
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 1100)]
    world.report("a", kv=0)
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 500)] and world.charged == 1500


def rivals(**details: object) -> tuple[World, str, str]:
    """Two models, each with a request that needs the other's bytes: a asked first. Neither request has begun."""
    world = World(*(small(id, 1000, kv_grant=500, **details) for id in "ab"), budget=3000)
    leases = [world.granted[world.serve(id)].lease for id in "ab"]
    world.grow("a", 1000)
    world.grow("b", 1000)
    assert not world.logged(m.SetGrant) and not world.logged(m.DenyGrowth)
    return world, *leases  # type: ignore[return-value]


def test_memory_two_requests_that_need_each_others_bytes_are_served_in_turn() -> None:
    world, first, second = rivals()
    world.advance(9.9)
    assert world.states() == {"a": LD, "b": LD}
    world.advance(0.1)
    assert world.state("b") is UG
    (requeued,) = world.logged(m.RequeueLease)
    assert requeued.lease == second and world.logged(m.KillWorker) == [m.KillWorker("b", 1)]
    world.exit("b")
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 1500)]
    world.admit(first)
    world.advance(1)
    assert world.state("b") is U  # its caller waits
    world.release(first)  # what a had grown by comes free with it
    assert world.states() == {"a": LD, "b": LG}
    world.ready("b")
    assert requeued.waiter in world.granted


def test_memory_a_model_that_serves_is_never_evicted_for_growth() -> None:
    world, _, second = rivals()
    world.admit(second)
    world.advance(5)
    other = world.lease("b")
    world.advance(6)
    assert world.states() == {"a": LD, "b": D} and not world.logged(m.KillWorker)
    world.release(second)
    world.advance(3.9)
    assert world.state("b") is D  # its last caller has not waited long enough
    world.advance(0.2)
    assert world.state("b") is UG and [e.lease for e in world.logged(m.RequeueLease)] == [other]


def test_memory_a_pinned_model_is_not_evicted_for_growth() -> None:
    world, _, _ = rivals()
    world.pin("b")
    assert world.seen(m.DenyGrowth) == [m.DenyGrowth("a", 1, 1, most_bytes=500)]
    world.advance(60)
    assert world.state("b") is LD and not world.logged(m.RequeueLease)


def test_memory_growth_takes_an_abandoned_load() -> None:
    world = World(small("a", 1000, kv_grant=0), small("b", 1000, kv_grant=0), budget=2000)
    world.serve("a")
    world.cancel(world.request("b"))
    world.grow("a", 500)
    assert world.state("b") is UG
    world.exit("b")
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, 500)]


# --- overrun


def test_memory_overrun_closes_admission_until_it_is_mended() -> None:
    world = World(small("a", 1000, kv_grant=500), small("b", 500, kv_grant=0), budget=2000)
    leased = world.serve("a")
    world.load("b")
    world.report("a", static=1200, kv=500)
    assert world.state("b") is UG  # idle: evicted
    waiter = world.request("a")
    assert waiter not in world.granted and world.state("a") is LD
    assert world.manager.acquire_nowait(900, "a", "c", "r", world.now) is None
    world.exit("b")
    assert waiter in world.granted and leased in world.granted


def test_memory_overrun_shrinks_grants_first_then_sheds_then_evicts() -> None:
    world = World(
        small("a", 1000), small("b", 1000, kv_grant=400), small("c", 300, kv_grant=0), budget=1000 + 1400 + 300 + ROW
    )
    world.serve("b")
    world.load("c")
    world.serve("a")
    assert world.resident("a").current.grant == ROW
    world.report("b", static=1000, kv=100, mlx_cache=5000)
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, ROW - 4700)] and world.state("c") is LD  # 5100 for 400
    world.report("b", static=1000, kv=100, mlx_cache=7000)
    assert world.seen(m.Shed) and world.resident("a").current.grant == 2048  # its floor
    assert world.state("c") is LD  # the answer is waited for
    world.report("b", static=1000, kv=100, mlx_cache=7000)
    assert world.state("c") is UG


def test_memory_overrun_does_not_wait_for_a_worker_that_is_silent() -> None:
    world = World(small("b", 1000, kv_grant=400), small("c", 300, kv_grant=0), budget=1700)
    world.serve("b")
    world.load("c")
    world.report("b", static=1000, kv=0, mlx_cache=600)
    assert world.seen(m.Shed) == [m.Shed("b", 1, 200)]
    world.advance(3.0)
    assert world.state("c") is UG


def test_memory_overrun_that_nothing_helps_is_an_event_and_nobody_is_aborted() -> None:
    world = World(small("a", 1000, kv_grant=0), budget=1000)
    lease = world.serve("a")
    world.report("a", static=1100)
    world.report("a", static=1200)
    assert [e.cause for e in world.logged(m.EmitTransition)].count("overrun") == 1
    assert world.state("a") is LD and lease in world.granted and not world.ended
    world.release(lease)
    assert world.state("a") is UG


def test_memory_a_load_that_measures_more_than_there_is_shrinks_its_own_grant() -> None:
    world = World(small("a", 1000), budget=1000 + 2 * ROW)
    waiter = world.request("a")
    world.ready("a", static_bytes=1000 + ROW)
    assert world.seen(m.SetGrant) == [m.SetGrant("a", 1, ROW)] and waiter in world.granted


def test_memory_a_load_that_measures_more_than_the_budget_ends_in_a_refusal() -> None:
    world = World(small("a", 1000, kv_grant=0, simulated=False), budget=1000)
    waiter = world.request("a")
    world.ready("a", static_bytes=1100)
    assert world.state("a") is UG and waiter not in world.granted
    world.exit("a")
    assert isinstance(world.failed[waiter], ModelTooLarge)


# --- learned values


def test_memory_learned_values_change_the_next_charge_and_are_persisted() -> None:
    world = World(small("a", 1000, kv_grant=0, simulated=False), budget=5000)
    world.request("a")
    world.ready("a", static_bytes=1300, kv_bytes_per_token=2)
    assert world.seen(m.PersistLearned) == [m.PersistLearned("a", m.LearnedValue(1300, 2))]
    again = World(small("a", 1000, kv_grant=0, simulated=False), budget=5000, learned={"a": m.LearnedValue(1300, 2)})
    again.request("a")
    assert again.charged == 1300


def test_memory_simulated_models_teach_nothing() -> None:
    world = World(small("a", 1000, kv_grant=0), budget=5000)
    world.request("a")
    world.ready("a", static_bytes=1300)
    assert not world.seen(m.PersistLearned)


# --- plans explained


def test_explain_says_what_would_happen_and_does_nothing() -> None:
    world = World(model("a", 4), model("b", 4), model("c", 7), model("big", 11), model("d", 2))
    lease = world.serve("a")
    world.load("b")
    before = world.states()

    def plan(id: str) -> tuple[str, bool]:
        explanation = world.manager.plan(id, world.now)
        return explanation.action, explanation.fits

    assert plan("a") == ("lease", True) and plan("d") == ("load", True) and plan("big") == ("refuse", False)
    drained = world.manager.plan("c", world.now)
    assert (drained.action, drained.drains, drained.evicts) == ("drain", ("a",), ("b",))
    assert "fewest leases" in (drained.rule or "") and drained.waits_for == ("the leases of a",)
    world.release(lease)
    evicted = world.manager.plan("c", world.now)
    assert (evicted.action, evicted.evicts, evicted.charged_bytes) == ("evict", ("a", "b"), 7 * GIB)
    assert "Fewest models" in (evicted.rule or "")
    assert world.states() == before
    assert isinstance(world.manager.plan("big", world.now).error, ModelTooLarge)


def test_explain_of_what_is_under_way() -> None:
    world = World(model("a", 6), model("b", 6), model("c", 6), model("d", 2))
    world.request("a")
    assert world.manager.plan("a", world.now).action == "join"
    assert world.manager.plan("d", world.now).waits_for == ("the load of a",)
    world.ready("a")
    world.request("b")
    queued = world.manager.plan("c", world.now)
    assert queued.action == "queue" and queued.waits_for == ("1 models ahead in the queue",)
    world.unload("a")
    draining = world.manager.plan("a", world.now)
    assert draining.action == "queue" and "1 leases" in draining.waits_for[0]


def test_explain_a_backoff() -> None:
    world = World(model("a", 6))
    world.request("a")
    world.fail("a")
    world.exit("a")
    explanation = world.manager.plan("a", world.now)
    assert explanation.action == "refuse" and explanation.error is not None and "backoff" in explanation.waits_for[0]


def test_memory_nothing_is_granted_in_an_overrun_not_even_what_takes_no_bytes() -> None:
    world = World(small("a", 1000, kv_grant=0), small("nothing", 0, kv_grant=0), budget=1000)
    world.serve("a")
    world.report("a", static=1100)
    waiter = world.request("nothing")
    assert world.state("nothing") is U
    world.report("a", static=1000)
    assert world.state("nothing") is LG and waiter in world.resident("nothing").joiners


def test_memory_overrun_evicts_no_more_than_it_takes() -> None:
    world = World(*(small(id, 500, kv_grant=0) for id in "abc"), budget=1500)
    world.serve("a")
    world.load("b")
    world.load("c")
    world.report("a", static=600)
    world.report("a", static=700)
    assert world.states() == {"a": LD, "b": UG, "c": LD}


def test_memory_growth_that_is_denied_earmarks_nothing() -> None:
    world = World(*(small(id, 1000, kv_grant=0) for id in "abc"), budget=3500)
    world.serve("a")
    world.serve("b")
    world.grow("a", 1600)
    world.request("c")
    assert world.state("c") is LG


def test_memory_growth_takes_what_freed_for_a_head_that_waits_for_leases() -> None:
    for wanted_by_caller in (True, False):
        world = World(model("a", 4, kv_grant=GIB), model("b", 3), model("c", 7.5, queue_timeout_s=1000.0), gib=8)
        world.load("b")
        world.serve("a")
        if wanted_by_caller:
            world.request("c")
        else:
            world.admin_load("c")
        world.unload("b")
        world.exit("b")
        world.grow("a", 2 * GIB)
        assert world.seen(m.SetGrant), "three are free, and the head of the queue can only wait for this very request"


def test_memory_growth_of_a_resident_that_drains_takes_what_its_rival_waits_with() -> None:
    world = World(model("a", 4, kv_grant=GIB), model("b", 3), model("c", 7.5, queue_timeout_s=1000.0), gib=8)
    world.load("b")
    lease = world.serve("a")
    rival = world.request("c")
    world.unload("b")
    world.exit("b")
    world.advance(11.0)
    assert world.state("a") is D
    world.grow("a", 2 * GIB)
    assert world.seen(m.SetGrant)
    world.release(lease)
    world.exit("a")
    world.ready("c")
    assert rival in world.granted


def test_memory_a_drain_whose_requests_only_wait_for_growth_makes_way() -> None:
    for removed in (False, True):
        world = World(small("a", 1000, kv_grant=0), small("b", 1000, kv_grant=0), budget=2400)
        world.serve("a")
        waiter = world.serve("b")
        world.grow("a", 500)
        world.grow("b", 600)
        moved = small("b", 1000, kv_grant=1000, key="b2")
        world.registry(small("a", 1000, kv_grant=0), *([] if removed else [moved]))
        assert world.resident("b").state is D
        world.advance(11.0)
        assert world.resident("b").state is UG
        world.exit("b")
        assert world.logged(m.SetGrant)[-1] == m.SetGrant("a", 1, 500)
        assert waiter in (world.failed if removed else world.house.waiters)


def beside_a_model_that_is_never_idle() -> tuple[World, str]:
    world = World(small("a", 1000, kv_grant=0), small("b", 1000, kv_grant=0, drain_timeout_s=20.0), budget=2400)
    world.serve("a")
    lease = world.granted[world.serve("b")].lease
    world.admit(lease)
    world.grow("a", 500)
    return world, lease


def test_memory_growth_drains_a_model_that_is_never_idle() -> None:
    world, lease = beside_a_model_that_is_never_idle()
    world.advance(9.9)
    assert world.state("b") is LD
    world.advance(0.2)
    assert world.state("b") is D
    queued = world.request("b")
    world.release(lease)
    assert world.state("b") is UG and world.seen(m.SendClose)
    world.exit("b")
    assert m.SetGrant("a", 1, 500) in world.log
    assert queued in world.house.waiters


def test_memory_growth_that_is_taken_back_ends_its_drain() -> None:
    world, lease = beside_a_model_that_is_never_idle()
    world.advance(11.0)
    queued = world.request("b")
    world.grow("a", 0)
    assert world.state("b") is LD and queued in world.granted and lease in world.house.leases


def test_memory_growth_whose_drain_fails_leaves_its_victim_alone_for_a_while() -> None:
    world, lease = beside_a_model_that_is_never_idle()
    world.advance(11.0)
    assert world.state("b") is D
    world.advance(20.0)
    assert world.state("b") is LD and lease in world.house.leases
    world.advance(8.0)
    assert world.state("b") is LD
    world.advance(3.0)
    assert world.state("b") is D


def test_memory_a_drain_for_growth_sends_away_who_only_waits_for_growth_itself() -> None:
    world, lease = beside_a_model_that_is_never_idle()
    other = world.request("b")
    world.grow("b", 600)
    world.advance(11.0)
    assert world.state("b") is D
    world.release(lease)
    assert world.state("b") is UG and [e.waiter for e in world.logged(m.RequeueLease)] == [other]
    world.exit("b")
    assert m.SetGrant("a", 1, 500) in world.log
