"""Jinja for chat templates: sandboxed, bounded, with the helpers that the field's templates expect.

A template comes with a model file, from anyone. Jinja's sandbox keeps it from Python's internals and from changing what it
is given. The bounds here keep it from running or growing without end: loop turns and calls spend :data:`MAX_STEPS`, and no
string may grow past :data:`MAX_CHARACTERS`. What escapes them all the same harms one worker.

Source of the helpers: the chat template conventions of Hugging Face transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_CHARACTERS", "MAX_STEPS", "TemplateEnvironment", "render_bounded"]

MAX_STEPS = 1_000_000  # of one rendering: about a second
_CALL_STEPS = 20  # what a call costs, where a loop turn costs 1
MAX_CHARACTERS = 16 * 1024 * 1024  # of any string and of the output; a request may carry a million
_MAX_INTEGER_BITS = 4096
_MAX_WIDTH = 100

# Filter names that no template can write, since they have a space.
_LOOP = "bounded loop"
_CONCATENATE = "bounded concatenation"

# Format specifications that pad to 10,000 characters or more, or take the width from an argument.
_WIDE_FIELD = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|:[^{}]*\{")
_NUMBER_WIDTH = 10_000  # characters: below what a field may be padded to, and above what a number has
# Methods and filters that pad or repeat by a number or a table, or give bytes, whose methods do. No chat template needs them.
_REFUSED_METHODS = frozenset(
    {"center", "encode", "expandtabs", "format_map", "ljust", "rjust", "to_bytes", "translate", "zfill"}
)
_REFUSED_FILTERS = frozenset({"center", "batch", "slice", "round", "wordwrap", "urlize", "filesizeformat", "random"})


@dataclass
class _Steps:
    """What one rendering may still spend. One thread renders it."""

    left: int = MAX_STEPS


_rendering: ContextVar[_Steps] = ContextVar("rendering")


def _spend(steps: int) -> None:
    rendering = _rendering.get()
    rendering.left -= steps
    if rendering.left < 0:
        raise SecurityError(f"the template runs for more than {MAX_STEPS} loop turns and calls")


def _check_length(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise SecurityError(f"the template makes a text of more than {MAX_CHARACTERS} characters")


def render_bounded(template: Template, variables: dict[str, Any]) -> str:
    """The template's output. SecurityError past the bounds, any other TemplateError or Python error that it makes."""
    token = _rendering.set(_Steps())
    try:
        pieces: list[str] = []
        characters = 0
        for piece in template.generate(variables):
            characters += len(piece)
            _check_length(characters)
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _rendering.reset(token)


def _bounded_loop(items: Any) -> Any:
    """Pays for the turns of a loop: at once where their number is known, else one by one."""
    if hasattr(items, "__len__"):
        _spend(len(items))
        return items
    return _paid(items)


def _paid(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend(1)
        yield item


def _concatenate(parts: Sequence[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


class _Bounds(NodeTransformer):
    """Puts the bounds into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _LOOP, [], [], None, None, lineno=node.iter.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, _CONCATENATE, [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """``{% generation %}``: marks the assistant's words for training; for us its body is plain template."""

    tags = {"generation"}  # noqa: RUF012  jinja declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_replacement(text: str, old: str, new: str) -> None:
    _check_length(len(text) + text.count(old) * len(new))


def _check_join(separator: str, texts: list[str]) -> None:
    _check_length(sum(map(len, texts)) + len(texts) * len(separator))


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    whole, part, other = str(text), str(old), str(new)
    _check_replacement(whole, part, other)
    return whole.replace(part, other, -1 if count is None else count)


def _join(value: Iterable[Any], separator: Any = "", attribute: str | None = None) -> str:
    between = str(separator)
    texts = [str(item if attribute is None else item[attribute]) for item in value]
    _check_join(between, texts)
    return between.join(texts)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lines = str(text).split("\n")
    indention = width if isinstance(width, str) else " " * min(width, _MAX_WIDTH)
    _check_length(len(str(text)) + len(lines) * len(indention))
    for place, line in enumerate(lines):
        if (place and (blank or line)) or (first and not place):
            lines[place] = indention + line
    return "\n".join(lines)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which no model has been trained on."""
    indent = indent if indent is None else min(indent, _MAX_WIDTH)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _format(pattern: Any, *values: Any, **named: Any) -> str:
    _check_fields(str(pattern), "%", (*values, *named.values()))
    formatted: str = str(pattern) % (named or values)
    return formatted


def _check_fields(pattern: str, mark: str, values: Iterable[Any]) -> None:
    """Before a pattern whose fields begin with ``mark`` is filled in: each may take the longest of the values."""
    if _WIDE_FIELD.search(pattern):
        raise SecurityError("the template formats with a width of 10,000 characters or more")
    fields = pattern.count(mark)
    if fields > 1:
        _check_length(len(pattern) + fields * max(map(_shown_length, values), default=0))


def _shown_length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return _NUMBER_WIDTH if isinstance(value, int | float) else len(str(value))


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Threads may share it and its templates.

    Args:
        now: the clock behind ``strftime_now``.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        del self.globals["lipsum"]
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters |= {
            _LOOP: _bounded_loop,
            _CONCATENATE: _concatenate,
            "format": _format,
            "indent": _indent,
            "join": _join,
            "replace": _replace,
            "tojson": _to_json,
        }
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(pattern)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Python's internals are out of reach, and so are the methods of texts and numbers that pad."""
        refused = isinstance(obj, str | int) and attr in _REFUSED_METHODS
        return not refused and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format``, which Jinja guards against attributes, against widths too."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern = str(value.__self__)

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_fields(pattern, "{", (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return bounded

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Each call costs steps, since macros may call themselves."""
        _spend(_CALL_STEPS)
        text = getattr(obj, "__self__", None)
        if isinstance(text, str) and obj.__name__ == "replace":
            _check_replacement(text, *args[:2])
        if isinstance(text, str) and obj.__name__ == "join":
            args = tuple(list(items) for items in args)
            _check_join(text, *args)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators whose result can be much larger than what they are given."""
        if operator == "%" and isinstance(left, str):
            values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
            _check_fields(left, "%", values)
        elif operator == "*":
            for count, sequence in ((left, right), (right, left)):
                if isinstance(count, int) and hasattr(sequence, "__len__"):
                    _check_length(count * len(sequence))
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_length(len(left) + len(right))
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * max(right, 0)
            if bits > _MAX_INTEGER_BITS:
                raise SecurityError("the template computes a number that is too large")
        return super().call_binop(context, operator, left, right)
