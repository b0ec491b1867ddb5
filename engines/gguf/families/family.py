"""What a family of models is: an architecture of GGUF, the stock class that computes it, and the way from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engines.errors import CheckpointError
from engines.gguf.config import MAX_CONTEXT, Hyperparameters
from engines.gguf.families.shapes import Axes, Widths
from engines.gguf.names import EMBEDDING, HEAD, ROPE_FREQUENCIES, Slot, SlotKind
from engines.gguf.rope_scaling import RopeFactors, ScaledRope, stock_scaling
from engines.header import GgufArray, GgufHeader

__all__ = [
    "DECODER",
    "Checkpoint",
    "Family",
    "Plan",
    "decoder_plan",
    "own_head_width",
    "vocabulary_rows",
    "whole_head_rope",
    "window_everywhere",
]

_DEFAULT_ROPE_BASE: Final = 10000.0  # llama.cpp's, for files that do not say
_MOST_HEADS: Final = 4096
_MOST_HEAD_WIDTH: Final = 4096  # with it, a projection's rows stay below 2**31


@dataclass(frozen=True)
class Checkpoint:
    """What a family looks at: the header, its hyperparameters, and the context asked for in tokens (None: all there is).

    CheckpointError when there are more blocks than tensors: plans are made of as many parts as there are blocks."""

    header: GgufHeader
    parameters: Hyperparameters
    context: int | None = None

    def __post_init__(self) -> None:
        self.parameters.integer("block_count", most=max(1, len(self.header.tensors)))

    @property
    def trained_context(self) -> int:
        """Tokens of the context it was trained for."""
        return self.parameters.integer("context_length", most=MAX_CONTEXT)

    @property
    def served_context(self) -> int:
        """Tokens it will be run with."""
        return self.trained_context if self.context is None else min(self.context, self.trained_context)


@dataclass(frozen=True)
class Plan:
    """What a family makes of a checkpoint's metadata. ``config`` holds at least model_type (the module of ``mlx_lm.models``),
    num_hidden_layers, and where ``kv_numbers`` does not say otherwise num_key_value_heads and head_dim."""

    config: dict[str, Any]  # what ``ModelArgs.from_dict`` of the stock class takes
    context: int  # tokens
    windows: tuple[int | None, ...]  # a layer: the last tokens it attends to; None: all
    stock_caches: bool = True  # False: the stock class does not know of the windows, its caches are made here
    ropes: tuple[RopeFactors | ScaledRope, ...] = ()  # in place of stock rotary embeddings
    plain_norms: bool = False  # True: the file has added the one that the stock norm adds to its weight; use nn.RMSNorm
    tensors: tuple[str, ...] = ()  # those that belong to no module
    slots: tuple[Slot, ...] | None = None  # in place of the family's, where metadata chooses the class
    gate: str | None = None  # in place of the family's
    classes: tuple[str, str] = ("Model", "ModelArgs")  # names in the stock module, of the model and of what it takes
    layers: Mapping[str, Collection[int]] = field(default_factory=dict)  # sets of layers that slots are confined to
    spare_blocks: int = 0  # blocks of the file after those of the model, which are not loaded
    attributes: Mapping[str, Any] = field(
        default_factory=dict
    )  # set on the stock model: "model.layers.0.x.scale" to value
    kv_numbers: tuple[int, ...] | None = None  # a layer: numbers kept a token; None: keys and values of all KV heads
    state_numbers: int = 0  # kept a row by layers that have a state instead of tokens, whatever its length
    state_float32: int = 0  # kept a row beside them, in float32 whatever activations are
    chunk_float32: int = 0  # numbers that such layers take while a chunk of a prompt is read, in one layer at a time
    stock_values: tuple[str, ...] = ()  # ends of paths of parameters that keep the stock value where the file has none
    most_rows: int | None = None  # of a batch; 1 where the stock class is wrong for more
    stand_ins: str | None = (
        None  # the module of ``engines.gguf.stand_ins`` that changes the stock model before it is filled
    )

    def kv_numbers_by_layer(self) -> tuple[int, ...]:
        """Numbers a token takes in a row's cache of each layer."""
        if self.kv_numbers is not None:
            return self.kv_numbers
        return (2 * self.config["num_key_value_heads"] * self.config["head_dim"],) * len(self.windows)

    def kv_numbers_per_token(self) -> tuple[int, int]:
        """Numbers a token takes in a row's caches: of the layers that keep all tokens, and of those that keep a window."""
        layers = list(zip(self.kv_numbers_by_layer(), self.windows, strict=True))
        full = sum(count for count, window in layers if window is None)
        return full, sum(count for count, window in layers if window is not None)


@dataclass(frozen=True)
class Family:
    """One architecture: its GGUF name, the module of ``mlx_lm.models``, where tensors go, and how metadata is read."""

    architecture: str
    model_type: str
    slots: tuple[Slot, ...]
    plan: Callable[[Checkpoint], Plan]
    gate: str | None = None  # what the gate of its MLPs goes through, where they are gate, up and down projections
    shapes: Mapping[str, Axes] = field(default_factory=dict)  # rules that are not the common ones: see ``shapes.py``
    widths: Widths | None = None  # that differ between layers, or are not as in most


