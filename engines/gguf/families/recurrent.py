"""What the plans of hybrids and state-space models have in common: which layers keep a state, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engines.errors import UnsupportedModel
from engines.gguf.families.family import Checkpoint, Plan, vocabulary_rows
from engines.gguf.families.recurrent_layers import RecurrentLayers, model_layers, recurrent_layers
from engines.gguf.names import HEAD, Slot, SlotKind, Transform
from engines.gguf.transforms import compose, log_negative, unsqueezed_last

__all__ = [
    "ATTENTION",
    "RECURRENT",
    "StateSpace",
    "attention_heads",
    "attention_slots",
    "both_kinds",
    "flat",
    "gated_norm_slot",
    "has_in_states",
    "indices",
    "layer_kinds",
    "state_slots",
    "state_space",
    "state_space_slots",
    "trunk",
    "with_states",
]

ATTENTION: Final = "attention"
"""The set of layers that have attention."""

RECURRENT: Final = "recurrent"
"""The set of layers that keep a state."""

_MOST_HEADS: Final = 4096
_MOST_HEAD_WIDTH: Final = 4096  # with it, a projection's rows stay below 2**31


@dataclass(frozen=True)
class StateSpace:
    """Sizes of the state-space layers, or of delta nets, which llama.cpp describes by the same keys."""

    kernel: int  # inputs that a convolution sees
    inner: int  # values, over all heads
    state: int  # of a head's key
    groups: int  # that share keys: of heads
    heads: int

    @property
    def head_width(self) -> int:
        return self.inner // self.heads

    @property
    def scan_chunk(self) -> int:
        """Float32 numbers that a Mamba 2 layer takes while 512 tokens are read, as measured of
        :func:`engines.gguf.state_space.state_space` and its convolution."""
        return 512 * (14 * self.inner + 4 * self._channels)

    @property
    def delta_chunk(self) -> int:
        """Float32 numbers that a delta net takes while 512 tokens are read, as measured of
        :func:`engines.gguf.delta_rule.delta_rule` and its convolution."""
        return 512 * (16 * max(self.inner, self.heads * self.state) + 4 * self._channels)

    @property
    def _channels(self) -> int:
        return self.inner + 2 * self.groups * self.state


def state_space(checkpoint: Checkpoint) -> StateSpace:
    """From the keys ``ssm.*``. CheckpointError for a missing key, or heads that do not divide evenly."""
    parameters = checkpoint.parameters
    heads = parameters.integer("ssm.time_step_rank")
    sizes = StateSpace(
        kernel=parameters.integer("ssm.conv_kernel", least=2),
        inner=parameters.integer("ssm.inner_size"),
        state=parameters.integer("ssm.state_size"),
        groups=parameters.integer("ssm.group_count", 1),
        heads=heads,
    )
    if sizes.inner % heads:
        raise parameters.error(
            "ssm.time_step_rank", f"is {heads}, which does not divide an inner size of {sizes.inner}"
        )
    if heads % sizes.groups:
        raise parameters.error("ssm.group_count", f"is {sizes.groups}, which does not divide {heads} heads")
    return sizes


def trunk(checkpoint: Checkpoint, model_type: str) -> dict[str, Any]:
    """The part of a configuration that does not depend on what the layers are. The last blocks of the file, which predict further
    tokens, are none of the model's layers."""
    parameters = checkpoint.parameters
    blocks = parameters.integer("block_count")
    parameters.integer("nextn_predict_layers", 0, least=0, most=blocks - 1)
    return {
        "model_type": model_type,
        "hidden_size": parameters.integer("embedding_length"),
        "num_hidden_layers": model_layers(checkpoint.header),
        "vocab_size": vocabulary_rows(checkpoint.header),
        "max_position_embeddings": checkpoint.trained_context,
        "tie_word_embeddings": f"{HEAD}.weight" not in checkpoint.header.tensors,
    }


