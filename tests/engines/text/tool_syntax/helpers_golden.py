"""Calls as models write them, by a writer of our own for each syntax: a mistake in the parser is not mirrored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engines.text.output import CallArguments, CallEnd, CallStart, Content, Part, Thought, output_parser
from engines.text.reasoning import ReasoningFormat
from engines.text.tool_syntax import ToolSyntax, syntax_named
from engines.wire import Tool

Call = tuple[str, dict[str, Any]]

TOOLS = (
    Tool(
        name="weather",
        description="The weather of a city",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "detailed": {"type": "boolean"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    ),
    Tool(
        name="search",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filter": {"$ref": "#/$defs/Filter"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "weight": {"type": ["number", "null"]},
            },
            "required": ["query"],
            "$defs": {
                "Filter": {
                    "type": "object",
                    "properties": {"all": {"type": "boolean"}, "range": {"type": "array", "items": {"type": "number"}}},
                }
            },
        },
    ),
    Tool(name="ping"),
)

CASES: dict[str, list[Call]] = {
    "single": [("weather", {"city": "Oslo"})],
    "parallel": [("weather", {"city": "Oslo", "days": 3}), ("search", {"query": "hotels"}), ("ping", {})],
    "types": [("weather", {"city": "Oslo", "days": -12, "detailed": True, "unit": "celsius"})],
    "nested": [
        ("search", {"query": "a", "filter": {"all": False, "range": [1, 2.5]}, "tags": ["x", "y, z"], "weight": None})
    ],
    "unicode": [("weather", {"city": "Zürich 東京 🌧"})],
    "brackets": [
        ("search", {"query": "a } b { c ] d [ e ) f ( , : = ; 'q' \"r\" \\ \\n <x> & #", "tags": ["}", '"', "]"]})
    ],
    "lines": [("search", {"query": "first\n  second\n\nthird\ttab"})],
    "empty": [("ping", {})],
    "empty_string": [("weather", {"city": ""})],
}


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _objects(calls: Sequence[Call], name: str = "name", arguments: str = "arguments") -> list[str]:
    return [dumps({name: called, arguments: given}) for called, given in calls]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _qwen3_coder(calls: Sequence[Call]) -> str:
    blocks = []
    for name, given in calls:
        values = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in given.items())
        blocks.append(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
    return "\n".join(blocks)


def _glm45(calls: Sequence[Call]) -> str:
    blocks = []
    for name, given in calls:
        values = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in given.items()
        )
        blocks.append(f"<tool_call>{name}\n{values}</tool_call>")
    return "\n".join(blocks)


def _minimax_m2(calls: Sequence[Call]) -> str:
    blocks = ""
    for name, given in calls:
        values = "".join(f'<parameter name="{key}">{_text(value)}</parameter>\n' for key, value in given.items())
        blocks += f'<invoke name="{name}">\n{values}</invoke>\n'
    return f"<minimax:tool_call>\n{blocks}</minimax:tool_call>"


def _dsml(block: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        text = f"<｜DSML｜{block}>\n"
        for name, given in calls:
            text += f'<｜DSML｜invoke name="{name}">\n'
            for key, value in given.items():
                string = "true" if isinstance(value, str) else "false"
                text += f'<｜DSML｜parameter name="{key}" string="{string}">{_text(value)}</｜DSML｜parameter>\n'
            text += "</｜DSML｜invoke>\n"
        return f"{text}</｜DSML｜{block}>"

    return write


def _python(name: str, given: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _gemma(quote: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return f"[{','.join(_gemma(quote, item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_gemma(quote, item)}' for key, item in value.items())}}}"
    return dumps(value)


def _deepseek(begin: str, end: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        blocks = [
            f"<｜tool▁call▁begin｜>{begin.format(name)}{dumps(given)}{end}<｜tool▁call▁end｜>" for name, given in calls
        ]
        return f"<｜tool▁calls▁begin｜>{chr(10).join(blocks) if end else ''.join(blocks)}<｜tool▁calls▁end｜>"

    return write


def _kimi(calls: Sequence[Call]) -> str:
    blocks = [
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{dumps(given)}<|tool_call_end|>"
        for index, (name, given) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(blocks)}<|tool_calls_section_end|>"


def _command(calls: Sequence[Call]) -> str:
    blocks = [
        dumps({"tool_call_id": str(index), "tool_name": name, "parameters": given})
        for index, (name, given) in enumerate(calls)
    ]
    return "<|START_ACTION|>[\n    " + ",\n    ".join(blocks) + "\n]<|END_ACTION|>"


def _harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(given)}<|call|>"
        for name, given in calls
    )


WRITERS: dict[str, Callable[[Sequence[Call]], str]] = {
    "harmony": _harmony,
    "minimax_m2": _minimax_m2,
    "minimax_m1": lambda calls: "<tool_calls>\n" + "\n".join(_objects(calls)) + "\n</tool_calls>",
    "gemma4": lambda calls: "".join(
        f"<|tool_call>call:{name}{_gemma('<|' + chr(34) + '|>', given)}<tool_call|>" for name, given in calls
    ),
    "function_gemma": lambda calls: "".join(
        f"<start_function_call>call:{name}{_gemma('<escape>', given)}<end_function_call>" for name, given in calls
    ),
    "glm45": _glm45,
    "lfm2": lambda calls: f"<|tool_call_start|>[{', '.join(_python(*call) for call in calls)}]<|tool_call_end|>",
    "qwen3_coder": _qwen3_coder,
    "seed_oss": lambda calls: _qwen3_coder(calls).replace("tool_call>", "seed:tool_call>"),
    "kimi_k2": _kimi,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "nemotron": lambda calls: f"<TOOLCALL>[{', '.join(_objects(calls))}]</TOOLCALL>",
    "deepseek_v31": _deepseek("{}<｜tool▁sep｜>", ""),
    "deepseek_v3": _deepseek("function<｜tool▁sep｜>{}\n```json\n", "\n```"),
    "command": _command,
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(given)}" for name, given in calls),
    "mistral_array": lambda calls: f"[TOOL_CALLS][{', '.join(_objects(calls))}]",
    "functionary_v32": lambda calls: ">>>".join(f"{name}\n{dumps(given)}" for name, given in calls),
    "functionary_v31": lambda calls: "".join(f"<function={name}>{dumps(given)}</function>" for name, given in calls),
    "phi4": lambda calls: f"<|tool_call|>[{', '.join(_objects(calls))}]<|/tool_call|>",
    "granite": lambda calls: f"<|tool_call|>[{', '.join(_objects(calls))}]",
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in _objects(calls)),
    "llama3": lambda calls: "; ".join(_objects(calls, arguments="parameters")),
    "llama4": lambda calls: f"[{', '.join(_python(*call) for call in calls)}]",
    "command_r": lambda calls: (
        "Action: ```json\n[\n    " + ",\n    ".join(_objects(calls, "tool_name", "parameters")) + "\n]\n```"
    ),
    "gemma3": lambda calls: "```tool_code\n" + "\n".join(_python(*call) for call in calls) + "\n```",
    "glm4": lambda calls: "\n".join(f"{name}\n{dumps(given)}" for name, given in calls),
    "generic": lambda calls: "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in _objects(calls)),
}

# Calls that no mark tells from text come only where an answer begins, or after one another.
UNMARKED = {"functionary_v32", "llama3", "llama4", "glm4"}


def zeros(count: int) -> bytes:
    """The source of randomness of these tests."""
    return bytes(count)


def syntax(name: str) -> ToolSyntax:
    found = syntax_named(name)
    assert found is not None
    return found


@dataclass
class Answer:
    """The parts of an answer, put together."""

    content: str
    thought: str
    calls: list[tuple[str, str]]  # name and arguments, of those that are complete
    broken: list[tuple[str, str]]  # of those that were told and are not
    parts: list[Part]
    complete: bool

    @property
    def parsed(self) -> list[Call]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def read(
    text: str,
    call_syntax: ToolSyntax | None = None,
    reasoning: ReasoningFormat | None = None,
    pieces: Sequence[str] | None = None,
    *,
    tools: Sequence[Tool] = TOOLS,
    starts_in_reasoning: bool = False,
    split: bool = True,
    whole: bool = False,
) -> Answer:
    """What the parser makes of a text, or of its pieces. Checks what always holds: the sources joined are the text."""
    parser = output_parser(
        reasoning,
        call_syntax,
        tools,
        starts_in_reasoning=starts_in_reasoning,
        split=split,
        whole=whole,
        random=zeros,
    )
    parts: list[Part] = []
    for piece in pieces if pieces is not None else [text]:
        parts += parser.feed(piece)
    parts += parser.finish()
    assert "".join(part.source for part in parts) == text
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    ended: dict[int, bool] = {}
    for part in parts:
        if isinstance(part, CallStart):
            assert part.index == len(names) and part.id and part.name
            assert names.keys() == ended.keys(), "a call began inside another"
            names[part.index] = part.name
            arguments[part.index] = ""
        elif isinstance(part, CallArguments):
            arguments[part.index] += part.text
        elif isinstance(part, CallEnd):
            ended[part.index] = part.complete
    assert names.keys() == ended.keys()
    calls = [(names[index], arguments[index]) for index in names if ended[index]]
    for _, text_ in calls:
        assert isinstance(json.loads(text_), dict)
    broken = [(names[index], arguments[index]) for index in names if not ended[index]]
    assert parser.calls_complete == (bool(calls) and not broken)
    assert not parser.feed("") and not parser.in_call
    return Answer(
        "".join(part.text for part in parts if isinstance(part, Content)),
        "".join(part.text for part in parts if isinstance(part, Thought)),
        calls,
        broken,
        parts,
        parser.calls_complete,
    )