DECODER: tuple[Slot, ...] = (
    Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
    Slot("output_norm", "model.norm", SlotKind.NORM),
    Slot(HEAD, "lm_head", optional=True),
    Slot("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", SlotKind.NORM),
    Slot("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj", bias=True),
    Slot("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj", bias=True),
)
"""What the decoders of all families have in common. A bias is a leaf's own: the stock class need not know of it."""


def decoder_plan(
    checkpoint: Checkpoint,
    model_type: str,
    scalings: tuple[str, ...] = ("linear", "yarn"),
    *,
    epsilon: str = "attention.layer_norm_rms_epsilon",
) -> Plan:
    """The plan that all decoders share, from keys that all architectures have: full attention, the stock rotary embedding.

    ``scalings`` are the kinds of rotary scaling that the stock class has, ``epsilon`` is the key of what its norms add.
    CheckpointError when a key is missing or impossible, or when the tokenizer has more tokens than the embedding has rows.
    """
    parameters = checkpoint.parameters
    hidden = parameters.integer("embedding_length")
    blocks = parameters.integer("block_count")
    further = parameters.integer("nextn_predict_layers", 0, least=0, most=blocks - 1)  # their blocks are the last
    layers = blocks - further
    heads = parameters.integer("attention.head_count", most=_MOST_HEADS)
    kv_heads = parameters.integer("attention.head_count_kv", heads, most=heads)
    if heads % kv_heads:
        raise parameters.error("attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} heads")
    if not parameters.has("attention.key_length") and hidden % heads:
        raise parameters.error("attention.head_count", f"is {heads}, which does not divide a width of {hidden}")
    head_dim = parameters.integer("attention.key_length", hidden // heads, most=_MOST_HEAD_WIDTH)
    if head_dim % 2:
        raise parameters.error("attention.key_length", f"makes heads of {head_dim}, which cannot be rotated in pairs")
    parameters.expect("attention.value_length", head_dim)
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": parameters.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": parameters.number(epsilon),
        "vocab_size": vocabulary_rows(checkpoint.header),
        "max_position_embeddings": checkpoint.trained_context,
        "rope_theta": parameters.number("rope.freq_base", _DEFAULT_ROPE_BASE),
        "rope_scaling": stock_scaling(parameters, checkpoint.trained_context, scalings),
        "tie_word_embeddings": f"{HEAD}.weight" not in checkpoint.header.tensors,
    }
    return Plan(config, checkpoint.served_context, (None,) * layers, spare_blocks=further)


def whole_head_rope(checkpoint: Checkpoint, plan: Plan, *, traditional: bool) -> Plan:
    """The plan of a model that rotates all of a head, with the file's frequency factors where it has them.

    UnsupportedModel when only a part of the head is rotated, or when factors meet another scaling.
    """
    parameters, config = checkpoint.parameters, plan.config
    parameters.expect("rope.dimension_count", config["head_dim"])
    if ROPE_FREQUENCIES not in checkpoint.header.tensors:
        return plan
    if config["rope_scaling"] is not None:
        raise parameters.refusal("rope.scaling.type", f"beside a tensor '{ROPE_FREQUENCIES}' that is not supported")
    factors = RopeFactors(ROPE_FREQUENCIES, config["head_dim"], config["rope_theta"], traditional)
    return replace(plan, ropes=(factors,), tensors=(ROPE_FREQUENCIES,))


def own_head_width(checkpoint: Checkpoint, plan: Plan) -> None:
    """Refuses a model whose heads are not as wide as its stock class makes them: the hidden width over the heads."""
    config = plan.config
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        width = f"{config['hidden_size']} / {config['num_attention_heads']}"
        raise checkpoint.parameters.refusal("attention.key_length", f"heads of {width} are supported here")


def window_everywhere(checkpoint: Checkpoint, plan: Plan) -> Plan:
    """The plan with every layer attending to the last ``attention.sliding_window`` tokens, where that is fewer than all.

    The stock classes of these families attend to everything, so the caches are made here: a rotating cache of that size
    keeps and masks just the window.
    """
    window = checkpoint.parameters.integer("attention.sliding_window", 0, least=0, most=MAX_CONTEXT)
    if not 0 < window < plan.context:
        return plan
    return replace(plan, windows=(window,) * len(plan.windows), stock_caches=False)


def vocabulary_rows(header: GgufHeader) -> int:
    """Rows of the token embedding, which may be padded beyond the tokenizer's tokens."""
    name = f"{EMBEDDING}.weight"
    tensor = header.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise CheckpointError(f"{header.path}: tensor '{name}' is missing or not a matrix")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, GgufArray) and len(tokens) > tensor.shape[0]:
        raise CheckpointError(f"{header.path}: tensor '{name}' has {tensor.shape[0]} rows for {len(tokens)} tokens")
    return tensor.shape[0]
