"""What a model can be asked for, as clients are told: from its task, its chat template and its vocabulary.

The gateway has neither Jinja nor the tables of the text engine, so templates are read as text here. What counts is held against
the engine's own reading by a test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from engines.header import GgufArray, GgufValueType, MetadataValue
from engines.wire import Task

__all__ = ["INFILL_KEYS", "INFILL_TEXTS", "capabilities_of", "shows_thinking", "takes_effort"]

_TASKS: Final[Mapping[Task, tuple[str, ...]]] = {
    "text": ("completion",),
    "vision": ("completion", "vision"),
    "embedding": ("embedding",),
}
# What stands between a template's marks, without the strings in it; then a variable's name, which no dot comes before.
_TAGS: Final = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_STRINGS: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_TOOLS: Final = re.compile(r"(?<![\w.])(?:tools|available_tools|xml_tools)(?!\w)")
_THINKING: Final = re.compile(
    r"<think>|</think>|<thinking>|</thinking>|\[/?THINK\]|<\|START_THINKING\|>|◁/?think▷|</?seed:think>|</?longcat_think>"
    r"|<\|channel>|<\|channel\|>|Here(?: i|')s my thought process"
)
_EFFORT: Final = re.compile(r"(?<![\w.])(?:reasoning_effort|thinking_effort)(?!\w)")
_KEY: Final = "tokenizer.ggml."

INFILL_KEYS: Final = (
    ("fim_pre_token_id", "prefix_token_id"),
    ("fim_suf_token_id", "suffix_token_id"),
    ("fim_mid_token_id", "middle_token_id"),
)
"""Metadata keys, below ``tokenizer.ggml.``, of the tokens before, behind and in the gap of an infill prompt."""

INFILL_TEXTS: Final = (
    (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
)
"""What these tokens are called where no key names them."""


def capabilities_of(
    task: Task, template: str | None, metadata: Mapping[str, MetadataValue], *, calls: bool = False
) -> tuple[str, ...]:
    """Of completion, vision, tools, thinking, insert and embedding those it has. ``calls``: its settings name a call syntax.

    Reads the vocabulary: GgufFormatError when the file has changed since its header was read.
    """
    found = list(_TASKS.get(task, ()))
    if "completion" in found:
        found += ["tools"] if calls or (template and _reads_tools(template)) else []
        found += ["thinking"] if shows_thinking(template) else []
        found += ["insert"] if _fills_gaps(metadata) else []
    return tuple(found)


@lru_cache(64)
def shows_thinking(template: str | None) -> bool:
    """Whether the model thinks before it answers, as far as its template shows."""
    return template is not None and _THINKING.search(template) is not None


@lru_cache(64)
def takes_effort(template: str | None) -> bool:
    """Whether the template can be told how much to think."""
    return template is not None and _reads(_EFFORT, template)


def _reads_tools(template: str) -> bool:
    return _reads(_TOOLS, template)


def _reads(variable: re.Pattern[str], template: str) -> bool:
    return any(variable.search(_STRINGS.sub("", tag)) for tag in _TAGS.findall(template))


def _fills_gaps(metadata: Mapping[str, MetadataValue]) -> bool:
    named = [any(isinstance(metadata.get(_KEY + key), int) for key in keys) for keys in INFILL_KEYS]
    if all(named):
        return True
    tokens = metadata.get(f"{_KEY}tokens")
    if not isinstance(tokens, GgufArray) or tokens.element_type is not GgufValueType.STRING:
        return False
    vocabulary = set(tokens.encoded())
    return all(
        there or any(text.encode() in vocabulary for text in texts)
        for there, texts in zip(named, INFILL_TEXTS, strict=True)
    )
