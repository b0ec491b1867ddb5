"""What is asked of a model: the load, one completion, and vectors or scores of many texts.

Sizes are in bytes and times in seconds. A request crosses as one msgpack map inside ``Submit`` or cut into chunks.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engines.scheduling.settings import SchedulingSettings

__all__ = [
    "ChatMessage",
    "ChatPrompt",
    "EmbedRequest",
    "Grammar",
    "InfillPrompt",
    "ModelSpec",
    "Priority",
    "Prompt",
    "Reasoning",
    "Request",
    "Sampling",
    "ScoreRequest",
    "SimulateSpec",
    "Task",
    "TextPrompt",
    "TextRequest",
    "TokenPrompt",
    "Tool",
    "ToolUse",
    "Truncate",
]

Task = Literal["text", "vision", "embedding", "rerank", "stt", "tts"]
Priority = Literal["interactive", "normal", "batch"]
Truncate = Literal["none", "start", "end"]
"""Where a text that is too long for the model loses tokens; ``none`` refuses it."""


class SimulateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The ``simulate`` mapping of a registry entry, resolved to bytes and seconds (see ``engines/simulated.py``)."""

    weights_bytes: int
    kv_bytes_per_token: int = 0
    load_s: float = 0.0
    ttft_s: float = 0.0
    tokens_per_s: float = 0.0  # 0: as fast as it goes
    fail_load: str | None = None
    abort_after_tokens: int | None = None  # counted per worker
    abort_times: int | None = None  # None: every time
    hang_after_tokens: int | None = None
    hold_memory_s: float = 0.0


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to build one resident: files and load parameters; no request settings."""

    id: str
    task: Task
    format: Literal["gguf", "safetensors", "sim"]
    paths: tuple[str, ...]  # absolute; for a split GGUF all of its parts, in order; empty for sim
    context: int | None = None  # tokens; None: what the checkpoint says
    concurrency: int | None = None  # rows decoded together; None: the engine's choice
    kv_bits: int | None = None
    dtype: str | None = None  # compute dtype; None: float32 on CPU, the checkpoint's elsewhere
    adapter: str | None = None
    mmproj: str | None = None
    scheduling: SchedulingSettings = SchedulingSettings()
    simulate: SimulateSpec | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a chat, as the template will see it.

    ``content`` is the text (parts already joined); ``extra`` carries what templates read beside it (``tool_calls``,
    ``tool_call_id``, ``name``, ``reasoning_content``) in the OpenAI shape.
    """

    role: str
    content: str | None
    extra: dict[str, Any] = {}


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat", kw_only=True, omit_defaults=True):
    """Messages for the model's chat template. ``template`` replaces the checkpoint's own."""

    messages: tuple[ChatMessage, ...]
    template: str | None = None
    template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True  # False with a trailing assistant message: that message is continued


class TextPrompt(msgspec.Struct, frozen=True, tag="text", kw_only=True, omit_defaults=True):
    """Plain text, tokenised with the BOS rule of the tokenizer. Control tokens spelled out in it are plain text, but with
    ``parse_special``, which is for clients that write what a template would."""

    text: str
    parse_special: bool = False


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens", kw_only=True):
    """Token ids, used as they are."""

    tokens: tuple[int, ...]


class InfillPrompt(msgspec.Struct, frozen=True, tag="infill", kw_only=True):
    """Text before and after a gap, which the model fills. UnsupportedParameter where its vocabulary has no infill tokens."""

    prefix: str
    suffix: str


