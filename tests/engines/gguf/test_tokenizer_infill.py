"""Infill tokens: found by the file's keys, or by their texts; and the order of what stands around them."""

from __future__ import annotations

from typing import Any

import pytest

from engines.gguf.tokenizer import GgufTokenizer
from tests.engines.gguf.helpers_tokenizers import (
    CONTROL,
    bpe_metadata,
    gpt2_reference,
    spm_metadata,
    spm_reference,
)

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
DEEPSEEK = ("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>")


def tokenizer(special: tuple[str, ...] = (), **changes: Any) -> GgufTokenizer:
    return GgufTokenizer.from_metadata(bpe_metadata(gpt2_reference(special=("<|endoftext|>", *special)), **changes))


def spelled(ids: list[int] | None, of: GgufTokenizer) -> str:
    assert ids is not None
    return of.decode(ids, skip_special=False)


@pytest.mark.parametrize(
    ("special", "wanted"),
    [
        (QWEN, "<|fim_prefix|>def f(<|fim_suffix|>):<|fim_middle|>"),
        (DEEPSEEK, "<｜fim▁begin｜>def f(<｜fim▁hole｜>):<｜fim▁end｜>"),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>def f(<fim_suffix>):<fim_middle>"),
    ],
)
def test_infill_tokens_are_known_by_their_texts(special: tuple[str, ...], wanted: str) -> None:
    made = tokenizer(special)
    assert spelled(made.encode_infill("def f(", "):"), made) == wanted


@pytest.mark.parametrize("types", [True, False])
def test_infill_texts_are_found_whatever_the_type_of_their_tokens(types: bool) -> None:
    changes: dict[str, Any] = {} if types else {"token_type": None}
    metadata = bpe_metadata(gpt2_reference(special=("<|endoftext|>", *QWEN)), **changes)
    metadata = {key: value for key, value in metadata.items() if value is not None}
    ids = GgufTokenizer.from_metadata(metadata).encode_infill("", "")
    assert ids == [1, 3, 2]


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_infill_tokens_are_named_by_new_keys_and_old(names: tuple[str, str, str]) -> None:
    keys = {f"{name}_token_id": id for name, id in zip(names, (7, 8, 9), strict=True)}
    assert tokenizer(QWEN, **keys).encode_infill("", "") == [7, 8, 9]


def test_the_newer_key_goes_before_the_older_and_a_wrong_id_before_neither() -> None:
    made = tokenizer(QWEN, fim_pre_token_id=7, prefix_token_id=8, fim_suf_token_id=10**6, suffix_token_id=-1)
    assert made.encode_infill("", "") == [7, 3, 2]


@pytest.mark.parametrize(
    "special", [(), QWEN[:2], ("<|fim_prefix|>x", "<|fim_middle|>", "<|fim_suffix|>"), ("fim_prefix", *QWEN[1:])]
)
def test_without_all_three_there_is_no_infill(special: tuple[str, ...]) -> None:
    assert tokenizer(special).encode_infill("a", "b") is None


def test_one_token_cannot_be_two_of_them() -> None:
    assert tokenizer(QWEN, fim_pre_token_id=7, fim_suf_token_id=7).encode_infill("a", "b") is None


def test_infill_begins_with_bos_where_the_file_wants_one_and_reads_no_control_tokens() -> None:
    made = tokenizer(QWEN, bos_token_id=0, add_bos_token=True)
    ids = made.encode_infill("<|fim_middle|>", "<|endoftext|>")
    assert ids is not None
    assert [id for id in ids if id in made.special_ids] == [0, 1, 3, 2]
    assert spelled(ids, made) == "<|endoftext|><|fim_prefix|><|fim_middle|><|fim_suffix|><|endoftext|><|fim_middle|>"


def test_sentencepiece_puts_its_space_before_the_prefix_alone() -> None:
    metadata = spm_metadata(spm_reference())
    more: dict[str, list[Any]] = {
        "tokens": ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        "scores": [0.0] * 3,
        "token_type": [CONTROL] * 3,
    }
    for name, values in more.items():
        metadata[f"tokenizer.ggml.{name}"] = [*metadata[f"tokenizer.ggml.{name}"], *values]
    made = GgufTokenizer.from_metadata(metadata)
    ids = made.encode_infill("keys", "keep")
    size = made.vocab_size
    assert ids is not None
    start = ids.index(size - 3)
    middle = ids.index(size - 2)
    assert ids[-1] == size - 1
    assert b"".join(map(made.token_bytes, ids[start + 1 : middle])) == b" keys"
    assert b"".join(map(made.token_bytes, ids[middle + 1 : -1])) == b"keep"
