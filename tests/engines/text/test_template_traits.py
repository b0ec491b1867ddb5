"""What a template is told of a request's wishes about thinking."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.errors import InvalidField
from engines.text.template_traits import TemplateTraits
from engines.wire import Reasoning

TOGGLED = "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
EFFORT = "Reasoning: {{ reasoning_effort }}<think></think>"
ALWAYS = "<think></think>"


def traits(template: str) -> TemplateTraits:
    return TemplateTraits.of(template, ())


@pytest.mark.parametrize(
    ("template", "reasoning", "told"),
    [
        (TOGGLED, Reasoning(), {}),
        (TOGGLED, Reasoning(enabled=True), {"enable_thinking": True}),
        (TOGGLED, Reasoning(enabled=False), {"enable_thinking": False}),
        (EFFORT, Reasoning(enabled=True, effort="low"), {"reasoning_effort": "low"}),
        (ALWAYS, Reasoning(enabled=True), {}),
        ("plain", Reasoning(enabled=False), {}),
    ],
)
def test_variables_say_what_the_template_can_be_told(template: str, reasoning: Reasoning, told: dict[str, Any]) -> None:
    assert traits(template).variables(reasoning) == told
    assert traits(template).variables(msgspec.structs.replace(reasoning, lenient=True)) == told


@pytest.mark.parametrize(
    ("template", "reasoning", "param"),
    [
        ("plain", Reasoning(enabled=True), "reasoning"),
        ("plain", Reasoning(enabled=True, effort="low"), "reasoning_effort"),
        (ALWAYS, Reasoning(enabled=False), "reasoning"),
        (TOGGLED, Reasoning(effort="low"), "reasoning_effort"),
    ],
)
def test_variables_refuse_what_it_cannot_be_told_unless_the_wish_is_lenient(
    template: str, reasoning: Reasoning, param: str
) -> None:
    with pytest.raises(InvalidField) as refusal:
        traits(template).variables(reasoning)
    assert refusal.value.param == param
    assert traits(template).variables(msgspec.structs.replace(reasoning, lenient=True)) == {}
