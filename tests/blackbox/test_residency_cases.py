"""Failures that users of multi-model servers have met, each over HTTP with real worker processes and simulated models.

Sizes are for a budget of 10 GiB on a rehearsed device.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.blackbox.helpers_gateway import Gateway, bounded, children, running_gateway, still_there
from tests.engines.gguf.helpers_tiny import tiny_gguf, tiny_model
from tests.engines.helpers_worker import stopped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

GIB = 1024**3
Serve = Callable[..., AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Starts a gateway with these models; keyword arguments are values of ``defaults`` and ``workers``."""

    def start(*models: str, workers: str = "", **defaults: object) -> AbstractAsyncContextManager[Gateway]:
        return running_gateway(tmp_path, registry(*models, workers=workers, **defaults))

    return start


def registry(*models: str, workers: str = "", **defaults: object) -> str:
    lines = "".join(f"  - {model}\n" for model in models)
    policy = ", ".join(f"{key}: {value}" for key, value in defaults.items())
    return (
        f"memory: {{device: 16GiB, budget: 10GiB}}\nworkers: {{spare: 0{', ' if workers else ''}{workers}}}\n"
        f"defaults: {{{policy}}}\nmodels:\n{lines}"
    )


def sim(name: str, weights: int, *, entry: str = "", **simulate: object) -> str:
    """A registry line; ``weights`` in GiB."""
    keys = "".join(f", {key}: {value}" for key, value in simulate.items())
    return f'{{id: {name}, source: "sim:", simulate: {{weights: {weights}GiB{keys}}}{", " if entry else ""}{entry}}}'


def words(count: int) -> str:
    return " ".join(f"w{i}" for i in range(count))


# --- eviction -------------------------------------------------------------------------------------------------------


async def test_r1_streaming_model_finishes_before_it_is_evicted(serve: Serve) -> None:
    async with serve(sim("a", 8, tokens_per_s=100), sim("b", 8)) as gateway:
        stream = await gateway.stream("a", 100)
        await stream.first_text()
        other = gateway.ask("b")
        answer = await stream.end()
        assert (answer.text, answer.done, answer.code) == (words(100), True, None)
        assert (await bounded(other)).status == 200
        assert await gateway.steps("a") == ["loading", "loaded", "unloading", "unloaded"]


async def test_r3_request_during_unloading_waits_for_a_new_load(serve: Serve) -> None:
    async with serve(sim("a", 8, hold_memory=0.3), sim("b", 8)) as gateway:
        await gateway.chat("a")
        other = gateway.ask("b")
        await gateway.transition("a", "unloading")
        again = gateway.ask("a")
        assert [(await bounded(task)).status for task in (other, again)] == [200, 200]
        assert (await gateway.model("a"))["generation"] == 2


async def test_r5_taking_turns_serves_with_every_load(serve: Serve) -> None:
    async with serve(sim("a", 8), sim("b", 8)) as gateway:
        for turn in range(20):
            assert (await gateway.chat("ab"[turn % 2])).text == words(2)
        assert [(await gateway.model(name))["loads"] for name in "ab"] == [10, 10]


async def test_r20_two_models_that_do_not_fit_are_never_both_there(serve: Serve) -> None:
    async with serve(sim("a", 6, load_s=0.2), sim("b", 6, load_s=0.2)) as gateway:
        answers = await asyncio.gather(gateway.chat("a"), gateway.chat("b"))
        assert [answer.status for answer in answers] == [200, 200]
        held: dict[str, int] = {}
        for step in gateway.transitions:
            held[step.model] = step.charged_bytes
            assert sum(held.values()) <= 10 * GIB


async def test_r26_enough_is_evicted_and_no_more(serve: Serve) -> None:
    async with serve(sim("a", 4), sim("b", 4), sim("c", 5), sim("d", 7)) as gateway:
        for name in "abc":
            assert (await gateway.chat(name)).status == 200
        assert await gateway.steps("b") == ["loading", "loaded"]  # c took the room of a alone, the least recently used
        assert (await gateway.chat("d")).status == 200
        assert [(await gateway.steps(name))[-1] for name in "abc"] == ["unloaded"] * 3


