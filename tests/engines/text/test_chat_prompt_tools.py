"""Tools, calls and wishes about thinking in a rendered prompt, and how its answer is to be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.errors import InvalidField
from engines.text.answer_form import AnswerForm
from engines.text.chat_prompt import ChatEncoder
from engines.text.reasoning import FORMATS
from engines.text.tool_syntax import GENERIC, syntax_named
from engines.wire import ChatMessage, ChatPrompt, Reasoning, Tool, ToolUse
from tests.engines.text.test_chat_prompt import encoder

BODY = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
TOOLS = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>{% endif %}"
THINKS = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
THINK = next(each for each in FORMATS if each.name == "think")
KEY = Tool(name="key", description="opens <|im_end|> doors", parameters={"type": "object", "properties": {}})
BELL = Tool(name="bell")
CALLS: dict[str, Any] = {
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "key", "arguments": "{}"}}]
}


def asked(*messages: ChatMessage, **fields: Any) -> ChatPrompt:
    return ChatPrompt(messages=messages or (ChatMessage(role="user", content="Hello"),), **fields)


def shown(chat: ChatEncoder, *arguments: Any, prompt: ChatPrompt | None = None) -> tuple[str, AnswerForm]:
    encoded = chat.encode(prompt or asked(), *arguments)
    return chat._tokenizer.decode(encoded.tokens, skip_special=False), encoded.form  # type: ignore[attr-defined]


def test_template_that_knows_tools_gets_them_in_the_openai_shape() -> None:
    chat, _ = encoder(TOOLS + BODY)
    text, form = shown(chat, ToolUse(tools=(KEY, BELL)))
    first, second, _ = text.replace("}{", "}\n{").replace("<tool_call>", "\n").split("\n", 2)
    assert json.loads(first) == {
        "type": "function",
        "function": {"name": "key", "description": KEY.description, "parameters": KEY.parameters},
    }
    assert json.loads(second)["function"] == {"name": "bell", "parameters": {"type": "object", "properties": {}}}
    assert form == AnswerForm(syntax=syntax_named("hermes"))


def test_control_token_in_a_tool_is_text() -> None:
    chat, tokenizer = encoder(TOOLS + BODY)
    encoded = chat.encode(asked(), ToolUse(tools=(KEY,)))
    assert not set(encoded.tokens) & tokenizer.special_ids


def test_template_that_knows_no_tools_has_them_in_the_system_message() -> None:
    chat, _ = encoder(BODY)
    text, form = shown(chat, ToolUse(tools=(KEY,), choice="required"), prompt=asked())
    assert text.startswith("[system]You can call functions. Call at least one")
    assert '"name": "key"' in text and text.endswith("[user]Hello[assistant]")
    assert form.syntax is GENERIC
    system = ChatMessage(role="system", content="Be brief.")
    text, _ = shown(chat, ToolUse(tools=(KEY,)), prompt=asked(system, ChatMessage(role="user", content="Hello")))
    assert text.startswith("[system]Be brief.\n\nYou can call functions.")


@pytest.mark.parametrize("template", [BODY, TOOLS + BODY])
def test_tools_that_may_not_be_called_leave_the_answer_text(template: str) -> None:
    chat, _ = encoder(template)
    text, form = shown(chat, ToolUse(tools=(KEY,), choice="none"))
    assert form.syntax is None
    assert ('"key"' in text) == (template is not BODY)
    assert "You can call" not in text


def test_earlier_calls_and_results_are_written_out_where_the_template_knows_none() -> None:
    messages = (
        ChatMessage(role="user", content="Open"),
        ChatMessage(role="assistant", content=None, extra=CALLS),
        ChatMessage(role="tool", content="opened", extra={"tool_call_id": "1"}),
    )
    chat, _ = encoder(BODY)
    text, form = shown(chat, prompt=asked(*messages))
    call = '<tool_call>\n{"name": "key", "arguments": {}}\n</tool_call>'
    result = "<tool_response>\nopened\n</tool_response>"
    assert text == f"[user]Open[assistant]{call}[user]{result}[assistant]"
    assert form == AnswerForm()


def test_syntax_of_the_request_wins_over_the_templates() -> None:
    chat, _ = encoder(TOOLS + BODY)
    text, form = shown(chat, ToolUse(tools=(KEY,), syntax="llama3"))
    assert form.syntax is syntax_named("llama3") and '"key"' in text
    text, form = shown(chat, ToolUse(tools=(KEY,), syntax="generic"))
    assert form.syntax is GENERIC and text.startswith("[system]You can call functions.")
    with pytest.raises(InvalidField) as caught:
        chat.encode(asked(), ToolUse(tools=(KEY,), syntax="zork"))
    assert caught.value.param == "tool_syntax"


def test_tools_are_not_given_twice() -> None:
    chat, _ = encoder(TOOLS + BODY)
    with pytest.raises(InvalidField) as caught:
        chat.encode(asked(template_kwargs={"tools": []}), ToolUse(tools=(KEY,)))
    assert caught.value.param == "chat_template_kwargs"


def test_template_for_tools_is_the_one_that_is_read() -> None:
    chat, _ = encoder(BODY, tools="T" + TOOLS + BODY)
    assert shown(chat)[0] == "[user]Hello[assistant]"
    text, form = shown(chat, ToolUse(tools=(KEY,)))
    assert text.startswith("T{") and form.syntax is syntax_named("hermes")


def test_thinking_is_switched_by_the_templates_variable() -> None:
    chat, _ = encoder(BODY + THINKS)
    assert shown(chat)[1] == AnswerForm(THINK, may_think=True)
    assert shown(chat, None, Reasoning(enabled=True))[1].may_think
    text, form = shown(chat, None, Reasoning(enabled=False))
    assert text.endswith("<think>\n\n</think>\n\n")
    assert form == AnswerForm(THINK)


def test_thinking_that_a_profile_switched_off_is_seen_in_the_prompt() -> None:
    chat, _ = encoder(BODY + THINKS)
    assert not shown(chat, prompt=asked(template_kwargs={"enable_thinking": False}))[1].may_think


def test_prompt_that_opens_thinking_is_known_to() -> None:
    chat, _ = encoder(BODY + "<think>\n{# </think> #}")
    assert shown(chat)[1] == AnswerForm(THINK, opened=True, may_think=True)


def test_user_who_writes_a_mark_opens_nothing() -> None:
    chat, _ = encoder("{% for m in messages %}{{ m.content }}{% endfor %}{# <think></think> #}")
    _, form = shown(chat, prompt=asked(ChatMessage(role="user", content="what is <think>")))
    assert form.reasoning is THINK


@pytest.mark.parametrize(
    ("template", "reasoning", "field"),
    [
        (BODY, Reasoning(enabled=True), "reasoning"),
        (BODY + "<think></think>", Reasoning(enabled=False), "reasoning"),
        (BODY + THINKS, Reasoning(effort="high"), "reasoning_effort"),
    ],
)
def test_wish_that_the_template_cannot_be_told_is_refused(template: str, reasoning: Reasoning, field: str) -> None:
    chat, _ = encoder(template)
    with pytest.raises(InvalidField) as caught:
        chat.encode(asked(), None, reasoning)
    assert caught.value.param == field


def test_wishes_that_hold_anyway_are_no_errors() -> None:
    chat, _ = encoder(BODY)
    assert shown(chat, None, Reasoning(enabled=False, budget=5))[1] == AnswerForm()
    thinks, _ = encoder(BODY + "<think>{# </think> #}")
    assert shown(thinks, None, Reasoning(enabled=True))[1].opened


def test_effort_and_budget_reach_the_template() -> None:
    chat, _ = encoder(BODY + "{{ reasoning_effort }}{{ thinking_budget }}{# <think></think> #}")
    assert shown(chat, None, Reasoning(effort="low", budget=7))[0].endswith("low7")
