"""What a model will take in memory, worked out from its header before anything is loaded. Integer bytes.

- **static**: what loading adds to an empty worker, one with its imports done: each matrix as many bytes as in the file
  (K-quant leaves keep the file's blocks, F16 and BF16 matrices too); vectors (norms, biases) as compute floats; the
  tokenizer's tables, an entry for each token and each merge. Not in it: up to 10 MiB of libraries' pages and BLAS's
  buffers that the first request touches.
- **KV**: what the model's family says its layers keep (:class:`engines.gguf.families.Plan`). Of a model that no family takes, a
  layer of full attention keeps ``kv_heads × (key_length + value_length)`` numbers a token for ever; one of sliding attention no
  more than its window. Which layers may slide is a fact of the architecture (:data:`SLIDING_PERIOD`). Caches grow in steps of
  256 tokens (mlx-lm's ``KVCache.step``). Layers with a recurrent state keep the same of a row, whatever its length.
- **transient**: what comes on top while a step runs, for the first chunk of a prompt and a decode step, live together. With
  each token that a later chunk looks back at, a CPU's attention scores grow by ``2 × heads × 2 KiB``.

Sources: ``KVCache`` and ``RotatingKVCache`` of mlx-lm and the ``make_cache`` of each model class; key names from the GGUF
specification.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engines.detect import ENCODER_TASKS, Checkpoint
from engines.encoders.families import blueprint_of
from engines.encoders.hf_config import HfConfig, sentence_limit
from engines.encoders.shape import Shape
from engines.errors import CheckpointError, GgufFormatError, UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.gguf.families import FAMILIES, Plan
from engines.gguf.families import Checkpoint as FamilyCheckpoint
from engines.header import GgufArray, GgufHeader, SafetensorsHeader

__all__ = ["SLIDING_PERIOD", "Footprint", "active_parameters", "estimate"]

SLIDING_PERIOD: Final = MappingProxyType({"gemma3": 6, "llama": 0, "phi3": 0})
"""Architectures whose caches may be windowed: every n-th layer has full attention and the others slide; 0: all of them slide.
Whether they do, ``attention.sliding_window`` says. The rest cache everything, whatever window their metadata names."""

ATTENTIONLESS: Final = frozenset({"mamba", "mamba2"})
"""Architectures without attention, whose files need not say that they have no heads."""

CACHE_STEP: Final = 256  # tokens
PREFILL_TOKENS: Final = 512  # the chunk that the transient bytes are worked out for
DECODE_ROWS: Final = 4
EXPERTS: Final = re.compile(
    r"_exps\.|ffn_(?:gate|up|down)\.\d"
)  # in names of tensors: of all experts, in older files of one
LARGEST_NUMBER: Final = 1 << 31  # llama.cpp keeps all of these in 32 bits
_BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.")
TOKENIZER_BYTES: Final = 160  # a token or a merge, measured: the tables of the `tokenizers` library
SENTENCEPIECE_BYTES: Final = 50  # a token of SentencePiece's, measured: text, place in the index, score
ENCODER_TOKENIZER_BYTES: Final = 330  # a token, measured: the tables of the `tokenizers` library
UNIGRAM_TOKENIZER_BYTES: Final = 860  # the same, of a unigram model
ENCODER_TOKENS: Final = 2048  # of the text whose activations a row of the grant has room for
ENCODER_BUSY_TOKENS: Final = 128  # of each of the texts of a batch that keeps a GPU busy


@dataclass(frozen=True)
class Footprint:
    """Estimated bytes. ``kv_bytes_per_token`` is of the layers that grow for ever; windowed ones come on top, bounded."""

    static_bytes: int
    kv_bytes_per_token: int  # bytes
    transient_bytes: int
    context: int  # tokens
    kv_window_tokens: int = 0  # 0: no layer is windowed
    kv_window_bytes_per_token: int = 0  # of the windowed layers, up to kv_window_tokens
    state_bytes: int = 0  # a row, of layers that keep a state instead of tokens

    def kv_bytes(self, tokens: int, rows: int = 1) -> int:
        """KV cache of ``rows`` rows of ``tokens`` tokens each, rounded up to whole cache steps, and their states."""
        held = -(-tokens // CACHE_STEP) * CACHE_STEP
        windowed = min(held, self.kv_window_tokens) * self.kv_window_bytes_per_token
        return rows * (held * self.kv_bytes_per_token + windowed + self.state_bytes)


def estimate(
    model: GgufHeader | Checkpoint, *, context: int | None = None, float_bytes: int = 4, cuda: bool = False
) -> Footprint:
    """The footprint of a GGUF text model, of an embedding model or of a reranker.

    ``context`` replaces the checkpoint's; ``float_bytes`` is the width of activations, vectors and KV: 4 on CPU, where
    compute is float32, and 2 elsewhere; ``cuda`` says that texts are computed in large batches. Raises UnsupportedModel when
    the header does not say enough, naming the key.
    """
    if isinstance(model, Checkpoint) and model.task in ENCODER_TASKS:
        return _of_encoder(model, context, float_bytes, cuda)
    header = model.header if isinstance(model, Checkpoint) else model
    if isinstance(header, SafetensorsHeader):
        raise UnsupportedModel(f"{header.paths[0]}: the footprint of safetensors checkpoints cannot be estimated")
    architecture = header.text("general.architecture") or ""
    layers = _layers(header, architecture)
    width = _number(header, f"{architecture}.embedding_length")
    states_alone = [0] * layers if architecture in ATTENTIONLESS else None
    heads = _a_layer(header, f"{architecture}.attention.head_count", layers, states_alone)
    kv_heads = _a_layer(header, f"{architecture}.attention.head_count_kv", layers, heads)
    head_width = width // max(1, *heads)
    key_width = _number(header, f"{architecture}.attention.key_length", head_width)
    context = context or _number(header, f"{architecture}.context_length", 0)
    plan = _plan(header, architecture, context)
    if plan is not None:
        window = max((each for each in plan.windows if each), default=0)
        kept, windowed = (numbers * float_bytes for numbers in plan.kv_numbers_per_token())
        states = plan.state_numbers * float_bytes + plan.state_float32 * 4
    else:
        value_width = _number(header, f"{architecture}.attention.value_length", head_width)
        layer_bytes = [count * (key_width + value_width) * float_bytes for count in kv_heads]
        window, sliding = _windows(header, architecture, layers, context)
        windowed = sum(size for size, slides in zip(layer_bytes, sliding, strict=True) if slides)
        kept, states = sum(layer_bytes) - windowed, 0
    vocabulary = _length(header, "tokenizer.ggml.tokens")
    feed_forward = max(_a_layer(header, f"{architecture}.feed_forward_length", layers, [4 * width] * layers))
    scores = 2 * max(heads) * PREFILL_TOKENS  # of a token, before and after their softmax
    chunk = PREFILL_TOKENS * float_bytes * (4 * width + 3 * feed_forward + 2 * max(heads) * key_width + scores)
    chunk += (
        PREFILL_TOKENS
        * float_bytes
        * (_experts_of_a_token(header, architecture, width, feed_forward) + _expanded(plan))
    )
    chunk += 4 * (plan.chunk_float32 if plan is not None else 0)
    chunk += PREFILL_TOKENS * windowed  # a windowed cache takes a whole chunk in, and lets go at the first decode step
    logits = DECODE_ROWS * 3 * vocabulary * float_bytes  # logits, log-probabilities, and what sampling makes of them
    return Footprint(
        static_bytes=_static_bytes(header, float_bytes, layers - plan.spare_blocks if plan is not None else layers)
        + _tokenizer_bytes(header, vocabulary),
        kv_bytes_per_token=kept,
        transient_bytes=chunk + logits,
        context=context,
        kv_window_tokens=window,
        kv_window_bytes_per_token=windowed,
        state_bytes=states,
    )


def _experts_of_a_token(header: GgufHeader, architecture: str, width: int, feed_forward: int) -> int:
    """Numbers that a token's experts, side by side, take while they compute: gate, up and their product, and two answers.

    ``feed_forward`` is the width of those whose files do not say it.
    """
    used = _number(header, f"{architecture}.expert_used_count", 0)
    return used * (3 * _number(header, f"{architecture}.expert_feed_forward_length", feed_forward) + 2 * width)


def _expanded(plan: Plan | None) -> int:
    """Numbers of a token's keys and values of all heads, where the caches keep the latent that they come out of."""
    if plan is None or "kv_lora_rank" not in plan.config:
        return 0
    return int(plan.config["num_attention_heads"] * (plan.config["qk_nope_head_dim"] + plan.config["v_head_dim"]))


