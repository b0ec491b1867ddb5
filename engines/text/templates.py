"""Chat templates: messages to the text that the model was trained to answer.

Errors::

    RequestError
    ├── NoChatTemplate    the checkpoint has none: a base model
    └── InvalidField
        └── TemplateRefused   the template has an error, or refuses these messages; says in which line
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from types import TracebackType
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from engines.errors import InvalidField, RequestError
from engines.text.template_sandbox import TemplateEnvironment, render_bounded

__all__ = ["ChatTemplate", "NoChatTemplate", "TemplateRefused", "check_variables", "unused_characters"]

_COMPILED = 64  # templates kept compiled
_RESERVED = frozenset({"messages", "add_generation_prompt"})
_FILE_NAME = "<template>"  # what Jinja calls a template without a file, in tracebacks

# What a template's expressions can raise when a message is not what it expects, a None where it wants a string above all. And
# when they ask for more memory than the process may have.
_EXPRESSION_ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError)


class NoChatTemplate(RequestError):
    """Chat was asked of a model that has no template."""

    def __init__(self) -> None:
        super().__init__(
            "This model has no chat template: it is a base model, which continues text. Use /v1/completions, or"
            " /api/generate with raw.",
            param="messages",
        )


class TemplateRefused(InvalidField):
    """The template cannot render these messages. ``line`` is the template's, None where it is not known."""

    def __init__(self, what: str, line: int | None, *, param: str = "messages") -> None:
        where = "" if line is None else f" (line {line} of the template)"
        super().__init__(f"The model's chat template {what}{where}", param=param)
        self.line = line


class ChatTemplate:
    """One model's template. Compiled at first use; threads may share it.

    Args:
        source: in Jinja; None for a base model.
        specials: ``bos_token``, ``eos_token`` and such, which templates print.
        tool_use: the source for requests with tools, where the checkpoint has a template of its own for them.
        now: the clock that templates may read the date of.
    """

    def __init__(
        self,
        source: str | None,
        specials: Mapping[str, str] | None = None,
        *,
        tool_use: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = source if source is not None else tool_use
        self._tool_use = tool_use or self._source
        self._specials = dict(specials or {})
        self._compile = lru_cache(_COMPILED)(TemplateEnvironment(now).from_string)

    @property
    def exists(self) -> bool:
        """False for a base model, which cannot chat."""
        return self._source is not None

    def source(self, *, with_tools: bool) -> str | None:
        """The Jinja that renders a conversation; None for a base model."""
        return self._tool_use if with_tools else self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continues: bool = True,
        /,
        **variables: Any,
    ) -> str:
        """The prompt's text.

        ``messages`` have ``role`` and ``content``, and what else the template reads. ``variables`` (``tools``,
        ``documents``, ``enable_thinking`` …) reach the template as they are. Without a generation prompt and with an
        assistant's message as the last, the text ends where that message ends, for the model to go on with it; ``continues`` False
        closes that message instead, as the template does with those before it.

        NoChatTemplate, or TemplateRefused with the template's own words.
        """
        source = self.source(with_tools=bool(variables.get("tools")))
        if source is None:
            raise NoChatTemplate
        check_variables(variables)
        continued = not add_generation_prompt and continues and _ends_with_answer(messages)
        mark = ""
        if continued:
            mark = unused_characters(1, messages, variables)
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + mark}]
        text = self._render(
            source,
            {
                "tools": None,
                "documents": None,
                **self._specials,
                **variables,
                "messages": messages,
                "add_generation_prompt": add_generation_prompt,
            },
        )
        if not continued:
            return text
        end = text.rfind(mark)
        if end < 0:
            raise TemplateRefused("leaves the last message out, so it cannot be continued", None)
        return text[:end].replace(mark, "")

    def _render(self, source: str, variables: dict[str, Any]) -> str:
        try:
            template: Template = self._compile(source)
            return render_bounded(template, variables)
        except TemplateSyntaxError as error:
            raise TemplateRefused(
                f"is not valid Jinja: {error.message}", error.lineno, param="chat_template"
            ) from error
        except TemplateError as error:
            raise TemplateRefused(f"refuses this conversation: {error.message}", _line(error.__traceback__)) from error
        except _EXPRESSION_ERRORS as error:
            what = f"cannot render these messages: {type(error).__name__}: {error}"
            raise TemplateRefused(what, _line(error.__traceback__)) from error


def check_variables(variables: Mapping[str, Any]) -> None:
    """InvalidField if one of them is what the request itself gives."""
    if clash := sorted(_RESERVED & variables.keys()):
        raise InvalidField(
            f"chat_template_kwargs: {clash[0]} is given by the request itself", param="chat_template_kwargs"
        )


def _ends_with_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    return bool(messages) and messages[-1].get("role") == "assistant" and isinstance(messages[-1].get("content"), str)


def _line(trace: TracebackType | None) -> int | None:
    """The innermost line of the template in a traceback, which Jinja has rewritten to show them."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def unused_characters(count: int, *values: Any) -> str:
    """``count`` characters that occur in no string of ``values``: Unicode's noncharacters first, then private-use ones."""
    taken: set[str] = set()
    _collect(values, taken)
    candidates = chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    free = (chr(code) for code in candidates if chr(code) not in taken)
    return "".join(next(free) for _ in range(count))


def _collect(value: Any, taken: set[str]) -> None:
    if isinstance(value, str):
        if not value.isascii():
            taken.update(value)
    elif isinstance(value, Mapping):
        _collect(tuple(value.keys()), taken)
        _collect(tuple(value.values()), taken)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, taken)
