"""The rerank engine: pairs of texts to scores."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from engines.encoders.batch_engine import BatchEngine, Job
from engines.encoders.encoder import Encoded
from engines.encoders.loading import Opened
from engines.errors import InvalidField, RequestError
from engines.rerank.heads import Classifier, YesNo
from engines.rerank.pairs import Pairs
from engines.wire import Event, ScoreRequest, Scores

__all__ = ["EncoderRerankEngine"]

_EVENT_SCORES = 4096  # in one event: some 80 KiB


class EncoderRerankEngine(BatchEngine):
    """A :class:`engines.interface.RerankEngine`."""

    def __init__(self, opened: Opened, head: Classifier | YesNo, pairs: Pairs, grant_bytes: int | None = None) -> None:
        super().__init__(opened.encoder, opened.info, grant_bytes, float_bytes=opened.float_bytes)
        self._head = head
        self._pairs = pairs

    def prepare(self, request: ScoreRequest) -> Job:
        """Tokenises. ContextLengthExceeded for a pair that is too long, InvalidField for what the model cannot do."""
        if not isinstance(request, ScoreRequest):
            raise RequestError("This model scores documents, and nothing else.")
        queries, documents = len(request.queries), len(request.documents)
        if queries != 1 and queries != documents:
            raise InvalidField(
                f"{queries} queries for {documents} documents: one for all, or one for each", param="query"
            )
        if request.document_tokens is not None and request.document_tokens < 1:
            raise InvalidField(
                f"a document's tokens are {request.document_tokens}; at least 1", param="max_tokens_per_doc"
            )
        return Job(self._pairs.rows(request))

    def finish_batch(self, encoded: Encoded) -> mx.array:
        return self._head(encoded)

    def answer(self, job: Job) -> list[Event]:
        assert job.results is not None
        raw = job.results.astype(np.float64)
        sigmoid = (1.0 + np.tanh(raw / 2)) / 2  # the logistic function, without its overflow
        return [
            Scores(
                request_id=job.request_id,
                first=first,
                raw=tuple(raw[first : first + _EVENT_SCORES].tolist()),
                sigmoid=tuple(sigmoid[first : first + _EVENT_SCORES].tolist()),
                tokens=tuple(len(row.ids) for row in job.rows[first : first + _EVENT_SCORES]),
            )
            for first in range(0, len(raw), _EVENT_SCORES)
        ]
