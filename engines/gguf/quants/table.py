"""Every quant type that is supported, one entry each."""

from __future__ import annotations

from engines.errors import UnsupportedModel
from engines.gguf.quants.base import QuantType
from engines.gguf.quants.bf16 import BF16
from engines.gguf.quants.f16 import F16
from engines.gguf.quants.f32 import F32
from engines.gguf.quants.iq1_m import IQ1_M
from engines.gguf.quants.iq1_s import IQ1_S
from engines.gguf.quants.iq2_s import IQ2_S
from engines.gguf.quants.iq2_xs import IQ2_XS
from engines.gguf.quants.iq2_xxs import IQ2_XXS
from engines.gguf.quants.iq3_s import IQ3_S
from engines.gguf.quants.iq3_xxs import IQ3_XXS
from engines.gguf.quants.iq4_nl import IQ4_NL
from engines.gguf.quants.iq4_xs import IQ4_XS
from engines.gguf.quants.mxfp4 import MXFP4
from engines.gguf.quants.nvfp4 import NVFP4
from engines.gguf.quants.q2_k import Q2_K
from engines.gguf.quants.q3_k import Q3_K
from engines.gguf.quants.q4_0 import Q4_0
from engines.gguf.quants.q4_1 import Q4_1
from engines.gguf.quants.q4_k import Q4_K
from engines.gguf.quants.q5_0 import Q5_0
from engines.gguf.quants.q5_1 import Q5_1
from engines.gguf.quants.q5_k import Q5_K
from engines.gguf.quants.q6_k import Q6_K
from engines.gguf.quants.q8_0 import Q8_0
from engines.gguf.quants.tq1_0 import TQ1_0
from engines.gguf.quants.tq2_0 import TQ2_0

__all__ = ["QUANT_TYPES", "quant_type"]

QUANT_TYPES: tuple[QuantType, ...] = (
    Q2_K(),
    Q3_K(),
    Q4_K(),
    Q5_K(),
    Q6_K(),
    Q4_0(),
    Q4_1(),
    Q5_0(),
    Q5_1(),
    Q8_0(),
    IQ4_NL(),
    IQ4_XS(),
    IQ3_S(),
    IQ3_XXS(),
    IQ2_S(),
    IQ2_XS(),
    IQ2_XXS(),
    IQ1_S(),
    IQ1_M(),
    TQ1_0(),
    TQ2_0(),
    MXFP4(),
    NVFP4(),
    F16(),
    BF16(),
    F32(),
)

_BY_NAME = {quant.name: quant for quant in QUANT_TYPES}
_BY_ID = {quant.ggml_id: quant for quant in QUANT_TYPES}


def quant_type(name_or_id: str | int) -> QuantType:
    """The type of this name (``"Q4_K"``) or GGML id (12). UnsupportedModel, with the list of names, for any other."""
    found = _BY_NAME.get(name_or_id) if isinstance(name_or_id, str) else _BY_ID.get(int(name_or_id))
    if found is None:
        raise UnsupportedModel(f"quant type {name_or_id} is not supported; supported are {', '.join(_BY_NAME)}")
    return found
