"""The table that llguidance reads, against the tokenizer it comes from."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from engines.gguf.tokenizer import GgufTokenizer
from engines.header import read_header
from engines.text.constraints.vocabulary import GrammarVocabulary
from tests.engines.text.constraints.helpers_constraints import make_tokenizer

KINDS = ("bpe", "spm")
TEXT = 'the innkeeper has {"a": 1, "ü": "€ 🦊"}\n\n'


def fresh(kind: str) -> GrammarVocabulary:
    tokenizer = make_tokenizer(kind)
    return GrammarVocabulary(tokenizer, tokenizer.eos_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_table_has_every_tokens_bytes_and_knows_the_special_ones(kind: str) -> None:
    tokenizer, table = make_tokenizer(kind), fresh(kind).table
    assert table.vocab_size == tokenizer.vocab_size
    assert set(table.eos_tokens) == tokenizer.eos_ids
    for id in range(tokenizer.vocab_size):
        if tokenizer.token_bytes(id) == b"\xff":  # llguidance marks special tokens so; no text has this byte
            continue
        assert table.decode_bytes([id]) == tokenizer.token_bytes(id)
        assert table.is_special_token(id) == (id in tokenizer.special_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_table_tokenises_as_the_tokenizer_does(kind: str) -> None:
    expected = make_tokenizer(kind).encode(TEXT, add_bos=False, at_start=False)
    assert fresh(kind).table.tokenize_str(TEXT) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_mask_allows_each_token_that_the_text_may_begin_with(kind: str) -> None:
    """Two tokens may have the same bytes, as a character and a byte of SentencePiece have: either may come."""
    tokenizer, vocabulary = make_tokenizer(kind), fresh(kind)
    matcher = LLMatcher(vocabulary.table, LLMatcher.grammar_from_regex(r"(the|\{)[a-z ]*"))
    mask = allocate_token_bitmask(1, vocabulary.size)
    fill_next_token_bitmask(matcher, mask)
    bits = np.unpackbits(mask.view(np.uint8), count=vocabulary.size, bitorder="little")
    expected = {
        id
        for id in set(range(vocabulary.size)) - tokenizer.special_ids
        if (data := tokenizer.token_bytes(id)) and (data in (b"t", b"th", b"{") or data.startswith(b"the"))
        if b"\n" not in data and data != b'{"'
    }
    assert set(np.flatnonzero(bits).tolist()) == expected


def test_table_is_built_once_and_only_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[GrammarVocabulary]()
    build = GrammarVocabulary._build

    def count(self: GrammarVocabulary) -> object:
        built.append(self)
        return build(self)

    monkeypatch.setattr(GrammarVocabulary, "_build", count)
    vocabulary = fresh("bpe")
    assert not built
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: vocabulary.table, range(8)))
    assert len(built) == 1
    assert all(table is tables[0] for table in tables)


def test_line_breaks_are_known_with_their_number() -> None:
    tokenizer, newlines = make_tokenizer(), fresh("bpe").newlines
    assert {tokenizer.token_bytes(id): count for id, count in newlines.items()} == {b"\n": 1, b"\n\n": 2}


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma_path"])
def test_real_vocabularies_write_json_in_their_own_tokens(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    tokenizer = GgufTokenizer.from_metadata(read_header(str(path)).metadata)
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.eos_ids)
    text = json.dumps({"name": "Zoë 🦊", "rooms": [1, -2.5e3], "open": True}, ensure_ascii=False)
    tokens = tokenizer.encode(text, add_bos=False, at_start=False)
    assert vocabulary.table.tokenize_str(text) == tokens
    matcher = LLMatcher(vocabulary.table, LLMatcher.grammar_from_json_schema({"type": "object"}))
    assert matcher.consume_tokens(tokens)
    assert matcher.is_accepting()
