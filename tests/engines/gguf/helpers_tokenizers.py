"""Tokenizers to compare with: SentencePiece and `tokenizers`, trained on the spot, and byte-pair merging in a few lines."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import regex  # type: ignore[import-untyped]
import sentencepiece
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CORPUS = [
    "The innkeeper keeps the keys; the guests keep the rooms, and nobody is thrown out while a key is held.",
    "def main(argv):\n\tfor index in range(1000):\n\t\tprint(index, 'is', 2 * index)  # don't repeat yourself\n",
    "It's 12345 o'clock, they're late and we'll wait: -- == ... !!! ??? (2024-11-29) 100% a@b.example <b>bold</b>",
    "Größe, naïve café, ÉCOLE; Привет, мир! Γειά σου Κόσμε. 你好世界，你好。こんにちは 안녕하세요 🙂🙃 नमस्ते",
    "aaaa aaab abab baba abba bbbb    spaced     out\n\n\nlines\r\nand   tabs\t\tHELLO HelloWorld helloWORLD camelCase",
]


def gpt2_reference(vocabulary_size: int = 420, special: Sequence[str] = ("<|endoftext|>",)) -> Tokenizer:
    """A byte-level tokenizer of the `tokenizers` library, trained on :data:`CORPUS`, with the library's own GPT-2 cut."""
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trained.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(special),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    return trained


def bpe_metadata(trained: Tokenizer, **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a trained byte-level tokenizer; ``changes`` replace keys below ``tokenizer.ggml.``."""
    stored = json.loads(trained.to_str())
    ids: dict[str, int] = trained.get_vocab()
    special = {token["content"] for token in stored["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [CONTROL if token in special else NORMAL for token in tokens],
        "merges": [" ".join(pair) for pair in stored["model"]["merges"]],
        "eos_token_id": ids["<|endoftext|>"],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}


@cache
def spm_reference(add_dummy_prefix: bool = True, remove_extra_whitespaces: bool = False) -> Any:
    """A SentencePiece BPE with byte fallback and user-defined symbols, trained on :data:`CORPUS`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(line for text in CORPUS for line in text.split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=640,
        byte_fallback=True,
        character_coverage=0.98,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["\n", "<b>"],
        normalization_rule_name="identity",
        add_dummy_prefix=add_dummy_prefix,
        remove_extra_whitespaces=remove_extra_whitespaces,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def spm_metadata(reference: Any, **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece model; ``changes`` replace keys below ``tokenizer.ggml.``."""

    def token_type(id: int) -> int:
        if reference.IsUnknown(id):
            return UNKNOWN
        if reference.IsControl(id):
            return CONTROL
        if reference.IsByte(id):
            return BYTE
        return USER_DEFINED if reference.IdToPiece(id) in ("\n", "<b>") else NORMAL

    ids = range(reference.GetPieceSize())
    values: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": [reference.IdToPiece(id) for id in ids],
        "scores": [reference.GetScore(id) for id in ids],
        "token_type": [token_type(id) for id in ids],
        "bos_token_id": reference.bos_id(),
        "eos_token_id": reference.eos_id(),
        "unknown_token_id": reference.unk_id(),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}


def byte_table() -> dict[int, str]:
    """GPT-2's printable character of each byte, taken from the library's byte-level normaliser."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(rest)}


class ReferenceBpe:
    """Byte-pair merging as its definition says it, one lowest-ranked pair at a time; words by the `regex` module."""

    def __init__(self, metadata: dict[str, Any], patterns: Sequence[str], *, ignore_merges: bool = False) -> None:
        self._ids = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        pairs = (tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"])
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._patterns = [regex.compile(pattern) for pattern in patterns]
        self._ignore_merges = ignore_merges
        self._bytes = byte_table()

    def words(self, text: str) -> list[str]:
        words = [text]
        for pattern in self._patterns:
            cut = []
            for word in words:
                end = 0
                for match in pattern.finditer(word):
                    if match.start() > end:
                        cut.append(word[end : match.start()])
                    if match.group():
                        cut.append(match.group())
                    end = match.end()
                if end < len(word):
                    cut.append(word[end:])
            words = cut
        return words

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self.words(text):
            written = "".join(self._bytes[byte] for byte in word.encode())
            if self._ignore_merges and written in self._ids:
                ids.append(self._ids[written])
                continue
            pieces = list(written)
            while True:
                ranked = [(self._ranks[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in self._ranks]
                if not ranked:
                    break
                _, at = min(ranked)
                pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
            ids += [self._ids[piece] for piece in pieces if piece in self._ids]
        return ids
