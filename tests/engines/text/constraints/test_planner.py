"""What a request's tools, grammar and thinking make of its row."""

from __future__ import annotations

from typing import Any

import pytest

from engines.errors import InvalidField
from engines.text.answer_form import AnswerForm
from engines.text.constraints.planner import ConstraintPlanner
from engines.text.constraints.row_constraint import ConstraintPlan, RowConstraint
from engines.text.reasoning import FORMATS, ReasoningFormat
from engines.text.tool_syntax import ToolSyntax, syntax_named
from engines.wire import Grammar, Reasoning, TextRequest, TokenPrompt, Tool, ToolUse
from tests.engines.text.constraints.helpers_constraints import allowed, ids, make_tokenizer, vocabulary

PLANNER = ConstraintPlanner(vocabulary())
EOS = make_tokenizer().eos_ids
KEY = Tool(
    name="key",
    parameters={
        "type": "object",
        "properties": {"room": {"type": "integer"}},
        "required": ["room"],
        "additionalProperties": False,
    },
)
BELL = Tool(name="bell")
STRICT = Tool(name="key", parameters=KEY.parameters, strict=True)
SCHEMA = Grammar(kind="json_schema", source='{"type": "array", "items": {"type": "integer"}}')
CALL_KEY = '<tool_call>\n{"name": "key", "arguments": {"room": 7}}\n</tool_call>'
CALL_BELL = '<tool_call>\n{"name": "bell", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "key", "arguments": {"room": "7"}}\n</tool_call>'


def syntax(name: str = "hermes") -> ToolSyntax:
    found = syntax_named(name)
    assert found is not None
    return found


def reasoning(name: str = "think") -> ReasoningFormat:
    return next(each for each in FORMATS if each.name == name)


def plan(form: AnswerForm, **fields: Any) -> ConstraintPlan | None:
    return PLANNER.plan(TextRequest(prompt=TokenPrompt(tokens=(1,)), **fields), form)


def takes(made: ConstraintPlan | None, text: str) -> bool:
    """Whether the answer may be exactly this text."""
    assert made is not None
    row = RowConstraint(made, [])
    row.push(0)
    for token in ids(text):
        if row.binds and token not in allowed(row):
            return False
        row.push(token)
    return bool(allowed(row) & EOS)


CALLS = AnswerForm(syntax=syntax())


def test_request_that_asks_for_nothing_is_bound_to_nothing() -> None:
    assert plan(AnswerForm()) is None
    assert plan(AnswerForm(reasoning=reasoning(), may_think=True)) is None
    assert plan(CALLS, tools=ToolUse(tools=(KEY, BELL))) is None


def test_grammar_alone_is_the_answer() -> None:
    made = plan(AnswerForm(), grammar=SCHEMA)
    assert takes(made, "[1,2]")
    assert not takes(made, "no")


def test_tools_that_may_not_be_called_leave_the_grammar_alone() -> None:
    made = plan(AnswerForm(), grammar=SCHEMA, tools=ToolUse(tools=(KEY,), choice="none"))
    assert takes(made, "[1]")
    assert not takes(made, CALL_KEY)


def test_required_call_is_of_any_tool_by_its_schema() -> None:
    made = plan(CALLS, tools=ToolUse(tools=(KEY, BELL), choice="required"))
    assert takes(made, CALL_KEY) and takes(made, CALL_BELL) and takes(made, f"{CALL_KEY}\n{CALL_BELL}")
    assert not takes(made, WRONG) and not takes(made, "the room") and not takes(made, "")


def test_named_call_is_of_that_tool() -> None:
    made = plan(CALLS, tools=ToolUse(tools=(KEY, BELL), choice="required", name="bell"))
    assert takes(made, CALL_BELL)
    assert not takes(made, CALL_KEY)


def test_without_parallel_calls_there_is_one() -> None:
    made = plan(CALLS, tools=ToolUse(tools=(KEY, BELL), choice="required", parallel=False))
    assert takes(made, CALL_KEY)
    assert not takes(made, f"{CALL_KEY}\n{CALL_BELL}")


def test_required_call_wins_over_a_response_format() -> None:
    made = plan(CALLS, grammar=SCHEMA, tools=ToolUse(tools=(KEY,), choice="required"))
    assert takes(made, CALL_KEY)
    assert not takes(made, "[1]")


def test_auto_with_a_response_format_is_a_call_or_the_format() -> None:
    made = plan(CALLS, grammar=SCHEMA, tools=ToolUse(tools=(KEY, BELL)))
    assert takes(made, CALL_KEY) and takes(made, "[1,2]")
    assert not takes(made, WRONG) and not takes(made, "the room")


