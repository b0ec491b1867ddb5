"""From a registry file's YAML value to :class:`RegistryFile`: unknown keys, wrong types and values out of range, each by its path.

The file is taken in pieces (a section, a model, a profile, a rule), and a piece with a mistake once more key by key, so that all of
them are told at once.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import UnsetType

from gateway.registry.problems import Problem, nearest, shorten
from gateway.registry.request_schema import misplaced
from gateway.registry.schema import NOT_BUILT, PATTERNS, ModelEntry, RegistryFile
from gateway.registry.values import ByteSize, ValueProblem, parse_bytes

__all__ = ["ShapeError", "read_shape"]

_MODEL_KEYS = frozenset(ModelEntry.__struct_fields__) | NOT_BUILT["models[]"]


class ShapeError(Exception):
    """The value is no registry file; ``problems`` has at least one."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def read_shape(data: object) -> RegistryFile:
    """The file's Structs. ShapeError with every key that is unknown, missing or has a wrong value."""
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ShapeError(Problem(None, "a registry file is a mapping with keys such as models and server"))
    sections = {field.name: field.type for field in msgspec.structs.fields(RegistryFile)}
    problems = [problem for key in data if (problem := _key_problem(key, key, sections, "")) is not None]
    values: dict[str, Any] = {}
    for name, kind in sections.items():
        if name in data:
            values[name] = _read_section(name, data[name], kind, problems)
    if problems:
        raise ShapeError(*problems)
    return RegistryFile(**values)


def _read_section(name: str, value: object, kind: Any, problems: list[Problem]) -> Any:
    """A top-level key's value; what is wrong with it joins ``problems``."""
    item, container = _item_of(kind)
    if container is tuple and isinstance(value, list):
        return tuple(_read_piece(part, item, f"{name}[{i}]", f"{name}[]", problems) for i, part in enumerate(value))
    if container is dict and isinstance(value, dict):
        return {key: _read_piece(part, item, f"{name}.{key}", f"{name}[]", problems) for key, part in value.items()}
    return _read_piece(value, kind, name, name, problems)


def _item_of(kind: Any) -> tuple[Any, type | None]:
    """What a section's list or mapping holds, and which of the two it is."""
    container = typing.get_origin(kind)
    return (typing.get_args(kind)[container is dict], container) if container in (tuple, dict) else (kind, None)


def _read_piece(data: object, kind: Any, path: str, section: str, problems: list[Problem]) -> Any:
    if isinstance(kind, type):
        problems += _unknown_keys(data, kind, path, section)
    try:
        return _convert(data, kind, path)
    except ShapeError as error:
        problems += list(_mistakes(data, kind, path)) or error.problems
    return None


def _convert(data: object, kind: Any, path: str) -> Any:
    """The value as its Struct or type. ShapeError with the first thing that is wrong."""
    try:
        return msgspec.convert(_prepare(data, kind, path), kind)
    except UnicodeEncodeError as error:
        key = f".{next(iter(data))}" if isinstance(data, dict) and len(data) == 1 else ""
        raise ShapeError(Problem(f"{path}{key}", "holds half a surrogate pair")) from error
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$")
        inner = at.rstrip("`")
        value = _look_up(data, inner)
        where = f"{path}{inner}"
        hidden = value is _MISSING or "api_keys" in where  # an error must not print a key
        shown = "" if hidden else f" (found {shorten(value)})"
        choices = _choices(kind, inner)
        said = f"expected one of {', '.join(choices)}" if choices else f"{message[:1].lower()}{_in_words(message[1:])}"
        raise ShapeError(Problem(where, f"{said}{shown}")) from error


def _in_words(message: str) -> str:
    for pattern, words in PATTERNS.items():
        message = message.replace(f"`str` matching regex {pattern!r}", words)
    return message


def _mistakes(data: object, kind: Any, path: str) -> Iterator[Problem]:
    """What is wrong with a mapping, key by key: each value's first mistake, and those of every key of what is a section itself."""
    if not isinstance(data, dict) or not isinstance(kind, type):
        return
    for field in msgspec.structs.fields(kind):
        where = f"{path}.{field.name}"
        if field.name not in data:
            if field.required:
                yield Problem(path, f"object missing required field `{field.name}` (found {shorten(data)})")
            continue
        value = data[field.name]
        sections = [inner for inner, many in _structs_in(field.type) if not many]
        if sections and isinstance(value, dict):
            yield from _mistakes(value, sections[0], where)
            continue
        try:
            _convert({field.name: value}, _alone(kind, field.name), path)
        except ShapeError as error:
            yield from error.problems


