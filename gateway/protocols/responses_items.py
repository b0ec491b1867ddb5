"""Items of the Responses API as they come in: checked, and in the one shape in which they are stored and shown.

=========================  ==========================================================================================
item                       as it is kept
=========================  ==========================================================================================
message                    ``role``; parts ``input_text`` (of an ``assistant``: ``output_text``, ``refusal``)
``function_call``          ``call_id``, ``name``, ``arguments`` (JSON text, which need not be whole)
``function_call_output``   ``call_id``, ``output``: a text or parts ``input_text``
``reasoning``              ``summary``, ``content``, ``encrypted_content`` as they were given out
``item_reference``         the ``id`` of an item of a stored response, which stands in its place
=========================  ==========================================================================================

A message's content may be a text in place of parts, and its ``type`` may be missing. Source: OpenAI's API reference, "Create a
model response".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest, UnsupportedModality, UnsupportedParameter
from gateway.protocols.options import characters_in, shown

__all__ = ["PREFIXES", "Item", "item_characters", "named", "parse_items", "reference_of"]

Item = dict[str, Any]

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""What the ids of each kind begin with."""

_ROLES = ("user", "system", "developer", "assistant")
_STATES = ("in_progress", "completed", "incomplete")
_MODALITIES = {"input_image": "images", "image_url": "images", "input_file": "files", "input_audio": "audio"}
_FIELDS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"role", "content"}),
    "function_call": frozenset({"call_id", "name", "arguments"}),
    "function_call_output": frozenset({"call_id", "output"}),
    "reasoning": frozenset({"summary", "content", "encrypted_content"}),
    "item_reference": frozenset(),
}
_EVERY = frozenset({"type", "id", "status"})
# What clients send back of an answer, and what says nothing to a model.
_ECHOED = frozenset({"annotations", "caller", "created_by", "logprobs", "parsed", "parsed_arguments", "phase"})


