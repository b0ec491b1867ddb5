"""Ids equal those of the tokenizers' own libraries, and decoding gives the text back."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers import spm
from engines.gguf.tokenizers.pre import RULES
from engines.gguf.tokenizers.spm import SentencePieceModel
from engines.gguf.tokenizers.vocabulary import Vocabulary
from engines.header import read_header
from tests.engines.gguf.helpers_tokenizers import (
    CORPUS,
    NORMAL,
    ReferenceBpe,
    bpe_metadata,
    byte_table,
    gpt2_reference,
    spm_metadata,
    spm_reference,
)

TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*"".join(CORPUS), "  ", "\r\n", "'S", "'re", "١٢", "e\u0301", "\u00a0", "1234"])).map(
        "".join
    ),
)
SEARCH = settings(max_examples=150, deadline=None, derandomize=True)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [CL100K],
    "dbrx": [CL100K],
    "qwen2": [CL100K.replace("{1,3}", "")],
    "gpt-4o": [O200K_WORDS + r"|\p{N}{1,3}" + REST],
    "tekken": [O200K_WORDS.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "") + r"|\p{N}" + REST],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}
IGNORES_MERGES = {"llama-bpe", "tekken"}

GPT2_TRAINED = gpt2_reference()
BPE_METADATA = bpe_metadata(GPT2_TRAINED)
BPE = {pre: GgufTokenizer.from_metadata(BPE_METADATA | {"tokenizer.ggml.pre": pre}) for pre in PATTERNS}
REFERENCES = {
    pre: ReferenceBpe(BPE_METADATA, patterns, ignore_merges=pre in IGNORES_MERGES) for pre, patterns in PATTERNS.items()
}


@SEARCH
@given(TEXTS)
def test_byte_level_ids_equal_the_trained_tokenizer(text: str) -> None:
    text = text.replace("<|endoftext|>", "")
    assert BPE["gpt-2"].encode(text) == GPT2_TRAINED.encode(text).ids


@pytest.mark.parametrize("pre", PATTERNS)
@SEARCH
@given(text=TEXTS)
def test_byte_level_ids_equal_plain_merging_of_the_pattern_s_words(pre: str, text: str) -> None:
    assert BPE[pre].encode(text, add_bos=False) == REFERENCES[pre].encode(text)


@pytest.mark.parametrize("pre", [name for name, rule in RULES.items() if not rule.plain])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(text=TEXTS)
def test_byte_level_decoding_gives_any_text_back(pre: str, text: str) -> None:
    tokenizer = BPE.setdefault(pre, GgufTokenizer.from_metadata(BPE_METADATA | {"tokenizer.ggml.pre": pre}))
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


@pytest.mark.parametrize(
    ("text", "pre", "words"),
    [
        ("It's 12345 o'clock", "smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġo", "'", "clock"]),
        ("It'S 12345", "llama-bpe", ["It", "'S", "Ġ", "123", "45"]),
        ("It'S 12345", "qwen2", ["It", "'S", "Ġ", "1", "2", "3", "4", "5"]),
        ("helloWORLD's", "gpt-4o", ["hello", "WORLD's"]),
        ("helloWORLD's", "tekken", ["hello", "WORLD", "'s"]),
        ("(hello) x+1\n\n", "llama-bpe", ["(hello", ")", "Ġx", "+", "1", "ĊĊ"]),
        ("It's 12  x", "deepseek-llm", ["It", "'", "s", "Ġ", "12", "Ġ", "Ġx"]),
        ("a  b   \n c", "qwen2", ["a", "Ġ", "Ġb", "ĠĠĠĊ", "Ġc"]),
    ],
)
def test_words_are_cut_where_the_pre_tokenizer_says(text: str, pre: str, words: list[str]) -> None:
    """Each word is made a token of its own, so the ids are the words."""
    tokens = [*byte_table().values()]
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens),
        "tokenizer.ggml.merges": merges,
    }
    tokenizer = GgufTokenizer.from_metadata(metadata)
    assert [tokenizer.token_text(id) for id in tokenizer.encode(text)] == words


SPM = {
    prefix: GgufTokenizer.from_metadata(spm_metadata(spm_reference(prefix), add_space_prefix=prefix))
    for prefix in (True, False)
}

SPM_METADATA = spm_metadata(spm_reference(True), add_space_prefix=True)
SPM_MODEL = SentencePieceModel(SPM_METADATA, Vocabulary.from_metadata(SPM_METADATA))
SPM_TIDY = GgufTokenizer.from_metadata(spm_metadata(spm_reference(True, True), remove_extra_whitespaces=True))


@pytest.mark.parametrize("prefix", [True, False])
@SEARCH
@given(text=TEXTS)
def test_sentencepiece_ids_equal_the_library(prefix: bool, text: str) -> None:
    # SentencePiece puts its space before the text alone, llama.cpp's convention also after user-defined tokens; and it ends
    # at a NUL.
    text = text.replace("\n", "").replace("<b>", "").replace("\0", "")
    assert SPM[prefix].encode(text, add_bos=False) == spm_reference(prefix).Encode(text)


@SEARCH
@given(text=TEXTS)
def test_sentencepiece_ids_equal_the_library_with_user_defined_symbols(text: str) -> None:
    text = text.replace("\0", "")
    assert SPM[False].encode(text, add_bos=False) == spm_reference(False).Encode(text)


@SEARCH
@given(text=TEXTS)
def test_sentencepiece_removes_extra_whitespace_as_the_library(text: str) -> None:
    text = text.replace("\n", "").replace("<b>", "").replace("\0", "").replace("▁", "")
    assert SPM_TIDY.encode(text, add_bos=False) == spm_reference(True, True).Encode(text)


@pytest.mark.parametrize("prefix", [True, False])
@SEARCH
@given(text=TEXTS)
def test_sentencepiece_decoding_gives_text_back(prefix: bool, text: str) -> None:
    text = text.replace("▁", "")  # how pieces write a space: no text can have it
    if prefix:
        text = text.replace("\n", "").replace("<b>", "")  # the space after them is not taken off again
    assert SPM[prefix].decode(SPM[prefix].encode(text)) == text


def test_sentencepiece_prefixes_the_text_and_what_follows_a_special_token() -> None:
    tokenizer = SPM[True]
    pieces = [tokenizer.token_text(id) for id in tokenizer.encode("a<s>a", add_bos=True, parse_special=True)]
    assert pieces == ["<s>", "▁a", "<s>", "▁a"]
    assert tokenizer.encode("", add_bos=False) == []


def test_sentencepiece_without_byte_tokens_says_unknown() -> None:
    reference = spm_reference()
    metadata = spm_metadata(reference)
    types = [5 if kind == 6 else kind for kind in metadata["tokenizer.ggml.token_type"]]
    tokenizer = GgufTokenizer.from_metadata(metadata | {"tokenizer.ggml.token_type": types})
    assert tokenizer.encode("Ж", add_bos=False)[-1] == reference.unk_id()


def test_sentencepiece_merges_the_leftmost_of_equal_scores() -> None:
    tokens = ["<unk>", "<s>", "</s>", "a", "aa", "aaa"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -3.0, -1.0, -1.0],
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = GgufTokenizer.from_metadata(metadata)
    pieces = [tokenizer.token_text(id) for id in tokenizer.encode("aaaaa", add_bos=False)]
    assert pieces == ["aaa", "aa"]


def test_sentencepiece_joins_tokens_with_a_space_inside() -> None:
    """Gemma has one such token, ">▁</"; words may not be cut there."""
    tokens = ["<unk>", "<s>", "</s>", ">", "▁", "<", "/", "a", ">▁", "</", ">▁</"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * 8],
        "tokenizer.ggml.scores": [-float(id) for id in range(len(tokens))],
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = GgufTokenizer.from_metadata(metadata)
    assert [tokenizer.token_text(id) for id in tokenizer.encode("a> </a", add_bos=False)] == ["a", ">▁</", "a"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(texts=st.lists(st.tuples(TEXTS, st.booleans())))
def test_sentencepiece_reads_many_texts_as_one_by_one(texts: list[tuple[str, bool]]) -> None:
    """With and without room for all their words among those it keeps, and in one batch."""
    one_by_one = [SPM_MODEL.encode(text, at_start=at_start) for text, at_start in texts]
    for room, together in ((1 << 15, 1 << 14), (3, 20)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(spm, "_CACHED_WORDS", room)
            patched.setattr(spm, "_TOGETHER", together)
            model = SentencePieceModel(SPM_METADATA, Vocabulary.from_metadata(SPM_METADATA))
            for _ in range(2):
                assert not texts or list(model.encode_all(texts)) == one_by_one
            assert len(model._cache) <= room


def test_sentencepiece_makes_what_has_the_worst_of_scores() -> None:
    """As llama.cpp does: a pair is joined if it is a token, whatever its score."""
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "ba"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, 0.0, float("-inf"), -1.0],
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = GgufTokenizer.from_metadata(metadata)
    assert [tokenizer.token_text(id) for id in tokenizer.encode("aba", add_bos=False)] == ["a", "ba"]
    assert [tokenizer.token_text(id) for id in tokenizer.encode("ab", add_bos=False)] == ["ab"]


def test_long_words_are_encoded_in_reasonable_time() -> None:
    """A word of 20,000 characters without a cut: merging is not quadratic in either kind."""
    for tokenizer in (SPM[False], BPE["llama-bpe"]):
        for text in ("ab" * 10_000, " " * 20_000 + "x", "-=" * 10_000):
            assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


@pytest.mark.slow
def test_smollm2_ids_equal_plain_merging(smollm2_path: Path) -> None:
    metadata: dict[str, Any] = dict(read_header(smollm2_path).metadata)
    tokenizer = GgufTokenizer.from_metadata(metadata)
    reference = ReferenceBpe(metadata, PATTERNS["smollm"])
    generator = random.Random(1)
    pool = [token for token in metadata["tokenizer.ggml.tokens"] if token.isalnum()]
    texts = [*CORPUS, *(" ".join(generator.choices(pool, k=12)) for _ in range(200))]
    for text in texts:
        assert tokenizer.encode(text) == reference.encode(text)


@pytest.mark.slow
def test_gemma_ids_equal_merging_one_best_pair_at_a_time(gemma_path: Path) -> None:
    """The rule of SentencePiece as it is defined, on words of Gemma's own vocabulary."""
    metadata: dict[str, Any] = dict(read_header(gemma_path).metadata)
    tokenizer = GgufTokenizer.from_metadata(metadata)
    tokens: list[str] = list(metadata["tokenizer.ggml.tokens"])
    scores: list[float] = list(metadata["tokenizer.ggml.scores"])
    normal = {tokens[id]: id for id in range(494, 255968)}

    def reference(text: str) -> list[int]:
        pieces = list(text.replace(" ", "▁"))
        while True:
            joined = [
                (-scores[normal[left + right]], at)
                for at, (left, right) in enumerate(pairwise(pieces))
                if left + right in normal
            ]
            if not joined:
                break
            _, at = min(joined)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return [id for piece in pieces for id in (normal.get(piece),) if id is not None]

    generator = random.Random(2)
    pool = generator.sample(sorted(token for token in normal if token.isalpha() or token.startswith("▁")), 500)
    letters = [token for token in pool if token.isascii() and token.isalpha()]
    han = [token for token in normal if all("一" <= character <= "龥" for character in token)]
    texts = ["".join(generator.choices(pool, k=6)).replace("▁", " ").replace("  ", " ") for _ in range(300)]
    # Words without a cut, mostly; joined in rounds.
    texts += ["".join(generator.choices(kind, k=150)) for kind in (letters, han, letters + han, ["ab", "ba", "a"]) * 2]
    for text in texts:
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == reference(text), text
        assert tokenizer.decode(ids) == text