async def test_r28_explicit_load_is_not_a_pin(serve: Serve) -> None:
    async with serve(sim("a", 8), sim("b", 8)) as gateway:
        assert (await gateway.admin("POST", "/models/a/load"))[0] == 200
        assert (await gateway.chat("b")).status == 200
        assert (await gateway.steps("a"))[-1] == "unloaded"


async def test_r33_model_above_the_budget_evicts_nobody(serve: Serve) -> None:
    async with serve(sim("a", 4), sim("big", 12)) as gateway:
        await gateway.chat("a")
        answer = await gateway.chat("big")
        assert (answer.status, answer.code) == (507, "model_too_large")
        assert answer.headers["x-should-retry"] == "false"
        assert await gateway.steps("a") == ["loading", "loaded"]


async def test_r39_no_room_beside_pinned_names_pins_and_bytes(serve: Serve) -> None:
    async with serve(sim("p", 7, entry="pin: true"), sim("b", 4)) as gateway:
        await gateway.chat("p")
        answer = await gateway.chat("b")
        assert (answer.status, answer.code) == (507, "no_room_beside_pinned")
        assert f"needs at least 4.0 GiB ({4 * GIB} bytes)" in answer.message
        assert f"the pinned p (7.0 GiB) leave {3 * GIB} of {10 * GIB} bytes" in answer.message
        assert await gateway.steps("p") == ["loading", "loaded"]


# --- loads ----------------------------------------------------------------------------------------------------------


async def test_r10_one_of_two_waiters_leaves_and_the_load_goes_on(serve: Serve) -> None:
    async with serve(sim("a", 4, load_s=0.2), abandon_grace_s=0.05) as gateway:
        leaving, staying = gateway.ask("a"), gateway.ask("a")
        await gateway.transition("a", "loading")
        with stopped(await gateway.worker_pid("a")):  # so that the load does not end meanwhile
            await bounded(_until(lambda: _waiting(gateway), 2))
            leaving.cancel()
            await bounded(_until(lambda: _waiting(gateway), 1))
        assert (await bounded(staying)).text == words(2)
        assert await gateway.steps("a") == ["loading", "loaded"]


async def test_r11_load_nobody_waits_for_is_rolled_back_after_the_grace(serve: Serve) -> None:
    async with serve(sim("a", 4, load_s=1000), abandon_grace_s=0.2) as gateway:
        task = gateway.ask("a")
        await gateway.transition("a", "loading")
        task.cancel()
        await gateway.transition("a", "unloaded")
        assert (await gateway.quiet())["budget"]["charged_bytes"] == 0


async def test_r11_retry_inside_the_grace_rejoins_the_load(serve: Serve) -> None:
    async with serve(sim("a", 4, load_s=1), abandon_grace_s=600) as gateway:
        task = gateway.ask("a")
        await gateway.transition("a", "loading")
        task.cancel()
        assert (await gateway.chat("a")).status == 200
        assert await gateway.steps("a") == ["loading", "loaded"]


async def test_r12_unwanted_load_is_aborted_at_once_for_another(serve: Serve) -> None:
    async with serve(sim("a", 4, load_s=1200), sim("b", 4), abandon_grace_s=600) as gateway:
        task = gateway.ask("a")
        await gateway.transition("a", "loading")
        task.cancel()
        assert (await gateway.chat("b")).status == 200  # within the bound of a request, a tenth of the grace
        assert (await gateway.steps("a"))[:2] == ["loading", "unloading"]


async def test_r17_failed_load_says_why_and_unload_clears_it(serve: Serve) -> None:
    async with serve(sim("a", 4, fail_load="the-file.gguf is truncated")) as gateway:
        answer = await gateway.chat("a")
        assert (answer.status, answer.code) == (503, "model_load_failed")
        assert "the-file.gguf is truncated" in answer.message
        await gateway.transition("a", "failed")  # its callers hear of it before the worker is gone
        failed = await gateway.model("a")
        assert failed["state"] == "failed" and "truncated" in failed["last_error"]
        refused = await gateway.chat("a")
        assert "next try in" in refused.message and (await gateway.model("a"))["generation"] == 1
        await asyncio.sleep(float(refused.headers["retry-after"]))  # a client that does as it is told
        assert "next try in" not in (await gateway.chat("a")).message
        await gateway.transition("a", "failed", count=2)
        assert (await gateway.admin("POST", "/models/a/unload"))[0] == 200
        assert (await gateway.model("a"))["state"] == "unloaded"
        assert "next try in" not in (await gateway.chat("a")).message  # unload has cleared the backoff
        assert (await gateway.model("a"))["generation"] == 3


