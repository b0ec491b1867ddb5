"""A query and a document as the row that a reranker reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from engines.encoders.batch_engine import Row
from engines.encoders.fitting import fitted, too_long
from engines.encoders.tokenizer import PairFrame, TextTokenizer
from engines.errors import InvalidField
from engines.wire import ScoreRequest

__all__ = ["FramedPairs", "JudgedPairs", "Pairs"]

_QWEN3_SYSTEM: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_QWEN3_TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"


class Pairs(Protocol):
    """Any thread may use one."""

    def rows(self, request: ScoreRequest) -> list[Row]:
        """A row for each document. ContextLengthExceeded where one is too long, InvalidField for what the model cannot do."""
        ...


class FramedPairs:
    """Query and document with separators, as a tokenizer of the BERT family puts them around two texts."""

    def __init__(self, tokenizer: TextTokenizer, frame: PairFrame, most_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._frame = frame
        self._most = most_tokens
        self.around = frame.tokens

    def rows(self, request: ScoreRequest) -> list[Row]:
        if request.instruction is not None:
            raise InvalidField("this model's prompt takes no instruction", param="instruction")
        frame, typed = self._frame, self._frame.second_type != 0
        rows = []
        for index, (query, document) in enumerate(_pairs(request, self._tokenizer)):
            room = self._most - frame.tokens - len(query)
            if room < 0 or (room == 0 and document):
                raise too_long(frame.tokens + len(query), self._most, "the query, without any document,", "query")
            document = fitted(
                document,
                room,
                frame.tokens + len(query),
                request.truncate,
                f"document {index} with its query",
                "documents",
            )
            ids, types = frame.around(query, document)
            rows.append(Row(ids, types if typed else None))
        return rows


class JudgedPairs:
    """Qwen3-Reranker's prompt: instruction, query and document in a chat's frame, so that the next token is yes or no.

    Source: the model card of Qwen3-Reranker.
    """

    def __init__(self, tokenizer: TextTokenizer, most_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._most = most_tokens
        self._before = tokenizer.control(f"<|im_start|>system\n{_QWEN3_SYSTEM}<|im_end|>\n<|im_start|>user\n")
        self._after = tokenizer.control("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
        self.around = len(self._before) + len(self._after)

    def rows(self, request: ScoreRequest) -> list[Row]:
        task = _QWEN3_TASK if request.instruction is None else request.instruction
        documents = self._cut(request)
        texts = [
            f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
            for query, document in zip(_queries(request), documents, strict=True)
        ]
        around = self.around
        rows = []
        for index, ids in enumerate(self._tokenizer.split(texts)):
            ids = fitted(
                ids, self._most - around, around, request.truncate, f"document {index} with its query", "documents"
            )
            rows.append(Row([*self._before, *ids, *self._after]))
        return rows

    def _cut(self, request: ScoreRequest) -> Sequence[str]:
        """The documents, with ``document_tokens`` at most: by the share of their characters, since pieces join their neighbours."""
        most = request.document_tokens
        if most is None:
            return request.documents
        lengths = [len(ids) for ids in self._tokenizer.split(request.documents)]
        return [
            text if length <= most else text[: len(text) * most // length]
            for text, length in zip(request.documents, lengths, strict=True)
        ]


def _queries(request: ScoreRequest) -> Sequence[str]:
    queries = request.queries
    return queries * len(request.documents) if len(queries) == 1 else queries


def _pairs(request: ScoreRequest, tokenizer: TextTokenizer) -> list[tuple[list[int], list[int]]]:
    queries, documents = tokenizer.split(request.queries), tokenizer.split(request.documents)
    if request.document_tokens is not None:
        documents = [ids[: request.document_tokens] for ids in documents]
    if len(queries) == 1:
        queries = queries * len(documents)
    return list(zip(queries, documents, strict=True))