def attention_heads(checkpoint: Checkpoint, kinds: RecurrentLayers, hidden: int) -> dict[str, Any]:
    """The part of a configuration that describes attention, which all layers with it have alike."""
    parameters = checkpoint.parameters
    heads = _alike(checkpoint, "attention.head_count", kinds, most=_MOST_HEADS)
    kv_heads = _alike(checkpoint, "attention.head_count_kv", kinds, heads, most=heads)
    if heads % kv_heads:
        raise parameters.error("attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} heads")
    if not parameters.has("attention.key_length") and hidden % heads:
        raise parameters.error("attention.head_count", f"is {heads}, which does not divide a width of {hidden}")
    head_dim = parameters.integer("attention.key_length", hidden // heads, most=_MOST_HEAD_WIDTH)
    if head_dim % 2:
        raise parameters.error("attention.key_length", f"makes heads of {head_dim}, which cannot be rotated in pairs")
    parameters.expect("attention.value_length", head_dim)
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def _alike(checkpoint: Checkpoint, key: str, kinds: RecurrentLayers, default: int | None = None, *, most: int) -> int:
    """The one value of the layers with attention; UnsupportedModel where they differ."""
    parameters = checkpoint.parameters
    values = parameters.per_layer(key, len(kinds.attention), default, most=most)
    found = {value for value, has in zip(values, kinds.attention, strict=True) if has} or {1}
    if len(found) > 1:
        raise parameters.refusal(key, "values that differ between layers with attention are not supported")
    value = found.pop()
    if value < 1:
        raise parameters.error(key, f"is {value} in a layer with attention")
    return value


def with_states(
    checkpoint: Checkpoint, config: dict[str, Any], kinds: RecurrentLayers, numbers_per_token: int, chunk: int = 0
) -> Plan:
    """The plan of a model whose layers keep a state, ``numbers_per_token`` of keys and values, or both.

    ``chunk`` is what a layer with a state takes while 512 tokens are read, in float32 numbers. The sets of layers that slots may
    be confined to are :data:`ATTENTION` and :data:`RECURRENT`.
    """
    layers = config["num_hidden_layers"]
    recurrent = sum(kinds.recurrent)
    return Plan(
        config,
        checkpoint.served_context,
        (None,) * layers,
        layers={RECURRENT: indices(kinds.recurrent), ATTENTION: indices(kinds.attention)},
        spare_blocks=checkpoint.parameters.integer("block_count") - layers,
        kv_numbers=tuple(numbers_per_token * has for has in kinds.attention),
        state_numbers=recurrent * kinds.columns,
        state_float32=recurrent * kinds.state,
        chunk_float32=chunk,
    )


def layer_kinds(checkpoint: Checkpoint) -> RecurrentLayers:
    """Which layers keep what."""
    kinds = recurrent_layers(checkpoint.header)
    if kinds is None:
        raise UnsupportedModel(f"{checkpoint.header.path}: what this architecture's layers keep is not known")
    return kinds


def both_kinds(checkpoint: Checkpoint, kinds: RecurrentLayers) -> None:
    """Refuses a model all of whose layers are of one kind, which stock classes of hybrids do not expect."""
    if not (any(kinds.attention) and any(kinds.recurrent)):
        key = "attention.head_count_kv"
        raise checkpoint.parameters.refusal(key, "layers with attention beside others without are supported here")


def indices(kinds: Sequence[bool]) -> tuple[int, ...]:
    """Of the layers for which it holds."""
    return tuple(layer for layer, holds in enumerate(kinds) if holds)


def attention_slots(attention: str, output: str = "o_proj") -> tuple[Slot, ...]:
    """The projections of the layers with attention, at this path; the stock module need not know of biases."""
    return (
        *(Slot(f"blk.{{i}}.attn_{x}", f"{attention}.{x}_proj", bias=True, only=ATTENTION) for x in "qkv"),
        Slot("blk.{i}.attn_output", f"{attention}.{output}", bias=True, only=ATTENTION),
    )


def state_slots(mixer: str) -> tuple[Slot, ...]:
    """The parameters of a convolution and of decays, and the output, which delta nets and state-space layers have in common.

    ``mixer`` is the path of the stock module. The file holds A = -exp(A_log), and the convolution as a matrix.
    """
    return (
        _parameter("ssm_conv1d.weight", f"{mixer}.conv1d.weight", unsqueezed_last),
        _parameter("ssm_dt.bias", f"{mixer}.dt_bias"),
        _parameter("ssm_a", f"{mixer}.A_log", compose(flat, log_negative)),
        Slot("blk.{i}.ssm_out", f"{mixer}.out_proj", bias=True, only=RECURRENT),
    )


def state_space_slots(mixer: str) -> tuple[Slot, ...]:
    """All of a Mamba 2 layer but its gated norm, which not all have."""
    return (
        Slot("blk.{i}.ssm_in", f"{mixer}.in_proj", bias=True, only=RECURRENT),
        Slot("blk.{i}.ssm_conv1d.bias", f"{mixer}.conv1d.bias", SlotKind.PARAMETER, optional=True, only=RECURRENT),
        _parameter("ssm_d", f"{mixer}.D", flat),
        *state_slots(mixer),
    )


def gated_norm_slot(mixer: str, *, optional: bool = False) -> Slot:
    """The norm of what a Mamba 2 layer gives; the file has a row for each group of heads."""
    return Slot(
        "blk.{i}.ssm_norm", f"{mixer}.norm", SlotKind.NORM, optional=optional, only=RECURRENT, transform=_rows_in_line
    )


def _parameter(name: str, path: str, transform: Transform | None = None) -> Slot:
    return Slot(f"blk.{{i}}.{name}", path, SlotKind.PARAMETER, only=RECURRENT, transform=transform)


def flat(array: Any, config: Mapping[str, Any]) -> Any:
    """A vector, whatever axes of one the file has beside. ValueError for a matrix."""
    if sum(size > 1 for size in array.shape) > 1:
        raise ValueError(f"{list(array.shape)} is no vector")
    return array.reshape(-1)


def _rows_in_line(array: Any, config: Mapping[str, Any]) -> Any:
    """The rows of a matrix, one after the other."""
    return array.reshape(-1)


def has_in_states(checkpoint: Checkpoint, kinds: RecurrentLayers, name: str) -> bool:
    """Whether the first layer with a state has a tensor of this name."""
    return f"blk.{kinds.recurrent.index(True)}.{name}" in checkpoint.header.tensors
