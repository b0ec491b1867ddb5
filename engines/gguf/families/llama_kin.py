"""Architectures that llama.cpp names apart and that compute what Llama does: mlx-lm's llama runs them.

internlm2   InternLM 2 and 2.5; its fused projection is split by the converter, its rows of Q and K are interleaved
ernie4_5    ERNIE 4.5, dense; rotates neighbours by itself
exaone      EXAONE 3 and 3.5; rotates halves
seed_oss    Seed-OSS; rotates halves, its MLP's norm is named otherwise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP, POST_NORMS, QKV
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, whole_head_rope

__all__ = ["ERNIE4_5", "EXAONE", "INTERNLM2", "SEED_OSS", "llama_plan"]


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


INTERNLM2 = Family(
    architecture="internlm2",
    model_type="llama",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM),
    plan=_rotating(traditional=True),
    gate="silu",
)

ERNIE4_5 = Family(
    architecture="ernie4_5",
    model_type="llama",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM),
    plan=_rotating(traditional=True),
    gate="silu",
)

EXAONE = Family(
    architecture="exaone",
    model_type="llama",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM),
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
