"""Which of the models ``GET /v1/models`` lists: all, or a page of them, by Anthropic's query.

Source of the names: Anthropic's reference of "List Models" (``limit``, ``after_id``, ``before_id``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocols.options import shown

__all__ = ["ModelPage", "parse_model_page"]

MAX_LIMIT = 1000
_KNOWN = ("limit", "after_id", "before_id")
_TAKEN = ("beta",)  # of Anthropic's beta client: says nothing
_Item = TypeVar("_Item")


class ModelPage(msgspec.Struct, frozen=True):
    """Some of the models: those behind or before one of them, ``limit`` at most. Without any of it all of them.

    ``ignored``: parameters of the query that this list knows nothing of.
    """

    limit: int | None = None
    after: str | None = None
    before: str | None = None
    ignored: tuple[str, ...] = ()

    def of(self, models: Sequence[_Item], ids: Sequence[str]) -> tuple[Sequence[_Item], bool]:
        """The models of this page, in their order, and whether there are more. InvalidRequest for an id not among ``ids``."""
        start = 0 if self.after is None else _place(self.after, ids, "after_id") + 1
        end = len(models) if self.before is None else _place(self.before, ids, "before_id")
        count = end - start if self.limit is None else min(self.limit, end - start)
        first = start if self.before is None else end - count
        return models[first : first + count], count < end - start


def parse_model_page(query: Sequence[tuple[str, str]]) -> ModelPage:
    """The query of the list. InvalidRequest names the parameter."""
    given: dict[str, str] = {}
    for name, value in query:
        if name in _KNOWN and name in given:
            raise InvalidRequest(f"{name} is given twice", param=name)
        given[name] = value
    if "after_id" in given and "before_id" in given:
        raise InvalidRequest("before_id is allowed only without after_id", param="before_id")
    limit = given.get("limit")
    if limit is not None and not (
        limit.isascii() and limit.isdigit() and len(limit) < 5 and 1 <= int(limit) <= MAX_LIMIT
    ):
        raise InvalidRequest(f"limit is {shown(limit)}; it must be an integer from 1 to {MAX_LIMIT}", param="limit")
    return ModelPage(
        None if limit is None else int(limit),
        given.get("after_id"),
        given.get("before_id"),
        tuple(name[:100] for name in given if name.isascii() and name.isprintable() and name not in (*_KNOWN, *_TAKEN)),
    )


def _place(model: str, ids: Sequence[str], field: str) -> int:
    if model not in ids:
        raise InvalidRequest(f"{field} is {shown(model)}; it must be the id of a model in this list", param=field)
    return ids.index(model)