def active_parameters(header: GgufHeader) -> int:
    """Weights that one token is computed with: all but those of experts that are not chosen. Embeddings count whole."""
    architecture = header.text("general.architecture") or ""
    experts = _number(header, f"{architecture}.expert_count", 0)
    used = _number(header, f"{architecture}.expert_used_count", 0)
    share = used / experts if 0 < used < experts else 1
    return sum(
        int(tensor.count * share) if EXPERTS.search(tensor.name) else tensor.count for tensor in header.tensors.values()
    )


def _plan(header: GgufHeader, architecture: str, context: int) -> Plan | None:
    """What the family makes of the header; None where there is no such family, or it refuses: the keys alone are read then."""
    family = FAMILIES.get(architecture)
    if family is None:
        return None
    try:
        return family.plan(
            FamilyCheckpoint(header, Hyperparameters(header.path, architecture, header.metadata), context)
        )
    except CheckpointError:
        return None


def _static_bytes(header: GgufHeader, float_bytes: int, layers: int) -> int:
    """Of all tensors but those of blocks behind the layers that compute."""
    return sum(
        tensor.nbytes if len(tensor.shape) > 1 else math.prod(tensor.shape) * float_bytes
        for name, tensor in header.tensors.items()
        if not ((block := _BLOCK.match(name)) and int(block[1]) >= layers)
    )


