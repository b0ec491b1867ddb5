"""Tiny vocabularies of the rarer kinds of tokenizer, as GGUF metadata."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.helpers_tokenizers import BYTE, CONTROL, NORMAL, UNKNOWN, byte_table

__all__ = [
    "crossing_metadata",
    "dna_metadata",
    "plain_metadata",
    "plamo_metadata",
    "unigram_metadata",
    "world_metadata",
]


def _metadata(model: str, tokens: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    values = {"model": model, "tokens": tokens, "token_type": types, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def crossing_metadata(pre: str) -> dict[str, Any]:
    """A byte-level vocabulary that would join any two neighbours of an alphabet, and then any two of these: where ids have one
    byte or pair alone, a cut stood. Two digits, three letters, three marks, a line break, and a space."""
    characters = byte_table()
    alphabet = [characters[byte] for byte in b"01asA .'\n/"]
    tokens = [*characters.values(), "<|endoftext|>"]
    merges = []
    for left in alphabet:
        for right in alphabet:
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    types = [CONTROL if token == "<|endoftext|>" else NORMAL for token in tokens]
    ids = {"eos_token_id": 256, "bos_token_id": 256}
    return _metadata("gpt2", tokens, types, pre=pre, merges=merges, **ids)


def plain_metadata(model: str, pre: str) -> dict[str, Any]:
    """BPE of plain text with byte tokens: words with and without a space, runs of line breaks."""
    merges = ["▁ ▁", "a b", "▁ ab", "ab ▁", "▁ab ▁ab", "c ab", "▁ c", "ab c"]
    made = [merge.replace(" ", "") for merge in merges]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "a", "b", "c", "A", "\n", "\n\n", *made]
    types = [*[CONTROL] * 3, UNKNOWN, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 260)]
    ids = {"padding_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "unknown_token_id": 3}
    return _metadata(model, tokens, types, pre=pre, merges=merges, **ids)


def world_metadata() -> dict[str, Any]:
    """RWKV's kind: every byte and some longer runs of bytes, escaped as its files have them."""

    def written(byte: int) -> str:
        named = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x5C: "\\\\", 0x27: "\\'"}
        return named.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")

    longer = ["th", "the", "there", " the", "\\n\\n", "\\r\\n", "你", "你好", "\\xe4\\xbd", "\\\\n", "ré"]
    tokens = ["<s>", *map(written, range(256)), *longer]
    return _metadata("rwkv", tokens, [CONTROL] + [NORMAL] * (len(tokens) - 1), eos_token_id=0)


def plamo_metadata() -> dict[str, Any]:
    """PLaMo 2's kind: pieces with scores, some of which tie, and every byte."""
    scored = {
        "a": -2.0,
        "b": -2.0,
        "ab": -4.0,
        "abc": -5.5,
        "bc": -3.0,
        "c": -3.5,
        " ": -1.0,
        " a": -3.0,
        "日": -4.0,
        "日本": -3.0,
    }
    tokens = ["<unk>", "<bos>", "<eos>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256)), *scored]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(scored)]
    return _metadata("plamo2", tokens, types, scores=[0.0] * 260 + list(scored.values()))


def unigram_metadata(*, with_bytes: bool, **more: Any) -> dict[str, Any]:
    """T5's kind."""
    scored = {"▁": -2.0, "a": -3.0, "b": -3.0, "ab": -4.5, "▁ab": -5.0, "▁a": -4.0, "ba": -6.5, "c": -9.0}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if with_bytes else []
    tokens = ["<pad>", "</s>", "<unk>", *bytes_, *scored]
    types = [CONTROL, CONTROL, UNKNOWN, *[BYTE] * len(bytes_), *[NORMAL] * len(scored)]
    scores = [0.0] * (3 + len(bytes_)) + list(scored.values())
    return _metadata("t5", tokens, types, scores=scores, **more)


def dna_metadata() -> dict[str, Any]:
    """Byte-level BPE with words of six bases."""
    bases = [word + "\ue000" for word in ("ACGTAC", "GGGGGG", "GTAAAA")]
    tokens = [*byte_table().values(), "<|endoftext|>", "<dna>", "</dna>", "<oov>", *bases, "ab"]
    types = [CONTROL if token == "<|endoftext|>" else NORMAL for token in tokens]
    ids = {"eos_token_id": 256, "bos_token_id": 256}
    return _metadata("hybriddna", tokens, types, pre="gpt-2", merges=["a b"], **ids)
