"""The admin API over real sockets, with real workers and simulated models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.residency.event_feed import Transition
from tests.engines.helpers_worker import stopped
from tests.gateway.helpers_app import chat_body
from tests.gateway.helpers_house import House, house, rewrite
from tests.gateway.helpers_residency import BOUND_S

CHAT = "/v1/chat/completions"
TRANSITION = Transition(0.0, "nobody", "loaded", "loaded", "x" * 1000, 0)


def registry(*models: str, rest: str = "") -> str:
    lines = "\n".join(f"  - {{{model}}}" for model in models)
    return f"memory: {{budget: 10GiB, device: 16GiB}}\n{rest}\nmodels:\n{lines}\n"


def sim(name: str, simulate: str = "weights: 4GiB", keys: str = "") -> str:
    return f'id: {name}, source: "sim:", simulate: {{{simulate}}}{", " + keys if keys else ""}'


SLOW = sim("slow", "weights: 4GiB, tokens_per_s: 50")


class Watcher:
    """The events of ``/admin/events``, as its client reads them."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.seen: list[dict[str, Any]] = []

    async def until(self, model: str, to: str) -> dict[str, Any]:
        """The transition of this model to that state."""
        async with asyncio.timeout(BOUND_S):
            async for line in self._lines:
                if line.startswith("data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    self.seen.append(event)
                    if (event["model"], event["to"]) == (model, to):
                        return event
        raise AssertionError(f"the events ended before {model} was {to}")


@asynccontextmanager
async def watching(running: House) -> AsyncIterator[Watcher]:
    async with running.http.stream("GET", "/admin/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        yield Watcher(lines)


async def verb(running: House, model: str, name: str, **body: Any) -> httpx.Response:
    return await running.http.post(f"/admin/models/{model}/{name}", json=body)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@asynccontextmanager
async def streaming(running: House, model: str = "slow") -> AsyncIterator[AsyncIterator[str]]:
    """An endless answer under way; its lines."""
    async with running.http.stream("POST", CHAT, json=chat_body(model=model, stream=True)) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        await anext(lines)
        yield lines


async def rest_of(lines: AsyncIterator[str]) -> list[str]:
    async with asyncio.timeout(BOUND_S):
        return [line[6:] async for line in lines if line.startswith("data: ")]


async def test_load_unload_and_the_events_of_both() -> None:
    async with house(registry(sim("org/a"))) as running, watching(running) as watcher:
        loaded = await verb(running, "org/a", "load")
        assert loaded.json() == {"model": "org/a", "state": "loaded", "generation": 1}
        assert (await verb(running, "org/a", "load")).json()["generation"] == 1
        one = (await running.http.get("/admin/models/org/a")).json()
        assert (one["state"], one["charged_bytes"], one["loads"]) == ("loaded", 4 << 30, 1)
        unloaded = await verb(running, "org/a", "unload")
        assert unloaded.json() == {"model": "org/a", "state": "unloaded", "generation": 1, "waited_for": []}
        again = await verb(running, "org/a", "unload")
        assert (again.status_code, again.json()["state"]) == (200, "unloaded")
        last = await watcher.until("org/a", "unloaded")
    assert [(event["from"], event["to"]) for event in watcher.seen] == [
        ("unloaded", "loading"), ("loading", "loaded"), ("loaded", "unloading"), ("unloading", "unloaded"),
    ]  # fmt: skip
    assert [event["charged_bytes"] for event in watcher.seen] == [4 << 30] * 3 + [0]
    assert watcher.seen[0]["cause"] == "admin load" and watcher.seen[2]["cause"] == "admin"
    assert set(last) == {"at", "model", "from", "to", "cause", "charged_bytes"}
    assert 0 <= last["at"] - watcher.seen[0]["at"] < BOUND_S and last["at"] > 1e9  # seconds since the epoch


async def test_load_that_fails_is_its_error_and_unload_clears_it() -> None:
    models = (sim("a", "weights: 1GiB, fail_load: torn"), sim("huge", "weights: 11GiB"))
    async with house(registry(*models)) as running, watching(running) as watcher:
        assert code(await verb(running, "a", "load")) == (503, "model_load_failed")
        await watcher.until("a", "failed")
        assert (await running.http.get("/admin/models/a")).json()["state"] == "failed"
        assert (await verb(running, "a", "unload")).json()["state"] == "unloaded"
        assert (await running.http.get("/admin/models/a")).json()["state"] == "unloaded"
        assert code(await verb(running, "huge", "load")) == (507, "model_too_large")


async def test_unload_drain_waits_for_leases_and_names_them() -> None:
    async with house(registry(SLOW)) as running, watching(running) as watcher:
        await verb(running, "slow", "load")
        with stopped(await worker_pid(running)):  # so that the answer does not end meanwhile
            asking = asyncio.create_task(running.http.post(CHAT, json=chat_body(model="slow", max_tokens=20)))
            await until_leased(running)
            unloading = asyncio.create_task(verb(running, "slow", "unload"))
            await watcher.until("slow", "draining")
        answer, answered = await unloading, await asking
        assert answered.status_code == 200 and answered.json()["usage"]["completion_tokens"] == 20
        assert (answer.json()["state"], answer.json()["waited_for"]) == ("unloaded", ["lease-1"])


async def worker_pid(running: House) -> int:
    """Of the one worker that has a model."""
    (worker,) = [worker for worker in (await running.status())["workers"] if worker["model"] is not None]
    return int(worker["pid"])


async def until_leased(running: House) -> list[dict[str, Any]]:
    async with asyncio.timeout(BOUND_S):
        while not (leases := (await running.http.get("/admin/leases")).json()["leases"]):
            pass
    return list(leases)


async def test_unload_drain_that_outlasts_its_deadline_is_409_and_the_model_serves_on() -> None:
    async with house(registry(SLOW)) as running, streaming(running) as lines:
        refused = await verb(running, "slow", "unload", deadline_s=0.2)
        assert code(refused) == (409, "model_busy")
        assert "lease-1" in refused.json()["error"]["message"]
        assert (await running.http.get("/admin/models/slow")).json()["state"] == "loaded"
        assert [await anext(lines) async for _ in _times(3)]  # the stream runs on


async def _times(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def test_unload_abort_ends_streams_with_an_error_event_and_end_marker() -> None:
    async with house(registry(SLOW)) as running, streaming(running) as lines:
        answer = await verb(running, "slow", "unload", mode="abort")
        assert answer.json() == {"model": "slow", "state": "unloaded", "generation": 1, "waited_for": ["lease-1"]}
        *_, error, end = await rest_of(lines)
        assert (json.loads(error)["error"]["code"], end) == ("model_unloaded", "[DONE]")


async def test_unload_force_ignores_a_pin_and_kills_what_hangs() -> None:
    hangs = sim("hangs", "weights: 1GiB, tokens_per_s: 100, hang_after_tokens: 2")
    async with house(registry(hangs)) as running:
        await verb(running, "hangs", "pin")
        async with streaming(running, "hangs") as lines:
            assert code(await verb(running, "hangs", "unload")) == (409, "model_pinned")
            assert code(await verb(running, "hangs", "unload", mode="abort")) == (409, "model_pinned")
            answer = await verb(running, "hangs", "unload", mode="force", deadline_s=0.3)
            assert answer.json()["state"] == "unloaded"
            assert (await rest_of(lines))[-1] == "[DONE]"
        status = await running.status()
    assert (status["leases"], status["budget"]["charged_bytes"]) == ([], 0)


async def test_unload_by_several_at_once_is_answered_to_each() -> None:
    async with house(registry(SLOW)) as running, streaming(running):
        waits = [asyncio.create_task(verb(running, "slow", "unload")) for _ in range(3)]
        async with asyncio.timeout(BOUND_S):
            while len(running.residency._operators._answers) < 3:  # one that came later would find it unloaded
                await running.status()
        assert (await verb(running, "slow", "unload", mode="abort")).status_code == 200
        for answer in await asyncio.gather(*waits):
            assert (answer.status_code, answer.json()["waited_for"]) == (200, ["lease-1"])


async def test_load_goes_on_when_its_caller_leaves() -> None:
    slowly = sim("a", "weights: 1GiB, load_s: 0.5", "abandon_grace_s: 0")
    async with house(registry(slowly)) as running, watching(running) as watcher:
        asking = asyncio.create_task(verb(running, "a", "load"))
        await watcher.until("a", "loading")
        asking.cancel()
        await watcher.until("a", "loaded")


async def test_pin_keeps_a_model_and_names_itself() -> None:
    shared = "weights: 6GiB, content: one"
    models = (sim("a", shared), sim("b", shared), sim("c", "weights: 6GiB"))
    async with house(registry(*models)) as running:
        assert (await verb(running, "b", "pin")).json() == {
            "model": "b", "state": "unloaded", "generation": 0, "pinned": True,
        }  # fmt: skip
        await verb(running, "a", "load")
        refused = await running.http.post(CHAT, json=chat_body(model="c", max_tokens=1))
        assert code(refused) == (507, "no_room_beside_pinned")
        pinned = await verb(running, "a", "unload")
        assert code(pinned) == (409, "model_pinned") and "'b'" in pinned.json()["error"]["message"]
        plan = (await running.http.get("/admin/plan", params={"model": "c"})).json()
        assert (plan["fits"], plan["action"], plan["error"]["code"]) == (False, "refuse", "no_room_beside_pinned")
        assert (await verb(running, "b", "unpin")).json()["pinned"] is False
        plan = (await running.http.get("/admin/plan", params={"model": "c"})).json()
        assert (plan["action"], plan["evicts"], plan["charged_bytes"]) == ("evict", ["a"], 6 << 30)
        assert (await running.http.get("/admin/models/a")).json()["state"] == "loaded"  # a plan does nothing
        assert (await running.http.post(CHAT, json=chat_body(model="c", max_tokens=1))).status_code == 200
        rows = (await running.http.get("/admin/models")).json()["models"]
        assert [row["shares"] for row in rows] == [None, "a", None]


async def test_lease_is_cancelled_by_its_id() -> None:
    async with house(registry(SLOW)) as running, streaming(running) as lines:
        (lease,) = await until_leased(running)
        assert (lease["model"], lease["generation"], lease["route"]) == ("slow", 1, CHAT)
        answer = await running.http.delete(f"/admin/leases/{lease['id']}")
        assert answer.json() == {"id": lease["id"], "model": "slow", "cancelled": True}
        *_, error, end = await rest_of(lines)
        assert (json.loads(error)["error"]["code"], end) == ("model_unloaded", "[DONE]")
        await running.until_no_lease()
        assert code(await running.http.delete(f"/admin/leases/{lease['id']}")) == (404, "not_found")
        assert (await running.http.get("/admin/models/slow")).json()["state"] == "loaded"


async def test_queue_shows_who_waits_for_room() -> None:
    async with house(registry(SLOW, sim("b", "weights: 8GiB"))) as running, streaming(running):
        waiting = asyncio.create_task(running.http.post(CHAT, json=chat_body(model="b", max_tokens=1)))
        async with asyncio.timeout(BOUND_S):
            while not (queue := (await running.http.get("/admin/queue")).json()["queue"]):
                pass
        assert [(entry["model"], entry["position"]) for entry in queue] == [("b", 1)]
        plan = (await running.http.get("/admin/plan", params={"model": "b"})).json()
        assert (plan["action"], plan["drains"]) == ("drain", ["slow"])
        await verb(running, "slow", "unload", mode="abort")
        assert (await waiting).status_code == 200


async def test_events_end_cleanly_when_the_gateway_ends() -> None:
    async with house(registry(SLOW)) as running, watching(running) as watcher:
        await verb(running, "slow", "load")
        await running.residency.shutdown(grace_s=1)
        await watcher.until("slow", "unloaded")
        async with asyncio.timeout(BOUND_S):
            assert [line async for line in watcher._lines if line.startswith("data")] == []


async def test_events_keep_alive_on_a_silent_stream() -> None:
    async with house(registry(SLOW), keepalive_s=0.05) as running, watching(running) as watcher:
        async with asyncio.timeout(BOUND_S):
            lines = [await anext(watcher._lines) async for _ in _times(4)]
    assert lines.count(": keep-alive") == 2


async def test_events_watcher_that_reads_nothing_is_cut_and_costs_the_others_nothing() -> None:
    async with house(registry(SLOW), client_stall_s=0.5) as running:
        feed = running.residency.events
        reader, writer = await running.served.connect(receive_buffer=4096)
        writer.write(b"GET /admin/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b": keep-alive")
        assert len(feed) == 1
        async with asyncio.timeout(BOUND_S):
            while len(feed):  # until it is gone
                for _ in range(20):
                    feed.publish(TRANSITION)
                await asyncio.sleep(0.001)  # the time in which the kernel takes what it takes
        async with watching(running) as watcher:
            await verb(running, "slow", "load")
            await watcher.until("slow", "loaded")
        writer.close()


async def test_models_show_state_task_footprint_aliases_and_context() -> None:
    models = (sim("org/a", "weights: 4GiB", "aliases: [gpt], context: 4096"), sim("b"))
    async with house(registry(*models)) as running:
        await verb(running, "gpt", "load")
        one = (await running.http.get("/v1/models/org/a")).json()
        assert one == (await running.http.get("/v1/models/gpt")).json()
        listed = (await running.http.get("/v1/models")).json()["data"]
    assert listed[0] == one
    assert {name: one[name] for name in ("id", "object", "owned_by", "state", "task", "aliases", "context")} == {
        "id": "org/a", "object": "model", "owned_by": "innkeeper", "state": "loaded", "task": "text",
        "aliases": ["gpt"], "context": 4096,
    }  # fmt: skip
    assert (one["footprint_bytes"], listed[1]["state"]) == (4 << 30, "unloaded")


async def test_reload_drains_what_changed_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    other = sim("other", "weights: 2GiB")
    async with house(registry(SLOW, other), path=path) as running, watching(running) as watcher:
        await verb(running, "other", "load")
        async with streaming(running) as lines:
            rewrite(path, registry(sim("slow", "weights: 4GiB, tokens_per_s: 51"), other, sim("new")))
            answer = await running.http.post("/admin/registry/reload")
            assert answer.json() == {
                "added": ["new"], "removed": [], "reloaded": ["slow"], "updated": [], "needs_restart": [],
            }  # fmt: skip
            await watcher.until("slow", "draining")
            assert watcher.seen[-1]["cause"] == "reload"
            served = await running.http.post(CHAT, json=chat_body(model="other", max_tokens=1))
            assert served.status_code == 200
            assert [await anext(lines) async for _ in _times(3)]  # the old stream runs on
        await watcher.until("slow", "unloaded")
        fresh = await running.http.post(CHAT, json=chat_body(model="slow", max_tokens=1))
        assert fresh.status_code == 200
        assert (await running.http.get("/admin/models/other")).json()["loads"] == 1
        assert (await running.http.get("/v1/models/new")).status_code == 200


async def test_reload_of_an_invalid_file_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    async with house(registry(SLOW), path=path) as running:
        rewrite(path, registry(SLOW, sim("b", "weights: much")))
        refused = await running.http.post("/admin/registry/reload")
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "models[1].simulate.weights"
        assert [model["id"] for model in (await running.http.get("/v1/models")).json()["data"]] == ["slow"]
        rewrite(path, registry(SLOW, rest="server: {port: 9, keepalive_s: 3}"))
        accepted = await running.http.post("/admin/registry/reload")
        assert accepted.json()["needs_restart"] == ["server.port", "server.keepalive_s"]


async def test_reload_applies_other_keys_at_once(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    async with house(registry(sim("a")), path=path) as running, watching(running) as watcher:
        await verb(running, "a", "load")
        rewrite(path, registry(sim("a", keys="aliases: [second], ttl_s: 0.05")))
        answer = (await running.http.post("/admin/registry/reload")).json()
        assert (answer["updated"], answer["reloaded"]) == (["a"], [])
        assert (await running.http.get("/v1/models/second")).json()["id"] == "a"
        await watcher.until("a", "unloading")
        assert watcher.seen[-1]["cause"] == "idle"


async def test_reload_that_removes_a_model_under_load_lets_it_finish(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    async with house(registry(SLOW, sim("a")), path=path) as running, watching(running) as watcher:
        await verb(running, "slow", "load")
        with stopped(await worker_pid(running)):  # so that the answer does not end meanwhile
            asking = asyncio.create_task(running.http.post(CHAT, json=chat_body(model="slow", max_tokens=20)))
            await until_leased(running)
            rewrite(path, registry(sim("a")))
            assert (await running.http.post("/admin/registry/reload")).json()["removed"] == ["slow"]
            assert code(await running.http.post(CHAT, json=chat_body(model="slow"))) == (404, "model_not_found")
            assert (await running.http.get("/admin/models/slow")).json()["state"] == "draining"
        assert (await asking).status_code == 200
        await watcher.until("slow", "unloaded")
        assert (await running.http.get("/admin/models/slow")).status_code == 404


async def test_registry_that_changes_under_load_serves_or_refuses_every_request(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    speeds = (400, 500)
    async with house(registry(sim("a"), sim("b")), path=path) as running:
        asks = []
        for turn in range(24):
            for name in ("a", "b"):
                asks.append(asyncio.create_task(running.http.post(CHAT, json=chat_body(model=name, max_tokens=5))))
            rewrite(path, registry(sim("a", f"weights: 4GiB, tokens_per_s: {speeds[turn % 2]}"), sim("b")))
            assert (await running.http.post("/admin/registry/reload")).status_code == 200
        async with asyncio.timeout(3 * BOUND_S):
            answers = await asyncio.gather(*asks)
        assert [answer.status_code for answer in answers] == [200] * len(answers)
        running.residency.check_integrity()
        rows = (await running.http.get("/admin/models")).json()["models"]
    assert rows[1]["loads"] == 1  # the model that nobody changed was never unloaded
