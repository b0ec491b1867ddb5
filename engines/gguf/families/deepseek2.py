"""deepseek2 and mistral4: DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash, and others whose keys and values come out of a latent.

The class is ``deepseek_v3``, or ``glm4_moe_lite``, which is the same with the file's epsilon in the latents' norms where
``deepseek_v3`` has one millionth; both cache the latent. V2's router, which scores by softmax and not by biased sigmoids, is put in
(``stand_ins/softmax_gate.py``): its own class caches keys and values of all heads, nine times as much. ``mistral4`` (Mistral Small
4) is an architecture and a class of its own, of the same form.

Current files hold the matrix that expands the latent as two tensors, K transposed (``attn_k_b``, ``attn_v_b``); older ones as one
(``attn_kv_b``). Either is used as it lies. Features that are rotated together are neighbours, as in the stock classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from engines.gguf.families.family import Checkpoint, Family, Plan, vocabulary_rows
from engines.gguf.families.moe import (
    NORMS,
    ROUTED,
    SIGMOID,
    SOFTMAX,
    WHOLE,
    dense_and_routed,
    experts_of,
    gated_slots,
    groups_of,
)
from engines.gguf.names import HEAD, Slot, SlotKind
from engines.gguf.rope_scaling import stock_scaling

__all__ = ["DEEPSEEK2", "MISTRAL4"]

_MOST: Final = 4096  # heads, and features of one
_FIXED_EPSILON: Final = 1e-6  # of the latents' norms in deepseek_v3
_GLM_LITE: Final = ((47, 48), 154880)  # blocks and vocabulary of files that do not say how their router scores
_LOG_MULTIPLIER: Final = 0.1  # the converter has multiplied mscale_all_dim by it

_ATTENTION: Final = "model.layers.{i}.self_attn"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters, header = checkpoint.parameters, checkpoint.header
    blocks = parameters.integer("block_count")
    further = parameters.integer("nextn_predict_layers", 0, least=0, most=blocks - 1)
    layers = blocks - further
    vocabulary = vocabulary_rows(header)
    epsilon = parameters.number("attention.layer_norm_rms_epsilon")
    sigmoid = _gating(checkpoint, blocks, vocabulary) == SIGMOID
    is_split = parameters.has("attention.key_length_mla") or "blk.0.attn_k_b.weight" in header.tensors
    is_mistral = header.text("general.architecture") == "mistral4"
    if is_mistral:
        model_type = "mistral4"
        if sigmoid:
            raise parameters.refusal("expert_gating_func", f"only {SOFTMAX} is supported here")
    else:
        model_type = "deepseek_v3" if math.isclose(epsilon, _FIXED_EPSILON, rel_tol=1e-3) else "glm4_moe_lite"
    config: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": parameters.integer("embedding_length"),
        "intermediate_size": parameters.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "rms_norm_eps": epsilon,
        "max_position_embeddings": checkpoint.trained_context,
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(checkpoint, model_type),
        "tie_word_embeddings": f"{HEAD}.weight" not in header.tensors,
        **_attention(checkpoint, is_split),
        **_experts(checkpoint),
    }
    if is_mistral:
        config["rope_parameters"] = _mistral_rope(checkpoint, config["rope_scaling"])
    return Plan(
        config,
        checkpoint.served_context,
        (None,) * layers,
        slots=(*_SLOTS, *_queries(config), *(_SPLIT if is_split else _WHOLE)),
        layers=dense_and_routed(layers, config["first_k_dense_replace"]),
        spare_blocks=further,
        kv_numbers=(config["kv_lora_rank"] + config["qk_rope_head_dim"],) * layers,
        stock_values=("e_score_correction_bias",),
        stand_ins=None if sigmoid or is_mistral else "softmax_gate",
    )


def _gating(checkpoint: Checkpoint, blocks: int, vocabulary: int) -> int:
    parameters = checkpoint.parameters
    found = parameters.integer("expert_gating_func", 0, least=0, most=16)
    if found == 0:
        glm_lite = blocks in _GLM_LITE[0] and vocabulary == _GLM_LITE[1]
        return SIGMOID if glm_lite or not parameters.has("expert_count") else SOFTMAX
    if found not in (SIGMOID, SOFTMAX):
        raise parameters.refusal("expert_gating_func", f"{SOFTMAX} and {SIGMOID} are supported here")
    return found


def _attention(checkpoint: Checkpoint, is_split: bool) -> dict[str, Any]:
    """Sizes of heads. Files with the split expansion describe attention as it is computed from the latent, with one KV head, and
    give the heads' own sizes apart."""
    parameters = checkpoint.parameters
    heads = parameters.integer("attention.head_count", most=_MOST)
    latent = parameters.integer("attention.kv_lora_rank")
    rotated = parameters.integer("rope.dimension_count", most=_MOST)
    if is_split:
        parameters.expect("attention.head_count_kv", 1)
        parameters.expect("attention.key_length", latent + rotated)
        parameters.expect("attention.value_length", latent)
    else:
        parameters.expect("attention.head_count_kv", heads)
    suffix = "_mla" if is_split else ""
    key = parameters.integer(f"attention.key_length{suffix}", most=_MOST)
    value = parameters.integer(f"attention.value_length{suffix}", most=_MOST)
    if key <= rotated or rotated % 2:
        raise parameters.error("rope.dimension_count", f"is {rotated}, of keys of {key}")
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": latent,
        "q_lora_rank": parameters.integer("attention.q_lora_rank", 0, least=0) or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }


