"""What families of experts share: the slots of a router and its experts, and the metadata that says how experts are chosen.

The keys (llama.cpp's): ``expert_count``, ``expert_used_count``, ``expert_feed_forward_length``, ``expert_gating_func`` (of router
logits: 1 softmax, 2 sigmoid, 3 softmax over the chosen ones), ``expert_weights_norm`` (the weights of the chosen are divided by
their sum), ``expert_weights_scale`` (and multiplied by this), ``expert_group_count`` and ``expert_group_used_count`` (experts are
chosen from the best groups), ``expert_shared_count`` and ``expert_shared_feed_forward_length`` (experts that every token gets).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from engines.gguf.config import Hyperparameters
from engines.gguf.families.family import Checkpoint
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind
from engines.header import GgufHeader

__all__ = [
    "ATTENTION",
    "NORMS",
    "QK_NORMS",
    "ROUTED",
    "SIGMOID",
    "SOFTMAX",
    "SOFTMAX_OF_CHOSEN",
    "WHOLE",
    "Experts",
    "as_in_file",
    "correction_bias",
    "dense_and_routed",
    "expect_gating",
    "expert_slots",
    "experts_of",
    "gated_slots",
    "groups_of",
    "shared_as_told",
]

SOFTMAX: Final = 1
SIGMOID: Final = 2
SOFTMAX_OF_CHOSEN: Final = 3
_MOST_EXPERTS: Final = 4096
_EXPERT_APART: Final = re.compile(r"blk\.0\.ffn_gate\.(\d{1,4})\.weight")

WHOLE: Final = (
    Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
    Slot("output_norm", "model.norm", SlotKind.NORM),
    Slot(HEAD, "lm_head", optional=True),
)
"""What is not in a block."""

NORMS: Final = (
    Slot("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", SlotKind.NORM),
    Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
)

ATTENTION: Final = tuple(
    Slot(f"blk.{{i}}.attn_{stem}", f"model.layers.{{i}}.self_attn.{module}", bias=True)
    for stem, module in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj"))
)
"""Projections of their own; biases are a leaf's, and the stock class need not know of them."""

QK_NORMS: Final = (
    Slot("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm", SlotKind.NORM),
    Slot("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm", SlotKind.NORM),
)


def gated_slots(module: str, suffix: str = "", *, only: str | None = None, optional: bool = False) -> tuple[Slot, ...]:
    """An MLP of gate, up and down projections; ``suffix`` follows their stems (``_shexp``)."""
    return tuple(
        Slot(f"blk.{{i}}.ffn_{part}{suffix}", f"{module}.{part}_proj", only=only, optional=optional)
        for part in ("gate", "up", "down")
    )


def expert_slots(
    block: str, *, router: str = "gate", experts: str = "switch_mlp", only: str | None = None, bias: bool = False
) -> tuple[Slot, ...]:
    """A router, which is a linear layer, and a SwitchGLU, both in the module ``block``."""
    parts = (
        Slot(f"blk.{{i}}.ffn_{part}_exps", f"{block}.{experts}.{part}_proj", SlotKind.EXPERTS, bias=bias, only=only)
        for part in ("gate", "up", "down")
    )
    return (Slot("blk.{i}.ffn_gate_inp", f"{block}.{router}", bias=bias, only=only), *parts)


def correction_bias(parameter: str, only: str | None = None) -> Slot:
    """What is added to an expert's score when experts are chosen, but not to its weight; not all files have it, and the plan says
    in ``stock_values`` that the stock class's zeros will do."""
    return Slot("blk.{i}.exp_probs_b.bias", parameter, SlotKind.PARAMETER, optional=True, only=only)


def dense_and_routed(layers: int, dense: int) -> dict[str, range]:
    """The sets of layers ``dense``, the first ones, and ``routed``, the others."""
    return {"dense": range(min(dense, layers)), "routed": range(min(dense, layers), layers)}


ROUTED: Final = (
    Slot("blk.{i}.ffn_gate_inp.weight", "model.layers.{i}.mlp.gate.weight", SlotKind.PARAMETER, only="routed"),
    correction_bias("model.layers.{i}.mlp.gate.e_score_correction_bias", only="routed"),
    *expert_slots("model.layers.{i}.mlp", only="routed")[1:],
    *gated_slots("model.layers.{i}.mlp.shared_experts", "_shexp", only="routed", optional=True),
)
"""A routed block of DeepSeek's form, whose router is a module that holds its weight itself."""


