"""Roles of tensors, templates and licences, from either format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.detect import detect
from engines.header import GgufValueType
from engines.inspection import inspect_checkpoint, role_of
from tests.engines.gguf.helpers_tiny import tiny_gguf
from tests.engines.helpers_gguf_bytes import pair, small_llama
from tests.engines.helpers_safetensors_bytes import safetensors


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("embedding", ["token_embd.weight", "model.embed_tokens.weight", "bert.embeddings.word_embeddings.weight"]),
        ("output", ["output.weight", "lm_head.weight", "cls.output.weight"]),
        (
            "norms and biases",
            ["blk.3.attn_q_norm.weight", "output_norm.weight", "blk.0.attn_k.bias", "h.0.ln_1.weight"],
        ),
        ("attention value", ["blk.0.attn_v.weight", "blk.0.attn_qkv.weight", "model.layers.0.self_attn.v_proj.weight"]),
        (
            "attention query, key",
            ["blk.0.attn_q.weight", "model.layers.0.self_attn.k_proj.scales", "blk.0.attn_kv_a_mqa.weight"],
        ),
        ("attention output", ["blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"]),
        ("feed-forward down", ["blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"]),
        ("feed-forward gate, up", ["blk.0.ffn_gate.weight", "model.layers.9.mlp.up_proj.weight"]),
        (
            "experts",
            ["blk.0.ffn_down_exps.weight", "blk.0.ffn_up.7.weight", "model.layers.1.mlp.experts.5.up_proj.weight"],
        ),
        ("shared experts", ["blk.0.ffn_up_shexp.weight", "model.layers.1.mlp.shared_experts.up_proj.weight"]),
        ("routers", ["blk.0.ffn_gate_inp.weight", "model.layers.1.mlp.gate.weight"]),
        (
            "state",
            ["blk.0.ssm_in.weight", "blk.0.shortconv.in_proj.weight", "model.layers.0.linear_attn.in_proj.weight"],
        ),
        ("other", ["rope_freqs.weight", "mystery"]),
    ],
)
def test_role_of_names_of_both_formats(role: str, names: list[str]) -> None:
    assert {name: role_of(name) for name in names} == dict.fromkeys(names, role)


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_inspection_finds_a_place_for_every_tensor_of_a_model_that_runs(family: str, tmp_path: Path) -> None:
    checkpoint = detect(tiny_gguf(tmp_path, family, "Q6_K"))
    assert checkpoint.unsupported is None


def test_inspection_lists_the_variants_of_a_template(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    names = ("tokenizer.chat_template.tool_use", "tokenizer.chat_template", "tokenizer.chat_template.rag")
    path.write_bytes(small_llama([pair(name, GgufValueType.STRING, "x") for name in names]))
    assert inspect_checkpoint(detect(path)).templates == ("default", "rag", "tool_use")


def test_inspection_of_a_folder_of_safetensors(tmp_path: Path) -> None:
    experts = {f"model.layers.0.mlp.experts.{i}.up_proj.weight": ("BF16", [8, 4]) for i in range(4)}
    weights = safetensors({"model.embed_tokens.weight": ("F32", [10, 4]), **experts})
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["X"], "model_type": "x", "num_experts": 4, "num_experts_per_tok": 1})
    )
    variants = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "x"}]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "XTokenizer", "chat_template": variants})
    )
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: of the text\n")
    checkpoint = detect(tmp_path)
    inspection = inspect_checkpoint(checkpoint)
    assert checkpoint.parameters == 40 + 4 * 32
    assert inspection.active_parameters == 40 + 32
    assert inspection.roles == {"experts": {"BF16": (4, 256)}, "embedding": {"F32": (1, 160)}}
    assert (inspection.templates, inspection.tokenizer_model) == (("default", "tool_use"), "XTokenizer")
    assert inspection.license == "apache-2.0"


def test_inspection_of_a_card_without_a_licence(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F32", [2, 3])}))
    (tmp_path / "README.md").write_text("# A model\n---\nlicense: mit\n---\n")
    inspection = inspect_checkpoint(detect(tmp_path))
    assert (inspection.license, inspection.templates, inspection.tokenizer_model) == (None, (), None)