def test_auto_with_a_strict_tool_lets_text_be_and_holds_calls_to_their_schema() -> None:
    made = plan(CALLS, tools=ToolUse(tools=(STRICT, BELL)))
    for text in ("the room", "", f"the key {CALL_KEY}", CALL_BELL.replace("{}}", '{"loud": true}}')):
        assert takes(made, text), text
    assert not takes(made, WRONG)
    assert not takes(made, f"the key {WRONG}")


def test_auto_in_a_syntax_that_cannot_be_told_from_text_is_left_free() -> None:
    free = next(each for each in (syntax("glm4"), syntax("functionary_v32"), syntax("command_r")) if _is_free(each))
    assert plan(AnswerForm(syntax=free), tools=ToolUse(tools=(STRICT,))) is None


def _is_free(each: ToolSyntax) -> bool:
    return each.grammar([STRICT], parallel=True, special={}, required=False) is None


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ((BELL, Tool(name="a", parameters={"not": {}})), "required", "tools[1].function.parameters"),
        ((Tool(name="a", parameters={"properties": {"x": {"enum": []}}, "required": ["x"]}),), "required", "tools[0]"),
        ((BELL, BELL, Tool(name="a", strict=True, parameters={"not": {}})), "auto", "tools[2].function.parameters"),
    ],
)
def test_schema_that_cannot_be_enforced_is_named_by_its_place(tools: Any, choice: Any, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        plan(CALLS, tools=ToolUse(tools=tools, choice=choice))
    assert str(caught.value.param).startswith(field)


@pytest.mark.parametrize("name", ["gemma4", "function_gemma", "qwen3_coder", "llama4"])
def test_schema_that_cannot_be_enforced_is_refused_in_syntaxes_with_a_form_of_their_own(name: str) -> None:
    inner = {"type": "object", "properties": {"x": {"not": {}}}, "required": ["x"]}
    tools = (BELL, Tool(name="a", parameters={"type": "object", "properties": {"y": inner}, "required": ["y"]}))
    with pytest.raises(InvalidField) as caught:
        plan(AnswerForm(syntax=syntax(name)), tools=ToolUse(tools=tools, choice="required"))
    assert str(caught.value.param).startswith("tools[1].function.parameters")


def test_schema_that_nobody_enforces_may_be_anything() -> None:
    assert plan(CALLS, tools=ToolUse(tools=(Tool(name="a", parameters={"not": {}}),))) is None
    made = plan(CALLS, tools=ToolUse(tools=(STRICT, Tool(name="a", parameters={"not": {}}))))
    assert takes(made, CALL_KEY)


def test_tool_that_is_named_and_not_there_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        plan(CALLS, tools=ToolUse(tools=(KEY,), choice="required", name="bell"))
    assert caught.value.param == "tool_choice"


def test_thinking_comes_before_what_is_bound() -> None:
    form = AnswerForm(reasoning=reasoning(), may_think=True)
    made = plan(form, grammar=SCHEMA)
    assert takes(made, "<think>the room</think>\n\n[1]") and takes(made, "[1]")
    assert not takes(made, "<think>the room</think>\n\nthe room") and not takes(made, "<think>the room")
    opened = plan(AnswerForm(reasoning=reasoning(), may_think=True, opened=True), grammar=SCHEMA)
    assert takes(opened, "the room</think>[1]")


def test_model_that_was_told_not_to_think_does_not() -> None:
    made = plan(AnswerForm(reasoning=reasoning()), grammar=SCHEMA)
    assert takes(made, "[1]")
    assert not takes(made, "<think>the room</think>[1]")


def test_budget_binds_only_a_model_that_thinks() -> None:
    budget = Reasoning(budget=2)
    assert plan(AnswerForm(), reasoning=budget) is None
    assert plan(AnswerForm(reasoning=reasoning()), reasoning=budget) is None
    made = plan(AnswerForm(reasoning=reasoning(), may_think=True), reasoning=budget)
    assert made is not None and made.budget == 2 and made.grammar is None


def test_answer_in_channels_has_the_header_of_the_last_one() -> None:
    """The marks are no control tokens in this vocabulary, and so are text."""
    form = AnswerForm(reasoning=reasoning("harmony"), may_think=True)
    made = plan(form, grammar=SCHEMA)
    final = "<|channel|>final<|message|>[1]"
    assert takes(made, final)
    assert takes(made, f"<|channel|>analysis<|message|>the room<|end|><|start|>assistant{final}")
    assert not takes(made, "[1]")


def test_call_in_channels_comes_after_thinking_or_at_once() -> None:
    form = AnswerForm(reasoning=reasoning("harmony"), may_think=True, syntax=syntax("harmony"))
    made = plan(form, tools=ToolUse(tools=(KEY,), choice="required"))
    call = '<|channel|>commentary to=functions.key <|constrain|>json<|message|>{"room": 7}'
    assert takes(made, call)
    assert takes(made, f"<|channel|>analysis<|message|>the room<|end|><|start|>assistant{call}")
    assert not takes(made, call.replace("7", '"a"'))