@dataclass(frozen=True)
class Experts:
    """How many experts there are, and how wide."""

    count: int
    used: int
    width: int  # of an expert's hidden layer


def experts_of(checkpoint: Checkpoint, *, width_key: str = "expert_feed_forward_length") -> Experts:
    """The sizes, of a model that has experts. CheckpointError for a key that is missing or impossible.

    A model whose file does not say how wide its experts are has them as wide as the tensor of the gates says.
    """
    parameters = checkpoint.parameters
    count = parameters.integer("expert_count", most=_MOST_EXPERTS)
    used = parameters.integer("expert_used_count", most=count)
    return Experts(count, used, parameters.integer(width_key, _width(checkpoint)))


def _width(checkpoint: Checkpoint) -> int | None:
    for name, tensor in checkpoint.header.tensors.items():
        if name.endswith(".ffn_gate_exps.weight") and len(tensor.shape) == 3:
            return tensor.shape[1]
    return None


def expect_gating(parameters: Hyperparameters, kind: int) -> None:
    """Refuses a router whose weights come about otherwise than the stock class's, where the file says how."""
    if parameters.integer("expert_gating_func", kind, least=0, most=16) not in (0, kind):
        raise parameters.refusal("expert_gating_func", f"only {kind} is supported here")


def groups_of(parameters: Hyperparameters, experts: Experts) -> dict[str, int]:
    """``n_group`` and ``topk_group`` of a stock configuration. CheckpointError when the groups do not divide the experts."""
    groups = parameters.integer("expert_group_count", 1, least=0, most=experts.count) or 1
    used = parameters.integer("expert_group_used_count", groups, least=0, most=groups) or groups
    if groups > 1 and experts.count // groups < 2:  # groups are ranked by their best two
        raise parameters.refusal("expert_group_count", "groups of two experts or more are supported here")
    if experts.count % groups:
        raise parameters.error("expert_group_count", f"is {groups}, which does not divide {experts.count} experts")
    return {"n_group": groups, "topk_group": used}


def as_in_file(header: GgufHeader, slots: Iterable[Slot]) -> list[Slot]:
    """The slots for what the file makes of its experts: one tensor for each projection, as ``slots`` have it; gates and up
    projections in one (``ffn_gate_up_exps``), either half of it for their two modules, when the converter was asked for it; or a
    tensor for each expert (``ffn_gate.0``), in files from before April 2024."""
    if any(name.endswith(".ffn_gate_up_exps.weight") for name in header.tensors):
        halves = {"blk.{i}.ffn_gate_exps": _first_half, "blk.{i}.ffn_up_exps": _second_half}
        return [
            replace(slot, stem="blk.{i}.ffn_gate_up_exps", transform=halves[slot.stem])
            if isinstance(slot.stem, str) and slot.stem in halves
            else slot
            for slot in slots
        ]
    apart = [int(match[1]) for name in header.tensors if (match := _EXPERT_APART.fullmatch(name))]
    if not apart or len(apart) > _MOST_EXPERTS:
        return list(slots)
    return [
        replace(slot, stem=tuple(f"{stem}.{expert}" for expert in range(max(apart) + 1)), kind=SlotKind.EXPERTS_APART)
        if slot.kind is SlotKind.EXPERTS and (stem := slot.stems[0].removesuffix("_exps"))
        else slot
        for slot in slots
    ]


def shared_as_told(slots: Iterable[Slot], count: int | None) -> list[Slot]:
    """The slots with those of shared experts that are optional, since not all of a family's models have such, needed where
    ``count`` says that there are some, and left out where it does not."""
    return [
        replace(slot, optional=False) if slot.optional and ".shared_experts." in slot.module else slot
        for slot in slots
        if count or not (slot.optional and ".shared_experts." in slot.module)
    ]


def _first_half(array: Any, config: Mapping[str, Any]) -> Any:
    return array[:, : array.shape[1] // 2]


def _second_half(array: Any, config: Mapping[str, Any]) -> Any:
    return array[:, array.shape[1] // 2 :]
