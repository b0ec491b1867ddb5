"""A SQLite file that one process at a time may have, and that is never in the way: damaged, it is set aside and a new one begun.

Write-ahead logging with ``synchronous`` NORMAL: what was committed outlives this process, however that ends; a loss of power
may take the last transactions and leaves the file whole.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.responses.file_lock import FileLock, LockHeld

__all__ = ["DAMAGED", "FILE", "DatabaseFile", "StoreProblem"]

FILE = "responses.sqlite3"
DAMAGED = "responses.damaged.sqlite3"  # one is kept
_LOCK = "responses.lock"
_BESIDE = ("", "-wal", "-shm")  # a database is up to three files
_BUSY_S = 2.0  # somebody looks into the file with a tool of their own
_LOG_BYTES = 4 * 1024**2
_PAGES_FREED_AT_ONCE = 1024


class StoreProblem(Exception):
    """Responses can be neither kept nor read; says why, for a person."""


class DatabaseFile:
    """Opened by the first call that needs it, and again by the next one when it could not be. One thread at a time.

    ``directory`` None is memory. A new file gets ``schema`` and ``version``; one of another version is set aside as if it were
    damaged. ``opened`` is called with each connection.
    """

    def __init__(
        self, directory: Path | None, schema: str, version: int, opened: Callable[[sqlite3.Connection], None]
    ) -> None:
        self._directory = directory
        self._schema = schema
        self._version = version
        self._when_opened = opened
        self._lock = None if directory is None else FileLock(directory / _LOCK)
        self._connection: sqlite3.Connection | None = None
        self.notices: list[str] = []  # what a person should know that failed nothing; whoever reads it clears it

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection. StoreProblem for what SQLite cannot do; a damaged file is set aside for the next call."""
        try:
            yield self._ready()
        except (sqlite3.Error, _Unreadable) as error:
            raise self._problem(error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing."""
        with self.reading() as db:
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

    def give_pages_back(self) -> None:
        """Lets the file shrink, some pages at a time. That it could not is no loss."""
        with contextlib.suppress(sqlite3.Error):
            db = self._opened()
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            if free > _PAGES_FREED_AT_ONCE:
                # As a script: it answers a row without columns for each page, of which `execute` takes the first.
                db.executescript(f"PRAGMA incremental_vacuum({_PAGES_FREED_AT_ONCE})")

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
                f"{path} is another gateway's{other}; one at a time can have it. Stop that one, or give this one a state "
                "directory of its own (on Linux by XDG_STATE_HOME)"
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
        if version not in (0, self._version):
            raise _Unreadable(f"was written by another version of Innkeeper (format {version})")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {self._schema} PRAGMA user_version = {self._version}; COMMIT;")
        self._when_opened(db)

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


class _Unreadable(Exception):
    """A whole database that is not ours to read."""


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    missing_table = isinstance(error, sqlite3.OperationalError) and "no such" in str(error)
    return isinstance(error, _Unreadable) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or missing_table


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, _Unreadable) else f"is damaged ({error})"
