"""A stock model over which memory runs out when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx

__all__ = ["FaultyModel"]


class FaultyModel:
    """Raises what MLX raises, in the calls of these numbers (from 1) or where ``when`` says so of (ids, call).

    With ``late`` the caches have been written before it does.
    """

    def __init__(
        self,
        model: Any,
        at: Iterable[int] = (),
        *,
        when: Callable[[mx.array], bool] = lambda ids: False,
        late: bool = False,
        error: Exception | None = None,
    ) -> None:
        self.calls = 0
        self.faults = 0
        self.model = model
        self._at = set(at)
        self._when = when
        self._late = late
        self._error = error or RuntimeError("[malloc] Unable to allocate 123456789 bytes.")

    def __call__(self, ids: mx.array, cache: list[Any]) -> Any:
        self.calls += 1
        breaks = self.calls in self._at or self._when(ids)
        if breaks and not self._late:
            self.faults += 1
            raise self._error
        logits = self.model(ids, cache=cache)
        if breaks:
            self.faults += 1
            raise self._error
        return logits

    def make_cache(self) -> list[Any]:
        made: list[Any] = self.model.make_cache()
        return made
