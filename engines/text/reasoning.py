"""How models mark their thinking, and what their templates can be told about it.

A format is found from the marks in a chat template, the most particular first. ``<think>`` itself is looked for at an answer's
beginning only: later it is text, of an answer that explains the tag, say. Marks that no text would have count anywhere.

Sources of the marks: the chat templates of the models named beside them, and for gpt-oss OpenAI's description of the harmony
format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment, TemplateSyntaxError

__all__ = [
    "FORMATS",
    "ReasoningFormat",
    "TemplateSwitches",
    "can_be_disabled",
    "opened_by",
    "reasoning_format",
    "template_switches",
    "variables_read",
]


@dataclass(frozen=True)
class ReasoningFormat:
    """One way of marking thinking.

    Attributes:
        name: what the registry calls it.
        opens: the marks that begin thinking; models write the first.
        closes: the marks that end it; the first is what closes a block whose budget is spent.
        told_by: what a template has in it whose model writes so; one of these tuples, all of it.
        anywhere: the opening mark counts anywhere in an answer and not only at its beginning.
        ignored: marks around the answer proper, which nobody wants to see.
        channels: the harmony format: every text is in some channel, and ``opens`` and ``closes`` are those of ``analysis``.
    """

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    told_by: tuple[tuple[str, ...], ...]
    anywhere: bool = False
    ignored: tuple[str, ...] = ()
    channels: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The strings that have to reach the parser as text, even where they are control tokens."""
        return self.opens + self.closes + self.ignored


def _tags(name: str, opens: str, closes: str, *, anywhere: bool = False) -> ReasoningFormat:
    return ReasoningFormat(name, (opens,), (closes,), ((opens,), (closes,)), anywhere)


FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat(  # gpt-oss
        "harmony",
        opens=("<|channel|>analysis<|message|>",),
        closes=("<|end|>",),
        told_by=(("<|channel|>", "<|message|>"),),
        channels=True,
    ),
    ReasoningFormat(  # Gemma 4
        "gemma4", ("<|channel>thought",), ("<channel|>",), (("<|channel>", "<channel|>"),), anywhere=True
    ),
    ReasoningFormat(  # Command R7B, Command A
        "command",
        opens=("<|START_THINKING|>",),
        closes=("<|END_THINKING|>",),
        told_by=(("<|START_THINKING|>", "<|END_THINKING|>"),),
        anywhere=True,
        ignored=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    _tags("magistral", "[THINK]", "[/THINK]", anywhere=True),  # Magistral, Ministral 3 Reasoning
    _tags("kimi", "◁think▷", "◁/think▷"),  # Kimi-VL-Thinking
    _tags("seed", "<seed:think>", "</seed:think>"),  # Seed-OSS
    _tags("longcat", "<longcat_think>", "</longcat_think>"),  # LongCat-Flash-Thinking
    ReasoningFormat(  # Granite 3.3
        "granite33",
        opens=("<think>",),
        closes=("</think>",),
        told_by=(("<think></think>", "<response></response>"),),
        ignored=("<response>", "</response>"),
    ),
    _tags("think", "<think>", "</think>"),  # DeepSeek R1 and V3.1, Qwen3, QwQ, GLM-4.5, MiniMax M1 and M2, SmolLM3, …
    _tags("thinking", "<thinking>", "</thinking>"),
    ReasoningFormat(  # Granite 3.2
        "granite",
        opens=("Here is my thought process:", "Here's my thought process:"),
        closes=("Here is my response:", "Here's my response:"),
        told_by=(("Here is my thought process",), ("Here's my thought process",)),
    ),
)


def reasoning_format(template: str | None) -> ReasoningFormat | None:
    """The format that a chat template shows; None for a model that does not think, or a base model."""
    if template is None:
        return None
    for candidate in FORMATS:
        if any(all(mark in template for mark in marks) for marks in candidate.told_by):
            return candidate
    return None


def opened_by(prompt: str, reasoning: ReasoningFormat) -> bool:
    """Whether a rendered prompt ends inside thinking, as templates have it that write the opening mark themselves."""
    return prompt.rstrip().endswith(reasoning.opens)


@dataclass(frozen=True)
class TemplateSwitches:
    """The variables by which a template is told about thinking; None for what it cannot be told.

    Attributes:
        toggle: takes True and False.
        effort: takes ``low``, ``medium`` and ``high``, or what else the template knows.
        budget: takes a number of tokens.
    """

    toggle: str | None = None
    effort: str | None = None
    budget: str | None = None


_TOGGLES = ("enable_thinking", "thinking", "reasoning")
_EFFORTS = ("reasoning_effort", "thinking_effort")
_BUDGETS = ("thinking_budget",)
_JINJA = Environment()  # for its lexer alone


@lru_cache(64)
def variables_read(template: str | None) -> frozenset[str]:
    """The variables that a template takes from outside, as far as its expressions show.

    Attributes do not count, nor names that the template sets itself before it reads them, unless it asks whether they are
    defined. None for a template that is no Jinja: rendering says what is wrong with it.
    """
    try:
        tokens = [(kind, value) for _, kind, value in _JINJA.lex(template or "") if kind != "whitespace"]
    except TemplateSyntaxError:
        return frozenset()
    given: set[str] = set()
    own: set[str] = set()
    padded = [("", ""), *tokens, ("", ""), ("", "")]
    for (_, before), (kind, name), (_, after), (_, what) in zip(
        padded, padded[1:], padded[2:], padded[3:], strict=False
    ):
        if kind != "name" or before == ".":
            continue
        if before in ("set", "for", "macro"):
            own.add(name)
        elif name not in own or (after == "is" and what in ("defined", "not")):
            given.add(name)
    return frozenset(given)


def template_switches(template: str | None) -> TemplateSwitches:
    """Which of the variables about thinking a template reads."""
    read = variables_read(template)

    def first(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in read), None)

    return TemplateSwitches(first(_TOGGLES), first(_EFFORTS), first(_BUDGETS))


def can_be_disabled(template: str | None) -> bool:
    """Whether a template can be told not to let the model think."""
    return template_switches(template).toggle is not None
