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

Write-ahead logging with ``synchronous`` NORMAL: what was committed outlives this process, however that ends; a loss of power
may take the last transactions and leaves the file whole. A file that SQLite cannot read is set aside under another name (one is
kept) and a new one begun.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.responses.file_lock import FileLock, LockHeld
from gateway.settings import ResponsesSettings

__all__ = ["Database", "Entry", "Item", "Page", "StoreProblem"]

FILE = "responses.sqlite3"
DAMAGED = "responses.damaged.sqlite3"
_LOCK = "responses.lock"
_BESIDE = ("", "-wal", "-shm")  # a database is up to three files
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
_BUSY_S = 2.0  # somebody looks into the file with a tool of their own
_LOG_BYTES = 4 * 1024**2
_PAGES_FREED_AT_ONCE = 1024
_EVICTED_AT_ONCE = 32


class StoreProblem(Exception):
    """Responses can be neither kept nor read; says why, for a person."""


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
    """Opened by the first call that needs it, and again by the next one when it could not be. One thread at a time.

    ``path`` is the directory, None for memory. ``interrupted`` makes of the body of a response that was under way in a process
    that is gone what it is now. Every method raises StoreProblem; none loses what others have written.
    """

    def __init__(
        self,
        path: Path | None,
        limits: ResponsesSettings,
        *,
        interrupted: Callable[[bytes], bytes] = bytes,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._directory = path
        self._limits = limits
        self._interrupted = interrupted
        self._now = now
        self._lock = None if path is None else FileLock(path / _LOCK)
        self._connection: sqlite3.Connection | None = None
        self.notices: list[str] = []  # what a person should know that failed nothing; whoever reads it clears it

    # --- writing ---

    def add(self, owner: str, entry: Entry, inputs: Sequence[Item]) -> None:
        """Keeps a new response; the oldest ones go where it needs their room."""
        if not self._limits.max_count:
            raise StoreProblem("server.responses.max_count is 0: responses are not stored")
        with self._transaction() as db:
            row = (entry.id, owner, entry.created, entry.status, entry.body)
            added = db.execute("INSERT INTO responses (id, owner, created, status, body) VALUES (?, ?, ?, ?, ?)", row)
            assert added.lastrowid is not None
            _link(db, owner, added.lastrowid, _INPUT, inputs)
            _link(db, owner, added.lastrowid, _OUTPUT, entry.outputs)
            self._keep_within_limits(db, added.lastrowid)
        self._give_pages_back()

    def finish(self, owner: str, entry: Entry) -> None:
        """The end of a response that was added under way. Nothing where it is gone since."""
        with self._transaction() as db:
            number = _number(db, owner, entry.id)
            if number is None:
                return
            db.execute("UPDATE responses SET status = ?, body = ? WHERE number = ?", (entry.status, entry.body, number))
            _unlink(db, number, _OUTPUT)
            _link(db, owner, number, _OUTPUT, entry.outputs)
            self._keep_within_limits(db, number)

    def delete(self, owner: str, id: str) -> bool:
        """Whether there was one."""
        with self._transaction() as db:
            number = _number(db, owner, id)
            if number is None:
                return False
            _remove(db, number)
        self._give_pages_back()
        return True

    # --- reading ---

    def read(self, owner: str, id: str) -> Entry | None:
        """The response, with what it says."""
        with self._reading() as db:
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
        with self._reading() as db:
            number = _number(db, owner, id, self._oldest)
            return None if number is None else _items(db, number, _INPUT)

    def page(self, owner: str, id: str, *, limit: int, after: str | None, descending: bool) -> Page | None:
        """Up to ``limit`` of what it was made of, behind the item ``after``. None where there is no such response or item."""
        with self._reading() as db:
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
        with self._reading() as db:
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
        with self._reading():
            pass

    def close(self) -> None:
        """Writes the log into the file and lets others have it. Idempotent."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.release()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect() if self._directory is None else self._open_file(self._directory)
        return self._connection

    def _open_file(self, directory: Path) -> sqlite3.Connection:
        assert self._lock is not None
        path = directory / FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            # For this user's eyes only; SQLite gives the files beside it the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except LockHeld as held:
            other = f" (process {held.process})" if held.process else ""
            raise StoreProblem(
                f"{path} is another gateway's{other}; one at a time can have it. Stop that one, or give this one another "
                "state directory with XDG_STATE_HOME"
            ) from held
        except OSError as error:
            raise StoreProblem(f"{path} cannot be opened: {error}") from error
        return self._connect(path)

    def _connect(self, path: Path | None = None) -> sqlite3.Connection:
        connection = sqlite3.connect(path or ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise _Unreadable(f"was written by another version of Innkeeper (format {version})")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        under_way = db.execute("SELECT number, body FROM responses WHERE status IN (?, ?)", _UNDER_WAY).fetchall()
        for number, body in under_way:
            row = (self._interrupted(body), number)
            db.execute("UPDATE responses SET status = 'failed', body = ? WHERE number = ?", row)

    def _set_aside(self, directory: Path, why: str) -> None:
        """Another name for a file that cannot be read. The lock is held."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        path, aside = directory / FILE, directory / DAMAGED
        try:
            for suffix in _BESIDE:
                old, new = path.with_name(f"{FILE}{suffix}"), aside.with_name(f"{DAMAGED}{suffix}")
                new.unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    old.rename(new)
        except OSError as error:
            raise StoreProblem(f"{path} {why}, and cannot be set aside: {error}") from error
        self.notices.append(f"{path} {why}; it was set aside as {aside.name}, and responses are stored anew")

    # --- steps ---

    @property
    def _oldest(self) -> float:
        return self._now() - self._limits.max_age_s

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection. StoreProblem for what SQLite cannot do; a damaged file is set aside for the next call."""
        try:
            yield self._ready()
        except (sqlite3.Error, _Unreadable) as error:
            raise self._problem(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing."""
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")

    def _ready(self) -> sqlite3.Connection:
        """Open; a file that is found damaged when it is opened makes place for another at once."""
        try:
            return self._opened()
        except (sqlite3.Error, _Unreadable) as error:
            if self._directory is None or not _is_damage(error):
                raise
            self._set_aside(self._directory, _why(error))
            return self._opened()

    def _problem(self, error: Exception) -> StoreProblem:
        where = "memory" if self._directory is None else str(self._directory / FILE)
        if self._directory is not None and _is_damage(error):
            self._set_aside(self._directory, _why(error))
            return StoreProblem(f"{where} {_why(error)} and was set aside")
        return StoreProblem(f"{where}: {error}")

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

    def _give_pages_back(self) -> None:
        """Lets the file shrink, some pages at a time. That it could not is no loss."""
        with contextlib.suppress(sqlite3.Error):
            db = self._opened()
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            if free > _PAGES_FREED_AT_ONCE:
                # As a script: it answers a row without columns for each page, of which `execute` takes the first.
                db.executescript(f"PRAGMA incremental_vacuum({_PAGES_FREED_AT_ONCE})")


class _Unreadable(Exception):
    """A whole database that is not ours to read."""


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    missing_table = isinstance(error, sqlite3.OperationalError) and "no such" in str(error)
    return isinstance(error, _Unreadable) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or missing_table


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, _Unreadable) else f"is damaged ({error})"


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
