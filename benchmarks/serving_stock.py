"""Writes a GGUF Llama as a folder that mlx-lm loads: the same weights in MLX's affine 4-bit form, and the same tokenizer.

Only for Llamas with a byte-level BPE tokenizer, as SmolLM2: what the serving benchmark compares with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from engines.gguf.model import build_model
from engines.gguf.tensors import TensorFile
from engines.header import GgufArray, GgufHeader, read_header

__all__ = ["write_stock"]

_GROUP, _BITS = 64, 4
_CONTROL = 3  # ``tokenizer.ggml.token_type``


def write_stock(source: Path, folder: Path) -> Path:
    """The folder, with ``config.json``, ``model.safetensors`` and the tokenizer."""
    header = read_header(source)
    built = build_model(header)
    model: Any = llama.Model(llama.ModelArgs.from_dict(built.config))  # type: ignore[no-untyped-call]
    model.load_weights(list(_weights(header, built.model, model)))
    quantize(model, _GROUP, _BITS)
    model.set_dtype(mx.float32 if mx.default_device().type == mx.DeviceType.cpu else mx.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    end = int(header.metadata["tokenizer.ggml.eos_token_id"])  # type: ignore[arg-type]
    config = built.config | {
        "quantization": {"group_size": _GROUP, "bits": _BITS},
        "eos_token_id": end,
        "architectures": ["LlamaForCausalLM"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(header, folder)
    del model, built
    mx.clear_cache()  # a GPU's memory is the servers'
    return folder


def _weights(header: GgufHeader, ours: Any, stock: Any) -> list[tuple[str, mx.array]]:
    """Dense weights by the stock model's names; ours have the same, and know how to dequantise."""
    names = dict(tree_flatten(stock.parameters()))
    found = []
    with TensorFile(header):
        for name in names:
            module: Any = ours
            for part in name.split(".")[:-1]:
                module = module[int(part)] if part.isdigit() else module[part]
            weight = getattr(module, name.rsplit(".", 1)[1])
            found.append((name, weight.astype(mx.float32)))
    return found


def _write_tokenizer(header: GgufHeader, folder: Path) -> None:
    tokens, merges, kinds = (header.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges", "token_type"))
    assert isinstance(tokens, GgufArray) and isinstance(merges, GgufArray) and isinstance(kinds, GgufArray)
    texts = [str(token) for token in tokens]
    special = [index for index, kind in enumerate(kinds) if kind == _CONTROL]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": texts[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in special
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: index for index, text in enumerate(texts)},
            "merges": [str(merge) for merge in merges],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    end = texts[int(header.metadata["tokenizer.ggml.eos_token_id"])]  # type: ignore[arg-type]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
