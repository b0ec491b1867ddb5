"""SmolLM2 as stock mlx-lm has it, in dense float32: what our layers and kernels are compared with."""

from __future__ import annotations

from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import llama

from engines.gguf.tensors import TensorFile
from engines.header import GgufHeader

__all__ = ["stock_smollm2"]


def stock_smollm2(header: GgufHeader) -> Any:
    """The stock class as Hugging Face's checkpoint would fill it: gguf-py's dequantisation, rows of Q and K put back."""
    keys: Any = header.metadata
    heads, kv_heads = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
    arguments = {
        "model_type": "llama",
        "hidden_size": keys["llama.embedding_length"],
        "num_hidden_layers": keys["llama.block_count"],
        "intermediate_size": keys["llama.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": keys["llama.attention.layer_norm_rms_epsilon"],
        "vocab_size": keys["llama.vocab_size"],
        "rope_theta": keys["llama.rope.freq_base"],
    }
    stock: Any = llama
    model = stock.Model(stock.ModelArgs(**arguments))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.args.num_hidden_layers)
    weights = []
    parameters: Any = tree_flatten(model.parameters())
    with TensorFile(header) as tensors:
        for name, _ in parameters:
            stem = names.get_name(name, try_suffixes=(".weight",))
            assert stem is not None
            kind = gguf.GGMLQuantizationType[header.tensors[stem].type.name]
            values = gguf.quants.dequantize(np.array(tensors.blocks(stem)), kind)
            if ".q_proj." in name or ".k_proj." in name:
                pairs = values.reshape(heads if ".q_proj." in name else kv_heads, -1, 2, values.shape[1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
            weights.append((name, mx.array(values)))
    model.update(tree_unflatten(weights))
    return model
