"""Tokenizers other than those of text models' everyday: plain-text BPE, RWKV, PLaMo 2, unigram, WordPiece, rebuilt merges."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers.cuts import APART, cutter
from engines.gguf.tokenizers.kinds import KINDS
from engines.gguf.tokenizers.texts import TokenTexts
from tests.engines.gguf.helpers_kinds import (
    dna_metadata,
    plain_metadata,
    plamo_metadata,
    unigram_metadata,
    world_metadata,
)
from tests.engines.gguf.helpers_tokenizers import (
    CONTROL,
    CORPUS,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    bpe_metadata,
    gpt2_reference,
    spm_metadata,
    spm_reference,
)

SEARCH = settings(max_examples=150, deadline=None, derandomize=True)
TEXTS = st.one_of(st.text(max_size=40), st.text(alphabet="ab c\n\\'日本é", max_size=40))


def word_piece_metadata(**changes: Any) -> dict[str, Any]:
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "▁inn",
        "keep",
        "er",
        "▁,",
        "▁cafe",
        "▁[",
        "▁]",
        "sep",
        "▁sep",
        "secret",
    ]
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 9, CONTROL]
    values = {
        "model": "bert",
        "tokens": tokens,
        "token_type": types,
        "unknown_token_id": 1,
        "bos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


WHOLE = {
    "gemma4": plain_metadata("gemma4", "gemma4"),
    "sarvam-moe": plain_metadata("gpt2", "sarvam-moe"),
    "rwkv": world_metadata(),
    "plamo2": plamo_metadata(),
    "t5": unigram_metadata(with_bytes=True, add_space_prefix=True, remove_extra_whitespaces=False),
}
TOKENIZERS = {kind: GgufTokenizer.from_metadata(metadata) for kind, metadata in WHOLE.items()}
EVERY_KIND = {
    "gpt2": bpe_metadata(gpt2_reference()),
    "whitespace": plain_metadata("whitespace", "whitespace"),
    "hybriddna": dna_metadata(),
    "llama": spm_metadata(spm_reference()),
    "bert": word_piece_metadata(),
    **{kind: WHOLE[kind] for kind in ("gemma4", "rwkv", "plamo2", "t5")},
}


def texts(tokenizer: GgufTokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(id) for id in ids]


@pytest.mark.parametrize("kind", WHOLE)
@SEARCH
@given(text=TEXTS)
def test_decoding_gives_any_text_back(kind: str, text: str) -> None:
    text = text.replace("▁", "")  # how plain texts write a space: no text can have it
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_bos=False)
    assert tokenizer.decode(ids) == text
    streamed = tokenizer.detokenizer()
    assert "".join(map(streamed.add, ids)) + streamed.finish() == text


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_control_tokens_spelled_out_are_text_unless_asked_for(kind: str) -> None:
    tokenizer = GgufTokenizer.from_metadata(EVERY_KIND[kind])
    for id in tokenizer.special_ids:
        text = f"a{tokenizer.token_text(id)}b"
        plain = tokenizer.encode(text, add_bos=False)
        assert id not in plain or tokenizer.token_text(id) in ("<unk>", "[UNK]"), text
        assert id in tokenizer.encode(text, add_bos=False, parse_special=True)


def test_gemma4_has_a_bos_whatever_the_file_says() -> None:
    metadata = plain_metadata("gemma4", "gemma4") | {"tokenizer.ggml.add_bos_token": False}
    assert GgufTokenizer.from_metadata(metadata).encode("a") == [2, *TOKENIZERS["gemma4"].encode("a", add_bos=False)]
    other = plain_metadata("gpt2", "sarvam-moe") | {"tokenizer.ggml.add_bos_token": False}
    assert 2 not in GgufTokenizer.from_metadata(other).encode("a")


def test_gemma4_joins_across_spaces_and_keeps_runs_of_line_breaks() -> None:
    tokenizer = TOKENIZERS["gemma4"]
    assert texts(tokenizer, tokenizer.encode("ab c\n\ncab  a", add_bos=False)) == [
        "ab▁",
        "c",
        "\n\n",
        "cab",
        "▁▁",
        "a",
    ]
    assert tokenizer.decode([*tokenizer.encode("a", add_bos=False), 1, 0]) == "a"


def test_rwkv_takes_the_longest_token_at_each_place() -> None:
    tokenizer = TOKENIZERS["rwkv"]
    pieces = [tokenizer.token_bytes(id).decode() for id in tokenizer.encode("then\nthere the\\n\n\n你好")]
    assert pieces == ["the", "n", "\n", "there", " the", "\\n", "\n\n", "你好"]
    assert tokenizer.eos_ids == {0}


def test_rwkv_without_a_byte_leaves_it_out() -> None:
    metadata = world_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.token_type"][tokens.index("x")] = CONTROL
    tokenizer = GgufTokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("axb")) == "ab"


def test_plamo2_takes_the_cheapest_and_the_longest_of_equals() -> None:
    tokenizer = TOKENIZERS["plamo2"]
    assert texts(tokenizer, tokenizer.encode("abc ab", add_bos=False)) == ["a", "bc", " a", "b"]
    assert texts(tokenizer, tokenizer.encode("ab", add_bos=False)) == ["ab"]
    assert texts(tokenizer, tokenizer.encode("本é", add_bos=False)) == [
        "<0xE6>",
        "<0x9C>",
        "<0xAC>",
        "<0xC3>",
        "<0xA9>",
    ]


def test_unigram_puts_its_space_before_a_text_and_not_before_what_goes_on() -> None:
    tokenizer = GgufTokenizer.from_metadata(unigram_metadata(with_bytes=False))
    assert texts(tokenizer, tokenizer.encode("ab  a ")) == ["▁ab", "▁a"]
    assert texts(tokenizer, tokenizer.encode("aba", at_start=False)) == ["ab", "a"]
    assert texts(tokenizer, tokenizer.encode("aéb</s>a", parse_special=True)) == ["▁a", "<unk>", "b", "</s>", "▁a"]
    assert tokenizer.encode("  ") == []
    assert (tokenizer.add_bos, tokenizer.eos_id) == (False, 1)


def test_word_piece_reads_words_in_pieces() -> None:
    tokenizer = GgufTokenizer.from_metadata(word_piece_metadata())
    assert texts(tokenizer, tokenizer.encode("Innkeeper, CAFÉ bar")) == [
        "[CLS]",
        "▁inn",
        "keep",
        "er",
        "▁,",
        "▁cafe",
        "[UNK]",
    ]
    assert tokenizer.decode(tokenizer.encode("innkeeper, cafe")) == "innkeeper , cafe"
    cased = GgufTokenizer.from_metadata(word_piece_metadata(**{"normalizer.lowercase": False}))
    assert texts(cased, cased.encode("Inn inn", add_bos=False)) == ["[UNK]", "▁inn"]
    assert texts(tokenizer, tokenizer.encode("[SEP]secret", add_bos=False)) == ["▁[", "▁sep", "▁]", "[UNK]"]


def test_dna_is_read_six_bases_at_a_time() -> None:
    tokenizer = GgufTokenizer.from_metadata(dna_metadata())
    ids = tokenizer.encode("ab<dna>acgtacGGGGGGttttttgt</dna>b")
    assert texts(tokenizer, ids)[:3] == ["ab", "<dna>", "ACGTAC\ue000"]
    assert tokenizer.decode(ids) == "ab<dna>ACGTACGGGGGG<oov>GTAAAA</dna>b"
    assert tokenizer.decode(tokenizer.encode("</dna>ab")) == "</dna>ab"


def test_merges_are_rebuilt_from_scores() -> None:
    """A byte-level vocabulary without its merges, with scores in the order in which training made the tokens."""
    metadata = bpe_metadata(gpt2_reference())
    whole = GgufTokenizer.from_metadata(metadata)
    made = {merge.replace(" ", ""): rank for rank, merge in enumerate(metadata.pop("tokenizer.ggml.merges"))}
    scores = [-float(made.get(token, 0)) for token in metadata["tokenizer.ggml.tokens"]]
    rebuilt = GgufTokenizer.from_metadata(metadata | {"tokenizer.ggml.scores": scores})
    assert [rebuilt.encode(text) for text in CORPUS] == [whole.encode(text) for text in CORPUS]


def test_merges_of_kimi_are_rebuilt_from_ids() -> None:
    metadata = bpe_metadata(gpt2_reference(), pre="kimi-k2")
    whole = GgufTokenizer.from_metadata(metadata)  # trained tokens have ids in the order of their merges
    del metadata["tokenizer.ggml.merges"]
    rebuilt = GgufTokenizer.from_metadata(metadata)
    assert [rebuilt.encode(text) for text in CORPUS] == [whole.encode(text) for text in CORPUS]


def test_user_defined_tokens_of_every_kind_are_whole() -> None:
    for kind, metadata in WHOLE.items():
        tokens = metadata["tokenizer.ggml.tokens"]
        added = {
            "tokenizer.ggml.tokens": [*tokens, "a\nb"],
            "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], USER_DEFINED],
        }
        if "tokenizer.ggml.scores" in metadata:
            added["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], 0.0]
        tokenizer = GgufTokenizer.from_metadata(metadata | added)
        ids = tokenizer.encode("ca\nbc", add_bos=False)
        assert len(tokens) in ids, kind
        assert tokenizer.token_bytes(len(tokens)) == b"a\nb"


@SEARCH
@given(st.lists(st.text(alphabet="abcé▁", min_size=1, max_size=4)), st.text(alphabet="abcé▁d", max_size=30))
def test_cuts_are_where_no_token_reaches(tokens: list[str], text: str) -> None:
    parts = list(cutter(TokenTexts(token.encode() for token in tokens))(text))
    assert "".join(parts) == text
    inside = {left + right for token in tokens for left, right in pairwise(token)}
    assert all(left[-1] + right[0] not in inside for left, right in pairwise(parts))
    assert all(left + right in inside for part in parts for left, right in pairwise(part))


@SEARCH
@given(st.lists(st.text("ab\n日", max_size=6)), st.lists(st.text("ab\n日 é", max_size=12), min_size=1))
def test_cuts_are_made_around_what_stands_between_texts(tokens: list[str], texts: list[str]) -> None:
    cut = cutter(TokenTexts(token.encode() for token in tokens))
    parts = list(cut(APART.join(texts)))
    assert parts.count(APART) == len(texts) - 1
    assert [part for part in parts if part != APART] == [part for text in texts for part in cut(text)]
