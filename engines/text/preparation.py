"""A request to what the batcher needs of it: templated, tokenised and checked, before any work is done."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from engines.errors import ContextLengthExceeded, InvalidField, UnsupportedParameter
from engines.scheduling.growth import OPEN_ANSWER
from engines.text.answer_form import AnswerForm
from engines.text.chat_prompt import EncodedChat
from engines.text.constraints.planner import ConstraintPlanner
from engines.text.constraints.row_constraint import ConstraintPlan
from engines.text.constraints.vocabulary import VocabularyTokenizer
from engines.text.detokenizer import Detokenizer
from engines.text.output import OutputParser
from engines.text.sampling import SamplingParameters
from engines.wire import (
    ChatPrompt,
    InfillPrompt,
    Priority,
    Prompt,
    Reasoning,
    Sampling,
    TextPrompt,
    TextRequest,
    TokenPrompt,
    Tool,
    ToolUse,
)

__all__ = ["PreparedText", "PromptEncoder", "RequestPreparer", "Tokenizer"]

_FORMS = 16  # kinds of answers whose marks' tokens are kept: by call syntax, mostly one or two a model


class Tokenizer(VocabularyTokenizer, Protocol):
    """What the engine asks of a tokenizer; :class:`engines.gguf.tokenizer.GgufTokenizer` is one."""

    bos_id: int | None

    def encode_infill(self, prefix: str, suffix: str) -> list[int] | None: ...

    def detokenizer(self, *, keep_leading_space: bool = False, shown: frozenset[int] = frozenset()) -> Detokenizer: ...


class PromptEncoder(Protocol):
    """Chat prompts to ids, by the model's template; :class:`engines.text.chat_prompt.ChatEncoder` is one."""

    def encode(self, prompt: ChatPrompt, tools: ToolUse | None, reasoning: Reasoning) -> EncodedChat: ...


@dataclass(frozen=True)
class PreparedText:
    """A request that can be served: tokenised and checked."""

    tokens: tuple[int, ...]
    max_tokens: int
    least_tokens: int  # prompt and answer: without room for these in the KV grant it is not started
    expected_tokens: int  # prompt and answer, as projected for admission
    sampling: SamplingParameters
    stop: tuple[str, ...]
    siblings: int | None
    echo: str | None  # the prompt's text, where it comes first in the answer
    continues: bool  # the answer goes on where the prompt's text ends, so a space that begins it is kept
    form: AnswerForm  # how its answer is read
    tools: tuple[Tool, ...]  # those that it may call
    split: bool  # thinking is told apart from content
    whole: bool  # nobody reads the answer before its end
    one_call: bool  # the first call ends it
    shown: frozenset[int]  # control tokens that are marks to the reader of the answer
    constraint: ConstraintPlan | None  # what its answer is bound to
    priority: Priority

    def parser(self) -> OutputParser | None:
        """A new one for the answer."""
        return self.form.parser(self.tools, split=self.split, whole=self.whole)


