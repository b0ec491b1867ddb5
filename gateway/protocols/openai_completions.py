"""``POST /v1/completions``: OpenAI's older format, text or token ids in and text out; no chat template.

Source of shapes and ranges: OpenAI's API reference, "Completions (Legacy)".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from engines.wire import Grammar, InfillPrompt, Reasoning, TextPrompt, TextRequest, TokenPrompt
from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.protocols.completion import AnswerHead, BodyFormat, Completion
from gateway.protocols.grammar_options import GRAMMAR_OPTIONS, read_grammar
from gateway.protocols.json_body import decode_object
from gateway.protocols.openai_logprobs import CompletionLogprobs, mean_logprob
from gateway.protocols.openai_stream import (
    OpenAIStream,
    StreamOptions,
    encode_body,
    read_stream_options,
)
from gateway.protocols.options import (
    Limits,
    OptionTables,
    read_boolean,
    read_integer,
    read_string,
    read_token_ids,
    shown,
    sort_options,
)
from gateway.protocols.piece import EndPiece, Piece, TextPiece
from gateway.protocols.text_options import MAX_CHOICES, TextOptions, read_text_options, text_requests
from gateway.registry.catalog import RequestSettings

__all__ = ["DEFAULT_MAX_TOKENS", "OPTIONS", "CompletionRequest", "CompletionStream", "parse", "render_body"]

DEFAULT_MAX_TOKENS = 16
_AS_IT_COMES = Reasoning(split=False)  # the format has text and no place beside it

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "best_of",
            "echo",
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "max_tokens",
            "min_p",
            "model",
            "n",
            "presence_penalty",
            "priority",
            "prompt",
            "repetition_penalty",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "suffix",
            "temperature",
            "top_k",
            "top_p",
        }
    )
    | GRAMMAR_OPTIONS,
    hints=frozenset(
        {
            "cache_prompt",
            "guided_decoding_backend",
            "metadata",
            "prompt_cache_key",
            "safety_identifier",
            "store",
            "user",
        }
    ),
    refused={
        "ignore_eos": (False,),
        "min_tokens": (0,),
        "repeat_penalty": (1,),
    },
    instead={"repeat_penalty": "repetition_penalty"},
)

_MAX_LOGPROBS = 5
_MAX_BEST_OF = 20
_PROMPT = "a string, an array of token ids, or an array of these"


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request.

    Attributes:
        choices: how many each prompt is answered with.
        made: how many are made for that, of which the best are answered.
        logprobs: how many alternatives each token is shown with, None for none of it.
        ignored: the hints it carried.
    """

    model: str
    prompts: tuple[TextPrompt | TokenPrompt | InfillPrompt, ...]
    options: TextOptions
    choices: int
    made: int
    logprobs: int | None
    echo: bool
    grammar: Grammar | None
    stream: StreamOptions
    ignored: tuple[str, ...]

    def text_requests(self, settings: RequestSettings, siblings: Iterator[int]) -> list[TextRequest]:
        """What the worker is asked, over the model's own settings: for each prompt as many as are to be made. ``siblings`` has
        unused numbers.
        """
        # The best are found by their log-probabilities.
        logprobs = 0 if self.logprobs is None and self.made > self.choices else self.logprobs
        return [
            request
            for prompt in self.prompts
            for request in text_requests(
                prompt,
                self.options,
                settings,
                choices=self.made,
                siblings=siblings,
                logprobs=logprobs,
                echo=self.echo,
                max_tokens=DEFAULT_MAX_TOKENS,
                grammar=self.grammar,
                reasoning=_AS_IT_COMES,
            )
        ]

    def stream_format(self, head: AnswerHead) -> CompletionStream | None:
        """How the answer is streamed, None where it is not."""
        if not self.stream.wanted:
            return None
        return CompletionStream(head, include_usage=self.stream.include_usage, siblings=self.made)

    def body_format(self, head: AnswerHead) -> BodyFormat:
        """How an unstreamed answer looks."""
        return partial(
            render_body,
            head,
            choices=self.choices,
            made=self.made,
            logprobs=self.logprobs is not None,
            echo=self.echo,
        )


def parse(body: bytes, limits: Limits = Limits()) -> CompletionRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    model = read_string(options, "model")
    echo = read_boolean(options, "echo") or False
    prompts = _with_suffix(_prompts(options.get("prompt"), limits), options, echo, limits)
    grammar = read_grammar(options)
    if grammar is not None:
        limits.check_chars(len(grammar.source), grammar.field)
    stream = read_stream_options(options)
    choices, made = _read_choices(options, stream.wanted)
    if len(prompts) * made > limits.max_inputs:
        message = (
            f"{len(prompts)} prompts with {made} choices each are more than server.max_inputs, {limits.max_inputs}"
        )
        raise RequestTooLarge(message, param="prompt")
    return CompletionRequest(
        model=model,
        prompts=prompts,
        options=read_text_options(options, least_tokens=0 if echo else 1),
        choices=choices,
        made=made,
        logprobs=_read_logprobs(options),
        echo=echo,
        grammar=grammar,
        stream=stream,
        ignored=ignored + stream.ignored,
    )


