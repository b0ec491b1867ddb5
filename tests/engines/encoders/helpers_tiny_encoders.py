"""Tiny random encoders of every family, as transformers would save them: weights from a seed, in NumPy alone.

So the same files can be made where a reference runs, and no binary is kept. Golden numbers and how they were made:
``helpers_golden.py``.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONFIGS", "ROWS", "config_of", "tensors_of", "tokenizer_json", "write_safetensors", "write_tiny"]

WIDTH, HEADS, LAYERS, FEED_FORWARD, VOCABULARY = 32, 4, 4, 64, 48
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Token ids of the rows that goldens are of: of unequal length, one longer than the windows, none a special token.
ROWS = ([7, 9, 11, 8, 5], list(range(5, 41)), [33, 6, 33])
TYPES = ([0, 0, 0, 1, 1], [0] * 20 + [1] * 16, [0, 1, 1])

_COMMON: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": FEED_FORWARD,
    "vocab_size": VOCABULARY,
    "num_labels": 1,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {
        **_COMMON,
        "model_type": "bert",
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    "xlm-roberta": {
        **_COMMON,
        "model_type": "xlm-roberta",
        "max_position_embeddings": 66,
        "type_vocab_size": 1,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    "modernbert": {
        **_COMMON,
        "model_type": "modernbert",
        "max_position_embeddings": 128,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "global_attn_every_n_layers": 3,
        "local_attention": 8,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "classifier_pooling": "mean",
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    "nomic_bert": {
        **_COMMON,
        "model_type": "nomic_bert",
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "pad_token_id": 0,
    },
    "qwen3": {
        **_COMMON,
        "model_type": "qwen3",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "gemma3_text": {
        **_COMMON,
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "use_bidirectional_attention": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0,
    },
    "jina": {
        **_COMMON,
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
}
_CLASSES = {
    "bert": "Bert",
    "xlm-roberta": "XLMRoberta",
    "modernbert": "ModernBert",
    "nomic_bert": "NomicBert",
    "qwen3": "Qwen3",
    "gemma3_text": "Gemma3Text",
    "jina": "JinaBert",
}


def config_of(family: str, *, classifies: bool = False) -> dict[str, Any]:
    """The ``config.json``."""
    ending = "ForSequenceClassification" if classifies else "Model"
    return {**CONFIGS[family], "architectures": [_CLASSES[family] + ending]}


def tensors_of(family: str, *, classifies: bool = False) -> dict[str, NDArray[np.float32]]:
    """Name → float32 weights, as transformers names them."""
    shapes = {
        "bert": _bert,
        "xlm-roberta": _bert,
        "jina": _jina,
        "modernbert": _modernbert,
        "nomic_bert": _nomic_bert,
        "qwen3": _decoder,
        "gemma3_text": _decoder,
    }[family](family)
    if classifies:
        prefix = {"bert": "bert.", "jina": "bert.", "xlm-roberta": "roberta.", "nomic_bert": "nomic_bert."}.get(
            family, "model."
        )
        shapes = {prefix + name: shape for name, shape in shapes.items()} | _head(family, prefix)
    elif family in ("bert", "jina"):
        shapes |= {"pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
    return {
        name: _random(name, shape, norm_offset=1.0 if family == "gemma3_text" else 0.0)
        for name, shape in shapes.items()
    }


def write_tiny(directory: Path, family: str, *, classifies: bool = False) -> Path:
    """A checkpoint's directory with config, weights and a tokenizer of whole words ``w5`` to ``w47``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(family, classifies=classifies)))
    (directory / "tokenizer.json").write_text(
        json.dumps(tokenizer_json(doubled=family == "xlm-roberta", typed=family == "bert"))
    )
    write_safetensors(directory / "model.safetensors", tensors_of(family, classifies=classifies))
    return directory


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """One file; float32 and float16."""
    table, end = {}, 0
    for name, data in tensors.items():
        table[name] = {
            "dtype": {"float32": "F32", "float16": "F16"}[data.dtype.name],
            "shape": list(data.shape),
            "data_offsets": [end, end + data.nbytes],
        }
        end += data.nbytes
    header = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for data in tensors.values():
            file.write(np.ascontiguousarray(data).tobytes())


def tokenizer_json(*, doubled: bool = False, typed: bool = False) -> dict[str, Any]:
    """Whole words; ``doubled`` has two separators between two texts, ``typed`` a token type for the second."""
    vocabulary = {text: id for id, text in enumerate(SPECIALS)}
    vocabulary |= {f"w{id}": id for id in range(len(SPECIALS), VOCABULARY)}

    def special(text: str, kind: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": kind}}

    def text(name: str, kind: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    second = 1 if typed else 0
    between = [special("[SEP]")] * (2 if doubled else 1)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for id, name in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]"), text("A"), special("[SEP]")],
            "pair": [special("[CLS]"), text("A"), *between, text("B", second), special("[SEP]", second)],
            "special_tokens": {
                name: {"id": name, "ids": [SPECIALS.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }


# --- shapes ---------------------------------------------------------------------------------------------------------

_Shapes = dict[str, tuple[int, ...]]


def _linear(name: str, rows: int, columns: int, bias: bool = True) -> _Shapes:
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def _norm(name: str, width: int = WIDTH, bias: bool = True) -> _Shapes:
    return {f"{name}.weight": (width,), **({f"{name}.bias": (width,)} if bias else {})}


def _bert(family: str) -> _Shapes:
    config = CONFIGS[family]
    shapes: _Shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], WIDTH),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], WIDTH),
        **_norm("embeddings.LayerNorm"),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{layer}.attention.self.{part}", WIDTH, WIDTH)
        shapes |= _linear(f"{layer}.attention.output.dense", WIDTH, WIDTH) | _norm(
            f"{layer}.attention.output.LayerNorm"
        )
        shapes |= _linear(f"{layer}.intermediate.dense", FEED_FORWARD, WIDTH)
        shapes |= _linear(f"{layer}.output.dense", WIDTH, FEED_FORWARD) | _norm(f"{layer}.output.LayerNorm")
    return shapes


