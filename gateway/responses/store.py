"""The database of stored responses, asked from the event loop: one thread does what it is asked, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.errors import StoreUnavailable
from gateway.responses.database import Database, Entry, Item, Page
from gateway.responses.database_file import StoreProblem

__all__ = ["ResponseStore"]

T = TypeVar("T")

_LONGEST_WAIT_S = 10.0  # for a disk that does not answer


class ResponseStore:
    """Every method raises StoreUnavailable, which says why. ``owner`` is whose responses are meant; nobody sees another's.

    ``tell`` is given sentences for a person: each failure once, until something succeeds again. A call that is cancelled, or
    waits too long, is done all the same.
    """

    def __init__(self, database: Database, tell: Callable[[str], None]) -> None:
        self._database = database
        self._tell = tell
        self._told: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")

    async def open(self) -> None:
        """Looks at the file now. What is wrong with it is told; nothing is raised."""
        try:
            await self._do(self._database.open)
        except StoreUnavailable:
            return  # told, and tried again by the first call that needs it

    async def close(self) -> None:
        """Once nothing is asked any more. Idempotent."""
        try:
            await self._do(self._database.close)
        except (StoreUnavailable, RuntimeError):  # a disk that hangs; closed before
            return
        finally:
            self._thread.shutdown(wait=False)

    async def add(self, owner: str, entry: Entry, inputs: Sequence[Item]) -> None:
        """Keeps a new response; the oldest ones make room."""
        await self._do(lambda: self._database.add(owner, entry, inputs))

    async def finish(self, owner: str, entry: Entry) -> None:
        """The end of one that was added under way; nothing where it was deleted since."""
        await self._do(lambda: self._database.finish(owner, entry))

    async def delete(self, owner: str, id: str) -> bool:
        """Whether there was one."""
        return await self._do(lambda: self._database.delete(owner, id))

    async def read(self, owner: str, id: str) -> Entry | None:
        """The response with its output."""
        return await self._do(lambda: self._database.read(owner, id))

    async def inputs(self, owner: str, id: str) -> tuple[Item, ...] | None:
        """All that a response was made of, in order."""
        return await self._do(lambda: self._database.inputs(owner, id))

    async def page(self, owner: str, id: str, *, limit: int, after: str | None, descending: bool) -> Page | None:
        """Some of that; None where there is no such response, or no item ``after``."""
        return await self._do(lambda: self._database.page(owner, id, limit=limit, after=after, descending=descending))

    async def find(self, owner: str, ids: Sequence[str]) -> dict[str, Item]:
        """Those of these items that there are."""
        return await self._do(lambda: self._database.find(owner, ids)) if ids else {}

    async def _do(self, work: Callable[[], T]) -> T:
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            result = await asyncio.wait_for(asyncio.shield(done), _LONGEST_WAIT_S)
        except StoreProblem as problem:
            self._report(str(problem))
            raise StoreUnavailable(f"stored responses cannot be used: {problem}") from problem
        except TimeoutError as error:
            done.add_done_callback(_look_away)
            self._report(f"the disk of stored responses does not answer within {_LONGEST_WAIT_S:g} s")
            raise StoreUnavailable("stored responses cannot be used: the disk does not answer") from error
        finally:
            self._pass_notices_on()
        self._told = None
        return result

    def _report(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            self._tell(f"responses are not stored: {problem}")

    def _pass_notices_on(self) -> None:
        notices, self._database.file.notices = self._database.file.notices, []
        for notice in notices:
            self._tell(notice)


def _look_away(done: asyncio.Future[T]) -> None:
    """Takes the outcome of work that nobody waits for any more."""
    if not done.cancelled():
        done.exception()
