"""A text engine with a scripted model: token i is always followed by token i + 1, so that a text can be written down."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.interface import EngineInfo
from engines.scheduling.admission import KvCost
from engines.text.answer_form import AnswerForm
from engines.text.chat_prompt import EncodedChat
from engines.text.engine import GgufTextEngine
from engines.wire import (
    Admitted,
    ChatPrompt,
    Event,
    Finished,
    Reasoning,
    Sampling,
    TextDelta,
    TextRequest,
    TokenPrompt,
    ToolUse,
)
from tests.engines.text.helpers_rows import stock_model

__all__ = [
    "GREEDY",
    "PLAIN",
    "ScriptChat",
    "ScriptDetokenizer",
    "ScriptModel",
    "ScriptTokenizer",
    "answer",
    "ask",
    "run",
    "script_engine",
    "submit",
    "text_of",
]

GREEDY = Sampling(temperature=0.0)
PLAIN = AnswerForm()


class ScriptDetokenizer:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(self._pieces[token])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ScriptTokenizer:
    """Token i is ``pieces[i]``; the one after the last is EOS. Text is encoded as so many zeros."""

    bos_id: int | None = None

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.vocab_size = len(pieces) + 1
        self.kept_spaces = list[bool]()

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset({len(self.pieces)})

    def encode(self, text: str, **options: Any) -> list[int]:
        return [0] * len(text)

    def encode_infill(self, prefix: str, suffix: str) -> list[int] | None:
        return None

    def token_bytes(self, id: int) -> bytes:
        return [*self.pieces, b"<eos>"][id]

    def token_text(self, id: int) -> str:
        return self.token_bytes(id).decode("utf-8", "replace")

    def detokenizer(self, *, keep_leading_space: bool = False, **options: Any) -> ScriptDetokenizer:
        self.kept_spaces.append(keep_leading_space)
        return ScriptDetokenizer(self.pieces)


class ScriptChat:
    """A zero a character; answers are read as ``form`` says."""

    def __init__(self, form: AnswerForm) -> None:
        self.form = form

    def encode(self, prompt: ChatPrompt, tools: ToolUse | None, reasoning: Reasoning) -> EncodedChat:
        return EncodedChat([0] * sum(len(message.content or "") for message in prompt.messages), self.form)


class ScriptModel:
    """Follows every token with the next one. Keeps nothing in its cache."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.broken = False

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if self.broken:
            raise RuntimeError("a kernel divided by zero")
        following = mx.minimum(tokens + 1, self.vocabulary - 1)
        return (following[:, :, None] == mx.arange(self.vocabulary)).astype(mx.float32) * 50

    def make_cache(self) -> list[Any]:
        return make_prompt_cache(stock_model("llama"))[:1]


def script_engine(
    pieces: Sequence[str | bytes],
    *,
    context: int = 1000,
    width: int = 4,
    grant: int | None = None,
    tokenizer: ScriptTokenizer | None = None,
    form: AnswerForm = PLAIN,
) -> GgufTextEngine:
    tokenizer = tokenizer or ScriptTokenizer(pieces)
    return GgufTextEngine(
        ScriptModel(tokenizer.vocab_size),
        tokenizer,
        ScriptChat(form),
        frozenset({tokenizer.vocab_size - 1}),
        EngineInfo(kv_bytes_per_token=1, context=context, width=width, kernels="portable", device="cpu"),
        KvCost(1),
        grant,
    )


def ask(start: int = 0, **fields: Any) -> TextRequest:
    return TextRequest(**{"prompt": TokenPrompt(tokens=(start,)), "sampling": GREEDY} | fields)


def submit(engine: GgufTextEngine, request_id: int, request: TextRequest) -> None:
    engine.submit(request_id, engine.prepare(request))


def run(engine: GgufTextEngine) -> list[Event]:
    events: list[Event] = []
    for _ in range(2000):
        if not engine.busy:
            return events
        events += engine.step()
    raise AssertionError("still busy")


def text_of(events: Sequence[Event], request_id: int = 1) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.request_id == request_id)


def answer(pieces: Sequence[str | bytes], **fields: Any) -> tuple[str, Finished]:
    """Text and end of a request whose prompt is the first piece."""
    engine = script_engine(["", *pieces])
    submit(engine, 1, ask(**fields))
    events = run(engine)
    assert events[0] == Admitted(request_id=1, prompt_tokens=1)
    last = events[-1]
    assert isinstance(last, Finished)
    assert all(isinstance(event, TextDelta) for event in events[1:-1])
    return text_of(events), last
