"""What the simulated engine says where a request asks for more than words: thinking, tool calls, JSON. One step a token.

It thinks where it is told to (``enabled``): ``t0 t1 t2``, or as much of that as the budget allows. It calls functions where it
must: the one that is named, else each once, or only the first where one call is allowed. Arguments and JSON answers are the least
value of their schema that it can make up: first alternatives, only what is required. It has no grammar: what it cannot make up,
it refuses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engines.errors import UnsupportedParameter
from engines.simulated_text import answer_word
from engines.wire import (
    Event,
    FinishReason,
    Grammar,
    Reasoning,
    ReasoningDelta,
    TextRequest,
    ToolCallDelta,
    ToolCallStarted,
    ToolUse,
)

__all__ = ["Script", "Step", "script_of"]

_THOUGHTS = ("t0", " t1", " t2")
_CHARACTERS = 4  # of JSON, a token
_DEEPEST = 30
_MOST_VALUES = 1000
_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_REMARKS = {
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "strict",
}
_KEPT = {
    *("$ref", "const", "enum", "anyOf", "oneOf", "type", "properties", "required", "additionalProperties", "items"),
    *("minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


@dataclass(frozen=True)
class Step:
    """One token: a piece of text (the default), of thinking, or of call number ``call``, which ``name`` begins."""

    text: str
    thought: bool = False
    call: int | None = None
    name: str | None = None

    def event(self, request_id: int, token: int) -> Event | None:
        """What it is told as; None for text, which stops may hold back."""
        if self.thought:
            return ReasoningDelta(request_id=request_id, text=self.text, tokens=(token,))
        if self.call is None:
            return None
        if self.name is not None:
            id = f"call_{request_id}_{self.call}"
            return ToolCallStarted(request_id=request_id, index=self.call, id=id, name=self.name, tokens=(token,))
        return ToolCallDelta(request_id=request_id, index=self.call, arguments=self.text, tokens=(token,))


@dataclass(frozen=True)
class Script:
    """The first tokens of an answer. ``end`` is why it ends behind them; None: words follow."""

    steps: tuple[Step, ...] = ()
    end: FinishReason | None = None

    def step(self, place: int) -> Step:
        """The token at this place."""
        return self.steps[place] if place < len(self.steps) else Step(answer_word(place - len(self.steps)))

    def end_after(self, count: int) -> FinishReason | None:
        """Why the answer ends with so many tokens, None if it does not."""
        return self.end if count == len(self.steps) else None

    @property
    def thoughts(self) -> int:
        """How many of the steps are thinking."""
        return sum(step.thought for step in self.steps)


def script_of(request: TextRequest) -> Script:
    """UnsupportedParameter for a schema or grammar that it cannot follow."""
    steps = list(_thinking(request.reasoning))
    if request.tools is not None and request.tools.choice == "required":
        return Script((*steps, *_calls(request.tools)), "tool_calls")
    if request.grammar is not None:
        return Script((*steps, *map(Step, _cut(_answer(request.grammar)))), "stop")
    return Script(tuple(steps))


def _thinking(reasoning: Reasoning) -> Iterator[Step]:
    if not reasoning.enabled:
        return
    words = _THOUGHTS if reasoning.budget is None else _THOUGHTS[: reasoning.budget]
    if reasoning.split:
        yield from (Step(word, thought=True) for word in words)
    else:
        yield from map(Step, ("<think>", *words, "</think>"))


def _calls(use: ToolUse) -> Iterator[Step]:
    tools = [tool for tool in use.tools if use.name in (None, tool.name)]
    for call, tool in enumerate(tools if use.parallel else tools[:1]):
        yield Step("", call=call, name=tool.name)
        arguments = _made_up({"type": "object", **(tool.parameters or {})}, "tools")
        yield from (Step(text, call=call) for text in _cut(arguments))


def _cut(text: str) -> list[str]:
    return [text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS)]


def _answer(grammar: Grammar) -> str:
    if grammar.kind == "json_object":
        return "{}"
    if grammar.kind != "json_schema":
        raise UnsupportedParameter(f"{grammar.field}: a simulated model follows JSON schemas only", param=grammar.field)
    return _made_up(json.loads(grammar.source), grammar.field)


def _made_up(schema: Any, field: str) -> str:
    """A value of this schema, as JSON."""
    try:
        maker = _Maker(schema, field)
        maker.check(schema)
        return json.dumps(maker.least(schema), ensure_ascii=False)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UnsupportedParameter(f"{field}: not a schema that a simulated model can read", param=field) from error


class _Maker:
    """Makes up one value of ``root``, which schemas within it may refer to."""

    def __init__(self, root: Any, field: str) -> None:
        self._root = root
        self._field = field
        self._left = _MOST_VALUES

    def check(self, schema: Any, depth: int = 0) -> None:
        """Whether it is a schema at all, the parts that :meth:`least` leaves out too: a real model's grammar needs them all."""
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            raise self._refusal(f"of {json.dumps(schema)[:100]}")
        kinds = schema.get("type", "null")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in _TYPES:
                raise self._refusal(f"of the type {json.dumps(kind)[:100]}")
        if "$ref" in schema:
            self._target(str(schema["$ref"]))
        parts = [part for several in ("anyOf", "oneOf") for part in schema.get(several, ())]
        parts += [part for named in ("properties", "$defs", "definitions") for part in schema.get(named, {}).values()]
        parts += [schema[one] for one in ("items", "additionalProperties") if one in schema]
        for part in parts:
            self.check(part, depth + 1)

    def least(self, schema: Any, depth: int = 0) -> Any:
        """A value of this schema."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST or not isinstance(schema, Mapping | bool) or schema is False:
            raise self._refusal("of this schema")
        if schema is True:
            return None
        if unknown := schema.keys() - _KEPT - _REMARKS:
            raise self._refusal(f"that keeps {min(unknown)!r}")
        if "$ref" in schema:
            return self.least(self._target(str(schema["$ref"])), depth + 1)
        if "const" in schema:
            return schema["const"]
        for several in ("enum", "anyOf", "oneOf"):
            if several in schema:
                first = schema[several][0]
                return first if several == "enum" else self.least(first, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "null")
        match kind[0] if isinstance(kind, list) else kind:
            case "object":
                properties = schema.get("properties", {})
                return {name: self.least(properties.get(name, True), depth + 1) for name in schema.get("required", ())}
            case "array":
                return [self.least(schema.get("items", True), depth + 1) for _ in range(schema.get("minItems", 0))]
            case "string":
                length = schema.get("minLength", min(1, schema.get("maxLength", 1)))
                if length > min(_MOST_VALUES, schema.get("maxLength", length)):
                    raise self._refusal("of this length")
                return "w" * length
            case "integer" | "number":
                if (number := _nearest(schema)) is None:
                    raise self._refusal("within these bounds")
                return number
            case "boolean":
                return False
            case _:
                return None

    def _target(self, reference: str) -> Any:
        """What a reference within the schema leads to."""
        found = self._root
        for key in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            if not isinstance(found, Mapping) or key not in found:
                raise self._refusal(f"that refers to {reference[:100]!r}")
            found = found[key]
        return found

    def _refusal(self, what: str) -> UnsupportedParameter:
        return UnsupportedParameter(
            f"{self._field}: a simulated model cannot make up a value {what}", param=self._field
        )


def _nearest(schema: Mapping[str, Any]) -> int | None:
    """The whole number nearest to 0 that the bounds allow, None where there is none."""
    lows: list[int] = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    lows += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    highs: list[int] = [math.floor(schema["maximum"])] if "maximum" in schema else []
    highs += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    number = max([*lows, min([*highs, 0])])
    return number if all(number <= high for high in highs) else None
