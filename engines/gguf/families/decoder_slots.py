"""Slots that most dense decoders have beside those of :data:`~engines.gguf.families.family.DECODER`, and plans' common parts.

Any projection may have a bias: where a file has one, the leaf adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import DECODER, Checkpoint, Plan
from engines.gguf.names import HEAD, Slot, SlotKind
from engines.gguf.rope_scaling import ScaledRope
from engines.gguf.transforms import rows

__all__ = [
    "BODY",
    "FFN_NORM",
    "FUSED_QKV",
    "GATE_UP",
    "POST_NORMS",
    "QKV",
    "QK_NORMS",
    "SANDWICH_NORMS",
    "in_any_block",
    "neighbours_rotate",
    "period_of_windows",
    "rotated_dims",
    "rotated_part",
    "scaled",
    "with_biases",
    "without",
]

_ATTENTION: Final = "model.layers.{i}.self_attn"

QKV: Final = tuple(Slot(f"blk.{{i}}.attn_{x}", f"{_ATTENTION}.{x}_proj", bias=True) for x in "qkv")


def _rows_before(number: int) -> Callable[[Mapping[str, Any]], int]:
    """Rows before the first, second, third and after the third of Q, K and V."""
    shares = ("num_attention_heads", "num_key_value_heads", "num_key_value_heads")[:number]
    return lambda config: sum(config[share] for share in shares) * int(config["head_dim"])


FUSED_QKV: Final = tuple(
    Slot(
        "blk.{i}.attn_qkv",
        slot.module,
        bias=True,
        transform=rows(_rows_before(number), _rows_before(number + 1), _rows_before(3)),
    )
    for number, slot in enumerate(QKV)
)
"""Of files that have Q, K and V in one matrix, one after the other, and stock classes that have them apart."""
QK_NORMS: Final = tuple(Slot(f"blk.{{i}}.attn_{x}_norm", f"{_ATTENTION}.{x}_norm", SlotKind.NORM) for x in "qk")
GATE_UP: Final = tuple(
    Slot(f"blk.{{i}}.ffn_{x}", f"model.layers.{{i}}.mlp.{x}_proj", bias=True) for x in ("gate", "up")
)
FFN_NORM: Final = Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM)
POST_NORMS: Final = (
    Slot("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
    Slot("blk.{i}.post_ffw_norm", "model.layers.{i}.post_feedforward_layernorm", SlotKind.NORM),
)
"""Of models that normalise what attention and MLP give, not what they take."""
SANDWICH_NORMS: Final = (
    *POST_NORMS,
    Slot("blk.{i}.ffn_norm", "model.layers.{i}.pre_feedforward_layernorm", SlotKind.NORM),
)
"""Of models that do both."""


def without(slots: Iterable[Slot], *others: str | Slot) -> tuple[Slot, ...]:
    """These slots without others, which are named by their stems or are slots."""
    stems = {other.stem if isinstance(other, Slot) else other for other in others}
    return tuple(slot for slot in slots if slot.stem not in stems)


BODY: Final = without(DECODER, HEAD)
"""Of stock classes whose head is the embedding: a file with another has a tensor without a place."""


def in_any_block(checkpoint: Checkpoint, stem: str) -> bool:
    """Whether some block has the weight of this stem, ``attn_q_norm``, say: then all must."""
    blocks = (name.split(".", 2) for name in checkpoint.header.tensors if name.startswith("blk."))
    return any(rest[2:] == [f"{stem}.weight"] for rest in blocks)


def neighbours_rotate(plan: Plan) -> Plan:
    """The plan of a file whose rows of Q and K were interleaved by the converter, for a stock class that is not told so by its
    configuration: its rotary embeddings are."""
    told = {f"model.layers.{i}.self_attn.rope.traditional": True for i in range(len(plan.windows))}
    return replace(plan, attributes={**plan.attributes, **told})


def scaled(
    plan: Plan, dims: int | None = None, *, traditional: bool = False, module: str = "model.layers.{i}.self_attn.rope"
) -> Plan:
    """The plan with the file's scaling, of a stock class that has none in its configuration.

    ``dims`` features of a head are rotated (None: all); ``traditional`` says that neighbours are rotated together.
    """
    scaling = plan.config.pop("rope_scaling")
    if scaling is None:
        return plan
    rope = ScaledRope(scaling, dims or plan.config["head_dim"], plan.config["rope_theta"], traditional, module)
    return replace(plan, ropes=(*plan.ropes, rope))


def rotated_dims(checkpoint: Checkpoint, plan: Plan) -> int:
    """The features of a head that are rotated, by ``rope.dimension_count``; all where the file does not say."""
    parameters, head_dim = checkpoint.parameters, int(plan.config["head_dim"])
    dims = parameters.integer("rope.dimension_count", head_dim, most=head_dim)
    if dims % 2:
        raise parameters.error("rope.dimension_count", f"is {dims}; features are rotated in pairs")
    return dims


def rotated_part(dims: int, head_dim: int) -> float:
    """``dims`` as a part of a head; a hair above the quotient, since stock classes multiply it back and round down."""
    return dims / head_dim * (1 + 2**-40)


def period_of_windows(checkpoint: Checkpoint, layers: int, default: int) -> int:
    """Every how many layers the last one attends to everything, by ``attention.sliding_window_pattern``: a number or an array.

    Longer than ``layers`` where none does. UnsupportedModel for windows that do not repeat so.
    """
    parameters, key = checkpoint.parameters, "attention.sliding_window_pattern"
    slides = parameters.integers(key, layers)
    if slides is None:
        return parameters.integer(key, default, most=MAX_CONTEXT)
    period = slides.index(0) + 1 if 0 in slides else layers + 1
    if slides != [int((layer + 1) % period != 0) for layer in range(layers)]:
        raise parameters.refusal(key, "only windows that repeat are supported here")
    return period


def with_biases(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    """These slots, with their norms being layer norms with a bias."""
    return tuple(replace(slot, bias=True) if slot.kind is SlotKind.NORM else slot for slot in slots)
