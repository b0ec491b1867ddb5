"""One model file without a registry, as ``serve --model`` has it: the same machinery. What its loads show lasts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.registry.catalog import Catalog
from gateway.registry.load import single_model_registry
from gateway.registry.schema import Policy
from gateway.residency.event_feed import Notice, Transition
from tests.gateway.residency.helpers_residency import MACHINE, House, WatchedResidency
from tests.gateway.residency.helpers_workers import BOUND_S

pytestmark = pytest.mark.slow


@asynccontextmanager
async def house(model: Path, state: Path, ttl_s: float = 900.0) -> AsyncIterator[House]:
    registry = replace(single_model_registry(model, machine=MACHINE), defaults=Policy(ttl_s=ttl_s))
    catalog = Catalog(registry)
    residency = WatchedResidency(registry.settings, catalog, state=state)
    await residency.start()
    try:
        yield House(residency, catalog)
    finally:
        async with asyncio.timeout(BOUND_S):
            await residency.shutdown(0)


async def ask(inn: House, model: str) -> str:
    async with asyncio.timeout(10 * BOUND_S), inn.acquire(model) as lease:
        return await inn.read(lease, 2, "The capital of France is", temperature=0.0)


async def test_single_model_loads_when_asked_and_leaves_when_idle(smollm2_path: Path, tmp_path: Path) -> None:
    async with house(smollm2_path, tmp_path, ttl_s=0.2) as inn:
        (model,) = inn.catalog.models
        assert inn.state(model.id) == "unloaded"
        with inn.residency.events.watch() as watcher:
            assert (await ask(inn, model.id)).startswith(" Paris")
            await inn.gone(model.id)
            seen = [event for event in watcher.take() if isinstance(event, Transition)]
        assert [(event.to_state, event.cause) for event in seen][-2:] == [
            ("unloading", "idle"), ("unloaded", "worker exited"),
        ]  # fmt: skip
        assert inn.residency.statistics().budget.charged_bytes == 0


async def test_single_model_learned_sizes_outlast_the_gateway(smollm2_path: Path, tmp_path: Path) -> None:
    async with house(smollm2_path, tmp_path / "state") as inn:
        (model,) = inn.catalog.models
        await ask(inn, model.id)
        learned = dict(inn.residency._manager._house.learned.values)
    stored = json.loads((tmp_path / "state" / "learned.json").read_text())["values"]
    assert list(stored) == [model.content_key] == list(learned)
    async with house(smollm2_path, tmp_path / "state") as inn:
        assert inn.residency._manager._house.learned.values == learned


async def test_single_model_is_served_with_a_state_directory_that_is_none(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    async with house(smollm2_path, tmp_path / "state") as inn:
        (model,) = inn.catalog.models
        with inn.residency.events.watch() as watcher:
            assert (await ask(inn, model.id)).startswith(" Paris")
            await inn.residency._learned.close()  # type: ignore[union-attr]
            notices = [event.message for event in watcher.take() if isinstance(event, Notice)]
        assert any("cannot be written" in notice for notice in notices)
        inn.residency.check_integrity()