@lru_cache
def _alone(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct]:
    """A Struct with this field only."""
    field = next(field for field in msgspec.structs.fields(kind) if field.name == name)
    return msgspec.defstruct(kind.__name__, [(name, field.type)])


def _choices(kind: Any, path: str) -> list[str]:
    """What may stand at this path below a value of this kind, where that is one of several texts and nothing else."""
    for key in _keys(path):
        kind = _bare(kind)
        if key.isdigit() and typing.get_origin(kind) is tuple:
            kind = typing.get_args(kind)[0]
            continue
        fields = {field.name: field.type for struct, _ in _structs_in(kind) for field in msgspec.structs.fields(struct)}
        kind = fields.get(key, kind)  # the index of a piece stays where it is
    kind = _bare(kind)
    parts = typing.get_args(kind) if typing.get_origin(kind) is not typing.Literal else (kind,)
    if any(typing.get_origin(part) is not typing.Literal for part in parts if part not in (type(None), UnsetType)):
        return []
    return [name for part in parts if typing.get_origin(part) is typing.Literal for name in typing.get_args(part)]


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _unknown_keys(data: object, kind: type[msgspec.Struct], path: str, section: str) -> Iterator[Problem]:
    """A problem for every key that has no business here, or in what is below."""
    if not isinstance(data, dict):
        return  # convert() says what should be here
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        where, below = f"{path}.{key}", f"{section}.{key}"
        problem = _key_problem(key, where, fields, section)
        if problem is not None:
            yield problem
            continue
        for inner, many in _structs_in(fields[key]):
            if many and isinstance(value, list):
                for index, item in enumerate(value):
                    yield from _unknown_keys(item, inner, f"{where}[{index}]", f"{below}[]")
            elif not many:
                yield from _unknown_keys(value, inner, where, below)


def _key_problem(key: str, where: str, fields: dict[str, Any], section: str) -> Problem | None:
    if key in NOT_BUILT.get(section, frozenset()):
        return Problem(where, "not supported by this version of Innkeeper; leave it out")
    if key in fields:
        return None
    advice = misplaced(section, key, _MODEL_KEYS)
    return Problem(where, advice or f"unknown key{nearest(key, fields, 'keys')}")


def _structs_in(annotation: Any) -> list[tuple[type[msgspec.Struct], bool]]:
    """The Structs an annotation holds, each with whether it stands in a list."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [(annotation, False)]
    many = typing.get_origin(annotation) is tuple
    return [(struct, many or inner) for part in typing.get_args(annotation) for struct, inner in _structs_in(part)]


def _prepare(data: Any, kind: Any, path: str) -> Any:
    """The same mapping with sizes and budgets read, which msgspec has no type for."""
    if not isinstance(data, dict) or not isinstance(kind, type):
        return data
    out: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in data:
            continue
        value, where = data[field.name], f"{path}.{field.name}"
        if isinstance(value, float) and not math.isfinite(value):
            raise ShapeError(Problem(where, f"expected a finite number (found {value})"))
        parts = {field.type, *typing.get_args(field.type)}
        if ByteSize in parts and not (value is None and type(None) in parts):
            value = _read_bytes(value, where)
        for inner, many in _structs_in(field.type):
            if many and isinstance(value, list):
                value = [_prepare(item, inner, f"{where}[{i}]") for i, item in enumerate(value)]
            elif not many:
                value = _prepare(value, inner, where)
        out[field.name] = value
    return out


def _read_bytes(value: object, where: str) -> ByteSize:
    try:
        return parse_bytes(value)
    except ValueProblem as problem:
        raise ShapeError(Problem(where, f"{problem} (found {shorten(value)})")) from problem


def _keys(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", path)


_MISSING = object()


def _look_up(data: Any, path: str) -> Any:
    for key in _keys(path):
        try:
            data = data[int(key)] if isinstance(data, list) else data[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return _MISSING
    return data
