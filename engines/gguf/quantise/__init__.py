"""Quantising: float weights to the blocks of a GGUF type, and a whole checkpoint to a mix of types.

::

    quantise(array, "Q4_K")         encode: chunks over threads ──> k_quants, legacy: layout ──> search: scales and minima
    quantise_file(source, target, "Q4_K_M")
                                    mix: names and shapes → types ──> encode, slab by slab ──> engines.gguf.writer

The reverse is ``engines.gguf.quants``. Only types that need no importance matrix can be written: Q2_K to Q6_K, Q4_0, Q4_1,
Q5_0, Q5_1, Q8_0 and the floats. Blocks are those of llama.cpp's quantiser, to the bit.
"""

from engines.gguf.quantise.checkpoint import mixed_model, quantise_file
from engines.gguf.quantise.encode import ENCODERS, quantise
from engines.gguf.quantise.mix import MIXES, Mix, MixedModel, find_mix, tensor_types

__all__ = [
    "ENCODERS",
    "MIXES",
    "Mix",
    "MixedModel",
    "find_mix",
    "mixed_model",
    "quantise",
    "quantise_file",
    "tensor_types",
]
