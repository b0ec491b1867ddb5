"""A process that stores responses until it is killed: ``python -m tests.gateway.responses.helpers_writer DIRECTORY [BYTES]``.

It writes the id of each one that is stored. With BYTES no file may grow beyond that, as on a full disk; then it writes what went
wrong, lifts the limit, stores one more and ends.
"""

from __future__ import annotations

import itertools
import resource
import sys
from pathlib import Path

from gateway.responses.database import Database, Entry, Item
from gateway.responses.database_file import StoreProblem
from gateway.settings import ResponsesSettings

OWNER = "somebody"


def main() -> None:
    database = Database(Path(sys.argv[1]), ResponsesSettings())
    database.open()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
    for number in itertools.count():
        try:
            _store(database, number)
        except StoreProblem as problem:
            _say(f"problem {problem}")
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            _store(database, number + 1)
            database.close()
            return


def _store(database: Database, number: int) -> None:
    id = f"resp_{number}"
    entry = Entry(
        id=id, created=2e9 + number, status="completed", body=b'{"id": "x"}', outputs=(Item("out", b"o" * 5000),)
    )
    database.add(OWNER, entry, [Item("in", b"i" * 5000)])
    _say(id)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
