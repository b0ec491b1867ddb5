"""What is asked of a model in a chat, whatever protocol it came by: all that a protocol's ``parse`` has to fill in, and how it
becomes the worker's requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from engines.wire import ChatMessage, ChatPrompt, Grammar, Reasoning, TextRequest, ToolUse
from gateway.protocols.text_options import TextOptions, text_requests
from gateway.registry.catalog import RequestSettings
from gateway.registry.reasoning_settings import ReasoningSettings

__all__ = ["ChatAsk"]

_TOGGLE = "enable_thinking"  # what templates of several families are told by, and clients tell them by


class ChatAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A chat, its limits checked. Roles are ``system``, ``user``, ``assistant`` and ``tool``; content is text.

    Attributes:
        messages: as the template gets them. ``extra`` holds what they have beside their text, in OpenAI's shape: ``name``,
            ``tool_calls`` (arguments as JSON text), ``tool_call_id``, ``reasoning_content``.
        options: sampling, length, stops, priority; None in it leaves a value to the model's settings.
        clamp: the answer may end before ``options.max_tokens`` where the context does.
        choices: completions of this one prompt.
        logprobs: how many alternatives each token is shown with, None for none of it.
        template_kwargs: what the template is given by name.
        add_generation_prompt: whether the answer begins a turn; False goes on with the last message.
        tools: None without any.
        grammar: what the answer's text must match.
        reasoning: None in it leaves a value to the model's settings.
        ignored: the hints that the request carried, by name.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    options: TextOptions = TextOptions()
    clamp: bool = False
    choices: int = 1
    logprobs: int | None = None
    template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    tools: ToolUse | None = None
    grammar: Grammar | None = None
    reasoning: ReasoningSettings = ReasoningSettings()
    ignored: tuple[str, ...] = ()

    def text_requests(self, settings: RequestSettings, siblings: Iterator[int]) -> list[TextRequest]:
        """What the worker is asked, one request a choice, over the model's own settings. ``siblings`` has unused numbers."""
        settings = _told_once(self, settings)
        prompt = _chat_prompt(
            self.messages, self.template_kwargs, settings, add_generation_prompt=self.add_generation_prompt
        )
        tools = self.tools
        if tools is not None and settings.tool_syntax is not None:
            tools = msgspec.structs.replace(tools, syntax=settings.tool_syntax)
        return text_requests(
            prompt,
            self.options,
            settings,
            choices=self.choices,
            siblings=siblings,
            logprobs=self.logprobs,
            clamp=self.clamp,
            grammar=self.grammar,
            tools=tools,
            reasoning=self._reasoning(settings.reasoning),
        )

    def _reasoning(self, settings: ReasoningSettings) -> Reasoning:
        """Settings may be of many models, some of which cannot follow them; a request's own wish is followed or refused."""
        own = self.reasoning
        of_settings = own.effort is None and (own.enabled is None or settings.effort is not None)
        return own.over(settings).wire(lenient=of_settings and settings != ReasoningSettings())


def _told_once(ask: ChatAsk, settings: RequestSettings) -> RequestSettings:
    """Settings that do not say in one way whether to think where the request says it in the other."""
    if ask.reasoning.over(ReasoningSettings()).enabled is not None and _TOGGLE in settings.chat_template_kwargs:
        kwargs = {name: value for name, value in settings.chat_template_kwargs.items() if name != _TOGGLE}
        return replace(settings, chat_template_kwargs=kwargs)
    if _TOGGLE in ask.template_kwargs and settings.reasoning.enabled is not None:
        return replace(settings, reasoning=msgspec.structs.replace(settings.reasoning, enabled=None))
    return settings


def _chat_prompt(
    messages: tuple[ChatMessage, ...],
    template_kwargs: Mapping[str, Any],
    settings: RequestSettings,
    *,
    add_generation_prompt: bool = True,
) -> ChatPrompt:
    """Messages as the template gets them: the model's system prompt first, unless the request has one."""
    if settings.system is not None and not any(message.role == "system" for message in messages):
        messages = (ChatMessage(role="system", content=settings.system), *messages)
    return ChatPrompt(
        messages=messages,
        template=settings.chat_template,
        template_kwargs={**settings.chat_template_kwargs, **template_kwargs},
        add_generation_prompt=add_generation_prompt,
    )
