"""A small real vocabulary with marks of thinking in it, and what a constraint allows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from llguidance.numpy import fill_next_token_bitmask

from engines.gguf.tokenizer import GgufTokenizer
from engines.text.constraints.compiler import CompiledGrammar, GrammarCompiler
from engines.text.constraints.row_constraint import RowConstraint
from engines.text.constraints.source import source_of, written
from engines.text.constraints.vocabulary import GrammarVocabulary
from engines.wire import Grammar
from tests.engines.gguf.helpers_vocabularies import bpe_vocabulary, spm_vocabulary

__all__ = ["EXTRA", "allowed", "compiled", "grammar_of", "ids", "make_tokenizer", "spell", "texts", "vocabulary"]

# Beside bytes and words: a mark that is one token, the end of another mark with text behind it, line breaks and braces.
EXTRA = ("<think>", "</think>", ">{", ":\n", "\n\n", '{"', "nk>", "se:{", "e:")
_USER_DEFINED = 4


@cache
def make_tokenizer(kind: str = "bpe") -> GgufTokenizer:
    metadata = bpe_vocabulary(340, "llama-bpe") if kind == "bpe" else spm_vocabulary(340)
    more: dict[str, list[Any]] = {"tokens": [*EXTRA], "token_type": [_USER_DEFINED] * len(EXTRA)}
    if kind == "spm":
        more["scores"] = [0.0] * len(EXTRA)
    for key, values in more.items():
        there: Any = metadata[f"tokenizer.ggml.{key}"]
        metadata[f"tokenizer.ggml.{key}"] = [*there, *values]
    return GgufTokenizer.from_metadata(metadata)


@cache
def vocabulary(kind: str = "bpe") -> GrammarVocabulary:
    tokenizer = make_tokenizer(kind)
    return GrammarVocabulary(tokenizer, tokenizer.eos_ids)


@cache
def _compiler(kind: str) -> GrammarCompiler:
    return GrammarCompiler(vocabulary(kind))


def compiled(grammar: Grammar, kind: str = "bpe") -> CompiledGrammar:
    """What ``prepare`` does with a request's grammar."""
    return _compiler(kind).compile(written(source_of(grammar)), grammar.field)


def grammar_of(regex: str) -> CompiledGrammar:
    return compiled(Grammar(kind="regex", source=regex))


def ids(text: str, kind: str = "bpe") -> list[int]:
    return make_tokenizer(kind).encode(text, add_bos=False, parse_special=True, at_start=False)


def spell(text: str) -> list[int]:
    """One token a byte."""
    tokenizer = make_tokenizer()
    by_bytes = {tokenizer.token_bytes(id): id for id in reversed(range(tokenizer.vocab_size))}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def allowed(constraint: RowConstraint) -> set[int]:
    """The tokens that may come next."""
    size = constraint.vocabulary_size
    bits = np.full((1, -(-size // 32)), -1, np.int32)
    if constraint.matcher is not None:
        fill_next_token_bitmask(constraint.matcher, bits)
    constraint.amend(bits[0])
    assert constraint.failure is None
    return set(np.flatnonzero(np.unpackbits(bits[0].view(np.uint8), count=size, bitorder="little")).tolist())


def texts(tokens: Iterable[int]) -> set[bytes]:
    return {make_tokenizer().token_bytes(token) for token in tokens}
