"""The file of stored responses: SQLite, for one gateway at a time.

=============  ==========================================================================================================
table          a row
=============  ==========================================================================================================
``responses``  a response: whose it is, when it was made, its state, its JSON without what it was made of and what it says
``items``      a message, a call, its output, a run of thinking: JSON, with its id
``parts``      an item is the ``place``-th of a response's input (``side`` 0) or output (1)
=============  ==========================================================================================================

A conversation's items are shared by its responses, so that a turn costs what is new in it, and no response needs another one
to be there. An item goes with the last response it is part of.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gateway.responses.database_file import DatabaseFile, StoreProblem
from gateway.settings import ResponsesSettings

__all__ = ["Database", "Entry", "Item", "Page"]

_VERSION = 1
_SCHEMA = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created REAL NOT NULL,
    status TEXT NOT NULL, body BLOB NOT NULL
);
CREATE TABLE items (key INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX items_by_id ON items (owner, id);
CREATE TABLE parts (
    response INTEGER NOT NULL, side INTEGER NOT NULL, place INTEGER NOT NULL, item INTEGER NOT NULL,
    PRIMARY KEY (response, side, place)
) WITHOUT ROWID;
CREATE INDEX parts_by_item ON parts (item);
"""
_INPUT, _OUTPUT = 0, 1
_UNDER_WAY = ("queued", "in_progress")
_EVICTED_AT_ONCE = 32


class Item(msgspec.Struct, frozen=True):
    """An item as JSON. ``key`` is the file's number for one that is in it, None for a new one."""

    id: str
    body: bytes
    key: int | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it is kept. ``created`` in seconds since the epoch; ``body`` is JSON without ``output``."""

    id: str
    created: float
    status: str
    body: bytes
    outputs: tuple[Item, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """Some of a response's input items, in the order that was asked for, and whether there are more behind them."""

    items: tuple[Item, ...]
    more: bool