Prompt = ChatPrompt | TextPrompt | TokenPrompt | InfillPrompt


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is drawn. ``temperature`` 0 is greedy. Ranges are checked by the protocol parsers.

    ``frequency_penalty`` and ``presence_penalty`` count the answer's own tokens, as OpenAI's do; ``repetition_penalty`` counts
    the prompt's too (Keskar et al., 2019, "CTRL"). ``logit_bias`` is added to the logits of these token ids before any of them.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None  # None: the worker draws one
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the answer must match: all of its text, but for reasoning and tool calls.

    ``source`` is a regular expression, a grammar in llguidance's dialect of Lark or in llama.cpp's GBNF, or a JSON Schema as
    JSON text; for ``json_object`` nothing. ``field`` is the request's field that it came from, which errors name.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark"]
    source: str = ""
    field: str = "response_format"


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function the model may call.

    ``parameters`` is a JSON Schema, None where it takes none; ``strict`` binds even calls that nobody required.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tools of a request and how they may be used.

    Attributes:
        tools: what the template shows the model, in order.
        choice: ``auto`` lets the model decide; ``none`` shows the tools and allows no call; ``required`` demands at least one.
        name: with ``required``, the one function that must be called.
        parallel: whether an answer may hold several calls.
        syntax: the name of a call syntax in place of the one that the model's template shows.
    """

    tools: tuple[Tool, ...]
    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True
    syntax: str | None = None


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Thinking before the answer, for models that do. None leaves each to the model's template.

    Attributes:
        enabled: whether to think. A template that cannot be told so is a 400 when asked to stop thinking.
        effort: ``low``, ``medium``, ``high`` or what else the template takes.
        budget: tokens of thinking after which the block is closed.
        split: whether reasoning comes as events of its own; False leaves it in the text, tags included.
        lenient: what a model does not do, or its template cannot be told, is left out and not a 400.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    split: bool = True
    lenient: bool = False


class TextRequest(msgspec.Struct, frozen=True, tag="text", kw_only=True, omit_defaults=True):
    """One completion of one prompt. ``stop`` matches text, over any token split.

    Attributes:
        max_tokens: None is to the end of the context; 0 is allowed beside ``echo`` only.
        clamp: ``max_tokens`` is a bound, and the answer may end earlier where the context does; else there has to be room for all.
        logprobs: how many alternatives are reported beside each token's own log-probability; None reports neither.
        echo: the prompt comes first in the answer's text; with ``logprobs``, with its tokens' own.
        siblings: any number that the connection's requests of the same prompt share, and no others: they are submitted
            one after the other, and the prompt is read once for all that can start together.
        whole: nobody reads the answer before its end, so that the worker may keep text back for a moment.
    """

    prompt: Prompt
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    clamp: bool = False
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    echo: bool = False
    siblings: int | None = None
    priority: Priority = "normal"
    grammar: Grammar | None = None
    tools: ToolUse | None = None
    reasoning: Reasoning = Reasoning()
    whole: bool = False


class EmbedRequest(msgspec.Struct, frozen=True, tag="embed", kw_only=True, omit_defaults=True):
    """Texts, or token ids as they are, to one vector each. Answered by ``Vectors``, in the order of the inputs.

    Attributes:
        inputs: of one request; token ids get nothing around them, no BOS, no prompt.
        purpose: which of the model's prompts comes before each text; None: the model's default prompt, where it has one.
        instruction: the task, for models whose query prompt takes one; InvalidField where the model's takes none.
        dimensions: so many leading numbers, normalised again; InvalidField where the model is not made for that.
        truncate: what becomes of an input that is too long: ContextLengthExceeded unless it is ``start`` or ``end``.
        normalize: to length 1; False leaves the lengths that the model gives.
    """

    inputs: tuple[str | tuple[int, ...], ...]
    purpose: Literal["query", "document"] | None = None
    instruction: str | None = None
    dimensions: int | None = None
    truncate: Truncate = "none"
    normalize: bool = True
    priority: Priority = "normal"


class ScoreRequest(msgspec.Struct, frozen=True, tag="score", kw_only=True, omit_defaults=True):
    """How well documents answer a query. Answered by ``Scores``, in the order of the documents.

    Attributes:
        queries: one for all documents, or one a document.
        documents: texts.
        instruction: the task, for models whose prompt takes one; InvalidField for the others.
        truncate: of a pair that is too long the document loses tokens, or the request is refused.
        document_tokens: a document has at most so many; it loses the rest at its end, whatever ``truncate`` says.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    instruction: str | None = None
    truncate: Truncate = "none"
    document_tokens: int | None = None
    priority: Priority = "normal"


Request = TextRequest | EmbedRequest | ScoreRequest
