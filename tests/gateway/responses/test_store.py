"""The store as the event loop sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.errors import StoreUnavailable
from gateway.responses import store as store_module
from gateway.responses.database import Database, Entry, Item
from gateway.responses.database_file import FILE
from gateway.responses.store import ResponseStore
from gateway.settings import ResponsesSettings

ENTRY = Entry(id="r", created=2e9, status="completed", body=b"{}", outputs=(Item("o", b"1"),))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest_asyncio.fixture
async def store(tmp_path: Path, told: list[str]) -> AsyncIterator[ResponseStore]:
    store = ResponseStore(Database(tmp_path, ResponsesSettings()), told.append)
    yield store
    await store.close()


async def test_store_keeps_finds_and_deletes(store: ResponseStore, told: list[str]) -> None:
    await store.open()
    await store.add("me", ENTRY, [Item("i", b"hi")])
    assert (await store.read("me", "r")) is not None
    page = await store.page("me", "r", limit=1, after=None, descending=True)
    assert page is not None and [item.id for item in page.items] == ["i"]
    assert set(await store.find("me", ["i", "o", "x"])) == {"i", "o"}
    assert await store.find("me", []) == {}
    await store.finish("me", Entry(id="r", created=2e9, status="failed", body=b"{}"))
    assert [item.body for item in await store.inputs("me", "r") or ()] == [b"hi"]
    assert await store.delete("me", "r") is True
    assert told == []


async def test_failure_is_told_once_until_something_succeeds(tmp_path: Path, told: list[str]) -> None:
    first, second = (ResponseStore(Database(tmp_path, ResponsesSettings()), told.append) for _ in range(2))
    await first.open()
    await second.open()  # raises nothing
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="another gateway") as caught:
            await second.add("me", ENTRY, [])
        assert caught.value.code == "store_unavailable"
    assert len(told) == 1 and "another gateway" in told[0]
    await first.close()
    await second.add("me", ENTRY, [])
    assert await second.read("me", "r") is not None
    await second.close()
    await second.close()


async def test_damage_is_told(store: ResponseStore, told: list[str], tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    await store.open()
    assert len(told) == 1 and "set aside" in told[0]


async def test_disk_that_hangs_is_not_waited_for_and_its_work_is_done(
    store: ResponseStore, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.open()
    monkeypatch.setattr(store_module, "_LONGEST_WAIT_S", 0.01)
    go_on = threading.Event()
    store._thread.submit(go_on.wait)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await store.add("me", ENTRY, [])
    monkeypatch.undo()
    go_on.set()
    assert await store.read("me", "r") is not None
    assert "does not answer" in told[0]


async def test_cancelled_caller_leaves_the_work_to_be_done(store: ResponseStore) -> None:
    await store.open()
    hold = threading.Event()
    store._thread.submit(hold.wait)
    adding = asyncio.create_task(store.add("me", ENTRY, []))
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    hold.set()
    assert await store.read("me", "r") is not None