def _jina(family: str) -> _Shapes:
    shapes = {
        name: shape
        for name, shape in _bert("bert").items()
        if (".intermediate." not in name and not name.startswith("encoder.layer")) or ".attention." in name
    }
    del shapes["embeddings.position_embeddings.weight"]
    for i in range(LAYERS):
        shapes |= _linear(f"encoder.layer.{i}.mlp.gated_layers", 2 * FEED_FORWARD, WIDTH, bias=False)
        shapes |= _linear(f"encoder.layer.{i}.mlp.wo", WIDTH, FEED_FORWARD) | _norm(f"encoder.layer.{i}.mlp.layernorm")
    return shapes


def _modernbert(family: str) -> _Shapes:
    shapes: _Shapes = {"embeddings.tok_embeddings.weight": (VOCABULARY, WIDTH), **_norm("embeddings.norm", bias=False)}
    for i in range(LAYERS):
        if i:
            shapes |= _norm(f"layers.{i}.attn_norm", bias=False)
        shapes |= _linear(f"layers.{i}.attn.Wqkv", 3 * WIDTH, WIDTH, bias=False)
        shapes |= _linear(f"layers.{i}.attn.Wo", WIDTH, WIDTH, bias=False) | _norm(f"layers.{i}.mlp_norm", bias=False)
        shapes |= _linear(f"layers.{i}.mlp.Wi", 2 * FEED_FORWARD, WIDTH, bias=False)
        shapes |= _linear(f"layers.{i}.mlp.Wo", WIDTH, FEED_FORWARD, bias=False)
    return shapes | _norm("final_norm", bias=False)


def _nomic_bert(family: str) -> _Shapes:
    shapes: _Shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **_norm("emb_ln"),
    }
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        shapes |= _linear(f"{layer}.attn.Wqkv", 3 * WIDTH, WIDTH, bias=False)
        shapes |= _linear(f"{layer}.attn.out_proj", WIDTH, WIDTH, bias=False) | _norm(f"{layer}.norm1")
        for part in ("fc11", "fc12"):
            shapes |= _linear(f"{layer}.mlp.{part}", FEED_FORWARD, WIDTH, bias=False)
        shapes |= _linear(f"{layer}.mlp.fc2", WIDTH, FEED_FORWARD, bias=False) | _norm(f"{layer}.norm2")
    return shapes


def _decoder(family: str) -> _Shapes:
    config = CONFIGS[family]
    head, keys = config["head_dim"], config["num_key_value_heads"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes: _Shapes = {"embed_tokens.weight": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        layer = f"layers.{i}"
        for part, rows in (("q_proj", HEADS * head), ("k_proj", keys * head), ("v_proj", keys * head)):
            shapes |= _linear(f"{layer}.self_attn.{part}", rows, WIDTH, bias=False)
        shapes |= _linear(f"{layer}.self_attn.o_proj", WIDTH, HEADS * head, bias=False)
        shapes |= _norm(f"{layer}.self_attn.q_norm", head, bias=False) | _norm(
            f"{layer}.self_attn.k_norm", head, bias=False
        )
        for part in ("gate_proj", "up_proj"):
            shapes |= _linear(f"{layer}.mlp.{part}", FEED_FORWARD, WIDTH, bias=False)
        shapes |= _linear(f"{layer}.mlp.down_proj", WIDTH, FEED_FORWARD, bias=False)
        for norm in norms:
            shapes |= _norm(f"{layer}.{norm}", bias=False)
    return shapes | _norm("norm", bias=False)


def _head(family: str, prefix: str) -> _Shapes:
    match family:
        case "bert" | "nomic_bert" | "jina":
            return _linear(f"{prefix}pooler.dense", WIDTH, WIDTH) | _linear("classifier", 1, WIDTH)
        case "xlm-roberta":
            return _linear("classifier.dense", WIDTH, WIDTH) | _linear("classifier.out_proj", 1, WIDTH)
        case "modernbert":
            dense = _linear("head.dense", WIDTH, WIDTH, bias=False) | _norm("head.norm", bias=False)
            return dense | _linear("classifier", 1, WIDTH)
    return _linear("score", 1, WIDTH, bias=False)


def _random(name: str, shape: tuple[int, ...], norm_offset: float) -> NDArray[np.float32]:
    """Norms are near 1, matrices spread by their width, the rest is small."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    if "orm" in name.rpartition(".")[0].rpartition(".")[2] or "emb_ln" in name or "norm1" in name or "norm2" in name:
        return np.asarray(0.2 * values + (1.0 - norm_offset if name.endswith("weight") else 0.0), np.float32)
    if len(shape) == 2 and "embed" not in name:
        return np.asarray(values * 1.5 / np.sqrt(shape[1]), np.float32)
    return np.asarray(values * 0.3, np.float32)