def parse_items(value: Any, field: str = "input") -> tuple[Item, ...]:
    """The items of a text or an array. InvalidRequest names the item and the field in it; none where ``value`` is None."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (_message({"role": "user", "content": value}, field),)
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be a string or an array of items", param=field)
    return tuple(_item(item, f"{field}[{i}]") for i, item in enumerate(value))


def reference_of(item: Item) -> str | None:
    """The id that it stands for, where it is a reference."""
    return item["id"] if item["type"] == "item_reference" else None


def named(items: Sequence[Item], salt: str) -> tuple[Item, ...]:
    """Each with an id; those that came without get one made of ``salt`` and their place."""
    return tuple(
        item if "id" in item else {"id": f"{PREFIXES[item['type']]}_{salt}i{place:04x}", **item}
        for place, item in enumerate(items)
    )


def item_characters(item: Item) -> int:
    """What it holds for a model, at least 1."""
    return max(1, sum(characters_in(item.get(name)) for name in _FIELDS[item["type"]] if name != "role"))


def _item(value: Any, field: str) -> Item:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object", param=field)
    kind = value.get("type")
    if kind is None:
        kind = "message" if "role" in value else "item_reference"
    if not isinstance(kind, str) or kind not in _FIELDS:
        where = f"{field}.type"
        if isinstance(kind, str):
            message = f"{where} is {shown(kind)}, which is not supported; it may be {', '.join(_FIELDS)}"
            raise UnsupportedParameter(message, param=where)
        raise InvalidRequest(f"{where} is {shown(kind)}; it must be one of {', '.join(_FIELDS)}", param=where)
    for name, given in value.items():
        if name not in _FIELDS[kind] and name not in _EVERY and name not in _ECHOED and given is not None:
            where = f"{field}.{name[:100]}"
            raise UnsupportedParameter(f"unknown parameter {where!r}", param=where)
    return _READERS[kind](value, field)


def _begun(value: Mapping[str, Any], field: str, kind: str) -> Item:
    """The fields that every item has; an id only where there is one."""
    status = value.get("status")
    if status is not None and status not in _STATES:
        where = f"{field}.status"
        raise InvalidRequest(f"{where} is {shown(status)}; it must be one of {', '.join(_STATES)}", param=where)
    id = value.get("id")
    if id is not None and (not isinstance(id, str) or not 0 < len(id) <= 256):
        message = f"{field}.id is {shown(id)}; it must be a string of 1 to 256 characters"
        raise InvalidRequest(message, param=f"{field}.id")
    begun: Item = {} if id is None else {"id": id}
    return {**begun, "type": kind, "status": status or "completed"}


def _message(value: Mapping[str, Any], field: str) -> Item:
    role = value.get("role")
    if role not in _ROLES:
        where = f"{field}.role"
        raise InvalidRequest(f"{where} is {shown(role)}; it must be one of {', '.join(_ROLES)}", param=where)
    part = _said_part if role == "assistant" else _read_part
    content = _parts(value.get("content"), field if field == "input" else f"{field}.content", part)
    return {**_begun(value, field, "message"), "role": role, "content": content}


def _parts(value: Any, field: str, part: Callable[[Any, str], dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [part({"type": "text", "text": value}, field)]
    if not isinstance(value, list):
        what = "is missing" if value is None else f"is {shown(value)}"
        raise InvalidRequest(f"{field} {what}; it must be a string or an array of content parts", param=field)
    return [part(item, f"{field}[{i}]") for i, item in enumerate(value)]


def _read_part(part: Any, field: str) -> dict[str, Any]:
    """A part of what the model reads."""
    _check_part(part, field, ("input_text", "text", "output_text"))
    return {"type": "input_text", "text": _text(part, field, "text")}


def _said_part(part: Any, field: str) -> dict[str, Any]:
    """A part of what an assistant said."""
    if _check_part(part, field, ("output_text", "text", "input_text", "refusal")) == "refusal":
        return {"type": "refusal", "refusal": _text(part, field, "refusal")}
    return {"type": "output_text", "text": _text(part, field, "text"), "annotations": []}


def _check_part(part: Any, field: str, kinds: Sequence[str]) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{field} is {shown(part)}; it must be an object", param=field)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MODALITIES:
        message = f"{field} is of type {kind!r}: this server's text models cannot read {_MODALITIES[kind]}"
        raise UnsupportedModality(message, param=field)
    if not isinstance(kind, str) or kind not in kinds:
        where = f"{field}.type"
        raise InvalidRequest(f"{where} is {shown(kind)}; it must be {kinds[0]!r}", param=where)
    return kind


def _call(value: Mapping[str, Any], field: str) -> Item:
    return {
        **_begun(value, field, "function_call"),
        "call_id": _text(value, field, "call_id", least=1),
        "name": _text(value, field, "name", least=1),
        "arguments": _text(value, field, "arguments"),
    }


def _output(value: Mapping[str, Any], field: str) -> Item:
    output = value.get("output")
    if not isinstance(output, str):
        output = _parts(output, f"{field}.output", _read_part)
    begun = _begun(value, field, "function_call_output")
    return {**begun, "call_id": _text(value, field, "call_id", least=1), "output": output}


def _reasoning(value: Mapping[str, Any], field: str) -> Item:
    item = _begun(value, field, "reasoning")
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        given = value.get(name)
        where = f"{field}.{name}"
        if given is not None and not isinstance(given, list):
            raise InvalidRequest(f"{where} is {shown(given)}; it must be an array of {kind} parts", param=where)
        item[name] = [_thought(part, f"{where}[{i}]", kind) for i, part in enumerate(given or ())]
    if value.get("encrypted_content") is not None:
        item["encrypted_content"] = _text(value, field, "encrypted_content")
    return item


def _thought(part: Any, field: str, kind: str) -> dict[str, Any]:
    _check_part(part, field, (kind, "text"))
    return {"type": kind, "text": _text(part, field, "text")}


def _reference(value: Mapping[str, Any], field: str) -> Item:
    return {"type": "item_reference", "id": _text(value, field, "id", least=1)}


def _text(value: Mapping[str, Any], field: str, name: str, least: int = 0) -> str:
    text = value.get(name)
    if not isinstance(text, str) or len(text) < least:
        what = "is missing" if text is None else f"is {shown(text)}"
        allowed = "a string of at least one character" if least else "a string"
        raise InvalidRequest(f"{field}.{name} {what}; it must be {allowed}", param=f"{field}.{name}")
    return text


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Item]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
    "item_reference": _reference,
}
