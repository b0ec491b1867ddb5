"""Learned values on disk: they last, and nothing that is wrong with the disk fails anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.residency.learned_store import LearnedStore
from gateway.residency.values import LearnedValue

VALUE = LearnedValue(static_bytes=1000, kv_bytes_per_token=8, lower_static=(900, 901), lower_kv=(7,))


def store(directory: Path) -> tuple[LearnedStore, list[str]]:
    told: list[str] = []
    return LearnedStore(directory, told.append), told


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def kept(directory: Path, **values: LearnedValue) -> list[str]:
    """Writes them, as one run of the gateway does; what it was warned of."""
    writing, told = store(directory)
    writing.read()
    for key, value in values.items():
        writing.put(key, value)
    await writing.close()
    return told


async def test_learned_values_last(tmp_path: Path) -> None:
    assert await kept(tmp_path / "made" / "here", one=VALUE) == []
    assert await kept(tmp_path / "made" / "here", two=LearnedValue(5, 0)) == []
    reading, told = store(tmp_path / "made" / "here")
    assert reading.read() == {"one": VALUE, "two": LearnedValue(5, 0)}
    assert told == []
    assert names(tmp_path / "made" / "here") == ["learned.json"]


async def test_learned_nothing_yet_is_no_warning(tmp_path: Path) -> None:
    reading, told = store(tmp_path / "nowhere")
    assert (reading.read(), told) == ({}, [])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'{"version": 2, "values": {}}',
        b'{"version": 1, "values": {"k": {"static_bytes": "many", "kv_bytes_per_token": 1}}}',
        b'{"version": 1, "values": {"k": {"static_bytes": -1, "kv_bytes_per_token": 1}}}',
        b'{"version": 1, "values": {"k": {"static_bytes": 1e300, "kv_bytes_per_token": 1}}}',
        b"\xff\xfe\x00",
    ],
)
async def test_learned_file_that_is_damaged_is_a_warning_and_is_written_anew(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "learned.json").write_bytes(text)
    reading, told = store(tmp_path)
    assert reading.read() == {}
    assert len(told) == 1 and "learned.json cannot be read" in told[0]
    reading.put("one", VALUE)
    await reading.close()
    again, told = store(tmp_path)
    assert (again.read(), told) == ({"one": VALUE}, [])


async def test_learned_directory_that_is_none_is_a_warning_told_once(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    writing, told = store(tmp_path / "state")
    writing.read()
    told.clear()  # reading below a file is told too
    for number in range(3):
        writing.put("one", LearnedValue(number, 0))
        await writing.close()
    assert len(told) == 1 and "cannot be written" in told[0]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
async def test_learned_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept(tmp_path, one=VALUE)
    monkeypatch.setattr("gateway.residency.learned_store.os.getpid", lambda: 7)
    (tmp_path / "learned.json.7").symlink_to("/dev/full")
    told = await kept(tmp_path, two=VALUE)
    assert len(told) == 1 and "No space left on device" in told[0]
    reading, told = store(tmp_path)
    assert (reading.read(), told) == ({"one": VALUE}, [])
    assert names(tmp_path) == ["learned.json"]


async def test_learned_of_simulated_models_is_not_kept(tmp_path: Path) -> None:
    assert await kept(tmp_path / "state", **{"sim:a": VALUE}) == []
    assert not (tmp_path / "state").exists()


async def test_learned_values_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    await kept(tmp_path, **{f"key-{number}": VALUE for number in range(1005)})
    reading, _ = store(tmp_path)
    assert list(reading.read()) == [f"key-{number}" for number in range(5, 1005)]
