"""Architectures that llama.cpp names apart and that compute what Llama does: mlx-lm's llama runs them.

baichuan    Baichuan 7B and Baichuan 2 7B; its rows of Q and K are interleaved by the converter
ernie4_5    ERNIE 4.5, dense; rotates neighbours by itself
exaone      EXAONE 3 and 3.5; rotates halves
internlm2   InternLM 2 and 2.5; its fused projection is split by the converter, its rows of Q and K are interleaved
qwen        the first Qwen; rotates halves, Q, K and V lie in one matrix, and half of what it calls its inner width is one
seed_oss    Seed-OSS; rotates halves, its MLP's norm is named otherwise
xverse      XVERSE; its rows of Q and K are interleaved by the converter
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import FFN_NORM, FUSED_QKV, GATE_UP, POST_NORMS, QKV
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, whole_head_rope

__all__ = ["BAICHUAN", "ERNIE4_5", "EXAONE", "INTERNLM2", "QWEN", "SEED_OSS", "XVERSE", "llama_plan"]

_BAICHUAN_13B: Final = 40  # layers
_USUAL: Final = (*DECODER, *QKV, *GATE_UP, FFN_NORM)


def llama_plan(checkpoint: Checkpoint, *, traditional: bool) -> Plan:
    """The plan of an architecture that mlx-lm's llama computes. ``traditional`` says that neighbouring features are rotated
    together, not halves of a head."""
    plan = decoder_plan(checkpoint, "llama")
    plan = replace(plan, config=plan.config | {"rope_traditional": traditional})
    return whole_head_rope(checkpoint, plan, traditional=traditional)


def _rotating(traditional: bool) -> Callable[[Checkpoint], Plan]:
    return lambda checkpoint: llama_plan(checkpoint, traditional=traditional)


def _exaone(checkpoint: Checkpoint) -> Plan:
    # A key of the same value beside the one that is read.
    epsilon = checkpoint.parameters.number("attention.layer_norm_rms_epsilon")
    checkpoint.parameters.expect("attention.layer_norm_epsilon", epsilon)
    return llama_plan(checkpoint, traditional=False)


def _baichuan(checkpoint: Checkpoint) -> Plan:
    plan = llama_plan(checkpoint, traditional=True)
    if plan.config["num_hidden_layers"] == _BAICHUAN_13B:
        raise checkpoint.parameters.refusal(
            "block_count", "Baichuan 13B has no rotary embedding but ALiBi, which is missing"
        )
    return plan


def _qwen(checkpoint: Checkpoint) -> Plan:
    plan = llama_plan(checkpoint, traditional=False)
    inner = plan.config["intermediate_size"]
    if inner % 2:
        raise checkpoint.parameters.error("feed_forward_length", f"is {inner}, which cannot be halved")
    plan.config["intermediate_size"] = inner // 2
    return plan


BAICHUAN = Family(
    architecture="baichuan",
    model_type="llama",
    slots=_USUAL,
    plan=_baichuan,
    gate="silu",
)

QWEN = Family(
    architecture="qwen",
    model_type="llama",
    slots=(*DECODER, *FUSED_QKV, *GATE_UP, FFN_NORM),
    plan=_qwen,
    gate="silu",
)

XVERSE = Family(
    architecture="xverse",
    model_type="llama",
    slots=_USUAL,
    plan=_rotating(traditional=True),
    gate="silu",
)

INTERNLM2 = Family(
    architecture="internlm2",
    model_type="llama",
    slots=_USUAL,
    plan=_rotating(traditional=True),
    gate="silu",
)

ERNIE4_5 = Family(
    architecture="ernie4_5",
    model_type="llama",
    slots=_USUAL,
    plan=_rotating(traditional=True),
    gate="silu",
)

EXAONE = Family(
    architecture="exaone",
    model_type="llama",
    slots=_USUAL,
    plan=_exaone,
    gate="silu",
)

SEED_OSS = Family(
    architecture="seed_oss",
    model_type="llama",
    slots=(*DECODER, *QKV, *GATE_UP, POST_NORMS[0]),
    plan=_rotating(traditional=False),
    gate="silu",
)
