"""The file of stored responses: what is kept, for whom, for how long, and what survives which accident."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.responses.database import Database, Entry, Item
from gateway.responses.database_file import DAMAGED, FILE, StoreProblem
from gateway.settings import ResponsesSettings

ME = "me"
NOW = 1_000_000.0


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Makes databases on one file, and closes them."""
    made: list[Database] = []

    def make(*, in_memory: bool = False, now: float = NOW, **limits: Any) -> Database:
        path = None if in_memory else tmp_path / "state"
        database = Database(path, ResponsesSettings(**limits), interrupted=lambda body: body + b"!", now=lambda: now)
        made.append(database)
        return database

    yield make
    for database in made:
        database.close()


def entry(id: str, *outputs: Item, created: float = NOW, status: str = "completed", body: bytes = b"{}") -> Entry:
    return Entry(id=id, created=created, status=status, body=body, outputs=outputs)


def texts(items: tuple[Item, ...] | None) -> list[bytes]:
    return [item.body for item in items or ()]


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_is_added_is_read_whole_and_in_order(opened: Any, in_memory: bool) -> None:
    database = opened(in_memory=in_memory)
    database.add(
        ME, entry("r1", Item("o1", b"1"), Item("o2", b"2"), body=b'{"a":1}'), [Item("i1", b"hi"), Item("i2", b"ho")]
    )
    read = database.read(ME, "r1")
    assert read is not None
    assert (read.body, read.status, read.created, texts(read.outputs)) == (b'{"a":1}', "completed", NOW, [b"1", b"2"])
    assert texts(database.inputs(ME, "r1")) == [b"hi", b"ho"]
    assert database.read(ME, "r2") is None and database.inputs(ME, "r2") is None


def test_it_is_there_after_a_restart_and_for_this_user_only(opened: Any, tmp_path: Path) -> None:
    first = opened()
    first.add(ME, entry("r1", Item("o1", b"1")), [Item("i1", b"hi")])
    first.close()
    assert texts(opened().inputs(ME, "r1")) == [b"hi"]
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o077 == 0


def test_another_owner_sees_nothing(opened: Any) -> None:
    database = opened()
    database.add(ME, entry("r1", Item("o1", b"1")), [Item("i1", b"hi")])
    assert database.read("you", "r1") is None
    assert database.inputs("you", "r1") is None
    assert database.page("you", "r1", limit=5, after=None, descending=False) is None
    assert database.find("you", ["o1", "i1"]) == {}
    assert database.delete("you", "r1") is False
    database.finish("you", entry("r1", status="failed"))
    assert database.read(ME, "r1").status == "completed"


def test_items_of_a_conversation_are_shared_and_go_with_its_last_response(opened: Any, tmp_path: Path) -> None:
    database = opened()
    database.add(ME, entry("r1", Item("o1", b"one")), [Item("i1", b"hi")])
    so_far = [*database.inputs(ME, "r1"), *database.read(ME, "r1").outputs]
    database.add(ME, entry("r2", Item("o2", b"two")), [*so_far, Item("i2", b"and")])
    assert texts(database.inputs(ME, "r2")) == [b"hi", b"one", b"and"]
    assert count(database, "items") == 4
    assert database.delete(ME, "r1") is True
    assert texts(database.inputs(ME, "r2")) == [b"hi", b"one", b"and"]
    assert count(database, "items") == 4
    database.delete(ME, "r2")
    assert (count(database, "items"), count(database, "parts"), count(database, "responses")) == (0, 0, 0)


def test_items_that_went_while_a_turn_was_made_are_kept_again(opened: Any) -> None:
    database = opened()
    database.add(ME, entry("r1"), [Item("i1", b"hi")])
    so_far = database.inputs(ME, "r1")
    database.delete(ME, "r1")
    database.add(ME, entry("other"), [Item("i9", b"other")])
    database.add(ME, entry("r2"), [*so_far, Item("i2", b"and")])
    assert texts(database.inputs(ME, "r2")) == [b"hi", b"and"]
    assert texts(database.inputs(ME, "other")) == [b"other"]