class RequestPreparer:
    """Prepares the requests of one model. Threads may share it.

    Args:
        tokenizer: of the checkpoint.
        chat: a chat prompt to token ids, by the model's template.
        planner: what binds answers.
        context: tokens of prompt and answer together at most.
    """

    def __init__(self, tokenizer: Tokenizer, chat: PromptEncoder, planner: ConstraintPlanner, context: int) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._planner = planner
        self._context = context
        self._shown = lru_cache(_FORMS)(self._spelled)

    def prepare(self, request: TextRequest) -> PreparedText:
        """ContextLengthExceeded, InvalidField, UnsupportedParameter, or what the template raises."""
        if any(not stop for stop in request.stop):
            raise InvalidField("stop: an empty string cannot be a stop sequence", param="stop")
        asked = request.max_tokens
        if asked is not None and asked < (0 if request.echo else 1):
            raise InvalidField(f"max_tokens is {asked}; it must be at least 1, or 0 beside echo", param="max_tokens")
        sampling = self._sampling(request)
        encoded = self._encode(request)
        tokens, form = tuple(encoded.tokens), encoded.form
        room = self._context - len(tokens)
        if room < (0 if asked == 0 else 1):
            raise ContextLengthExceeded(
                f"The prompt has {len(tokens)} tokens; the context has {self._context}, and the answer needs at least 1.",
                param=_field(request.prompt),
                tokens=len(tokens),
                most_tokens=self._context - 1,
            )
        if asked is not None and asked > room and not request.clamp:
            raise ContextLengthExceeded(
                f"The prompt has {len(tokens)} tokens and max_tokens asks for {asked}, together "
                f"{len(tokens) + asked}; the context has {self._context}.",
                param="max_tokens",
                tokens=len(tokens) + asked,
                most_tokens=self._context,
            )
        max_tokens = room if asked is None else min(asked, room)
        open_ended = asked is None or request.clamp
        return PreparedText(
            tokens=tokens,
            max_tokens=max_tokens,
            least_tokens=len(tokens) + (1 if open_ended else max_tokens),
            expected_tokens=len(tokens) + (min(max_tokens, OPEN_ANSWER) if open_ended else max_tokens),
            sampling=sampling,
            stop=request.stop,
            siblings=request.siblings,
            echo=self._text(request.prompt, tokens) if request.echo else None,
            continues=not (isinstance(request.prompt, ChatPrompt) and request.prompt.add_generation_prompt),
            form=form,
            tools=() if request.tools is None else request.tools.tools,
            split=request.reasoning.split,
            whole=request.whole,
            one_call=request.tools is not None and not request.tools.parallel,
            shown=self._shown(form.marks),
            constraint=self._planner.plan(request, form),
            priority=request.priority,
        )

    def _spelled(self, marks: tuple[str, ...]) -> frozenset[int]:
        """The control tokens of which marks are made."""
        if not marks:
            return frozenset()
        joined, raw = " ".join(marks).encode(), self._tokenizer.token_bytes
        return frozenset(id for id in self._tokenizer.special_ids if raw(id) in joined)

    def _sampling(self, request: TextRequest) -> SamplingParameters:
        sampling: Sampling = request.sampling
        for token in sampling.logit_bias:
            self._check_token("logit_bias", token)
        return SamplingParameters(
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=tuple(sorted(sampling.logit_bias.items())),
            logprobs=request.logprobs,
        )

    def _encode(self, request: TextRequest) -> EncodedChat:
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            encoded = self._chat.encode(prompt, request.tools, request.reasoning)
        else:
            encoded = EncodedChat(self._tokens(prompt), AnswerForm())
        if not encoded.tokens:
            field = _field(prompt)
            raise InvalidField(f"{field}: empty, there is nothing to continue", param=field)
        return encoded

    def _tokens(self, prompt: TextPrompt | TokenPrompt | InfillPrompt) -> list[int]:
        if isinstance(prompt, TextPrompt):
            tokens = self._tokenizer.encode(prompt.text, parse_special=prompt.parse_special)
            bos_id = self._tokenizer.bos_id
            if prompt.parse_special and bos_id is not None and tokens[:2] == [bos_id, bos_id]:
                del tokens[0]  # the tokenizer's rule and the client have both put one there
        elif isinstance(prompt, InfillPrompt):
            infill = self._tokenizer.encode_infill(prompt.prefix, prompt.suffix)
            if infill is None:
                raise UnsupportedParameter(
                    "suffix: this model's vocabulary has no tokens for filling in; leave it out, or ask a code model that has",
                    param="suffix",
                )
            tokens = infill
        else:
            tokens = list(prompt.tokens)
            for token in tokens:
                self._check_token("prompt", token)
        return tokens

    def _text(self, prompt: Prompt, tokens: Sequence[int]) -> str:
        """The prompt as the client wrote it, or what its tokens say."""
        if isinstance(prompt, TextPrompt):
            return prompt.text
        if isinstance(prompt, InfillPrompt):
            raise UnsupportedParameter("echo: cannot be given together with suffix", param="echo")
        detokenizer = self._tokenizer.detokenizer()
        return "".join(map(detokenizer.add, tokens)) + detokenizer.finish()

    def _check_token(self, field: str, token: int) -> None:
        vocabulary = self._tokenizer.vocab_size
        if not 0 <= token < vocabulary:
            raise InvalidField(
                f"{field}: token id {token} is not in the vocabulary (0 to {vocabulary - 1})", param=field
            )


def _field(prompt: Prompt) -> str:
    """What the prompt is called in a request."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
