"""``POST /v1/score``: how well each of some texts goes with another, in vLLM's shape and in the request's order.

``text_1`` and ``text_2`` (or ``queries`` and ``documents``) are one and many, or as many as each other.

Source of shapes: vLLM's server, "Score API".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engines.wire import Priority, ScoreRequest, Scores, Usage
from gateway.errors import InvalidRequest
from gateway.protocols.completion import AnswerHead
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import (
    MAX_TOKENS,
    Limits,
    OptionTables,
    read_boolean,
    read_integer,
    read_string,
    sort_options,
)
from gateway.protocols.text_inputs import characters_of, read_instruction, read_texts, read_truncate
from gateway.protocols.text_options import read_priority

__all__ = ["OPTIONS", "PAIRS", "TextsToScore", "parse", "render"]

PAIRS = (("text_1", "text_2"), ("queries", "documents"))
"""The fields that hold the texts, of which one pair is given."""

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "documents",
            "instruction",
            "max_tokens_per_doc",
            "model",
            "priority",
            "queries",
            "raw_scores",
            "text_1",
            "text_2",
            "truncate",
        }
    ),
    hints=frozenset({"metadata", "safety_identifier", "user"}),
    refused={
        "activation": (True,),
        "encoding_format": ("float",),
        "items": (),
        "softmax": (False,),
        "truncate_prompt_tokens": (),
        "use_activation": (True,),
    },
    instead={
        "activation": "raw_scores",
        "items": "documents",
        "truncate_prompt_tokens": "truncate",
        "use_activation": "raw_scores",
    },
)


class TextsToScore(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. ``names``: what the worker calls a field → what the request calls it. The rest as of a rerank request."""

    model: str
    ask: ScoreRequest
    priority: Priority | None
    raw: bool
    names: dict[str, str]
    ignored: tuple[str, ...]


def parse(body: bytes, limits: Limits = Limits()) -> TextsToScore:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    model = read_string(options, "model")
    first, second = _fields(options)
    queries, documents = read_texts(options, first, limits), read_texts(options, second, limits)
    if len(queries) not in (1, len(documents)):
        message = f"{first} holds {len(queries)} texts and {second} {len(documents)}; it must be one, or as many"
        raise InvalidRequest(message, param=first)
    instruction = read_instruction(options)
    times = len(documents) // len(queries)
    characters = characters_of(documents) + times * characters_of(queries) + len(documents) * len(instruction or "")
    limits.check_chars(characters, second)
    return TextsToScore(
        model=model,
        ask=ScoreRequest(
            queries=queries,
            documents=documents,
            instruction=instruction,
            truncate=read_truncate(options),
            document_tokens=read_integer(options, "max_tokens_per_doc", 1, MAX_TOKENS),
        ),
        priority=read_priority(options),
        raw=read_boolean(options, "raw_scores") or False,
        names={"query": first, "documents": second},
        ignored=ignored,
    )


def _fields(options: Mapping[str, Any]) -> tuple[str, str]:
    """Those of the pair that is given."""
    given = [pair for pair in PAIRS if any(name in options for name in pair)]
    if len(given) > 1:
        extra = next(name for name in given[1] if name in options)
        raise InvalidRequest(f"{extra}: either text_1 and text_2, or queries and documents may be given", param=extra)
    return given[0] if given else PAIRS[0]


def render(head: AnswerHead, request: TextsToScore, parts: Sequence[Scores], usage: Usage) -> bytes:
    """The whole answer."""
    scores = [score for part in parts for score in (part.raw if request.raw else part.sigmoid)]
    return msgspec.json.encode(
        {
            "id": head.id,
            "object": "list",
            "created": head.created,
            "model": head.model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": 0,
                "total_tokens": usage.prompt_tokens,
            },
        }
    )
