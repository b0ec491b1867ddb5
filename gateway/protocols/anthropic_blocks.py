"""Content blocks of Anthropic's messages: which there are, what fields they have, and what text they are to a model.

A block's fields stand in two rows, as options do: those that are read, and hints, which cannot change the text and whose names
go into ``x-innkeeper-ignored``. Any other is refused by name. What has no text is refused too: images, files, and the blocks of
tools that Anthropic's own servers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from gateway.errors import InvalidRequest, UnsupportedModality, UnsupportedParameter
from gateway.protocols.options import shown

__all__ = ["Block", "blocks_of", "check_fields", "read_text_field", "refuse", "text_of", "texts_of"]

Block = tuple[str, Mapping[str, Any]]
"""Where a block stands in the request, and the block."""

READ: dict[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "document": frozenset({"source", "title", "context"}),
    "search_result": frozenset({"content", "source", "title"}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
    "tool_use": frozenset({"id", "name", "input"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error"}),
    "tool_reference": frozenset({"tool_name"}),
}
HINTS = frozenset({"cache_control", "caller", "citations", "toolset_name"})

_MODALITIES = {"image": "images", "container_upload": "files"}


def blocks_of(value: Any, field: str, hints: set[str]) -> list[Block]:
    """A content's blocks, their fields checked; a string is one of text. The names of hints are added to ``hints``."""
    if isinstance(value, str):
        return [(field, {"type": "text", "text": value})]
    if not isinstance(value, list):
        what = "is missing" if value is None else f"is {shown(value)}"
        raise InvalidRequest(f"{field} {what}; it must be a string or an array of content blocks", param=field)
    blocks: list[Block] = []
    for i, block in enumerate(value):
        where = f"{field}[{i}]"
        if not isinstance(block, dict):
            raise InvalidRequest(f"{where} is {shown(block)}; it must be an object", param=where)
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in READ:
            refuse(where, kind)
        check_fields(block, where, READ[kind] | {"type"}, HINTS, hints)
        blocks.append((where, block))
    return blocks


def check_fields(
    value: Mapping[str, Any], field: str, read: frozenset[str], known_hints: frozenset[str], hints: set[str]
) -> None:
    """UnsupportedParameter for a field that is in neither row; the names of hints that are there are added to ``hints``."""
    for name, given in value.items():
        if given is None or name in read:
            continue
        if name not in known_hints:
            where = f"{field}.{name[:100]}"
            raise UnsupportedParameter(f"unknown parameter {where!r}", param=where)
        hints.add(name)


def refuse(field: str, kind: Any) -> NoReturn:
    """Raises what a block of this type is refused with, in a place where it cannot stand."""
    if not isinstance(kind, str):
        what = "is missing" if kind is None else f"is {shown(kind)}"
        raise InvalidRequest(f"{field}.type {what}; it must be the type of a content block", param=f"{field}.type")
    if kind in _MODALITIES:
        message = f"{field} is of type {kind!r}: this server's text models cannot read {_MODALITIES[kind]}"
        raise UnsupportedModality(message, param=field)
    if kind in READ:
        raise InvalidRequest(f"{field} is of type {kind!r}, which cannot stand there", param=field)
    message = f"{field} is of type {shown(kind)}, which is not supported; it may be one of {', '.join(sorted(READ))}"
    raise UnsupportedParameter(message, param=field)


def texts_of(value: Any, field: str, hints: set[str], *, only: frozenset[str] = frozenset({"text"})) -> list[str]:
    """The texts of a content of which only blocks of these types are allowed."""
    texts = []
    for where, block in blocks_of(value, field, hints):
        if block["type"] not in only:
            refuse(where, block["type"])
        texts.append(text_of(where, block, hints))
    return texts


def text_of(field: str, block: Mapping[str, Any], hints: set[str]) -> str:
    """What a text, a document, a search result or a tool reference is to the model."""
    return _TEXTS[block["type"]](field, block, hints)


def read_text_field(block: Mapping[str, Any], field: str, name: str) -> str:
    """A field of a block that must be a string."""
    value = block.get(name)
    if not isinstance(value, str):
        what = "is missing" if value is None else f"is {shown(value)}"
        raise InvalidRequest(f"{field}.{name} {what}; it must be a string", param=f"{field}.{name}")
    return value


def _text(field: str, block: Mapping[str, Any], _hints: set[str]) -> str:
    return read_text_field(block, field, "text")


def _document(field: str, block: Mapping[str, Any], hints: set[str]) -> str:
    """A document of text, its title and context above it."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not isinstance(kind, str):
        message = f"{field}.source is {shown(source)}; it must be an object with a type"
        raise InvalidRequest(message, param=f"{field}.source")
    match kind:
        case "text":
            texts = [read_text_field(source, f"{field}.source", "data")]
        case "content":
            texts = texts_of(source.get("content"), f"{field}.source.content", hints)
        case _:
            message = (
                f"{field}.source is of type {shown(kind)}: this server's text models read 'text' and 'content' only"
            )
            raise UnsupportedModality(message, param=f"{field}.source")
    above = [read_text_field(block, field, name) for name in ("title", "context") if block.get(name) is not None]
    return "\n".join([*above, *texts])


def _search_result(field: str, block: Mapping[str, Any], hints: set[str]) -> str:
    """A result's title, where it is from, and its text."""
    above = [read_text_field(block, field, name) for name in ("title", "source")]
    return "\n".join([*above, *texts_of(block.get("content"), f"{field}.content", hints)])


def _tool_reference(field: str, block: Mapping[str, Any], _hints: set[str]) -> str:
    return f"Tool available: {read_text_field(block, field, 'tool_name')}"


_TEXTS: dict[str, Callable[[str, Mapping[str, Any], set[str]], str]] = {
    "text": _text,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
}
