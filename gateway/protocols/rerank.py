"""``POST /v1/rerank``, ``/v2/rerank`` and ``/rerank``: documents by how well they answer a query.

One shape that the clients of all three makers read: Cohere's (both versions), Jina's and that of vLLM, which ask much the same.
Results come best first, those of one score in the request's order.

===========================  ================================================================================================
a document is                the model reads
===========================  ================================================================================================
a text                       the text
an object                    its ``text``; with ``rank_fields`` these fields, each as a line ``name: value``, or one as it is
===========================  ================================================================================================

Source of shapes: Cohere's API reference, "Rerank" v1 and v2; Jina's, "Reranker"; vLLM's server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engines.wire import Priority, ScoreRequest, Scores, Usage
from gateway.errors import InvalidRequest, UnsupportedModality
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import (
    MAX_TOKENS,
    Limits,
    OptionTables,
    read_boolean,
    read_integer,
    read_string,
    shown,
    sort_options,
)
from gateway.protocols.text_inputs import characters_of, read_instruction, read_truncate
from gateway.protocols.text_options import read_priority

__all__ = ["MAX_COHERE_PRIORITY", "OPTIONS", "Document", "RerankRequest", "parse", "render"]

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "documents",
            "instruction",
            "max_tokens_per_doc",
            "model",
            "priority",
            "query",
            "rank_fields",
            "raw_scores",
            "return_documents",
            "top_n",
            "truncate",
        }
    ),
    hints=frozenset({"metadata", "safety_identifier", "user"}),
    refused={
        "activation": (True,),
        "max_chunks_per_doc": (),
        "max_doc_length": (),
        "max_query_length": (),
        "overlap_tokens": (),
        "relevant_spans": (),
        "return_embeddings": (False,),
        "texts": (),
        "top_k": (),
        "truncate_prompt_tokens": (),
        "truncation": (False,),
        "use_activation": (True,),
    },
    instead={
        "activation": "raw_scores",
        "max_chunks_per_doc": "max_tokens_per_doc",
        "max_doc_length": "max_tokens_per_doc",
        "texts": "documents",
        "top_k": "top_n",
        "truncate_prompt_tokens": "truncate",
        "truncation": "truncate",
        "use_activation": "raw_scores",
    },
)

MAX_COHERE_PRIORITY = 999
"""Cohere's ``priority`` is a number from 0 to this, of a queue of its own."""

Document = str | dict[str, Any]
_DOCUMENTS = "an array of strings, or of objects with a text"


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request.

    Attributes:
        ask: what the worker is asked, but for the priority, which None leaves to the model.
        documents: as they came, for answers that show them.
        top_n: how many results there may be.
        raw: scores are the model's own numbers, not between 0 and 1.
        shows: whether results have their documents.
    """

    model: str
    ask: ScoreRequest
    priority: Priority | None
    documents: tuple[Document, ...]
    top_n: int
    raw: bool
    shows: bool
    ignored: tuple[str, ...]


def parse(body: bytes, limits: Limits = Limits()) -> RerankRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    if _is_cohere_priority(options.get("priority")):
        del options["priority"]
        ignored += ("priority",)
    model, query = read_string(options, "model"), read_string(options, "query")
    documents = _read_documents(options.get("documents"), limits)
    fields = _read_rank_fields(options)
    texts = tuple(_text(document, fields, i) for i, document in enumerate(documents))
    instruction = read_instruction(options)
    beside = len(query) + len(instruction or "")
    limits.check_chars(characters_of(texts) + len(texts) * beside, "documents")
    return RerankRequest(
        model=model,
        ask=ScoreRequest(
            queries=(query,),
            documents=texts,
            instruction=instruction,
            truncate=read_truncate(options),
            document_tokens=read_integer(options, "max_tokens_per_doc", 1, MAX_TOKENS),
        ),
        priority=read_priority(options),
        documents=documents,
        top_n=read_integer(options, "top_n", 1, MAX_TOKENS) or len(documents),
        raw=read_boolean(options, "raw_scores") or False,
        shows=read_boolean(options, "return_documents") or False,
        ignored=ignored,
    )


def _is_cohere_priority(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COHERE_PRIORITY


def _read_documents(value: Any, limits: Limits) -> tuple[Document, ...]:
    if not isinstance(value, list) or not value:
        what = "is missing" if value is None else f"is {shown(value)}"
        raise InvalidRequest(f"documents {what}; it must be {_DOCUMENTS}", param="documents")
    limits.check_inputs(len(value), "documents")
    for i, document in enumerate(value):
        if not isinstance(document, str | dict):
            message = f"documents[{i}] is {shown(document)}; it must be a string, or an object with a text"
            raise InvalidRequest(message, param=f"documents[{i}]")
    return tuple(value)


def _read_rank_fields(options: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = options.get("rank_fields")
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        message = f"rank_fields is {shown(value)}; it must be an array of names of the documents' fields"
        raise InvalidRequest(message, param="rank_fields")
    return tuple(dict.fromkeys(value))


def _text(document: Document, fields: tuple[str, ...] | None, index: int) -> str:
    """What the model reads of a document."""
    if isinstance(document, str):
        if fields is not None:
            message = f"rank_fields is given; documents[{index}] must be an object beside it, with these fields"
            raise InvalidRequest(message, param="rank_fields")
        return document
    if fields is None:
        fields = ("text",)
        if "image" in document and "text" not in document:
            raise UnsupportedModality(
                f"documents[{index}] has an image; rerankers here read text", param=f"documents[{index}]"
            )
    values = [_value(document, name, index) for name in fields]
    if len(values) == 1:
        return values[0]
    return "\n".join(f"{name}: {value}" for name, value in zip(fields, values, strict=True))


def _value(document: Mapping[str, Any], name: str, index: int) -> str:
    value = document.get(name)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    what = "has no" if value is None else f"has {shown(value)} for"
    message = f"documents[{index}] {what} {name[:100]!r}; it must be a string or a number there"
    raise InvalidRequest(message, param=f"documents[{index}]")


def render(id: str, model: str, request: RerankRequest, parts: Sequence[Scores], usage: Usage) -> bytes:
    """The whole answer; ``model`` is the model's id."""
    scores = [score for part in parts for score in (part.raw if request.raw else part.sigmoid)]
    # By the raw score, which still tells apart what is 1 in the other.
    order = [score for part in parts for score in part.raw]
    best = sorted(range(len(scores)), key=lambda index: -order[index])[: request.top_n]
    return msgspec.json.encode(
        {
            "id": id,
            "object": "list",
            "model": model,
            "results": [_result(request, index, scores[index]) for index in best],
            "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
            "meta": {"tokens": {"input_tokens": usage.prompt_tokens, "output_tokens": 0}},
        }
    )


def _result(request: RerankRequest, index: int, score: float) -> dict[str, Any]:
    result: dict[str, Any] = {"index": index, "relevance_score": score}
    if request.shows:
        document = request.documents[index]
        result["document"] = {"text": document} if isinstance(document, str) else document
    return result
