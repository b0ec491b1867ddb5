"""Learned values in the state directory: ``learned.json``, by content key.

They only make estimates better, so nothing that goes wrong here fails anything: a file that cannot be read counts as empty,
one that cannot be written stays as it was, and either is told once. Simulated models are left out: what a rehearsal claims
is not learned.

The file is replaced in one step, so that whoever reads it finds the old one or the new one, whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.residency.values import LearnedValue

__all__ = ["LearnedStore"]

_FILE = "learned.json"
_VERSION = 1
_MOST = 1000  # values kept; the oldest go, since every change of a file makes another key
_SIMULATED = "sim:"


@dataclass
class _Stored:
    """The file. Values are in the order in which they were learned."""

    version: int = _VERSION
    values: dict[str, LearnedValue] = field(default_factory=dict)


class LearnedStore:
    """``warn`` is given a sentence for a person. One writer: the event loop's thread; files are written in another."""

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._path = directory / _FILE
        self._warn = warn
        self._values: dict[str, LearnedValue] = {}
        self._writing: asyncio.Task[None] | None = None
        self._changed = False  # since the writing under way began
        self._told: str | None = None  # the last failure, which is told once

    def read(self) -> dict[str, LearnedValue]:
        """The values of earlier runs. Before the event loop runs."""
        try:
            self._values = _decode(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            self._warn(f"learned values in {self._path} cannot be read and are learned again: {error}")
        return dict(self._values)

    def put(self, content_key: str, value: LearnedValue) -> None:
        """Keeps it, and begins to write. Returns at once."""
        if content_key.startswith(_SIMULATED):
            return
        self._values.pop(content_key, None)
        self._values[content_key] = value
        while len(self._values) > _MOST:
            del self._values[next(iter(self._values))]
        self._changed = True
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_until_written())

    async def close(self) -> None:
        """Until what was put is written, or has failed to be."""
        if self._writing is not None:
            await self._writing

    async def _write_until_written(self) -> None:
        try:
            while self._changed:
                self._changed = False
                text = msgspec.json.format(msgspec.json.encode(_Stored(values=self._values)), indent=1)
                try:
                    await asyncio.to_thread(self._write, text)
                    self._told = None
                except OSError as error:
                    self._tell(
                        f"learned values cannot be written to {self._path} and last as long as this run: {error}"
                    )
        finally:
            self._writing = None

    def _write(self, text: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{_FILE}.{os.getpid()}")
        try:
            temporary.write_bytes(text)
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            self._warn(problem)


def _decode(text: bytes) -> dict[str, LearnedValue]:
    stored = msgspec.json.decode(text, type=_Stored)
    if stored.version != _VERSION:
        raise ValueError(f"version {stored.version}, this gateway writes {_VERSION}")
    for key, value in stored.values.items():
        numbers = (value.static_bytes, value.kv_bytes_per_token, *value.lower_static, *value.lower_kv)
        if min(numbers) < 0:
            raise ValueError(f"a negative number of bytes under {key}")
    return stored.values
