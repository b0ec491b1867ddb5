"""A chat prompt to token ids: template, then tokenizer, with what users wrote kept from posing as control tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from engines.errors import RequestError
from engines.text.templates import ChatTemplate, check_variables, unused_characters
from engines.wire import ChatMessage, ChatPrompt

__all__ = ["ChatEncoder", "ChatTokenizer"]

_OVERRIDES = 16  # templates from requests and the registry that are kept


class ChatTokenizer(Protocol):
    """What this module asks of a tokenizer; :class:`engines.gguf.tokenizer.GgufTokenizer` is one."""

    @property
    def templates(self) -> dict[str, str]: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def special_texts(self) -> dict[str, str]: ...

    def guarded(self, text: str, guard: str) -> str: ...

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False, guard: str = ""
    ) -> list[int]: ...


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
        self._override = lru_cache(_OVERRIDES)(lambda source: ChatTemplate(source, specials, now=now))

    def tokens(self, prompt: ChatPrompt, *, add_bos: bool | None = None, continues: bool = True) -> list[int]:
        """The ids of the rendered conversation, BOS first where the tokenizer wants one and the template wrote none.

        ``add_bos`` False leaves a BOS to the template alone. ``continues`` False closes a last message of the assistant's
        where there is no generation prompt; an answer never asks for that, a count may.

        NoChatTemplate and TemplateRefused (:mod:`engines.text.templates`).
        """
        check_variables(prompt.template_kwargs)
        messages = [_mapping(message) for message in prompt.messages]
        guard = unused_characters(1, messages, prompt.template_kwargs)

        def guarded(value: Any) -> Any:
            if isinstance(value, str):
                return self._tokenizer.guarded(value, guard)
            if isinstance(value, Mapping):
                return {guarded(key): guarded(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return [guarded(item) for item in value]
            return value

        template = self.template if prompt.template is None else self._override(prompt.template)
        text = template.render(
            guarded(messages), prompt.add_generation_prompt, continues, **guarded(prompt.template_kwargs)
        )
        bos_id = self._tokenizer.bos_id
        ids = self._tokenizer.encode(text, add_bos=add_bos, parse_special=True, guard=guard)
        # The tokenizer's rule and the template may both have put one there.
        return ids[1:] if bos_id is not None and ids[:2] == [bos_id, bos_id] else ids

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
