"""``POST /tokenize`` and ``POST /detokenize``: vLLM's shapes, and llama.cpp's beside them.

=============  ===================================================  ===========================================
asked with     options of its own                                   answered with
=============  ===================================================  ===========================================
``prompt``     ``add_special_tokens`` ``return_token_strs``         ``count`` ``max_model_len`` ``tokens``, and
``messages``   these, ``add_generation_prompt``                     ``token_strs`` where asked for
               ``continue_final_message`` ``chat_template``
               ``chat_template_kwargs`` ``tools``
``content``    ``add_special`` ``parse_special`` ``with_pieces``    ``tokens``: ids, or ids with their pieces
=============  ===================================================  ===========================================

Source of the shapes: the servers of vLLM and llama.cpp. Text that is a ``prompt`` or a message is read as the model's worker reads
it, so that the count is what an answer is charged for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from engines.wire import ChatMessage, ChatPrompt, DecodeTokens, EncodeChat, EncodeText, TokenizerAnswer, ToolUse
from gateway.errors import InvalidRequest
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.json_body import decode_object
from gateway.protocols.openai_messages import parse_messages
from gateway.protocols.openai_tools import read_tools
from gateway.protocols.options import (
    Limits,
    OptionTables,
    characters_in,
    read_boolean,
    read_object,
    read_string,
    read_token_ids,
    shown,
    sort_options,
)
from gateway.protocols.text_options import read_template_kwargs
from gateway.registry.catalog import RequestSettings

__all__ = [
    "DETOKENIZE_OPTIONS",
    "OPTIONS_OF",
    "TOKENIZE_OPTIONS",
    "DetokenizeRequest",
    "TokenizeRequest",
    "parse_detokenize",
    "parse_tokenize",
    "render_detokenized",
    "render_tokenized",
]

OPTIONS_OF = {
    "prompt": frozenset({"add_special_tokens", "return_token_strs"}),
    "messages": frozenset(
        {
            "add_generation_prompt",
            "add_special_tokens",
            "chat_template",
            "chat_template_kwargs",
            "continue_final_message",
            "return_token_strs",
            "tools",
        }
    ),
    "content": frozenset({"add_special", "parse_special", "with_pieces"}),
}
"""What is tokenised → the options that go with it."""

TOKENIZE_OPTIONS = OptionTables(
    honoured=frozenset({"model", *OPTIONS_OF}).union(*OPTIONS_OF.values()),
    hints=frozenset(),
    refused={"mm_processor_kwargs": ({},)},
)
DETOKENIZE_OPTIONS = OptionTables(honoured=frozenset({"model", "tokens"}), hints=frozenset(), refused={})


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. ``model`` None leaves it to a registry with one text model. One of ``text`` and ``messages`` is given.

    ``strings`` asks for the tokens as the vocabulary writes them; ``pieces`` is llama.cpp's wish, None where the request has not
    its shape.
    """

    model: str | None
    text: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    tools: ToolUse | None = None
    template: str | None = None
    template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continues: bool = True
    add_special: bool = True
    parse_special: bool = False
    strings: bool = False
    pieces: bool | None = None

    def what(self, settings: RequestSettings) -> EncodeText | EncodeChat:
        """What the tokenizer is asked, over the model's own settings."""
        if self.text is not None:
            return EncodeText(text=self.text, add_special=self.add_special, parse_special=self.parse_special)
        ask = ChatAsk(
            model=self.model or "",
            messages=self.messages or (),
            tools=self.tools,
            template_kwargs=self.template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
        )
        if self.template is not None:
            settings = replace(settings, chat_template=self.template)
        (request,) = ask.text_requests(settings, iter(()))
        assert isinstance(request.prompt, ChatPrompt)
        return EncodeChat(
            prompt=request.prompt,
            tools=request.tools,
            reasoning=request.reasoning,
            add_special=self.add_special,
            continues=self.continues,
        )


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request; ``model`` as above."""

    model: str | None
    tokens: tuple[int, ...]

    @property
    def what(self) -> DecodeTokens:
        """What the tokenizer is asked."""
        return DecodeTokens(tokens=self.tokens)


def parse_tokenize(body: bytes, limits: Limits = Limits()) -> TokenizeRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, _ = sort_options(decode_object(body, limits.max_values), TOKENIZE_OPTIONS)
    kind = _kind(options)
    for name in sorted(options.keys() - OPTIONS_OF[kind] - {"model", kind}):
        homes = " or ".join(home for home, names in OPTIONS_OF.items() if name in names)
        raise InvalidRequest(f"{name} goes with {homes}, not with {kind}", param=name)
    model = _read_model(options)
    if kind == "content":
        return TokenizeRequest(
            model=model,
            text=_read_text(options, kind, limits),
            add_special=read_boolean(options, "add_special") or False,
            parse_special=read_boolean(options, "parse_special") is not False,
            pieces=read_boolean(options, "with_pieces") or False,
        )
    add_special = read_boolean(options, "add_special_tokens") is not False
    strings = read_boolean(options, "return_token_strs") or False
    if kind == "prompt":
        text = _read_text(options, kind, limits)
        return TokenizeRequest(model=model, text=text, add_special=add_special, strings=strings)
    messages = parse_messages(options["messages"])
    limits.check_chars(sum(map(_characters, messages)), "messages")
    kwargs = read_template_kwargs(read_object(options, "chat_template_kwargs"))
    limits.check_chars(characters_in(kwargs), "chat_template_kwargs")
    tools = read_tools({"tools": options.get("tools")})
    limits.check_chars(characters_in(options.get("tools")), "tools")
    template = read_string(options, "chat_template") if "chat_template" in options else None
    limits.check_chars(len(template or ""), "chat_template")
    add_generation_prompt, continues = _read_turn(options, messages[-1])
    return TokenizeRequest(
        model=model,
        messages=messages,
        tools=tools,
        template=template,
        template_kwargs=kwargs,
        add_generation_prompt=add_generation_prompt,
        continues=continues,
        add_special=add_special,
        strings=strings,
    )


def _kind(options: Mapping[str, Any]) -> str:
    given = [name for name in OPTIONS_OF if name in options]
    if not given:
        raise InvalidRequest("prompt is missing; prompt, messages or content says what to tokenize", param="prompt")
    if len(given) > 1:
        raise InvalidRequest(f"{given[1]}: only one of prompt, messages and content may be given", param=given[1])
    return given[0]


def _read_model(options: Mapping[str, Any]) -> str | None:
    return read_string(options, "model") if "model" in options else None


def _read_text(options: Mapping[str, Any], field: str, limits: Limits) -> str:
    text = options[field]
    if not isinstance(text, str):
        raise InvalidRequest(f"{field} is {shown(text)}; it must be a string", param=field)
    limits.check_chars(len(text), field)
    return text


def _characters(message: ChatMessage) -> int:
    return max(1, len(message.content or "") + characters_in(message.extra))


def _read_turn(options: Mapping[str, Any], last: ChatMessage) -> tuple[bool, bool]:
    """Whether the text ends with the beginning of an answer, and whether else the last message is left open.

    1. Without either option: as a chat of these messages is answered. A last message of the assistant's is gone on with.
    2. Both say no: the conversation as it stands, every turn closed.
    """
    begin, go_on = read_boolean(options, "add_generation_prompt"), read_boolean(options, "continue_final_message")
    if begin and go_on:
        message = "continue_final_message is true; add_generation_prompt must be false or absent beside it"
        raise InvalidRequest(message, param="continue_final_message")
    if last.role == "assistant" and last.content is not None and "tool_calls" not in last.extra:
        # 1. and 2.
        return begin is True or (go_on is False and begin is None), go_on is not False
    if go_on:
        message = "continue_final_message is true; the last message must be an assistant's text"
        raise InvalidRequest(message, param="continue_final_message")
    return begin is not False, True


def parse_detokenize(body: bytes, limits: Limits = Limits()) -> DetokenizeRequest:  # noqa: B008 (frozen)
    """The request in ``body``. Whether an id is in the vocabulary, the tokenizer says."""
    options, _ = sort_options(decode_object(body, limits.max_values), DETOKENIZE_OPTIONS)
    model = _read_model(options)
    tokens = options.get("tokens")
    if not isinstance(tokens, list):
        what = "is missing" if tokens is None else f"is {shown(tokens)}"
        raise InvalidRequest(f"tokens {what}; it must be an array of token ids", param="tokens")
    limits.check_chars(len(tokens), "tokens")
    return DetokenizeRequest(model=model, tokens=read_token_ids(tokens, "tokens"))


def render_tokenized(request: TokenizeRequest, answer: TokenizerAnswer, context: int | None) -> bytes:
    """The answer in the request's shape. ``context`` is the model's, in tokens."""
    body: dict[str, Any]
    if request.pieces is None:
        body = {"count": len(answer.tokens), "max_model_len": context, "tokens": answer.tokens}
        body["token_strs"] = answer.texts if request.strings else None
    elif request.pieces:
        pairs = zip(answer.tokens, answer.pieces, strict=True)
        body = {"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pairs]}
    else:
        body = {"tokens": answer.tokens}
    return msgspec.json.encode(body)


def _piece(piece: bytes) -> str | list[int]:
    """Text, or its bytes where they are no whole code points."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def render_detokenized(answer: TokenizerAnswer) -> bytes:
    """The text, under vLLM's name and llama.cpp's."""
    return msgspec.json.encode({"prompt": answer.text, "content": answer.text})
