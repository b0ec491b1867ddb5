"""command-r and cohere2."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, MORE_HEADS, by_name, keys_of_layer_norms
from tests.engines.gguf.families.helpers_family import Array, Case, Wide, checks

COMMAND_R: dict[str, Any] = CONFIG | {
    "model_type": "cohere",
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.3,
    "use_qk_norm": False,
}
COHERE2: dict[str, Any] = CONFIG | {
    "model_type": "cohere2",
    "num_hidden_layers": 5,
    "head_dim": 16,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.3,
    "sliding_window": 8,
    "sliding_window_pattern": 4,
}
KEYS: dict[str, Any] = {"logit_scale": 0.3, "rope__scaling__type": "none"}
COHERE2_KEYS: dict[str, Any] = KEYS | {
    "attention__sliding_window": 8,
    "rope__dimension_count": 16,
    "vocab_size": 96,
}


def initial(name: str, random: Array) -> Array | None:
    """Norms of Q and K are matrices here, a row a head."""
    return 1 + 0.2 * random if "_norm." in name else None


CASES = [
    Case("command-r", "command-r", COMMAND_R, keys_of_layer_norms(COMMAND_R, **KEYS), by_name("command-r")),
    Case(
        "command-r-plus",
        "command-r",
        COMMAND_R | {"use_qk_norm": True},
        keys_of_layer_norms(COMMAND_R, **KEYS),
        by_name("command-r"),
        light=True,
        floats=("_norm.",),
        initial=initial,
    ),
    Case(
        "cohere2",
        "cohere2",
        COHERE2,
        keys_of_layer_norms(COHERE2, **COHERE2_KEYS),
        by_name("cohere2"),
        wide=Wide(*MORE_HEADS),
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
