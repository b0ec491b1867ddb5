"""JSON schemas of embedding and rerank routes, for ``/openapi.json``: what a body may hold, and what is answered."""

from __future__ import annotations

from gateway.protocols.embeddings import ENCODINGS, INPUT_TYPES
from gateway.protocols.openapi_ollama import OLLAMA_GENERATE
from gateway.protocols.openapi_options import CHAT, COMPLETIONS, Schema, array, integer
from gateway.protocols.options import MAX_TOKENS
from gateway.protocols.rerank import MAX_COHERE_PRIORITY
from gateway.protocols.text_inputs import TRUNCATES

__all__ = ["EMBEDDINGS", "OLLAMA_EMBED", "OLLAMA_EMBEDDINGS", "RERANK", "SCORE", "TEXTS_ANSWERS"]

_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"anyOf": [_STRING, array(_STRING, minItems=1)]}
_COUNT_FROM_1: Schema = integer(1, MAX_TOKENS)

_SHARED: dict[str, Schema] = {
    "instruction": {**_NAME, "description": "The task, for models whose prompt takes one."},
    "model": CHAT["model"],
    "priority": CHAT["priority"],
    "truncate": {"enum": list(TRUNCATES), "description": "Where a text that is too long loses tokens."},
}
_SCORED: dict[str, Schema] = {
    **_SHARED,
    "max_tokens_per_doc": _COUNT_FROM_1,
    "raw_scores": {**_BOOLEAN, "description": "The model's own numbers, not between 0 and 1."},
}

EMBEDDINGS: dict[str, Schema] = {
    **_SHARED,
    "dimensions": {**_COUNT_FROM_1, "description": "Of models that are made to be cut."},
    "encoding_format": {"enum": list(ENCODINGS)},
    "input": COMPLETIONS["prompt"],
    "input_type": {"enum": list(INPUT_TYPES)},
    "normalize": _BOOLEAN,
}
RERANK: dict[str, Schema] = {
    **_SCORED,
    "documents": array(
        {"anyOf": [_STRING, {"type": "object", "description": "With a text, or rank_fields."}]}, minItems=1
    ),
    "priority": {"anyOf": [CHAT["priority"], integer(0, MAX_COHERE_PRIORITY)]},
    "query": _NAME,
    "rank_fields": array(_NAME, minItems=1),
    "return_documents": _BOOLEAN,
    "top_n": _COUNT_FROM_1,
}
SCORE: dict[str, Schema] = {**_SCORED, **dict.fromkeys(("documents", "queries", "text_1", "text_2"), _TEXTS)}

_OLLAMA: dict[str, Schema] = {name: OLLAMA_GENERATE[name] for name in ("keep_alive", "model", "options", "priority")}
OLLAMA_EMBED: dict[str, Schema] = {
    **_OLLAMA,
    "dimensions": {**integer(0, MAX_TOKENS), "description": "0: as many as the model makes."},
    "input": {"anyOf": [_STRING, array(_STRING)]},
    "truncate": {**_BOOLEAN, "description": "True without it."},
}
OLLAMA_EMBEDDINGS: dict[str, Schema] = {**_OLLAMA, "prompt": _STRING}


def _answer(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_VECTOR: Schema = array(_NUMBER)
_LIST: Schema = {"const": "list"}
_USAGE = _answer(prompt_tokens=_COUNT, total_tokens=_COUNT)
_RESULT: Schema = {
    "type": "object",
    "properties": {"index": _COUNT, "relevance_score": _NUMBER, "document": {"type": "object"}},
    "required": ["index", "relevance_score"],
}

TEXTS_ANSWERS: dict[str, Schema] = {
    "Embeddings": _answer(
        object=_LIST,
        data=array(
            _answer(
                object={"const": "embedding"},
                index=_COUNT,
                embedding={"anyOf": [_VECTOR, {**_STRING, "description": "Float32, little-endian, in base64."}]},
            )
        ),
        model=_STRING,
        usage=_USAGE,
    ),
    "Reranked": _answer(
        id=_STRING,
        object=_LIST,
        model=_STRING,
        results=array(_RESULT),
        usage=_USAGE,
        meta=_answer(tokens=_answer(input_tokens=_COUNT, output_tokens=_COUNT)),
    ),
    "Scored": _answer(
        id=_STRING,
        object=_LIST,
        created=_COUNT,
        model=_STRING,
        data=array(_answer(index=_COUNT, object={"const": "score"}, score=_NUMBER)),
        usage=_answer(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "OllamaEmbedded": _answer(
        model=_STRING, embeddings=array(_VECTOR), total_duration=_COUNT, load_duration=_COUNT, prompt_eval_count=_COUNT
    ),
    "OllamaEmbedding": _answer(embedding=_VECTOR),
}
