"""A request to what the batcher needs of it: templated, tokenised and checked, before any work is done."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.errors import ContextLengthExceeded, InvalidField, UnsupportedParameter
from engines.scheduling.growth import OPEN_ANSWER
from engines.text.detokenizer import Detokenizer
from engines.text.sampling import SamplingParameters
from engines.wire import ChatPrompt, InfillPrompt, Prompt, Sampling, TextPrompt, TextRequest

__all__ = ["PreparedText", "RequestPreparer", "Tokenizer"]


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer; :class:`engines.gguf.tokenizer.GgufTokenizer` is one."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_infill(self, prefix: str, suffix: str) -> list[int] | None: ...

    def detokenizer(self, *, keep_leading_space: bool = False) -> Detokenizer: ...

    def token_bytes(self, id: int) -> bytes: ...


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


class RequestPreparer:
    """Prepares the requests of one model. Threads may share it.

    Args:
        tokenizer: of the checkpoint.
        encode_chat: a chat prompt to token ids, by the model's template.
        context: tokens of prompt and answer together at most.
    """

    def __init__(self, tokenizer: Tokenizer, encode_chat: Callable[[ChatPrompt], Sequence[int]], context: int) -> None:
        self._tokenizer = tokenizer
        self._encode_chat = encode_chat
        self._context = context

    def prepare(self, request: TextRequest) -> PreparedText:
        """ContextLengthExceeded, InvalidField, UnsupportedParameter, or what the template raises."""
        if any(not stop for stop in request.stop):
            raise InvalidField("stop: an empty string cannot be a stop sequence", param="stop")
        asked = request.max_tokens
        if asked is not None and asked < (0 if request.echo else 1):
            raise InvalidField(f"max_tokens is {asked}; it must be at least 1, or 0 beside echo", param="max_tokens")
        sampling = self._sampling(request)
        tokens = tuple(self._tokens(request))
        room = self._context - len(tokens)
        if room < (0 if asked == 0 else 1):
            raise ContextLengthExceeded(
                f"The prompt has {len(tokens)} tokens; the context has {self._context}, and the answer needs at least 1.",
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
        )

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

    def _tokens(self, request: TextRequest) -> Sequence[int]:
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            tokens = self._encode_chat(prompt)
        elif isinstance(prompt, TextPrompt):
            tokens = self._tokenizer.encode(prompt.text)
        elif isinstance(prompt, InfillPrompt):
            infill = self._tokenizer.encode_infill(prompt.prefix, prompt.suffix)
            if infill is None:
                raise UnsupportedParameter(
                    "suffix: this model's vocabulary has no tokens for filling in; leave it out, or ask a code model that has",
                    param="suffix",
                )
            tokens = infill
        else:
            tokens = prompt.tokens
            for token in tokens:
                self._check_token("prompt", token)
        if not tokens:
            field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            raise InvalidField(f"{field}: empty, there is nothing to continue", param=field)
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
