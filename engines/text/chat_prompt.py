"""A chat prompt to token ids: template, then tokenizer, with what users wrote kept from posing as control tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from engines.errors import InvalidField, RequestError
from engines.text.answer_form import AnswerForm
from engines.text.generic_tools import generic_messages, instructions
from engines.text.reasoning import opened_by
from engines.text.template_traits import TemplateTraits
from engines.text.templates import ChatTemplate, check_variables, unused_characters
from engines.wire import ChatMessage, ChatPrompt, Reasoning, Tool, ToolUse

__all__ = ["ChatEncoder", "ChatTokenizer", "EncodedChat"]

_OVERRIDES = 16  # templates from requests and the registry that are kept
_AS_THE_TEMPLATE_HAS_IT = Reasoning()


class ChatTokenizer(Protocol):
    """What this module asks of a tokenizer; :class:`engines.gguf.tokenizer.GgufTokenizer` is one."""

    @property
    def templates(self) -> dict[str, str]: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def special_texts(self) -> dict[str, str]: ...

    def token_text(self, id: int) -> str: ...

    def guarded(self, text: str, guard: str) -> str: ...

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False, guard: str = ""
    ) -> list[int]: ...


@dataclass(frozen=True)
class EncodedChat:
    """A prompt, and how its answer is to be read."""

    tokens: list[int]
    form: AnswerForm


class ChatEncoder:
    """Chat prompts of one model to token ids. Threads may share it.

    A template's output is read with control tokens, since it is what writes them. A user who spells one out ("<|im_end|>")
    would end their turn and speak as the system. So each control token spelled out in a message, a tool or another value is
    broken by a guard character first, which the tokenizer removes again after it has looked for control tokens: the model
    sees exactly the text that the user wrote, as text.
    """

    def __init__(self, tokenizer: ChatTokenizer, now: Callable[[], datetime] = datetime.now) -> None:
        self._tokenizer = tokenizer
        specials = tokenizer.special_texts()
        templates = tokenizer.templates
        self.template = ChatTemplate(templates.get("default"), specials, tool_use=templates.get("tool_use"), now=now)
        names = [tokenizer.token_text(id) for id in sorted(tokenizer.special_ids)]
        self._traits = lru_cache(_OVERRIDES)(lambda source: TemplateTraits.of(source, names))
        self._override = lru_cache(_OVERRIDES)(lambda source: ChatTemplate(source, specials, now=now))

    def tokens(self, prompt: ChatPrompt, *, add_bos: bool | None = None, continues: bool = True) -> list[int]:
        """The ids of the rendered conversation: :meth:`encode` without tools and wishes about thinking."""
        return self.encode(prompt, add_bos=add_bos, continues=continues).tokens

    def encode(
        self,
        prompt: ChatPrompt,
        tools: ToolUse | None = None,
        reasoning: Reasoning = _AS_THE_TEMPLATE_HAS_IT,
        *,
        add_bos: bool | None = None,
        continues: bool = True,
    ) -> EncodedChat:
        """The ids of the rendered conversation, BOS first where the tokenizer wants one and the template wrote none.

        ``tools`` are shown by the template, or by the system message where it cannot. ``add_bos`` False leaves a BOS to the
        template alone. ``continues`` False closes a last message of the assistant's where there is no generation prompt; an
        answer never asks for that, a count may.

        NoChatTemplate and TemplateRefused (:mod:`engines.text.templates`); InvalidField for an unknown call syntax and for what
        the template cannot be told.
        """
        check_variables(prompt.template_kwargs)
        template = self.template if prompt.template is None else self._override(prompt.template)
        offered = tools if tools is not None and tools.tools else None
        traits = self._traits(template.source(with_tools=offered is not None))
        messages = [_mapping(message) for message in prompt.messages]
        variables = {**prompt.template_kwargs, **traits.variables(reasoning)}
        syntax = None if offered is None else traits.syntax_for(offered)
        told = ""
        if offered is not None and syntax is not None and traits.shows_tools(syntax):
            if traits.tools in prompt.template_kwargs:
                raise InvalidField(
                    f"chat_template_kwargs: {traits.tools} is given by the request's tools",
                    param="chat_template_kwargs",
                )
            variables |= {str(traits.tools): [_shown(tool) for tool in offered.tools]}
        elif offered is not None and offered.choice != "none":
            told = instructions(offered.tools, required=offered.choice == "required", parallel=offered.parallel)
        if told or not (traits.tools or traits.shows_calls):
            messages = generic_messages(messages, told)
        text, ids = self._render(template, messages, variables, prompt.add_generation_prompt, continues, add_bos)
        thinks = traits.reasoning
        opened = thinks is not None and opened_by(text, thinks)
        begins = prompt.add_generation_prompt and reasoning.enabled is not False
        closed = thinks is not None and text.rstrip().endswith(thinks.closes)
        return EncodedChat(
            ids,
            AnswerForm(
                reasoning=thinks,
                opened=opened,
                may_think=opened or (thinks is not None and begins and not closed),
                syntax=None if offered is None or offered.choice == "none" else syntax,
            ),
        )

    def _render(
        self,
        template: ChatTemplate,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        add_generation_prompt: bool,
        continues: bool,
        add_bos: bool | None,
    ) -> tuple[str, list[int]]:
        """The conversation's text, with guards in what users wrote, and its ids."""
        guard = unused_characters(1, messages, variables)

        def guarded(value: Any) -> Any:
            if isinstance(value, str):
                return self._tokenizer.guarded(value, guard)
            if isinstance(value, Mapping):
                return {guarded(key): guarded(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return [guarded(item) for item in value]
            return value

        text = template.render(guarded(messages), add_generation_prompt, continues, **guarded(variables))
        bos_id = self._tokenizer.bos_id
        ids = self._tokenizer.encode(text, add_bos=add_bos, parse_special=True, guard=guard)
        # The tokenizer's rule and the template may both have put one there.
        return text, ids[1:] if bos_id is not None and ids[:2] == [bos_id, bos_id] else ids

    def end_of_turn_ids(self) -> frozenset[int]:
        """The control token that the template writes right after an answer, which is how the model ends one.

        Empty if it writes none there, or cannot render the two messages that are asked of it.
        """
        question, answer = {"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It is there."}
        try:
            text = self.template.render([question, answer, question])
        except RequestError:
            return frozenset()
        _, _, rest = text.rpartition(answer["content"])
        ids = self._tokenizer.encode(rest.lstrip(), add_bos=False, parse_special=True)
        return frozenset(ids[:1]) & self._tokenizer.special_ids


def _mapping(message: ChatMessage) -> dict[str, Any]:
    """The message as templates read it. Arguments of tool calls are objects there, and JSON text in the OpenAI shape."""
    # An assistant's message that only calls tools has no content; most templates join it to a string, so it is an empty one.
    mapping: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    mapping |= message.extra
    calls = mapping.get("tool_calls")
    if isinstance(calls, list):
        mapping["tool_calls"] = [_with_object_arguments(call) for call in calls]
    return mapping


def _shown(tool: Tool) -> dict[str, Any]:
    """A function as templates read it, in the OpenAI shape."""
    described: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        described["description"] = tool.description
    described["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": described}


def _with_object_arguments(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return call  # the model's own broken JSON: shown as it was
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call
