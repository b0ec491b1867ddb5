"""What a file's header says of its model, to people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engines.errors import GgufFormatError
from engines.header import GgufValueType
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.registry.model_card import LARGEST_ARRAY, digest_of, file_bytes_of, read_card, read_details
from tests.engines.helpers_gguf_bytes import array_pair, pair, small_llama
from tests.gateway.registry.helpers_settings import catalog_of

KINDS = GgufValueType
TEMPLATE = "{% if tools %}{{ tools }}{% endif %}<think></think>"


def write(directory: Path, *extra: bytes) -> Path:
    file = directory / "Tiny.gguf"
    many = array_pair("tokenizer.ggml.merges", KINDS.STRING, ["a b"] * (LARGEST_ARRAY + 1))
    file.write_bytes(small_llama([pair("tokenizer.chat_template", KINDS.STRING, TEMPLATE), many, *extra]))
    return file


def catalog(file: Path, **settings: Any) -> Catalog:
    return catalog_of(file.parent / "registry.yaml", models=[{"id": "tiny", "source": file.name, **settings}])


def model(file: Path, **settings: Any) -> ResolvedModel:
    return catalog(file, **settings).resolve("tiny")


@pytest.mark.parametrize(
    ("file_type", "called"), [(15, "Q4_K_M"), (7, "Q8_0"), (4, "Q4_0"), (999, "Q4_0"), (None, "Q4_0")]
)
def test_details_are_the_header_s(tmp_path: Path, file_type: int | None, called: str) -> None:
    extra = [] if file_type is None else [pair("general.file_type", KINDS.UINT32, file_type)]
    details = read_details(model(write(tmp_path, *extra)))
    assert (details.format, details.family, details.parameter_size) == ("gguf", "llama", "74K")
    assert details.quantization_level == called  # most bytes are Q4_0


def test_card_has_the_metadata_with_short_arrays(tmp_path: Path) -> None:
    card = read_card(model(write(tmp_path, pair("general.license", KINDS.STRING, "mit"))))
    assert card.metadata["general.architecture"] == "llama"
    assert card.metadata["general.parameter_count"] == 74304
    assert card.metadata["llama.context_length"] == 2048
    assert card.metadata["tokenizer.ggml.tokens"] == ["a", "b", "", "é"]
    assert card.metadata["tokenizer.ggml.merges"] is None
    assert "tokenizer.chat_template" not in card.metadata
    assert list(card.metadata) == sorted(card.metadata)
    assert (card.template, card.license, card.file_name) == (TEMPLATE, "mit", "Tiny.gguf")
    assert card.capabilities == ("completion", "tools", "thinking")


def test_whole_card_has_every_array(tmp_path: Path) -> None:
    card = read_card(model(write(tmp_path)), whole=True)
    assert card.metadata["tokenizer.ggml.merges"] == ["a b"] * (LARGEST_ARRAY + 1)


def test_card_has_the_template_that_is_used(tmp_path: Path) -> None:
    card = read_card(model(write(tmp_path), overrides={"chat_template": "{{ messages }}"}))
    assert (card.template, card.capabilities) == ("{{ messages }}", ("completion",))


def test_card_of_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path)
    resolved = model(file)
    os.truncate(file, 100)
    with pytest.raises(GgufFormatError, match="changed"):
        read_card(resolved)


def test_simulated_and_unusable_models_have_cards(tmp_path: Path) -> None:
    models = [
        {"id": "sim", "source": "sim:", "context": 64, "simulate": {"weights": 2048}},
        {"id": "embedder", "source": "sim:", "simulate": {"weights": 1, "task": "embedding"}},
        {"id": "lost", "source": "./nowhere.gguf"},
    ]
    sim, embedder, lost = catalog_of(tmp_path / "registry.yaml", models=models).models
    assert read_card(sim).capabilities == ("completion", "tools", "thinking", "insert")
    assert read_card(sim).metadata == {"general.architecture": "simulated", "simulated.context_length": 64}
    assert (file_bytes_of(sim), read_details(sim).family) == (2048, "simulated")
    assert read_card(embedder).capabilities == ("embedding",)
    assert (read_card(lost).capabilities, read_card(lost).metadata, read_card(lost).file_name) == (
        ("completion",),
        {},
        "",
    )


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    first, same = (digest_of(model(write(tmp_path))) for _ in range(2))
    other = digest_of(model(write(tmp_path, pair("x.y", KINDS.UINT32, 1))))
    assert len(first) == 64 and int(first, 16)
    assert other not in (first, same)
