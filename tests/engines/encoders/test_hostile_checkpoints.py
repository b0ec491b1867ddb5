"""Checkpoints whose files do not go together: refused by the name of what is wrong, before anything is read outside of a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import EngineError
from engines.rerank import build as build_reranker
from engines.wire import LoadModel, ModelSpec
from tests.engines.embeddings.helpers_engine import embed, engine_of
from tests.engines.encoders.helpers_tiny_encoders import config_of, tensors_of, write_safetensors, write_tiny

Change = Callable[[dict[str, Any]], Any]


def changed(path: Path, change: Change) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    change(values)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def refusal(directory: Path, *, classifies: bool = False) -> str:
    with pytest.raises(EngineError) as refused:
        if classifies:
            paths = (str(directory / "model.safetensors"),)
            spec = ModelSpec(id="m", task="rerank", format="safetensors", paths=paths)
            build_reranker(LoadModel(spec=spec), lambda fraction: None)
        else:
            engine_of(directory)
    return refused.value.message


@pytest.mark.parametrize(
    ("family", "classifies", "name", "change"),
    [
        ("bert", False, "embeddings.token_type_embeddings.weight", None),
        ("bert", False, "embeddings.token_type_embeddings.weight", lambda x: x[:0]),
        ("bert", False, "embeddings.position_embeddings.weight", lambda x: x[0, 0]),
        ("bert", False, "embeddings.LayerNorm.bias", None),
        ("bert", False, "encoder.layer.1.attention.self.key.bias", None),
        ("bert", True, "bert.pooler.dense.bias", None),
        ("bert", True, "classifier.weight", lambda x: x[0, 0]),
        ("bert", True, "classifier.weight", lambda x: x[:0]),
        ("xlm-roberta", True, "classifier.out_proj.bias", None),
        ("modernbert", False, "layers.0.attn.Wqkv.weight", None),
        ("modernbert", False, "layers.0.mlp.Wi.weight", None),
        ("nomic_bert", False, "encoder.layers.0.norm1.bias", None),
        ("nomic_bert", False, "encoder.layers.0.mlp.fc12.weight", None),
        ("nomic_bert", False, "emb_ln.bias", None),
        ("modernbert", True, "classifier.bias", None),
        ("jina", False, "encoder.layer.0.mlp.gated_layers.weight", None),
        ("qwen3", False, "layers.0.self_attn.q_norm.weight", lambda x: x[0]),
    ],
)
def test_tensor_that_is_missing_or_misshapen_is_named(
    tmp_path: Path, family: str, classifies: bool, name: str, change: Callable[[Any], Any] | None
) -> None:
    write_tiny(tmp_path, family, classifies=classifies)
    tensors = tensors_of(family, classifies=classifies)
    tensor = tensors.pop(name)
    if change is not None:
        tensors[name] = np.asarray(change(tensor))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert f"'{name}'" in refusal(tmp_path, classifies=classifies)


@pytest.mark.parametrize(
    ("family", "classifies", "file", "change", "message"),
    [
        ("bert", False, "sentence_bert_config.json", {"max_seq_length": 2}, "2 tokens, of which 2 are the tokenizer's"),
        ("bert", False, "sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0"),
        ("bert", True, "sentence_bert_config.json", {"max_seq_length": 3}, "3 tokens go around a pair"),
        ("xlm-roberta", False, "config.json", {"pad_token_id": 1000}, "max_position_embeddings is"),
        ("bert", False, "config.json", {"type_vocab_size": 5}, "type_vocab_size is 5"),
        ("modernbert", False, "config.json", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("modernbert", False, "config.json", {"layer_types": ["x"] * 4}, "layer_types is no list"),
        ("gemma3_text", False, "config.json", {"layer_types": 3}, "layer_types is no list"),
        ("modernbert", True, "config.json", {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
    ],
)
def test_setting_that_cannot_be_is_named(
    tmp_path: Path, family: str, classifies: bool, file: str, change: dict[str, Any], message: str
) -> None:
    write_tiny(tmp_path, family, classifies=classifies)
    changed(tmp_path / file, lambda values: values.update(change))
    assert message in refusal(tmp_path, classifies=classifies)


def special(ids: list[int]) -> Change:
    return lambda values: values["post_processor"]["special_tokens"]["[CLS]"].update(ids=ids)


def second_type(kind: int) -> Change:
    def change(values: dict[str, Any]) -> None:
        for piece in values["post_processor"]["pair"][3:]:
            next(iter(piece.values()))["type_id"] = kind

    return change


@pytest.mark.parametrize(
    ("classifies", "change", "message"),
    [
        (False, special([999_999]), "puts the token 999999 around texts"),
        (False, lambda values: values["model"]["vocab"].update(w5=5_000_000), "has 5000001 tokens, the model 48"),
        (False, lambda values: values["model"].update(unk_token="none"), "Missing [UNK]"),
        (True, second_type(7), "has the token type 7, the model 2 types"),
        (True, lambda values: values.update(post_processor=None), "0 tokens go around a pair"),
    ],
)
def test_tokenizer_that_is_not_the_models_is_refused(
    tmp_path: Path, classifies: bool, change: Change, message: str
) -> None:
    write_tiny(tmp_path, "bert", classifies=classifies)
    changed(tmp_path / "tokenizer.json", change)
    assert message in refusal(tmp_path, classifies=classifies)


def test_second_token_type_is_the_first_where_the_model_has_one(tmp_path: Path) -> None:
    assert config_of("xlm-roberta")["type_vocab_size"] == 1
    write_tiny(tmp_path, "xlm-roberta")
    changed(tmp_path / "tokenizer.json", second_type(1))
    assert np.isfinite(embed(engine_of(tmp_path), "w5 w6")).all()


MODULES = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}, {"type": "x.Dense", "path": "2"}]
IDENTITY = {"activation_function": "torch.nn.modules.linear.Identity"}


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({}, {"linear.weight": np.float32(1)}, "'linear.weight' is []"),
        ({}, {"linear.weight": np.ones((0, 32), np.float32)}, "'linear.weight' is [0, 32]"),
        ({"bias": True}, {"linear.weight": np.ones((8, 32), np.float32)}, "'linear.bias' is missing"),
        ({"out_features": 9}, {"linear.weight": np.ones((8, 32), np.float32)}, "has 8 rows, out_features is 9"),
        ({}, {"linear.weight": np.ones((8, 32), np.float32), "x": np.ones(1, np.float32)}, "'x' has no place"),
    ],
)
def test_dense_layer_that_its_configuration_does_not_fit_is_refused(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], message: str
) -> None:
    write_tiny(tmp_path, "bert")
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    changed(tmp_path / "1" / "config.json", lambda values: values.update(pooling_mode_cls_token=True))
    changed(tmp_path / "2" / "config.json", lambda values: values.update(IDENTITY | config))
    write_safetensors(
        tmp_path / "2" / "model.safetensors", {name: np.asarray(value) for name, value in tensors.items()}
    )
    assert message in refusal(tmp_path)


def test_modules_that_are_a_directory_are_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path, "bert")
    (tmp_path / "modules.json").mkdir()
    assert "modules.json: not a regular file" in refusal(tmp_path)
