"""``POST /v1/embeddings``: OpenAI's format, and the options of its own that models with prompts need.

Source of shapes: OpenAI's API reference, "Create embeddings". ``input_type`` has the names of Cohere, Voyage and NVIDIA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from engines.wire import EmbedRequest, Priority, Usage, Vectors
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import (
    MAX_TOKENS,
    Limits,
    OptionTables,
    read_boolean,
    read_choice,
    read_integer,
    read_string,
    sort_options,
)
from gateway.protocols.text_inputs import characters_of, read_inputs, read_instruction, read_truncate
from gateway.protocols.text_options import read_priority
from gateway.protocols.vector_json import base64_of, joined, numbers_of

__all__ = ["ENCODINGS", "INPUT_TYPES", "OPTIONS", "EmbeddingsRequest", "parse", "render"]

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "dimensions",
            "encoding_format",
            "input",
            "input_type",
            "instruction",
            "model",
            "normalize",
            "priority",
            "truncate",
        }
    ),
    hints=frozenset({"metadata", "safety_identifier", "user"}),
    refused={
        "add_special_tokens": (True,),
        "embedding_type": ("float",),
        "late_chunking": (False,),
        "normalized": (True,),
        "output_dimension": (),
        "output_dtype": ("float",),
        "prompt_name": (),
        "task": (),
        "truncate_prompt_tokens": (),
        "truncation": (),
    },
    instead={
        "embedding_type": "encoding_format",
        "normalized": "normalize",
        "output_dimension": "dimensions",
        "prompt_name": "input_type",
        "task": "input_type, or instruction",
        "truncate_prompt_tokens": "truncate",
        "truncation": "truncate",
    },
)

Encoding = Literal["float", "base64"]
ENCODINGS: tuple[Encoding, ...] = ("float", "base64")

INPUT_TYPES: dict[str, Literal["query", "document"]] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}
"""Names of ``input_type`` → which of the model's prompts."""


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request: what the worker is asked, but for the priority, which None leaves to the model; and the answer's form."""

    model: str
    ask: EmbedRequest
    priority: Priority | None
    encoding: Encoding
    ignored: tuple[str, ...]


def parse(body: bytes, limits: Limits = Limits()) -> EmbeddingsRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    model = read_string(options, "model")
    inputs = read_inputs(options, "input", limits)
    instruction = read_instruction(options)
    limits.check_chars(characters_of(inputs) + len(inputs) * len(instruction or ""), "input")
    input_type = read_choice(options, "input_type", tuple(INPUT_TYPES))
    return EmbeddingsRequest(
        model=model,
        ask=EmbedRequest(
            inputs=inputs,
            purpose=None if input_type is None else INPUT_TYPES[input_type],
            instruction=instruction,
            dimensions=read_integer(options, "dimensions", 1, MAX_TOKENS),
            truncate=read_truncate(options),
            normalize=read_boolean(options, "normalize") is not False,
        ),
        priority=read_priority(options),
        encoding=read_choice(options, "encoding_format", ENCODINGS) or "float",
        ignored=ignored,
    )


def render(model: str, encoding: Encoding, parts: Sequence[Vectors], usage: Usage) -> bytes:
    """The whole answer; ``model`` is the model's id."""
    data = joined(_data(encoding, part) for part in parts)
    tokens = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": tokens})


def _data(encoding: Encoding, part: Vectors) -> list[dict[str, object]]:
    vectors: Sequence[object] = base64_of(part) if encoding == "base64" else numbers_of(part)
    return [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors, part.first)
    ]
