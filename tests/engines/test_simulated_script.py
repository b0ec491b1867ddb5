"""Thinking, calls and JSON of the simulated engine: made up, and of the schema that was asked for."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from engines.errors import UnsupportedParameter
from engines.simulated import SimulatedEngine
from engines.wire import (
    ChatMessage,
    ChatPrompt,
    Event,
    Finished,
    Grammar,
    Reasoning,
    ReasoningDelta,
    SimulateSpec,
    TextDelta,
    TextRequest,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
    ToolUse,
)
from tests.engines.helpers_clock import FakeClock

PROMPT = ChatPrompt(messages=(ChatMessage(role="user", content="go on"),))
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"$ref": "#/$defs/days"}, "note": {"type": "string"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1}},
}
TOOLS = (Tool(name="weather", parameters=CITY), Tool(name="clock"))


def answer(**request: Any) -> list[Event]:
    engine = SimulatedEngine(SimulateSpec(weights_bytes=1), context=None, width=None, clock=FakeClock())
    engine.submit(1, engine.prepare(TextRequest(prompt=PROMPT, **{"max_tokens": 100, **request})))
    events: list[Event] = []
    while engine.busy:
        events.extend(engine.step())
    return events[1:]


def end(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls(events: list[Event]) -> list[tuple[str, Any]]:
    """Names and arguments, in order."""
    begun = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [event.index for event in begun] == list(range(len(begun)))
    assert len({event.id for event in begun}) == len(begun)
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    texts = ["".join(delta.arguments for delta in deltas if delta.index == i) for i in range(len(begun))]
    return [(event.name, json.loads(arguments)) for event, arguments in zip(begun, texts, strict=True)]


def test_calls_that_are_required_are_made_once_each_and_end_the_answer() -> None:
    events = answer(tools=ToolUse(tools=TOOLS, choice="required"))
    assert calls(events) == [("weather", {"city": "Oslo", "days": 1}), ("clock", {})]
    assert end(events).reason == "tool_calls"
    assert end(events).usage.completion_tokens == len(events) - 1
    only = answer(tools=ToolUse(tools=TOOLS, choice="required", parallel=False))
    assert [name for name, _ in calls(only)] == ["weather"]
    named = answer(tools=ToolUse(tools=TOOLS, choice="required", name="clock"))
    assert calls(named) == [("clock", {})]


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_calls_that_nobody_requires_are_not_made(choice: Any) -> None:
    events = answer(tools=ToolUse(tools=TOOLS, choice=choice), max_tokens=2)
    assert (text(events), calls(events), end(events).reason) == ("w0 w1", [], "length")


def test_call_that_outlasts_its_tokens_ends_by_length() -> None:
    events = answer(tools=ToolUse(tools=TOOLS, choice="required"), max_tokens=3)
    assert [type(event) for event in events] == [ToolCallStarted, ToolCallDelta, ToolCallDelta, Finished]
    assert end(events).reason == "length"


def test_thinking_comes_first_and_is_counted() -> None:
    events = answer(reasoning=Reasoning(enabled=True), max_tokens=5)
    thoughts = [event.text for event in events if isinstance(event, ReasoningDelta)]
    assert ("".join(thoughts), text(events)) == ("t0 t1 t2", "w0 w1")
    usage = end(events).usage
    assert (usage.completion_tokens, usage.reasoning_tokens) == (5, 3)
    short = answer(reasoning=Reasoning(enabled=True, budget=1), max_tokens=5)
    assert end(short).usage.reasoning_tokens == 1
    cut = answer(reasoning=Reasoning(enabled=True), max_tokens=2)
    assert (text(cut), end(cut).usage.reasoning_tokens, end(cut).reason) == ("", 2, "length")
    inline = answer(reasoning=Reasoning(enabled=True, split=False), max_tokens=6)
    assert text(inline) == "<think>t0 t1 t2</think>w0"
    assert text(answer(reasoning=Reasoning(effort="low", budget=4), max_tokens=1)) == "w0"


def test_thinking_goes_before_calls_and_stops_do_not_match_in_it() -> None:
    tools = ToolUse(tools=TOOLS[1:], choice="required")
    events = answer(reasoning=Reasoning(enabled=True), tools=tools, stop=("t1", "{"))
    assert calls(events) == [("clock", {})]
    assert end(events).reason == "tool_calls"


@pytest.mark.parametrize(
    "schema",
    [
        CITY,
        True,
        {"type": "object"},
        {"type": "array", "items": {"type": "number", "exclusiveMinimum": 1.5}, "minItems": 2},
        {"type": "string", "minLength": 3},
        {"type": "string", "maxLength": 0},
        {"type": ["boolean", "null"]},
        {"const": {"a": [1, None]}},
        {"anyOf": [{"type": "integer", "maximum": -3}, {"type": "null"}]},
        {"type": "number", "minimum": -5, "exclusiveMaximum": -1},
        {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
    ],
)
def test_json_is_of_its_schema(schema: Any) -> None:
    events = answer(grammar=Grammar(kind="json_schema", source=json.dumps(schema)))
    jsonschema_rs.validate(schema, json.loads(text(events)))
    assert end(events).reason == "stop"


def test_json_object_is_one() -> None:
    assert text(answer(grammar=Grammar(kind="json_object"))) == "{}"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"grammar": Grammar(kind="regex", source="a", field="guided_choice")}, "guided_choice: .* JSON schemas only"),
        ({"grammar": Grammar(kind="json_schema", source='{"type": "string", "pattern": "a"}')}, "'pattern'"),
        ({"grammar": Grammar(kind="json_schema", source="false")}, "cannot make up"),
        ({"grammar": Grammar(kind="json_schema", source='{"$ref": "#/$defs/a"}')}, "'#/$defs/a'"),
        ({"grammar": Grammar(kind="json_schema", source='{"$ref": "#"}')}, "cannot make up"),
        ({"grammar": Grammar(kind="json_schema", source='{"type": "array", "minItems": 2000}')}, "of this schema"),
        ({"grammar": Grammar(kind="json_schema", source='{"type": "string", "minLength": 2000}')}, "of this length"),
        ({"grammar": Grammar(kind="json_schema", source='{"type": "object", "required": 5}')}, "can read"),
        ({"grammar": Grammar(kind="json_schema", source='{"enum": []}')}, "can read"),
        ({"grammar": Grammar(kind="json_schema", source='{"type": "nonsense"}')}, 'of the type "nonsense"'),
        ({"grammar": Grammar(kind="json_schema", source='{"type": ["null", 5]}')}, "of the type 5"),
        ({"grammar": Grammar(kind="json_schema", source='{"properties": {"a": {"type": "text"}}}')}, 'type "text"'),
        ({"grammar": Grammar(kind="json_schema", source='{"properties": {"a": {"$ref": "#/b"}}}')}, "'#/b'"),
        ({"grammar": Grammar(kind="json_schema", source='{"items": {"anyOf": [{}, 5]}}')}, "of 5"),
        (
            {"grammar": Grammar(kind="json_schema", source='{"type": "number", "minimum": 0.2, "maximum": 0.7}')},
            "within these bounds",
        ),
        (
            {"grammar": Grammar(kind="json_schema", source='{"type": "string", "minLength": 3, "maxLength": 2}')},
            "of this length",
        ),
        (
            {"tools": ToolUse(tools=(Tool(name="f", parameters={"not": {}}),), choice="required")},
            "'not'",
        ),
    ],
)
def test_what_it_cannot_make_up_it_refuses(request_: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedParameter, match=says.replace("$", r"\$")):
        answer(**request_)