def _read_choices(options: dict[str, Any], stream: bool) -> tuple[int, int]:
    """``n`` and ``best_of``: how many are answered, of how many."""
    choices = read_integer(options, "n", 1, MAX_CHOICES) or 1
    made = read_integer(options, "best_of", 1, _MAX_BEST_OF)
    if made is None:
        return choices, choices
    if made < choices:
        raise InvalidRequest(f"best_of is {made}; it must not be below n, which is {choices}", param="best_of")
    if stream and made > choices:
        message = (
            f"best_of is {made}; when stream is true it must be n, which is {choices}: the best is known at the end"
        )
        raise InvalidRequest(message, param="best_of")
    return choices, made


def _read_logprobs(options: dict[str, Any]) -> int | None:
    """A count in this format; false, which some clients send, asks for none."""
    if options.get("logprobs") is False:
        return None
    return read_integer(options, "logprobs", 0, _MAX_LOGPROBS)


def _with_suffix(
    prompts: tuple[TextPrompt | TokenPrompt, ...], options: dict[str, Any], echo: bool, limits: Limits
) -> tuple[TextPrompt | TokenPrompt | InfillPrompt, ...]:
    """The prompts as the text before a gap, where there is a suffix. An empty one asks for nothing."""
    suffix = options.get("suffix")
    if suffix is None or suffix == "":
        return prompts
    if not isinstance(suffix, str):
        raise InvalidRequest(f"suffix is {shown(suffix)}; it must be a string", param="suffix")
    if echo:
        raise InvalidRequest("suffix is given; echo must be false beside it", param="suffix")
    limits.check_chars(len(suffix) * len(prompts), "suffix")
    return tuple(_before_gap(prompt, suffix) for prompt in prompts)


def _before_gap(prompt: TextPrompt | TokenPrompt, suffix: str) -> InfillPrompt:
    if isinstance(prompt, TokenPrompt):
        raise InvalidRequest("suffix is given; prompt must be text beside it, not token ids", param="suffix")
    return InfillPrompt(prefix=prompt.text, suffix=suffix)


def _prompts(value: Any, limits: Limits) -> tuple[TextPrompt | TokenPrompt, ...]:
    if value is None:
        raise InvalidRequest(f"prompt is missing; it must be {_PROMPT}", param="prompt")
    if isinstance(value, str):
        limits.check_chars(len(value), "prompt")
        return (TextPrompt(text=value),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"prompt is {shown(value)}; it must be {_PROMPT}", param="prompt")
    if isinstance(value[0], int | float) and not isinstance(value[0], bool):
        return (_tokens(value, "prompt", limits),)
    limits.check_inputs(len(value), "prompt")
    limits.check_chars(sum(len(item) for item in value if isinstance(item, str | list)), "prompt")
    return tuple(_prompt(item, f"prompt[{i}]", limits) for i, item in enumerate(value))


def _prompt(value: Any, field: str, limits: Limits) -> TextPrompt | TokenPrompt:
    if isinstance(value, str):
        return TextPrompt(text=value)
    if isinstance(value, list) and value:
        return _tokens(value, field, limits)
    raise InvalidRequest(f"{field} is {shown(value)}; it must be a string or an array of token ids", param=field)


def _tokens(values: list[Any], field: str, limits: Limits) -> TokenPrompt:
    limits.check_chars(len(values), field)  # a token is at least a character
    return TokenPrompt(tokens=read_token_ids(values, field))


class CompletionStream(OpenAIStream):
    """A streamed answer: text, then a chunk with the finish reason, each choice."""

    object_name = "text_completion"

    def __init__(self, head: AnswerHead, *, include_usage: bool = False, siblings: int = 1) -> None:
        super().__init__(head, include_usage=include_usage, siblings=siblings)
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)

    def _choices(self, piece: Piece) -> list[dict[str, Any]]:
        if isinstance(piece, TextPiece):
            logprobs = self._logprobs[piece.index].of(piece.logprobs) if piece.logprobs else None
            return [_choice(piece.index, piece.text, logprobs, None)]
        if isinstance(piece, EndPiece):
            return [_choice(piece.index, "", None, piece.finish.reason)]
        return []  # it asks for neither tools nor thinking apart from the text


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}


def render_body(
    head: AnswerHead,
    completions: Sequence[Completion],
    *,
    choices: int = 1,
    made: int = 1,
    logprobs: bool = False,
    echo: bool = False,
) -> bytes:
    """The unstreamed answer: of the ``made`` completions of each prompt the best ``choices``, best first if there is a choice."""
    shown: list[Completion] = []
    for start in range(0, len(completions), made):
        siblings = completions[start : start + made]
        if made > choices:
            siblings = sorted(siblings, key=partial(_probability, echo=echo), reverse=True)[:choices]
        shown += siblings
    objects = [
        _choice(
            index,
            completion.text,
            CompletionLogprobs().of(completion.logprobs) if logprobs else None,
            completion.finish.reason,
        )
        for index, completion in enumerate(shown)
    ]
    return encode_body(head, "text_completion", objects, completions, siblings=made)


def _probability(completion: Completion, echo: bool) -> float:
    """Its mean log-probability a token, without those of an echoed prompt."""
    return mean_logprob(completion.logprobs[completion.finish.usage.prompt_tokens if echo else 0 :])
