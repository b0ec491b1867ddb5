"""Layers that keep a state of fixed size for each row, instead of keys and values for each token: which, and how much.

From a header alone, without MLX, so that the gateway knows what a row costs before anything is loaded. A state-space layer, a
delta net and a short convolution keep the last inputs of their convolution, in the dtype of activations; the first two also
keep a matrix a head, which mlx-lm keeps in float32 whatever the activations are.

Sources: the converters of llama.cpp for the keys, ``make_cache`` of mlx-lm's classes for what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engines.errors import CheckpointError, GgufFormatError
from engines.header import GgufHeader

__all__ = ["RecurrentLayers", "model_layers", "recurrent_layers"]

_BY_INTERVAL: Final = frozenset(
    {"qwen3next", "qwen35", "qwen35moe"}
)  # every n-th layer has attention, or a list says which
_BY_KV_HEADS: Final = frozenset({"granitehybrid", "jamba", "kimi-linear", "lfm2", "lfm2moe"})  # no KV heads: recurrent
_BY_KV_HEADS_AND_WIDTH: Final = frozenset({"nemotron_h", "nemotron_h_moe"})  # neither KV heads nor a feed-forward width
_ALL: Final = frozenset({"mamba", "mamba2"})
_FIRST_MAMBA: Final = frozenset({"jamba", "mamba"})  # whose convolution sees the values alone, not their keys
_BESIDE_ATTENTION: Final = frozenset({"falcon-h1"})  # each layer is both

FULL_ATTENTION_INTERVAL: Final = 4  # layers; llama.cpp's default where no key says it


@dataclass(frozen=True)
class RecurrentLayers:
    """What a model's layers keep, and the numbers that one recurrent layer keeps of a row."""

    recurrent: tuple[bool, ...]  # a layer: it keeps a state
    attention: tuple[bool, ...]  # a layer: it keeps keys and values
    columns: int  # of activations: the inputs of a convolution that later ones need
    state: int  # float32

    def row_bytes(self, float_bytes: int) -> int:
        """Bytes of a row's states in all layers; ``float_bytes`` is the width of activations."""
        return sum(self.recurrent) * (self.columns * float_bytes + self.state * 4)


def model_layers(header: GgufHeader) -> int:
    """Layers that compute: the file's blocks without those at the end that predict further tokens. GgufFormatError for a wild
    number."""
    return _blocks(header) - (header.integer(f"{header.text('general.architecture')}.nextn_predict_layers") or 0)


def recurrent_layers(header: GgufHeader) -> RecurrentLayers | None:
    """None for an architecture without such layers. CheckpointError when the metadata does not say how large they are."""
    architecture = header.text("general.architecture") or ""
    layers = model_layers(header)
    if architecture in _ALL:
        recurrent, attention = (True,) * layers, (False,) * layers
    elif architecture in _BESIDE_ATTENTION:
        recurrent, attention = (True,) * layers, (True,) * layers
    elif architecture in _BY_INTERVAL:
        recurrent = _by_interval(header, architecture, layers)
        attention = tuple(not each for each in recurrent)
    elif architecture in _BY_KV_HEADS | _BY_KV_HEADS_AND_WIDTH:
        attention = tuple(count > 0 for count in _a_layer(header, f"{architecture}.attention.head_count_kv", layers))
        widths = [0] * layers
        if architecture in _BY_KV_HEADS_AND_WIDTH:
            widths = _a_layer(header, f"{architecture}.feed_forward_length", layers)
        recurrent = tuple(not has and width == 0 for has, width in zip(attention, widths, strict=True))
    else:
        return None
    columns, state = _numbers(header, architecture)
    return RecurrentLayers(recurrent, attention, columns, state)


def _blocks(header: GgufHeader) -> int:
    key = f"{header.text('general.architecture')}.block_count"
    blocks = header.integer(key) or 0
    if not 0 < blocks <= len(header.tensors):  # so that it is not taken for the length of a list
        raise GgufFormatError(header.path, f"{key} is {blocks}, with {len(header.tensors)} tensors")
    return blocks


def _by_interval(header: GgufHeader, architecture: str, layers: int) -> tuple[bool, ...]:
    key = f"{architecture}.attention.recurrent_layers"
    if key in header.metadata:
        return tuple(bool(each) for each in _a_layer(header, key, layers))
    interval = header.integer(f"{architecture}.full_attention_interval") or FULL_ATTENTION_INTERVAL
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


def _numbers(header: GgufHeader, architecture: str) -> tuple[int, int]:
    """Of one layer and row: columns of the convolution, numbers of the state."""
    if architecture.startswith("lfm2"):
        kept = _number(header, f"{architecture}.shortconv.l_cache") - 1
        return kept * _number(header, f"{architecture}.embedding_length"), 0
    kept = _number(header, f"{architecture}.ssm.conv_kernel") - 1
    if architecture == "kimi-linear":
        width = _number(header, f"{architecture}.kda.head_dim")
        inner = width * _number(header, f"{architecture}.attention.head_count")
        return kept * 3 * inner, inner * width
    inner = _number(header, f"{architecture}.ssm.inner_size")
    state = _number(header, f"{architecture}.ssm.state_size")
    if architecture in _FIRST_MAMBA:
        return kept * inner, inner * state
    groups = header.integer(f"{architecture}.ssm.group_count") or 1
    return kept * (inner + 2 * groups * state), inner * state


def _a_layer(header: GgufHeader, key: str, layers: int) -> list[int]:
    values = header.integers(key, _blocks(header))
    if values is None:
        raise CheckpointError(f"{header.path}: metadata key '{key}' is missing")
    return values[:layers]


def _number(header: GgufHeader, key: str) -> int:
    value = header.integer(key)
    if value is None or value < 1:
        raise CheckpointError(f"{header.path}: metadata key '{key}' is {'missing' if value is None else value}")
    return value
