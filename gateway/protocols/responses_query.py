"""What is asked of stored responses, by query, and how lists of their items look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.options import shown
from gateway.protocols.responses_options import INCLUDES

__all__ = [
    "PageWish",
    "ReadWish",
    "assembled",
    "count_object",
    "deleted_object",
    "page_object",
    "parse_page",
    "parse_read",
]

MAX_LIMIT = 100
_INCLUDE = ("include", "include[]")  # clients write arrays in both ways


class ReadWish(msgspec.Struct, frozen=True):
    """A response, or the events of one that was made in the background, behind the one of this number."""

    stream: bool = False
    after: int = -1


class PageWish(msgspec.Struct, frozen=True):
    """Some of a response's input items."""

    limit: int = 20
    after: str | None = None
    descending: bool = True


def parse_read(query: Sequence[tuple[str, str]]) -> ReadWish:
    """The query of a response. InvalidRequest names the parameter."""
    given = _sorted(query, ("stream", "starting_after", "include_obfuscation"))
    stream = _boolean(given, "stream")
    _boolean(given, "include_obfuscation")
    after = given.get("starting_after")
    if after is None:
        return ReadWish(stream)
    if not stream:
        raise InvalidRequest("starting_after is allowed only when stream is true", param="starting_after")
    return ReadWish(stream, _integer(after, "starting_after", 0, 2**53))


def parse_page(query: Sequence[tuple[str, str]]) -> PageWish:
    """The query of a response's input items. InvalidRequest names the parameter."""
    given = _sorted(query, ("limit", "order", "after"))
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {shown(order)}; it must be asc or desc", param="order")
    limit = _integer(given.get("limit", "20"), "limit", 1, MAX_LIMIT)
    return PageWish(limit, given.get("after"), order == "desc")


def page_object(items: Sequence[bytes], *, more: bool) -> bytes:
    """A list of items, which are JSON."""
    ids = [msgspec.json.decode(item)["id"] for item in (items[0], items[-1])] if items else [None, None]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [msgspec.Raw(item) for item in items],
            "first_id": ids[0],
            "last_id": ids[1],
            "has_more": more,
        }
    )


def assembled(body: bytes, output: Sequence[bytes]) -> dict[str, Any]:
    """A stored response with its items in their place."""
    response: dict[str, Any] = msgspec.json.decode(body)
    response["output"] = [msgspec.json.decode(item) for item in output]
    return response


def deleted_object(id: str) -> dict[str, Any]:
    """What a deletion is answered with."""
    return {"id": id, "object": "response", "deleted": True}


def count_object(tokens: int) -> dict[str, Any]:
    """The answer to a request for a count."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _sorted(query: Sequence[tuple[str, str]], known: Sequence[str]) -> Mapping[str, str]:
    """The parameters, each given once, but for what is to be included: what there is of that was settled with the request."""
    given: dict[str, str] = {}
    for name, value in query:
        if name in _INCLUDE:
            if value not in INCLUDES:
                message = f"include is {shown(value)}; it must be one of {', '.join(INCLUDES)}"
                raise InvalidRequest(message, param="include")
        elif name not in known:
            raise UnsupportedParameter(f"unknown parameter {name[:100]!r}", param=name[:100])
        elif name in given:
            raise InvalidRequest(f"{name} is given twice", param=name)
        else:
            given[name] = value
    return given


def _boolean(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} is {shown(value)}; it must be true or false", param=name)
    return value == "true"


def _integer(value: str, name: str, low: int, high: int) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 17 and low <= int(value) <= high):
        raise InvalidRequest(f"{name} is {shown(value)}; it must be an integer from {low} to {high}", param=name)
    return int(value)