def _windows(header: GgufHeader, architecture: str, layers: int, context: int) -> tuple[int, list[bool]]:
    """Window in tokens (0 without), and for each layer whether it slides."""
    window = _number(header, f"{architecture}.attention.sliding_window", 0)
    if architecture not in SLIDING_PERIOD or not 0 < window < context:
        return 0, [False] * layers
    key = f"{architecture}.attention.sliding_window_pattern"
    pattern = header.metadata.get(key)
    if isinstance(pattern, GgufArray):  # a bool a layer: true where it slides
        return window, [bool(slides) for slides in _a_layer(header, key, layers, None)]
    period = _number(header, key, 0) or SLIDING_PERIOD[architecture]
    return window, [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]


def _tokenizer_bytes(header: GgufHeader, vocabulary: int) -> int:
    kind = header.text("tokenizer.ggml.model")
    if kind == "llama":
        return vocabulary * SENTENCEPIECE_BYTES
    if kind == "t5":
        return vocabulary * UNIGRAM_TOKENIZER_BYTES
    return (vocabulary + _length(header, "tokenizer.ggml.merges")) * TOKENIZER_BYTES


def _of_encoder(model: Checkpoint, context: int | None, float_bytes: int, cuda: bool) -> Footprint:
    """No KV cache: what a row keeps is room for the activations of a text of up to ENCODER_TOKENS; a longer one asks for more. On
    CUDA there is room for batches that keep the device busy, too."""
    config, most = None, None
    if isinstance(model.header, SafetensorsHeader):
        directory = Path(model.paths[0]).parent
        config, most = HfConfig.read(directory), sentence_limit(directory)
    static = sum(tensor.nbytes for tensor in model.header.tensors.values())
    shape = blueprint_of(model.header, config).shape
    unigram = (model.tokenizer or "").startswith("unigram") or model.architecture in ("xlm-roberta", "camembert")
    context = min(tokens for tokens in (shape.context, context, most) if tokens)
    row = shape.row_bytes(min(context, ENCODER_TOKENS), float_bytes, cuda=cuda)
    return Footprint(
        static_bytes=static + shape.vocabulary * (UNIGRAM_TOKENIZER_BYTES if unigram else ENCODER_TOKENIZER_BYTES),
        kv_bytes_per_token=0,
        transient_bytes=row,
        context=context,
        state_bytes=max(row, _busy_bytes(shape, context, float_bytes)) if cuda else row,
    )


def _busy_bytes(shape: Shape, context: int, float_bytes: int) -> int:
    """A row's part of the grant: a batch may have half of four of them, and that is room for all the places that cost nothing."""
    length = min(context, ENCODER_BUSY_TOKENS)
    return -(-shape.free_places // (2 * length)) * shape.row_bytes(length, float_bytes, cuda=True)


def _length(header: GgufHeader, key: str) -> int:
    value = header.metadata.get(key)
    return len(value) if isinstance(value, GgufArray) else 0


def _layers(header: GgufHeader, architecture: str) -> int:
    layers = _number(header, f"{architecture}.block_count")
    if not 0 < layers <= len(header.tensors):  # so that a wild number is not taken for the length of a list
        raise GgufFormatError(
            header.path, f"{architecture}.block_count is {layers}, with {len(header.tensors)} tensors"
        )
    return layers


def _a_layer(header: GgufHeader, key: str, layers: int, default: list[int] | None) -> list[int]:
    """One number for each layer, from an array or from one number for all."""
    values = header.integers(key, layers)
    if values is None:
        values = default
    if values is None:
        raise UnsupportedModel(f"{header.path}: the metadata has no {key}")
    for value in values:
        _check(header, key, value)
    return values


def _number(header: GgufHeader, key: str, default: int | None = None) -> int:
    value = header.integer(key)
    if value is None:
        value = default
    if value is None:
        raise UnsupportedModel(f"{header.path}: the metadata has no {key}")
    return _check(header, key, value)


def _check(header: GgufHeader, key: str, value: int) -> int:
    if not 0 <= value < LARGEST_NUMBER:
        raise GgufFormatError(header.path, f"{key} is {value}; from 0 to {LARGEST_NUMBER - 1} is allowed")
    return value
