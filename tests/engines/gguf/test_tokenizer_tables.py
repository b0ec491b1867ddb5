"""The packed tables of a tokenizer against a list and a dictionary."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.errors import GgufFormatError
from engines.gguf.tokenizers import lexicon
from engines.gguf.tokenizers.index import token_finder
from engines.gguf.tokenizers.lexicon import MOST_CHARACTERS, Lexicon
from engines.gguf.tokenizers.texts import TokenTexts, code_points
from engines.gguf.tokenizers.vocabulary import TokenType, Vocabulary
from engines.header import GgufArray, GgufValueType, read_header
from tests.engines.helpers_gguf_bytes import array_pair, gguf

SEARCH = settings(max_examples=100, deadline=None, derandomize=True)
SHORT = st.text(alphabet="ab▁é𝄞\0", max_size=4)


def texts_of(*texts: str) -> TokenTexts:
    return TokenTexts(text.encode() for text in texts)


@SEARCH
@given(st.lists(SHORT))
def test_texts_are_a_list(texts: list[str]) -> None:
    packed = texts_of(*texts)
    assert len(packed) == len(texts)
    assert list(packed) == texts
    assert [packed[id] for id in range(len(texts))] == texts
    assert list(packed.all_encoded()) == [text.encode() for text in texts]


@pytest.mark.parametrize("id", [-1, 2])
def test_texts_outside_of_the_vocabulary(id: int) -> None:
    with pytest.raises(IndexError):
        texts_of("a", "b")[id]


@SEARCH
@given(st.lists(SHORT), st.sampled_from(["▁", "a", "é▁"]))
def test_texts_having_a_piece_behind_their_start(texts: list[str], piece: str) -> None:
    expected = [id for id, text in enumerate(texts) if text.find(piece, 1) > 0]
    assert texts_of(*texts).having(piece) == expected


@SEARCH
@given(st.lists(SHORT), st.lists(SHORT), st.sets(st.integers(0, 9)))
def test_finder_is_a_dictionary_of_the_last(texts: list[str], others: list[str], hidden: set[int]) -> None:
    """A text that several tokens have is the last of them, and none if that one is hidden."""
    find = token_finder(texts_of(*texts), hidden)
    ids = {text: id for id, text in enumerate(texts)}
    for text in (*texts, *others):
        id = ids.get(text)
        assert find(text) == (None if id in hidden else id)


@pytest.mark.parametrize("together", [1, 3, 1 << 15])
@SEARCH
@given(st.lists(SHORT), st.text(alphabet="ab▁é𝄞\0", max_size=30), st.sets(st.integers(0, 9)))
def test_lexicon_finds_all_stretches_of_a_dictionary(
    together: int, texts: list[str], text: str, hidden: set[int]
) -> None:
    """Of a text that several tokens have the last one is found, and none if that one is hidden."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lexicon, "_TOGETHER", together)  # tokens whose hashes are made at a time
        matches = Lexicon(texts_of(*texts), {id for id in hidden if id < len(texts)}).matches(code_points(text))
    ids = {text: id for id, text in enumerate(texts)}
    expected = [
        (start, length, ids[text[start : start + length]])
        for length in range(1, 5)
        for start in range(len(text) - length + 1)
        if ids.get(text[start : start + length], -1) not in {-1, *hidden}
    ]
    assert list(zip(*(part.tolist() for part in matches), strict=True)) == expected


def test_lexicon_leaves_out_what_no_vocabulary_has_and_takes_no_time_for_it() -> None:
    most = "x" * MOST_CHARACTERS
    lexicon = Lexicon(texts_of("a", "b" * 4_000_000, most, most + "x"))  # a step a character would take half a minute
    assert lexicon.left_out == [1, 3]
    assert lexicon.matches(code_points("ba" + most + "xx")).ids.tolist() == [0, 2, 2, 2]


def test_lexicon_of_many_tokens_with_few_hashes_apart() -> None:
    tokens = [f"{number:x}" for number in range(5000)]
    text = "".join(tokens[:3000])
    starts, lengths, ids = (part.tolist() for part in Lexicon(texts_of(*tokens)).matches(code_points(text)))
    assert [text[start : start + length] for start, length in zip(starts, lengths, strict=True)] == [
        tokens[id] for id in ids
    ]
    known = set(tokens)
    assert len(ids) == sum(
        text[at : at + length] in known for length in (1, 2, 3, 4) for at in range(len(text) - length + 1)
    )


@SEARCH
@given(st.lists(SHORT), st.integers(0, 9), st.integers(0, 9))
def test_texts_laid_out_as_characters(texts: list[str], first: int, last: int) -> None:
    first, last = sorted((min(first, len(texts)), min(last, len(texts))))
    points, starts = texts_of(*texts).characters(first, last)
    assert "".join(map(chr, points)) == "".join(texts[first:last])
    assert starts.tolist() == [len("".join(texts[first:end])) for end in range(first, last + 1)]


def test_finder_of_many_tokens_with_few_hashes_apart() -> None:
    texts = [f"{number:x}" for number in range(5000)]
    find = token_finder(texts_of(*texts))
    assert [find(text) for text in texts] == list(range(5000))
    assert not any(find(f"{number:x}") for number in range(5000, 20000))


def test_vocabulary_types_that_are_no_byte_are_no_type() -> None:
    vocabulary = Vocabulary.from_metadata(
        {"tokenizer.ggml.tokens": ["a", "b", "c"], "tokenizer.ggml.token_type": [1, -7, 70000]}
    )
    assert list(vocabulary.types) == [TokenType.NORMAL, TokenType.UNDEFINED, TokenType.UNDEFINED]
    assert vocabulary.abnormal == (1, 2)


def array_of(path: Path, kind: GgufValueType, values: list[str] | list[int]) -> GgufArray:
    path.write_bytes(gguf([array_pair("x", kind, values)], []))
    array = read_header(path).metadata["x"]
    assert isinstance(array, GgufArray)
    return array


def test_array_of_strings_undecoded(tmp_path: Path) -> None:
    texts = ["", "é", "\0", "x" * 300]
    assert array_of(tmp_path / "a.gguf", GgufValueType.STRING, texts).encoded() == [text.encode() for text in texts]


def test_array_of_numbers_is_not_of_strings(tmp_path: Path) -> None:
    with pytest.raises(GgufFormatError, match="is an array of UINT8, not of str"):
        array_of(tmp_path / "a.gguf", GgufValueType.UINT8, [1]).encoded()


def test_array_of_strings_that_cut_a_code_point_in_two_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([array_pair("x", GgufValueType.STRING, ["a", "b?", "?"])], []).replace(b"?", b"\xc3", 1))
    path.write_bytes(path.read_bytes().replace(b"?", b"\xa9", 1))  # together they are é
    array = read_header(path).metadata["x"]
    assert isinstance(array, GgufArray)
    with pytest.raises(GgufFormatError, match="string 1 of 'x' is not UTF-8"):
        array.encoded()
