"""``POST /api/embed`` and the older ``POST /api/embeddings``: Ollama's vectors.

====================  =======================================  ===========================================
route                 reads                                    answers
====================  =======================================  ===========================================
``/api/embed``        ``input``: a text or an array of them    ``embeddings``, of length 1; times and tokens
``/api/embeddings``   ``prompt``: a text                       ``embedding``, as long as the model makes it
====================  =======================================  ===========================================

Without any text the model is loaded, or let go with ``keep_alive`` 0, and there are no vectors. A text that is too long loses its
end, unless ``truncate`` is false: so it is in Ollama.

Source of shapes: Ollama's API documentation, "Generate Embeddings", and its Go types ``EmbedRequest`` and ``EmbeddingRequest``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines.wire import EmbedRequest, Priority, Usage, Vectors
from gateway.errors import InvalidRequest
from gateway.protocols.json_body import decode_object
from gateway.protocols.ollama_duration import read_keep_alive
from gateway.protocols.ollama_options import read_model_options
from gateway.protocols.ollama_times import AnswerTimes
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
from gateway.protocols.text_inputs import characters_of, read_texts
from gateway.protocols.vector_json import joined, numbers_of

__all__ = [
    "EMBEDDINGS_OPTIONS",
    "EMBED_OPTIONS",
    "OllamaEmbedRequest",
    "parse_embed",
    "parse_embeddings",
    "render_embed",
    "render_embeddings",
]

EMBED_OPTIONS = OptionTables(
    honoured=frozenset({"dimensions", "input", "keep_alive", "model", "options", "priority", "truncate"}),
    hints=frozenset(),
    refused={},
)
EMBEDDINGS_OPTIONS = OptionTables(
    honoured=frozenset({"keep_alive", "model", "options", "priority", "prompt"}), hints=frozenset(), refused={}
)


class OllamaEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request of either route.

    Attributes:
        ask: what the worker is asked, but for the priority; None: nothing, but that the model be loaded or let go.
        keep_alive_s: how long the model is to stay after it; None: as it would.
        context: tokens of context that the client counts on.
    """

    model: str
    ask: EmbedRequest | None
    priority: Priority | None
    keep_alive_s: float | None
    context: int | None
    ignored: tuple[str, ...]

    @property
    def unloads(self) -> bool:
        """Nothing is to be answered, and the model may go."""
        return self.ask is None and self.keep_alive_s == 0


def parse_embed(body: bytes, limits: Limits = Limits()) -> OllamaEmbedRequest:  # noqa: B008 (frozen)
    """The body of ``/api/embed``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    fields, ignored = sort_options(decode_object(body, limits.max_values), EMBED_OPTIONS)
    texts = () if fields.get("input") in ("", [], None) else read_texts(fields, "input", limits)
    limits.check_chars(characters_of(texts), "input")
    dimensions = read_integer(fields, "dimensions", 0, MAX_TOKENS)
    truncate = read_boolean(fields, "truncate") is not False
    ask = EmbedRequest(inputs=texts, dimensions=dimensions or None, truncate="end" if truncate else "none")
    return _request(fields, ask if texts else None, ignored)


def parse_embeddings(body: bytes, limits: Limits = Limits()) -> OllamaEmbedRequest:  # noqa: B008 (frozen)
    """The body of ``/api/embeddings``, likewise."""
    fields, ignored = sort_options(decode_object(body, limits.max_values), EMBEDDINGS_OPTIONS)
    prompt = fields.get("prompt", "")
    if not isinstance(prompt, str):
        raise InvalidRequest(f"prompt is {shown(prompt)}; it must be a string", param="prompt")
    limits.check_chars(len(prompt), "prompt")
    ask = EmbedRequest(inputs=(prompt,), truncate="end", normalize=False)
    return _request(fields, ask if prompt else None, ignored)


def _request(fields: dict[str, object], ask: EmbedRequest | None, ignored: tuple[str, ...]) -> OllamaEmbedRequest:
    options = read_model_options(fields)
    given = fields.get("options")
    # They are about texts that are made, and none is; what they are is checked all the same.
    names = [f"options.{name}" for name, value in given.items() if value is not None] if isinstance(given, dict) else []
    return OllamaEmbedRequest(
        model=read_string(fields, "model"),
        ask=ask,
        priority=options.text.priority,
        keep_alive_s=read_keep_alive(fields),
        context=options.context,
        ignored=(*ignored, *names),
    )


def render_embed(model: str, times: AnswerTimes, parts: Sequence[Vectors], usage: Usage) -> bytes:
    """The answer of ``/api/embed``; ``model`` is the model's id."""
    told = times.fields(usage)
    names = ("total_duration", "load_duration", "prompt_eval_count")
    return msgspec.json.encode(
        {"model": model, "embeddings": joined(map(numbers_of, parts)), **{name: told[name] for name in names}}
    )


def render_embeddings(parts: Sequence[Vectors], usage: Usage) -> bytes:
    """The answer of ``/api/embeddings``."""
    vectors = [vector for part in parts for vector in numbers_of(part)]
    return msgspec.json.encode({"embedding": vectors[0] if vectors else ()})
