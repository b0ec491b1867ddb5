"""The embedding engine: prompt, tokens, features, pooling, length 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engines.embeddings.recipe import Recipe
from engines.encoders.batch_engine import BatchEngine, Job, Row
from engines.encoders.encoder import Encoded
from engines.encoders.fitting import fitted
from engines.encoders.loading import Opened
from engines.encoders.weights import Linear
from engines.errors import InvalidField, RequestError
from engines.wire import EmbedRequest, Event, Vectors

__all__ = ["EncoderEmbeddingEngine", "Head"]

_EVENT_BYTES = 128 * 1024  # of vectors in one event: half of what a frame holds


@dataclass(frozen=True)
class _Options:
    dimensions: int | None
    normalize: bool


Head = tuple[Linear, str | None]
"""A layer behind the pooling, and ``tanh`` or nothing after it."""


class EncoderEmbeddingEngine(BatchEngine):
    """A :class:`engines.interface.EmbeddingEngine`."""

    def __init__(self, opened: Opened, recipe: Recipe, heads: Sequence[Head], grant_bytes: int | None = None) -> None:
        super().__init__(opened.encoder, opened.info, grant_bytes, float_bytes=opened.float_bytes)
        self._tokenizer = opened.tokenizer
        self._recipe = recipe
        self._heads = heads
        self._dims = heads[-1][0].rows if heads else opened.blueprint.shape.width

    def prepare(self, request: EmbedRequest) -> Job:
        """Tokenises. InvalidField for what the model cannot do, ContextLengthExceeded for an input that is too long; both name the
        input's place."""
        if not isinstance(request, EmbedRequest):
            raise RequestError("This model makes vectors of texts, and nothing else.")
        options = _Options(self._dimensions(request.dimensions), request.normalize)
        frame, prompt = self._tokenizer.single, self._prompt(request)
        texts = [prompt + text for text in request.inputs if isinstance(text, str)]
        split = iter(self._tokenizer.split(texts))
        room = self._info.context - frame.tokens
        rows = []
        for index, given in enumerate(request.inputs):
            if isinstance(given, str):
                ids = fitted(next(split), room, frame.tokens, request.truncate, f"input {index}", "input")
                rows.append(Row(frame.around(ids)))
            else:
                self._check(given, index)
                rows.append(
                    Row(fitted(list(given), self._info.context, 0, request.truncate, f"input {index}", "input"))
                )
            if not rows[-1].ids:
                raise InvalidField(
                    f"input {index} is empty, and this model's tokenizer adds nothing to it", param="input"
                )
        return Job(rows, options)

    def finish_batch(self, encoded: Encoded) -> mx.array:
        match self._recipe.pooling:
            case "cls":
                pooled = encoded.first()
            case "last":
                pooled = encoded.last()
            case "mean":
                pooled = encoded.mean()
        for layer, activation in self._heads:
            pooled = layer(pooled.astype(encoded.features.dtype))
            if activation == "tanh":
                pooled = mx.tanh(pooled)
        return pooled.astype(mx.float32)

    def answer(self, job: Job) -> list[Event]:
        assert job.results is not None
        vectors = _finished(job.results, job.options)
        dims = vectors.shape[1]
        step = max(1, _EVENT_BYTES // (4 * dims))
        return [
            Vectors(
                request_id=job.request_id,
                first=first,
                dims=dims,
                data=vectors[first : first + step].astype("<f4").tobytes(),
                tokens=tuple(len(row.ids) for row in job.rows[first : first + step]),
            )
            for first in range(0, len(vectors), step)
        ]

    # --- what the request asks ---

    def _prompt(self, request: EmbedRequest) -> str:
        prompts = self._recipe.prompts
        if request.instruction is not None:
            if prompts.instructed is None:
                raise InvalidField("this model's prompt takes no instruction", param="instruction")
            if request.purpose == "document":
                raise InvalidField("an instruction goes before queries, not before documents", param="instruction")
            return prompts.instructed.replace("{task}", request.instruction)
        if request.purpose is None:
            return prompts.default
        return prompts.query if request.purpose == "query" else prompts.document

    def _dimensions(self, wanted: int | None) -> int | None:
        if wanted is None or wanted == self._dims:
            return None
        allowed = self._recipe.dimensions
        if allowed is None:
            raise InvalidField(
                f"dimensions is {wanted}; this model's vectors have {self._dims} and are not made to be cut",
                param="dimensions",
            )
        if not 1 <= wanted < self._dims or (allowed and wanted not in allowed):
            range_ = " or ".join(map(str, allowed)) if allowed else f"from 1 to {self._dims}"
            raise InvalidField(f"dimensions is {wanted}; this model allows {range_}", param="dimensions")
        return wanted

    def _check(self, ids: Sequence[int], index: int) -> None:
        size = self._tokenizer.vocab_size
        wrong = next((id for id in ids if not 0 <= id < size), None)
        if wrong is not None:
            raise InvalidField(f"input {index} has the token {wrong}; from 0 to {size - 1} is possible", param="input")
        if not ids:
            raise InvalidField(f"input {index} has no tokens", param="input")


def _finished(results: np.ndarray, options: _Options) -> np.ndarray:
    """Cut, then to length 1: float32 [inputs, dims]. A vector of zeros stays one."""
    vectors = results if options.dimensions is None else results[:, : options.dimensions]
    if not options.normalize:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    normalized: np.ndarray = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return normalized