def _experts(checkpoint: Checkpoint) -> dict[str, Any]:
    parameters = checkpoint.parameters
    layers = parameters.integer("block_count")
    if not parameters.integer("expert_count", 0, least=0):
        parameters.integer("expert_feed_forward_length", 1)  # written for models without experts too
        parameters.expect("leading_dense_block_count", layers)
        return {"n_routed_experts": None, "n_shared_experts": None, "first_k_dense_replace": layers}
    experts = experts_of(checkpoint)
    return {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": parameters.integer("expert_shared_count", 0, least=0) or None,
        "first_k_dense_replace": parameters.integer("leading_dense_block_count", 0, least=0),
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
        "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        **groups_of(parameters, experts),
    }


def _scaling(checkpoint: Checkpoint, model_type: str) -> dict[str, Any] | None:
    """The rotary scaling. ``yarn_log_multiplier`` stands for ``mscale_all_dim``, with which attention is scaled; ``mscale`` is
    the same in all models that have it, so that what is rotated keeps its magnitude."""
    parameters = checkpoint.parameters
    scaling = stock_scaling(parameters, checkpoint.trained_context, ("yarn",))
    if scaling is None:
        return None
    multiplier = parameters.any_number("rope.scaling.yarn_log_multiplier", 0.0) / _LOG_MULTIPLIER
    if multiplier:
        scaling |= {"mscale": 1.0 if model_type == "mistral4" else multiplier, "mscale_all_dim": multiplier}
    return scaling


def _mistral_rope(checkpoint: Checkpoint, scaling: dict[str, Any] | None) -> dict[str, Any]:
    """The rotary parameters of ``mistral4``, which hold how queries grow with their position: not at all where the file does not
    say."""
    parameters, trained = checkpoint.parameters, checkpoint.trained_context
    rope = {"rope_type": "default", "original_max_position_embeddings": trained, **(scaling or {})}
    original = rope["original_max_position_embeddings"]
    parameters.expect("attention.temperature_length", original)
    return rope | {
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
        "llama_4_scaling_beta": parameters.any_number("attention.temperature_scale", 0.0),
    }


def _queries(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    if config["q_lora_rank"] is None:
        return (Slot("blk.{i}.attn_q", f"{_ATTENTION}.q_proj"),)
    return (
        Slot("blk.{i}.attn_q_a", f"{_ATTENTION}.q_a_proj", bias=True),
        Slot("blk.{i}.attn_q_a_norm", f"{_ATTENTION}.q_a_layernorm", SlotKind.NORM),
        Slot("blk.{i}.attn_q_b", f"{_ATTENTION}.q_b_proj"),
    )


def _keys_of_heads(array: Any, config: Mapping[str, Any]) -> Any:
    return _heads(array, config)[:, : config["qk_nope_head_dim"]]


def _values_of_heads(array: Any, config: Mapping[str, Any]) -> Any:
    return _heads(array, config)[:, config["qk_nope_head_dim"] :]


def _heads(array: Any, config: Mapping[str, Any]) -> Any:
    return array.reshape(config["num_attention_heads"], -1, array.shape[-1])


# The matrices of all heads that expand the latent.
_SPLIT: Final = (
    Slot("blk.{i}.attn_k_b", f"{_ATTENTION}.embed_q", SlotKind.HEADS),
    Slot("blk.{i}.attn_v_b", f"{_ATTENTION}.unembed_out", SlotKind.HEADS),
)
_WHOLE: Final = (
    Slot("blk.{i}.attn_kv_b", f"{_ATTENTION}.embed_q", SlotKind.HEADS_FLIPPED, transform=_keys_of_heads),
    Slot("blk.{i}.attn_kv_b", f"{_ATTENTION}.unembed_out", SlotKind.HEADS, transform=_values_of_heads),
)
_SLOTS: Final = (
    *WHOLE,
    *NORMS,
    Slot("blk.{i}.attn_kv_a_mqa", f"{_ATTENTION}.kv_a_proj_with_mqa", bias=True),
    Slot("blk.{i}.attn_kv_a_norm", f"{_ATTENTION}.kv_a_layernorm", SlotKind.NORM),
    Slot("blk.{i}.attn_output", f"{_ATTENTION}.o_proj", bias=True),
    *gated_slots("model.layers.{i}.mlp", only="dense"),
    *ROUTED,
)

DEEPSEEK2 = Family(architecture="deepseek2", model_type="deepseek_v3", slots=_SLOTS, plan=_plan, gate="silu")

MISTRAL4 = Family(architecture="mistral4", model_type="mistral4", slots=_SLOTS, plan=_plan, gate="silu")