class Database:
    """See ``database_file`` for how it is opened. One thread at a time.

    ``directory`` None is memory. ``interrupted`` makes of the body of a response that was under way in a process
    that is gone what it is now. Every method raises StoreProblem; none loses what others have written.
    """

    def __init__(
        self,
        directory: Path | None,
        limits: ResponsesSettings,
        *,
        interrupted: Callable[[bytes], bytes] = bytes,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._interrupted = interrupted
        self._now = now
        self.file = DatabaseFile(directory, _SCHEMA, _VERSION, self._end_what_was_under_way)

    # --- writing ---

    def add(self, owner: str, entry: Entry, inputs: Sequence[Item]) -> None:
        """Keeps a new response; the oldest ones go where it needs their room."""
        if not self._limits.max_count:
            raise StoreProblem("server.responses.max_count is 0: responses are not stored")
        with self.file.transaction() as db:
            row = (entry.id, owner, entry.created, entry.status, entry.body)
            added = db.execute("INSERT INTO responses (id, owner, created, status, body) VALUES (?, ?, ?, ?, ?)", row)
            assert added.lastrowid is not None
            _link(db, owner, added.lastrowid, _INPUT, inputs)
            _link(db, owner, added.lastrowid, _OUTPUT, entry.outputs)
            self._keep_within_limits(db, added.lastrowid)
        self.file.give_pages_back()

    def finish(self, owner: str, entry: Entry) -> None:
        """The end of a response that was added under way. Nothing where it is gone since."""
        with self.file.transaction() as db:
            number = _number(db, owner, entry.id)
            if number is None:
                return
            db.execute("UPDATE responses SET status = ?, body = ? WHERE number = ?", (entry.status, entry.body, number))
            _unlink(db, number, _OUTPUT)
            _link(db, owner, number, _OUTPUT, entry.outputs)
            self._keep_within_limits(db, number)

    def delete(self, owner: str, id: str) -> bool:
        """Whether there was one."""
        with self.file.transaction() as db:
            number = _number(db, owner, id)
            if number is None:
                return False
            _remove(db, number)
        self.file.give_pages_back()
        return True

    # --- reading ---

    def read(self, owner: str, id: str) -> Entry | None:
        """The response, with what it says."""
        with self.file.reading() as db:
            row = db.execute(
                "SELECT number, created, status, body FROM responses WHERE owner = ? AND id = ? AND created >= ?",
                (owner, id, self._oldest),
            ).fetchone()
            if row is None:
                return None
            number, created, status, body = row
            return Entry(id=id, created=created, status=status, body=body, outputs=_items(db, number, _OUTPUT))

    def inputs(self, owner: str, id: str) -> tuple[Item, ...] | None:
        """All that it was made of, in order."""
        with self.file.reading() as db:
            number = _number(db, owner, id, self._oldest)
            return None if number is None else _items(db, number, _INPUT)

    def page(self, owner: str, id: str, *, limit: int, after: str | None, descending: bool) -> Page | None:
        """Up to ``limit`` of what it was made of, behind the item ``after``. None where there is no such response or item."""
        with self.file.reading() as db:
            number = _number(db, owner, id, self._oldest)
            if number is None:
                return None
            start = -1 if not descending else 2**62
            if after is not None:
                place = db.execute(
                    "SELECT place FROM parts JOIN items ON key = item WHERE response = ? AND side = ? AND id = ?",
                    (number, _INPUT, after),
                ).fetchone()
                if place is None:
                    return None
                (start,) = place
            comparison, order = ("<", "DESC") if descending else (">", "ASC")
            rows = db.execute(
                "SELECT id, body, key FROM parts JOIN items ON key = item WHERE response = ? AND side = ? "
                f"AND place {comparison} ? ORDER BY place {order} LIMIT ?",
                (number, _INPUT, start, limit + 1),
            ).fetchall()
            return Page(tuple(Item(*row) for row in rows[:limit]), len(rows) > limit)

    def find(self, owner: str, ids: Sequence[str]) -> dict[str, Item]:
        """Those of these items that there are; of several of one id the newest."""
        found = {}
        with self.file.reading() as db:
            for id in ids:
                row = db.execute(
                    "SELECT id, body, key FROM items WHERE owner = ? AND id = ? AND EXISTS (SELECT 1 FROM parts "
                    "JOIN responses ON number = response WHERE item = key AND created >= ?) ORDER BY key DESC LIMIT 1",
                    (owner, id, self._oldest),
                ).fetchone()
                if row is not None:
                    found[id] = Item(*row)
        return found

    # --- opening and closing ---

    def open(self) -> None:
        """Now, and not with the first call that needs it."""
        with self.file.reading():
            pass

    def close(self) -> None:
        """Lets others have the file. Idempotent."""
        self.file.close()

    # --- steps ---

    def _end_what_was_under_way(self, db: sqlite3.Connection) -> None:
        under_way = db.execute("SELECT number, body FROM responses WHERE status IN (?, ?)", _UNDER_WAY).fetchall()
        for number, body in under_way:
            row = (self._interrupted(body), number)
            db.execute("UPDATE responses SET status = 'failed', body = ? WHERE number = ?", row)

    @property
    def _oldest(self) -> float:
        return self._now() - self._limits.max_age_s

    def _keep_within_limits(self, db: sqlite3.Connection, newest: int) -> None:
        """Drops the expired, then the oldest while there are too many or they take too much. StoreProblem where ``newest`` alone
        takes too much."""
        for (number,) in db.execute("SELECT number FROM responses WHERE created < ?", (self._oldest,)).fetchall():
            _remove(db, number)
        (count,) = db.execute("SELECT count(*) FROM responses").fetchone()
        surplus = count - self._limits.max_count
        while surplus > 0 or _used_bytes(db) > self._limits.max_bytes:
            oldest = db.execute(
                "SELECT number FROM responses WHERE number != ? ORDER BY number LIMIT ?",
                (newest, surplus if surplus > 0 else _EVICTED_AT_ONCE if count > 10 * _EVICTED_AT_ONCE else 1),
            ).fetchall()
            if not oldest:
                most = self._limits.max_bytes
                raise StoreProblem(f"the response takes more than server.responses.max_bytes, which is {most}")
            for (number,) in oldest:
                _remove(db, number)
            count -= len(oldest)
            surplus = count - self._limits.max_count


def _used_bytes(db: sqlite3.Connection) -> int:
    """Of the file, without pages that are free; as the transaction under way would leave it."""
    values = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")]
    pages, free, size = values
    return int((pages - free) * size)


def _number(db: sqlite3.Connection, owner: str, id: str, oldest: float = 0.0) -> int | None:
    row = db.execute(
        "SELECT number FROM responses WHERE owner = ? AND id = ? AND created >= ?", (owner, id, oldest)
    ).fetchone()
    return None if row is None else int(row[0])


def _items(db: sqlite3.Connection, number: int, side: int) -> tuple[Item, ...]:
    rows = db.execute(
        "SELECT id, body, key FROM parts JOIN items ON key = item WHERE response = ? AND side = ? ORDER BY place",
        (number, side),
    )
    return tuple(Item(*row) for row in rows)


def _link(db: sqlite3.Connection, owner: str, number: int, side: int, items: Sequence[Item]) -> None:
    """Makes these the parts of one side. One that the file had may have gone since it was read; numbers are never used twice."""
    insert = "INSERT OR IGNORE INTO items (key, owner, id, body) VALUES (?, ?, ?, ?)"
    for place, item in enumerate(items):
        added = db.execute(insert, (item.key, owner, item.id, item.body))
        key = item.key if item.key is not None else added.lastrowid
        db.execute("INSERT INTO parts VALUES (?, ?, ?, ?)", (number, side, place, key))


def _unlink(db: sqlite3.Connection, number: int, *sides: int) -> None:
    """Takes its parts from a response, and from the file what is part of nothing then."""
    for side in sides:
        keys = db.execute("SELECT item FROM parts WHERE response = ? AND side = ?", (number, side)).fetchall()
        db.execute("DELETE FROM parts WHERE response = ? AND side = ?", (number, side))
        orphan = "DELETE FROM items WHERE key = ? AND NOT EXISTS (SELECT 1 FROM parts WHERE item = key)"
        db.executemany(orphan, keys)


def _remove(db: sqlite3.Connection, number: int) -> None:
    _unlink(db, number, _INPUT, _OUTPUT)
    db.execute("DELETE FROM responses WHERE number = ?", (number,))
