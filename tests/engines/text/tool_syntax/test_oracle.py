"""mlx-lm's parsers of complete calls say the same of the golden ones, where they read such calls at all."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.engines.text.tool_syntax.helpers_golden import CASES, TOOLS, WRITERS, Call, read, syntax

PARSERS = {
    "gemma4": "gemma4",
    "function_gemma": "function_gemma",
    "glm45": "glm47",
    "lfm2": "pythonic",
    "qwen3_coder": "qwen3_coder",
    "kimi_k2": "kimi_k2",
    "mistral": "mistral",
    "mistral_array": "mistral",
    "hermes": "json_tools",
    "minimax_m2": "minimax_m2",
}
# What theirs gives up on, or reads otherwise: values in values, and brackets in strings.
DIFFERS = {"function_gemma": {"nested", "brackets"}, "minimax_m2": {"nested"}}
FUNCTIONS = [
    {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters or {"properties": {}}}}
    for tool in TOOLS
]


def theirs(module: Any, name: str, calls: list[Call]) -> list[Call]:
    """One call at a time, between the marks: what mlx-lm's server hands to its parser."""
    found: list[Call] = []
    for call in calls:
        text = WRITERS[name]([call]).removeprefix(module.tool_call_start)
        parsed = module.parse_tool_call(
            text.removesuffix(module.tool_call_end) if module.tool_call_end else text, FUNCTIONS
        )
        found += [(each["name"], each["arguments"]) for each in (parsed if isinstance(parsed, list) else [parsed])]
    return found


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("name", sorted(PARSERS))
def test_mlx_lm_agrees(name: str, case: str) -> None:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{PARSERS[name]}")
    ours = read(WRITERS[name](CASES[case]), syntax(name)).parsed
    assert ours == CASES[case]
    if case in DIFFERS.get(name, ()):
        with pytest.raises((AssertionError, ValueError)):
            assert theirs(module, name, CASES[case]) == ours
    else:
        assert theirs(module, name, CASES[case]) == ours