def count(database: Database, table: str) -> int:
    with database.file.reading() as db:
        (number,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(number)


def test_finish_replaces_state_and_output_and_brings_nothing_back(opened: Any) -> None:
    database = opened()
    database.add(ME, entry("r1", status="queued"), [Item("i1", b"hi")])
    database.finish(ME, entry("r1", Item("o1", b"1"), body=b'{"done":1}'))
    read = database.read(ME, "r1")
    assert (read.status, read.body, texts(read.outputs)) == ("completed", b'{"done":1}', [b"1"])
    assert texts(database.inputs(ME, "r1")) == [b"hi"]
    database.delete(ME, "r1")
    database.finish(ME, entry("r1", Item("o1", b"1")))
    assert database.read(ME, "r1") is None
    assert count(database, "items") == 0


def test_what_was_under_way_in_a_process_that_is_gone_has_failed(opened: Any) -> None:
    first = opened()
    for status in ("queued", "in_progress", "completed"):
        first.add(ME, entry(status, status=status), [])
    first.close()
    second = opened()
    assert [second.read(ME, id).status for id in ("queued", "in_progress", "completed")] == [
        "failed",
        "failed",
        "completed",
    ]
    assert [second.read(ME, id).body for id in ("queued", "completed")] == [b"{}!", b"{}"]


@pytest.mark.parametrize(
    ("asked", "told", "more"),
    [
        ({"limit": 2, "after": None, "descending": False}, ["i0", "i1"], True),
        ({"limit": 2, "after": "i1", "descending": False}, ["i2", "i3"], True),
        ({"limit": 2, "after": "i3", "descending": False}, ["i4"], False),
        ({"limit": 5, "after": None, "descending": True}, ["i4", "i3", "i2", "i1", "i0"], False),
        ({"limit": 2, "after": "i3", "descending": True}, ["i2", "i1"], True),
        ({"limit": 2, "after": "i0", "descending": True}, [], False),
    ],
)
def test_pages(opened: Any, asked: dict[str, Any], told: list[str], more: bool) -> None:
    database = opened(in_memory=True)
    database.add(ME, entry("r1"), [Item(f"i{number}", b"x") for number in range(5)])
    page = database.page(ME, "r1", **asked)
    assert [item.id for item in page.items] == told
    assert page.more is more
    assert database.page(ME, "r1", limit=1, after="nobody", descending=False) is None


def test_find_takes_the_newest_of_an_id(opened: Any) -> None:
    database = opened(in_memory=True)
    database.add(ME, entry("r1"), [Item("a", b"old"), Item("b", b"b")])
    database.add(ME, entry("r2"), [Item("a", b"new")])
    assert {id: item.body for id, item in database.find(ME, ["a", "b", "c"]).items()} == {"a": b"new", "b": b"b"}


# --- caps ---


def test_most_responses_are_kept_and_the_oldest_go(opened: Any) -> None:
    database = opened(max_count=3)
    for number in range(5):
        database.add(ME, entry(f"r{number}"), [Item(f"i{number}", b"x")])
    assert [database.read(ME, f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    assert count(database, "items") == 3


def test_most_bytes_are_kept_and_the_file_stays_near_them(opened: Any, tmp_path: Path) -> None:
    most = 1024**2
    database = opened(max_bytes=most)
    for number in range(100):
        database.add(ME, entry(f"r{number}"), [Item(f"i{number}", b"x" * 50_000)])
    kept = [number for number in range(100) if database.read(ME, f"r{number}") is not None]
    assert kept == list(range(100 - len(kept), 100))
    assert 10 <= len(kept) <= 20
    database.close()
    assert (tmp_path / "state" / FILE).stat().st_size <= most + 5 * 1024**2


def test_one_that_is_larger_than_all_may_be_is_refused_and_the_others_stay(opened: Any) -> None:
    database = opened(max_bytes=1024**2)
    database.add(ME, entry("small"), [Item("i", b"x")])
    with pytest.raises(StoreProblem, match="max_bytes"):
        database.add(ME, entry("large"), [Item("i", b"x" * 2 * 1024**2)])
    assert database.read(ME, "large") is None
    assert database.read(ME, "small") is not None


def test_the_file_shrinks_after_much_was_deleted(opened: Any, tmp_path: Path) -> None:
    database = opened()
    database.add(ME, entry("large"), [Item("i", b"x" * 20 * 1024**2)])
    database.delete(ME, "large")
    for number in range(5):  # each gives some pages back
        database.add(ME, entry(f"r{number}"), [])
    database.close()
    assert (tmp_path / "state" / FILE).stat().st_size < 8 * 1024**2


def test_age_hides_a_response_and_then_drops_it(opened: Any) -> None:
    first = opened(max_age_s=100.0)
    first.add(ME, entry("old"), [Item("i", b"x")])
    first.close()
    second = opened(max_age_s=100.0, now=NOW + 101)
    assert second.read(ME, "old") is None
    assert second.inputs(ME, "old") is None
    assert second.find(ME, ["i"]) == {}
    second.add(ME, entry("new", created=NOW + 101), [])
    assert (count(second, "responses"), count(second, "items")) == (1, 0)


def test_no_count_keeps_nothing(opened: Any) -> None:
    with pytest.raises(StoreProblem, match="max_count is 0"):
        opened(max_count=0).add(ME, entry("r"), [])


# --- accidents ---


def test_two_on_one_file_the_second_is_refused_until_the_first_has_gone(opened: Any) -> None:
    first, second = opened(), opened()
    first.add(ME, entry("r1"), [])
    refused = r"another gateway's \(process \d+\).*directory of its own"
    with pytest.raises(StoreProblem, match=refused):
        second.read(ME, "r1")
    with pytest.raises(StoreProblem, match=refused):
        second.add(ME, entry("r2"), [])
    assert first.read(ME, "r1") is not None
    first.close()
    assert second.read(ME, "r1") is not None


@pytest.mark.parametrize("damage", [b"this is no database " * 500, b"SQLite format 3\x00" + b"\xff" * 8192, None])
def test_damaged_file_is_set_aside_and_told_of(opened: Any, tmp_path: Path, damage: bytes | None) -> None:
    database = opened()
    for number in range(50):
        database.add(ME, entry(f"r{number}"), [Item("i", b"x" * 2000)])
    database.close()
    path = tmp_path / "state" / FILE
    if damage is None:  # its second half is gone
        damage = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(damage)
    second = opened()
    with contextlib.suppress(StoreProblem):  # found when it is opened, or by the first that comes upon it
        for number in range(50):
            second.read(ME, f"r{number}")
            second.inputs(ME, f"r{number}")
    second.add(ME, entry("new"), [])
    assert second.read(ME, "new") is not None
    (notice,) = second.file.notices
    assert "damaged" in notice and DAMAGED in notice
    assert (tmp_path / "state" / DAMAGED).read_bytes() == damage


def test_file_of_another_version_is_set_aside(opened: Any, tmp_path: Path) -> None:
    opened().open()
    opened()  # closes nothing: only the first holds the file
    path = tmp_path / "other"
    path.mkdir()
    with contextlib.closing(sqlite3.connect(path / FILE)) as db:
        db.execute("PRAGMA user_version = 99")
    database = Database(path, ResponsesSettings())
    database.add(ME, entry("r", created=2e9), [])
    assert "format 99" in database.file.notices[0]
    database.close()


def test_directory_that_cannot_be_made_is_a_problem_and_then_none(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    database = Database(blocked / "state", ResponsesSettings())
    with pytest.raises(StoreProblem, match="cannot be opened"):
        database.add(ME, entry("r", created=2e9), [])
    blocked.unlink()
    database.add(ME, entry("r", created=2e9), [])
    database.close()


def writer(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gateway.responses.helpers_writer", str(directory), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("after", [1, 40, 400])
def test_kill_during_writes_loses_nothing_that_was_stored(tmp_path: Path, after: int) -> None:
    process = writer(tmp_path)
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(after)]
    process.kill()
    told += [line.strip() for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    process.wait()
    database = Database(tmp_path, ResponsesSettings())
    for id in told:
        read = database.read("somebody", id)
        assert read is not None and texts(read.outputs) == [b"o" * 5000], id
        assert texts(database.inputs("somebody", id)) == [b"i" * 5000]
    with database.file.reading() as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert database.file.notices == []
    database.close()


def test_full_disk_fails_what_has_no_room_and_the_rest_stays(tmp_path: Path) -> None:
    process = writer(tmp_path, str(600_000))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    *told, problem, last = output.splitlines()
    assert len(told) > 10
    assert problem.startswith("problem") and FILE in problem
    database = Database(tmp_path, ResponsesSettings())
    assert all(database.read("somebody", id) is not None for id in [*told, last])
    assert database.read("somebody", f"resp_{len(told)}") is None
    with database.file.reading() as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


def test_full_database_is_a_problem_and_nothing_is_half_stored(opened: Any) -> None:
    database = opened(in_memory=True)
    database.add(ME, entry("r1"), [Item("i", b"x")])
    with database.file.reading() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreProblem, match="full"):
        database.add(ME, entry("r2", Item("o", b"y")), [Item("i", b"x" * 100_000)])
    assert database.read(ME, "r2") is None
    assert (count(database, "responses"), count(database, "items")) == (1, 1)