async def test_r17_truncated_file_is_named_and_serves_once_it_is_whole(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    async with running_gateway(tmp_path, beside_a_simulated_model(path)) as gateway:
        answer = await gateway.chat("real")
        assert (answer.status, answer.code) == (503, "model_load_failed")
        assert str(path) in answer.message and "incomplete download" in answer.message
        assert (await gateway.chat("other")).status == 200
        shown = await gateway.model("real")
        assert (shown["state"], shown["last_error"]) == ("failed", answer.message)
        path.write_bytes(whole)
        assert (await gateway.chat("real")).status == 200
        shown = await gateway.model("real")
        assert (shown["state"], shown["last_error"], shown["loads"]) == ("loaded", None, 1)
        await gateway.admin("POST", "/models/real/unload")
        path.write_bytes(whole[:-1000])  # as it is downloaded anew, in place
        assert (await gateway.chat("real")).message == answer.message
        assert (await gateway.model("real"))["state"] == "failed"
        path.write_bytes(whole)
        assert (await gateway.chat("real")).status == 200


async def test_r17_file_that_only_the_worker_finds_wanting_serves_once_it_is_whole(tmp_path: Path) -> None:
    model = tiny_model("llama", quant="Q4_K")
    damaged = replace(model, tokenizer={**model.tokenizer, "tokenizer.ggml.merges": ["ab"]})  # no pair
    path = damaged.write(tmp_path / "model.gguf")
    async with running_gateway(tmp_path, beside_a_simulated_model(path)) as gateway:
        answer = await gateway.chat("real")
        assert (answer.status, answer.code) == (503, "model_load_failed")
        assert str(path) in answer.message and "tokenizer.ggml.merges" in answer.message
        assert (await gateway.chat("other")).status == 200
        await gateway.transition("real", "failed")
        shown = await gateway.model("real")
        assert shown["state"] == "failed" and "tokenizer.ggml.merges" in shown["last_error"]
        model.write(path)
        assert (await gateway.chat("real")).status == 200
        assert (await gateway.model("real"))["state"] == "loaded"


def beside_a_simulated_model(path: Path) -> str:
    return (
        "memory: {budget: 1GiB}\nworkers: {spare: 0}\nmodels:\n"
        f'  - {{id: real, source: {path}}}\n  - {{id: other, source: "sim:", simulate: {{weights: 1MiB}}}}\n'
    )


async def test_r23_ten_requests_for_a_cold_model_share_one_load(serve: Serve) -> None:
    async with serve(sim("a", 4, load_s=0.2)) as gateway:
        answers = await asyncio.gather(*(gateway.chat("a") for _ in range(10)))
        assert [answer.text for answer in answers] == [words(2)] * 10
        assert (await gateway.model("a"))["loads"] == 1


async def test_r30_unknown_name_lists_what_there_is_and_loads_nothing(serve: Serve) -> None:
    async with serve(sim("a", 4), sim("b", 4)) as gateway:
        answer = await gateway.chat("gpt-9")
        assert (answer.status, answer.code) == (404, "model_not_found")
        assert "a, b" in answer.message
        assert [await gateway.steps(name) for name in "ab"] == [[], []]


async def test_r40_load_slower_than_the_queue_timeout_completes(serve: Serve) -> None:
    async with serve(sim("a", 4, load_s=1), queue_timeout_s=0.3, load_timeout_s=20) as gateway:
        assert (await gateway.chat("a")).status == 200


# --- clients that leave, time that passes ---------------------------------------------------------------------------


async def test_r6_client_that_leaves_before_the_first_byte_returns_its_lease(serve: Serve) -> None:
    async with serve(sim("a", 8, ttft_s=600), sim("b", 8)) as gateway:
        task = gateway.ask("a")
        await gateway.transition("a", "loaded")
        other = gateway.ask("b")
        task.cancel()
        assert (await bounded(other)).status == 200  # long before the first byte would have come
        assert (await gateway.quiet())["leases"] == []


async def test_r14_ttl_runs_from_the_last_release(serve: Serve) -> None:
    async with serve(sim("a", 4, tokens_per_s=40), ttl_s=0.4) as gateway:
        stream = await gateway.stream("a", 60)
        assert (await stream.end()).text == words(60)
        await gateway.transition("a", "unloaded")
        assert await gateway.steps("a") == ["loading", "loaded", "unloading", "unloaded"]
        loaded, unloading = gateway.transitions[1:3]
        assert unloading.cause == "idle"
        assert unloading.at - loaded.at >= 59 / 40 + 0.4  # the length of the answer, and only then the TTL


async def test_r14_preloaded_model_nobody_asks_for_is_unloaded_at_its_ttl(serve: Serve) -> None:
    async with serve(sim("a", 4, entry="preload: true, ttl_s: 0.3")) as gateway:
        await bounded(_until(lambda: _unloads(gateway, "a"), 1))  # the feed may have begun after it


async def test_r15_answer_longer_than_every_idle_timeout_completes(tmp_path: Path) -> None:
    model = sim("a", 4, tokens_per_s=40)
    workers = "cancel_timeout_s: 0.2, unload_timeout_s: 0.2"
    text = registry(model, workers=workers, ttl_s=0.1, queue_timeout_s=0.2, fairness_wait_s=0.1, drain_timeout_s=0.1)
    text += "server: {keepalive_s: 0.1, client_stall_s: 0.3}\n"
    async with running_gateway(tmp_path, text) as gateway:
        assert (await gateway.chat("a", 60)).text == words(60)


# --- fairness -------------------------------------------------------------------------------------------------------


async def test_r37_drain_for_a_client_that_left_is_revoked(serve: Serve) -> None:
    async with serve(sim("a", 8, tokens_per_s=20), sim("b", 8), fairness_wait_s=0.2, drain_timeout_s=60) as gateway:
        stream = await gateway.stream("a", 2000)
        await stream.first_text()
        other = gateway.ask("b")
        await gateway.transition("a", "draining")
        queued = gateway.ask("a")
        other.cancel()
        assert (await bounded(queued)).text == words(2)
        assert await gateway.steps("a") == ["loading", "loaded", "draining", "loaded"]
        await stream.leave()


async def test_growth_beside_a_model_that_is_never_idle_is_served(serve: Serve) -> None:
    grown = sim("a", 4, entry="kv_grant: 1GiB", kv_per_token="1MiB")
    async with serve(grown, sim("b", 4, tokens_per_s=100), fairness_wait_s=0.3) as gateway:
        await asyncio.gather(gateway.chat("a"), gateway.chat("b"))
        served = asyncio.Event()

        async def traffic() -> set[int]:
            return {(await gateway.chat("b", 30)).status for _ in iter(served.is_set, True)}

        clients = [asyncio.create_task(traffic()) for _ in range(3)]
        answer = await gateway.chat("a", 3000)  # 2 GiB more than its grant, of which 1 GiB is free
        served.set()
        assert (answer.status, answer.text) == (200, words(3000))
        assert await asyncio.gather(*clients) == [{200}] * 3


async def test_r38_endless_stream_is_never_cut_and_its_rival_waits(serve: Serve) -> None:
    models = (sim("a", 8, tokens_per_s=20), sim("b", 8))
    async with serve(*models, fairness_wait_s=0.2, drain_timeout_s=0.3, queue_timeout_s=2) as gateway:
        stream = await gateway.stream("a", 5000)
        await stream.first_text()
        other = gateway.ask("b")
        await gateway.transition("a", "draining")
        assert (await gateway.transition("a", "loaded", count=2)).cause == "drain deadline"  # and not that b gave up
        assert (await gateway.chat("a")).text == words(2)
        answer = await bounded(other)
        assert (answer.status, answer.code) == (503, "queue_timeout")
        text = stream.answer.text
        await bounded(stream._read(lambda: len(stream.answer.text) > len(text)))
        await stream.leave()


# --- shared files, reload, operators --------------------------------------------------------------------------------


async def test_r36_two_ids_of_one_file_share_a_resident(serve: Serve) -> None:
    async with serve(
        sim("a", 4, entry="pin: true", content="one"),
        sim("b", 4, entry="ttl_s: 0.2", content="one"),
        sim("idle", 1, entry="ttl_s: 0.4"),
    ) as gateway:
        assert (await gateway.chat("b")).status == 200  # by this id alone: its time is the one that counts
        status, body = await gateway.admin("POST", "/models/b/unload")
        assert (status, body["error"]["code"]) == (409, "model_pinned")
        assert "'a'" in body["error"]["message"] or " a" in body["error"]["message"]
        models = (await gateway.status())["models"][:2]
        assert sorted(model["charged_bytes"] for model in models) == [0, 4 * GIB]
        assert {model["shares"] for model in models} == {None, "a"}
        await gateway.chat("idle")
        await gateway.transition("idle", "unloaded")  # and so b's shorter time is over too
        assert (await gateway.chat("a")).status == 200
        assert await gateway.steps("a") == ["loading", "loaded"]
        assert (await gateway.admin("POST", "/models/a/unpin"))[0] == 200
        assert (await gateway.admin("POST", "/models/b/unload"))[0] == 200
        assert (await gateway.model("a"))["state"] == "unloaded"


async def test_r8_reload_drains_one_model_and_holds_up_no_other(serve: Serve) -> None:
    def text(context: int) -> str:
        return registry(sim("a", 4, entry=f"context: {context}", tokens_per_s=50), sim("b", 4))

    async with serve(sim("a", 4, entry="context: 1000", tokens_per_s=50), sim("b", 4)) as gateway:
        for name in "ab":
            await gateway.chat(name)
        pid = await gateway.worker_pid("a")
        stream = await gateway.stream("a", 50)
        await stream.first_text()
        with stopped(pid):  # so that the stream does not end meanwhile
            assert (await gateway.rewrite(text(2000)))[0] == 200
            await gateway.transition("a", "draining")
            queued = gateway.ask("a")
            assert (await gateway.chat("b")).status == 200  # while a drains
        assert (await stream.end()).text == words(50)
        assert (await bounded(queued)).status == 200
        status, body = await gateway.rewrite("models: [{id: a, sorce: x}]")
        assert status == 400 and "models[0].sorce" in body["error"]["message"]
        assert (await gateway.chat("a")).status == 200


async def test_reloads_in_a_row_evict_nobody_and_hide_no_lease(serve: Serve) -> None:
    def models(context: int) -> tuple[str, str]:
        return sim("a", 4, entry=f"context: {context}", tokens_per_s=50), sim("b", 4)

    async with serve(*models(1000)) as gateway:
        for name in "ab":
            await gateway.chat(name)
        pid = await gateway.worker_pid("a")
        stream = await gateway.stream("a", 50)
        await stream.first_text()
        with stopped(pid):  # so that the stream does not end meanwhile
            for context in (2000, 3000):
                assert (await gateway.rewrite(registry(*models(context))))[0] == 200
            shown = await gateway.model("a")
            assert (shown["state"], shown["cause"], shown["leases"]) == ("draining", "reload", 1)
            queued = gateway.ask("a")
        assert (await stream.end()).text == words(50)
        assert (await bounded(queued)).status == 200
        assert await gateway.steps("b") == ["loading", "loaded"]


@pytest.mark.slow
async def test_r18_unload_and_chat_at_once_are_served_or_told(serve: Serve) -> None:
    async with serve(sim("a", 4)) as gateway:
        for _ in range(200):
            (status, _), answer = await asyncio.gather(gateway.admin("POST", "/models/a/unload"), gateway.chat("a"))
            assert status == 200
            assert answer.status == 200 or answer.code == "model_unloaded"
        await gateway.admin("POST", "/models/a/unload")
        assert (await gateway.quiet())["budget"]["charged_bytes"] == 0
        assert children(gateway.process.pid) == []


async def test_r21_memory_that_does_not_come_back_stays_charged(serve: Serve) -> None:
    async with serve(sim("a", 6, hold_memory=2), sim("b", 6), workers="unload_timeout_s: 0.3") as gateway:
        await gateway.chat("a")
        other = gateway.ask("b")
        unloading = await gateway.transition("a", "unloading")
        unloaded = await gateway.transition("a", "unloaded")
        assert unloaded.charged_bytes == 6 * GIB
        assert (await bounded(other)).status == 200
        loading = await gateway.transition("b", "loading")
        assert loading.at - unloading.at >= 2  # not before the bytes were seen free
        assert (await gateway.model("a"))["charged_bytes"] == 0


async def test_r24_budget_above_the_device_is_clamped_with_both_numbers(tmp_path: Path) -> None:
    text = f"memory: {{device: 8GiB, budget: 32GiB}}\nworkers: {{spare: 0}}\nmodels:\n  - {sim('a', 4)}\n"
    async with running_gateway(tmp_path, text) as gateway:
        assert (await gateway.status())["budget"]["total_bytes"] == 8 * GIB
    log = (tmp_path / "gateway.log").read_text()
    assert "32.0 GiB" in log and "8.0 GiB" in log


# --- deaths ---------------------------------------------------------------------------------------------------------


async def test_r31_no_worker_survives_the_gateway(serve: Serve) -> None:
    """Not one that serves, loads or unloads, and not one that is stopped."""
    slow = sim("c", 2, load_s=1000)
    async with serve(sim("a", 4, tokens_per_s=20), sim("b", 4), slow, workers="unload_timeout_s: 1000") as gateway:
        stream = await gateway.stream("a", 2000)
        await stream.first_text()
        await gateway.chat("b")
        still = await gateway.worker_pid("b")
        os.kill(still, signal.SIGSTOP)
        asked = [asyncio.create_task(gateway.admin("POST", "/models/b/unload")), gateway.ask("c")]
        await gateway.transition("b", "unloading")
        await gateway.transition("c", "loading")
        workers = children(gateway.process.pid)
        assert still in workers and len(workers) == 3
        watches = [os.pidfd_open(pid) for pid in workers]
        gateway.process.kill()
        await gateway.process.wait()
        for watch in watches:
            await bounded(_exited(watch))
        await asyncio.gather(*asked, return_exceptions=True)
        await stream.leave()


async def test_r34_death_fails_the_admitted_and_requeues_the_rest(serve: Serve) -> None:
    async with serve(sim("a", 4, entry="concurrency: 3", tokens_per_s=20)) as gateway:
        streams = [await gateway.stream("a", 2000) for _ in range(3)]
        for stream in streams:
            await stream.first_text()
        queued = gateway.ask("a")
        await bounded(_until(lambda: _leases(gateway), 4))
        os.kill(await gateway.worker_pid("a"), signal.SIGKILL)
        for stream in streams:
            answer = await stream.end()
            assert (answer.code, answer.done) == ("worker_died", True)
        assert (await bounded(queued)).text == words(2)
        assert (await gateway.model("a"))["generation"] == 2


@pytest.mark.parametrize("state", ["loading", "loaded", "draining", "unloading"])
async def test_worker_killed_in_any_state_leaves_a_working_gateway(serve: Serve, state: str) -> None:
    """What its callers and operators hear, and that nothing is left over. FAILED and UNLOADED have no worker."""
    load_s = 2 if state == "loading" else 0.1
    async with serve(sim("a", 4, load_s=load_s, tokens_per_s=20), sim("b", 4)) as gateway:
        asked, unloading = None, None
        if state == "loading":
            asked = gateway.ask("a")
        else:
            stream = await gateway.stream("a", 2 if state == "unloading" else 2000)
            await stream.first_text()
            if state == "unloading":
                await stream.end()
                os.kill(await gateway.worker_pid("a"), signal.SIGSTOP)  # else it is gone before it can be killed
            if state != "loaded":
                unloading = asyncio.create_task(gateway.admin("POST", "/models/a/unload"))
        await gateway.transition("a", state)
        os.kill(await gateway.worker_pid("a"), signal.SIGKILL)
        if asked is not None:
            answer = await bounded(asked)
            assert (answer.status, answer.code) == (503, "model_load_failed")
        elif state != "unloading":
            ended = await stream.end()
            assert (ended.code, ended.done) == ("worker_died", True)
        if unloading is not None:
            status, body = await bounded(unloading)
            assert (status, body["state"]) == (200, "unloaded")
        came_to = "unloaded" if unloading is not None else "failed"
        died = await gateway.transition("a", came_to)
        assert died.charged_bytes == 0
        await gateway.admin("POST", "/models/a/unload")  # clears what a failed load left
        assert (await gateway.chat("a")).status == 200
        assert (await gateway.chat("b")).status == 200
        assert (await gateway.quiet())["leases"] == []
        assert len(children(gateway.process.pid)) == 2


async def test_worker_stopped_in_unload_is_killed_in_time(serve: Serve) -> None:
    async with serve(sim("a", 6), sim("b", 6), workers="unload_timeout_s: 0.5") as gateway:
        await gateway.chat("a")
        pid = await gateway.worker_pid("a")
        os.kill(pid, signal.SIGSTOP)
        assert (await gateway.chat("b")).status == 200  # long before a hung worker would go by itself: never
        assert await gateway.steps("a") == ["loading", "loaded", "unloading", "unloaded"]
        assert still_there([pid]) == []


async def test_registry_that_changes_under_load_loses_nobody(serve: Serve) -> None:
    def text(turn: int) -> str:
        return registry(sim("a", 4, entry=f"context: {1000 + turn}"), sim("b", 4, entry=f"ttl_s: {10 + turn}"))

    async with serve(sim("a", 4), sim("b", 4)) as gateway:
        stop = asyncio.Event()

        async def traffic(name: str) -> list[int]:
            statuses = []
            while not stop.is_set():
                statuses.append((await gateway.chat(name)).status)
            return statuses

        clients = [asyncio.create_task(traffic(name)) for name in "abab"]
        for turn in range(10):
            assert (await gateway.rewrite(text(turn)))[0] == 200
        stop.set()
        for statuses in await asyncio.gather(*clients):
            assert set(statuses) == {200}
        assert (await gateway.quiet())["leases"] == []


async def test_full_disk_in_the_state_directory_is_told_and_is_no_failure(tmp_path: Path) -> None:
    """Every write to ``/dev/full`` fails as on a full disk; the learned values are first written beside their file."""
    state = tmp_path / "state" / "innkeeper"
    state.mkdir(parents=True)
    (state / "learned.json").write_text('{"version": 1, "values": {}}')
    async with running_gateway(tmp_path, beside_a_simulated_model(tiny_gguf(tmp_path))) as gateway:
        unfinished = state / f"learned.json.{gateway.process.pid}"
        unfinished.symlink_to("/dev/full")
        assert (await gateway.chat("real")).status == 200
        warning = await gateway.warning("learned.json")
        assert os.strerror(errno.ENOSPC) in warning and "last as long as this run" in warning
        assert not unfinished.is_symlink()
        assert (state / "learned.json").read_text() == '{"version": 1, "values": {}}'
        assert (await gateway.chat("other")).status == 200
        assert (await gateway.admin("POST", "/models/real/unload"))[0] == 200
        assert (await gateway.chat("real")).status == 200


async def test_state_directory_that_cannot_be_made_is_told_and_is_no_failure(tmp_path: Path) -> None:
    text = beside_a_simulated_model(tiny_gguf(tmp_path))
    async with running_gateway(tmp_path, text, environment={"XDG_STATE_HOME": "/dev/full"}) as gateway:
        assert (await gateway.chat("real")).status == 200
        assert "/dev/full/innkeeper" in await gateway.warning("cannot be written")


async def _exited(watch: int) -> None:
    """Returns when the process behind this pidfd has exited."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(watch, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(watch)
        os.close(watch)


async def _leases(gateway: Gateway) -> int:
    return len((await gateway.status())["leases"])


async def _waiting(gateway: Gateway) -> int:
    return sum(model["waiting"] for model in (await gateway.status())["models"])


async def _unloads(gateway: Gateway, name: str) -> int:
    """How often the model was loaded, once it is not any more."""
    shown = await gateway.model(name)
    return int(shown["loads"]) if shown["state"] == "unloaded" else 0


async def _until(read: Callable[[], Awaitable[int]], wanted: int) -> None:
    """Reads until it is so; each reading is a request, and so a turn of the gateway's loop."""
    while await read() != wanted:
        pass
