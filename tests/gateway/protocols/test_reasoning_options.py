"""Thinking: every name that asks for something of it, where they disagree, and how a model's settings join in."""

from __future__ import annotations

from typing import Any

import pytest

from engines.wire import ChatMessage, ChatPrompt, Reasoning, TextRequest, Tool, ToolUse
from gateway.errors import InvalidRequest
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.reasoning_options import read_reasoning
from gateway.registry.catalog import RequestSettings
from gateway.registry.reasoning_settings import ReasoningSettings


@pytest.mark.parametrize(
    ("options", "asked", "shown"),
    [
        ({}, {}, True),
        ({"reasoning_effort": "none"}, {"enabled": False}, True),
        ({"reasoning_effort": "xhigh"}, {"enabled": True, "effort": "xhigh"}, True),
        ({"reasoning": {}}, {}, True),
        ({"reasoning": {"effort": "low", "max_tokens": 9}}, {"enabled": True, "effort": "low", "budget": 9}, True),
        ({"reasoning": {"enabled": False}}, {"enabled": False}, True),
        ({"reasoning": {"enabled": True, "exclude": True}}, {"enabled": True}, False),
        ({"thinking_budget": 0}, {"budget": 0}, True),
        ({"thinking_budget_tokens": 7, "thinking_budget": 7}, {"budget": 7}, True),
        ({"include_reasoning": False}, {}, False),
        ({"include_reasoning": True}, {}, True),
        ({"reasoning_format": "none"}, {"split": False}, True),
        ({"reasoning_format": "deepseek"}, {"split": True}, True),
        ({"reasoning_format": "hidden"}, {"split": True}, False),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}},
         {"enabled": True, "effort": "low"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {}, True),
    ],
)  # fmt: skip
def test_reasoning_is_read(options: dict[str, Any], asked: dict[str, Any], shown: bool) -> None:
    assert read_reasoning(options) == (ReasoningSettings(**asked), shown)


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort", "none, minimal, low"),
        ({"reasoning_effort": 5}, "reasoning_effort", "one of"),
        ({"reasoning": "low"}, "reasoning", "an object"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "unknown"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "none, minimal, low"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens", "from 0"),
        ({"thinking_budget": -1}, "thinking_budget", "from 0"),
        ({"thinking_budget_tokens": 1.5}, "thinking_budget_tokens", "an integer"),
        ({"include_reasoning": "no"}, "include_reasoning", "true or false"),
        ({"reasoning_format": "deepseek-legacy"}, "reasoning_format", "auto, deepseek"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort", "must agree"),
        ({"reasoning_effort": "none", "reasoning": {"enabled": True}}, "reasoning_effort", "must agree"),
        ({"thinking_budget": 1, "thinking_budget_tokens": 2}, "thinking_budget_tokens", "must agree"),
        ({"include_reasoning": True, "reasoning_format": "hidden"}, "reasoning_format", "must agree"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
         "chat_template_kwargs.enable_thinking", "must agree"),
    ],
)  # fmt: skip
def test_mistake_names_its_place_and_what_is_allowed(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_reasoning(options)
    assert caught.value.param == param
    assert says in caught.value.message


def asked(settings: dict[str, Any], kwargs: dict[str, Any] | None = None, **ask: Any) -> TextRequest:
    """What the worker is asked by such a request under such settings."""
    messages = (ChatMessage(role="user", content="x"),)
    chat = ChatAsk(model="m", messages=messages, template_kwargs=kwargs or {}, **ask)
    (request,) = chat.text_requests(RequestSettings(**settings), iter(range(9)))
    return request


def kwargs_of(request: TextRequest) -> dict[str, Any]:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt.template_kwargs


ON, LOW = ReasoningSettings(enabled=True), ReasoningSettings(effort="low", budget=9, split=False)


def test_settings_yield_to_the_request_key_by_key() -> None:
    assert asked({}).reasoning == Reasoning()
    of_settings = asked({"reasoning": LOW}).reasoning
    assert of_settings == Reasoning(enabled=True, effort="low", budget=9, split=False, lenient=True)
    request = asked({"reasoning": LOW}, reasoning=ReasoningSettings(effort="high", budget=5, split=True))
    assert request.reasoning == Reasoning(enabled=True, effort="high", budget=5)
    off = ReasoningSettings(enabled=False)
    assert asked({"reasoning": ON}, reasoning=off).reasoning == Reasoning(enabled=False)
    assert asked({"reasoning": off}, reasoning=ReasoningSettings(effort="high")).reasoning.enabled is True


def test_settings_are_of_many_models_and_wishes_of_one() -> None:
    assert asked({}, reasoning=ON).reasoning.lenient is False
    assert asked({"reasoning": ON}).reasoning.lenient is True
    assert asked({"reasoning": ReasoningSettings(budget=9)}, reasoning=ON).reasoning.lenient is False
    assert asked({"reasoning": LOW}, reasoning=ON).reasoning.lenient is True  # the effort is the settings' own


def test_thinking_that_the_request_speaks_of_is_not_contradicted_by_the_other_way_of_saying_it() -> None:
    settings = {"chat_template_kwargs": {"enable_thinking": False, "date": "today"}}
    assert kwargs_of(asked(settings)) == {"enable_thinking": False, "date": "today"}
    assert kwargs_of(asked(settings, reasoning=ON)) == {"date": "today"}
    assert kwargs_of(asked(settings, reasoning=ReasoningSettings(budget=5))) == settings["chat_template_kwargs"]
    request = asked({"reasoning": ON}, kwargs={"enable_thinking": False})
    assert (request.reasoning.enabled, kwargs_of(request)) == (None, {"enable_thinking": False})


def test_tools_are_written_in_the_syntax_of_the_settings() -> None:
    tools = ToolUse(tools=(Tool(name="f"),))
    assert asked({}, tools=tools).tools == tools
    assert asked({"tool_syntax": "hermes"}).tools is None
    assert asked({"tool_syntax": "hermes"}, tools=tools).tools == ToolUse(tools=tools.tools, syntax="hermes")
