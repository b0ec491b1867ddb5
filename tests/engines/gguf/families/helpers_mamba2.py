"""What the converter makes of a Mamba 2 layer, whichever model it is in."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_names import Array, matrix_of_convolution, minus_exp

__all__ = ["KEPT_FLOATS", "MAMBA2_NAMES", "mamba2_converted", "mamba2_initial"]

KEPT_FLOATS = ("ffn_gate_inp", "ssm_conv1d", "ssm_norm")
"""Of a file's matrices that are never quantised."""

MAMBA2_NAMES = {
    "in_proj.weight": "ssm_in.weight",
    "conv1d.weight": "ssm_conv1d.weight",
    "conv1d.bias": "ssm_conv1d.bias",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "norm.weight": "ssm_norm.weight",
    "out_proj.weight": "ssm_out.weight",
}


def mamba2_converted(own: str, value: Array, groups: int) -> Array:
    """``own`` is the name in the layer: decays and skips become columns, the norm a row for each group."""
    match own:
        case "conv1d.weight":
            return matrix_of_convolution(value)
        case "A_log":
            return minus_exp(value).reshape(-1, 1)
        case "D":
            return value.reshape(-1, 1)
        case "norm.weight":
            return value.reshape(groups, -1)
    return value


def mamba2_initial(name: str, random: Array) -> Array | None:
    """Decays and steps of about the sizes that trained models have, and convolutions that see more than their last input."""
    if name.endswith("conv1d.weight"):
        return 0.5 * random
    if name.endswith((".A_log", ".D")):
        return 0.5 + 0.5 * random
    return None
