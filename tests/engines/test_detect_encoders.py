"""Embedding models and rerankers: what they are said to be, whether they can run, what they take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.detect import detect
from engines.footprint import ENCODER_TOKENS, estimate
from tests.engines.encoders.helpers_minilm import minilm
from tests.engines.encoders.helpers_tiny_encoders import CONFIGS, write_tiny
from tests.engines.encoders.helpers_tiny_gguf import ARCHITECTURES, write_tiny_gguf


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_detect_encoder_of_either_format(tmp_path: Path, family: str) -> None:
    for classifies, task in ((False, "embedding"), (True, "rerank")):
        if classifies and family in ("gemma3_text", "nomic_bert", "qwen3"):
            continue  # gguf-py has no name for their classifiers
        found = detect(write_tiny(tmp_path / f"{family}-{task}", family, classifies=classifies))
        assert (found.task, found.unsupported, found.format) == (task, None, "safetensors")
        found = detect(write_tiny_gguf(tmp_path / f"{family}-{task}.gguf", family, classifies=classifies))
        assert (found.task, found.unsupported, found.tokenizer) == (task, None, "WordPiece")
        assert found.architecture == ARCHITECTURES[family]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "deberta-v2"}, "model_type 'deberta-v2' is not supported"),
        ({"hidden_act": "relu"}, "the activation 'relu' is not supported"),
        ({"quantization": {"bits": 4}}, "quantization is set"),
        ({"num_hidden_layers": 4000}, "4000 layers are announced"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide', not an integer"),
    ],
)
def test_detect_says_why_an_encoder_cannot_run(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    directory = write_tiny(tmp_path, "bert")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **change}))
    unsupported = detect(directory).unsupported
    assert unsupported is not None and unsupported.startswith(why)


def test_detect_encoder_without_its_tokenizer_cannot_run(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, "bert")
    (directory / "tokenizer.json").unlink()
    assert detect(directory).unsupported == "it has no tokenizer.json"


def test_detect_decoder_with_sentence_transformers_files_is_an_embedding_model(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "some-decoder", "qwen3")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForCausalLM"]}))
    assert detect(directory).task == "text"
    (directory / "1_Pooling").mkdir()
    assert (detect(directory).task, detect(directory).unsupported) == ("embedding", None)


def test_footprint_of_an_encoder_has_no_kv_and_room_for_a_long_text(tmp_path: Path) -> None:
    short = estimate(detect(write_tiny_gguf(tmp_path / "short.gguf", "modernbert")))
    assert (short.kv_bytes_per_token, short.context) == (0, 128)
    long = estimate(detect(write_tiny_gguf(tmp_path / "long.gguf", "modernbert", {"modern-bert.context_length": 8192})))
    assert 0 < short.state_bytes < long.state_bytes
    assert long.kv_bytes(8192) == long.kv_bytes(ENCODER_TOKENS) == long.state_bytes
    assert estimate(detect(tmp_path / "long.gguf"), context=64).context == 64


def test_footprint_of_minilm_is_its_weights_and_its_tokenizer() -> None:
    static = estimate(detect(minilm())).static_bytes
    assert 90_000_000 < static < 110_000_000


def test_context_is_what_the_model_reads_and_not_its_positions() -> None:
    checkpoint = detect(minilm())  # 512 positions, 256 tokens by sentence_bert_config.json
    assert checkpoint.context == 256
    assert estimate(checkpoint).context == 256
    assert estimate(checkpoint, context=100).context == 100
