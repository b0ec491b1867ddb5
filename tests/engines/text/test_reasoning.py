"""What a chat template tells of thinking."""

from __future__ import annotations

import pytest

from engines.text.reasoning import (
    FORMATS,
    TemplateSwitches,
    can_be_disabled,
    opened_by,
    reasoning_format,
    template_switches,
)

TEMPLATES = {
    "harmony": "{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}",
    "gemma4": "{% if not enable_thinking %}{{ '<|channel>thought\\n<channel|>' }}{% endif %}",
    "command": "<|START_THINKING|>{{ message.reasoning_content }}<|END_THINKING|><|START_RESPONSE|>",
    "magistral": "{{ '[THINK]' + block.thinking + '[/THINK]' }}",
    "kimi": "{{ message.content.split('◁/think▷')[-1] }}",
    "seed": "{{ '<seed:think>' + message.reasoning_content + '</seed:think>' }}",
    "longcat": "{{ '<longcat_think>' + reasoning + '</longcat_think>' }}",
    "granite33": "Write thoughts between <think></think> and the response between <response></response>.",
    "think": "{% if '</think>' in content %}{{ content.split('</think>')[-1] }}{% endif %}",
    "thinking": "{{ '<thinking>' }}",
    "granite": "Write your thoughts after 'Here is my thought process:' and the answer after 'Here is my response:'.",
}


def test_templates_cover_the_table() -> None:
    assert sorted(TEMPLATES) == sorted(each.name for each in FORMATS)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_format_is_found_by_its_marks(name: str) -> None:
    found = reasoning_format(TEMPLATES[name])
    assert found is not None and found.name == name


def test_response_marks_of_tools_are_not_those_of_answers() -> None:
    found = reasoning_format("{{ '<think>' ~ reasoning ~ '</think>' }}{{ '<response>' ~ result ~ '</response>' }}")
    assert found is not None and found.name == "think"


@pytest.mark.parametrize("template", [None, "", "{{ '<|im_start|>' + message.role }}", "{{ messages | think }}"])
def test_no_marks_no_thinking(template: str | None) -> None:
    assert reasoning_format(template) is None


@pytest.mark.parametrize("reasoning", FORMATS, ids=lambda each: each.name)
def test_prompt_that_opens_thinking(reasoning: object) -> None:
    found = next(each for each in FORMATS if each is reasoning)
    assert opened_by(f"…assistant\n{found.opens[0]}\n", found)
    assert opened_by(f"…assistant\n{found.opens[0]}", found)
    assert not opened_by(f"…assistant\n{found.opens[0]}\n\n{found.closes[0]}\n\n", found)
    assert not opened_by("…assistant\n", found)


@pytest.mark.parametrize(
    ("template", "switches"),
    [
        ("{% if enable_thinking is defined and not enable_thinking %}", TemplateSwitches(toggle="enable_thinking")),
        ("{%- if thinking -%}", TemplateSwitches(toggle="thinking")),
        ("{%- set effort = reasoning_effort or 'medium' %}", TemplateSwitches(effort="reasoning_effort")),
        ("{{ thinking_budget }}{% if enable_thinking %}", TemplateSwitches("enable_thinking", None, "thinking_budget")),
        ("{{ message.thinking }}", TemplateSwitches()),
        ("{{ 'thinking' in message }}", TemplateSwitches()),
        ("Set enable_thinking.{# thinking #}", TemplateSwitches()),
        ("{{ '}}' }}{% if thinking %}{% break %}", TemplateSwitches(toggle="thinking")),
        ("{{ thinking", TemplateSwitches(toggle="thinking")),
        ("{{ 'thinking", TemplateSwitches()),
        ("{% set thinking = message.thinking %}{{ thinking }}", TemplateSwitches()),
        (
            "{% if x %}{% set thinking = x %}{% endif %}{% if thinking is defined %}",
            TemplateSwitches(toggle="thinking"),
        ),
        (None, TemplateSwitches()),
    ],
)
def test_switches_are_the_variables_that_expressions_read(template: str | None, switches: TemplateSwitches) -> None:
    assert template_switches(template) == switches
    assert can_be_disabled(template) == (switches.toggle is not None)
