"""Streaming: whole code points only, and the pieces joined are the whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers.detokenizer import StreamingDetokenizer
from tests.engines.gguf.helpers_tokenizers import bpe_metadata, gpt2_reference, spm_metadata, spm_reference

SEARCH = settings(max_examples=200, deadline=None, derandomize=True)
BPE = GgufTokenizer.from_metadata(bpe_metadata(gpt2_reference()))
SPM = GgufTokenizer.from_metadata(spm_metadata(spm_reference()))


def of_bytes(*tokens: bytes, skipped: frozenset[int] = frozenset(), strip_space: bool = False) -> StreamingDetokenizer:
    return StreamingDetokenizer(tokens.__getitem__, skipped, strip_space=strip_space)


def streamed(detokenizer: StreamingDetokenizer, count: int) -> list[str]:
    return [*(detokenizer.add(token) for token in range(count)), detokenizer.finish()]


def test_add_holds_a_code_point_back_until_it_is_whole() -> None:
    llama = "🦙".encode()
    assert streamed(of_bytes(b"a" + llama[:1], llama[1:3], llama[3:] + b"b"), 3) == ["a", "", "🦙b", ""]


def test_finish_flushes_what_was_begun_as_a_replacement_character() -> None:
    assert streamed(of_bytes(b"a", "é".encode()[:1]), 2) == ["a", "", "\ufffd"]


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert "".join(streamed(of_bytes(b"a\xff", b"\x80b", b"\xf0\x9f", b"c"), 4)) == "a\ufffd\ufffdb\ufffdc"


def test_skipped_tokens_add_nothing_and_do_not_part_a_code_point() -> None:
    accent = "é".encode()
    assert streamed(of_bytes(accent[:1], b"<end>", accent[1:], skipped=frozenset({1})), 3) == ["", "", "é", ""]


def test_strip_space_takes_the_first_space_alone() -> None:
    assert streamed(of_bytes(b" the", b" inn", strip_space=True), 2) == ["the", " inn", ""]
    assert streamed(of_bytes(b"<s>", b" the", skipped=frozenset({0}), strip_space=True), 2) == ["", "the", ""]
    assert streamed(of_bytes(b"a", b" b", strip_space=True), 2) == ["a", " b", ""]
    assert streamed(of_bytes(b"  a", strip_space=True), 1) == [" a", ""]


def test_detokenizer_of_sentencepiece_strips_its_own_space_unless_told_to_keep_it() -> None:
    (token,) = SPM.encode("the", add_bos=False)
    assert SPM.token_text(token) == "▁the"
    assert SPM.detokenizer().add(token) == "the"
    assert SPM.detokenizer(keep_leading_space=True).add(token) == " the"
    assert SPM.token_bytes(token) == b" the"


@SEARCH
@given(st.lists(st.integers(0, BPE.vocab_size - 1), max_size=40))
def test_byte_level_stream_joined_equals_the_whole(ids: list[int]) -> None:
    detokenizer = BPE.detokenizer()
    pieces = [*(detokenizer.add(id) for id in ids), detokenizer.finish()]
    kept = b"".join(BPE.token_bytes(id) for id in ids if id not in BPE.special_ids)
    assert "".join(pieces) == BPE.decode(ids) == kept.decode("utf-8", "replace")


@SEARCH
@given(st.lists(st.integers(0, SPM.vocab_size - 1), max_size=40))
def test_sentencepiece_stream_joined_equals_the_whole(ids: list[int]) -> None:
    detokenizer = SPM.detokenizer()
    pieces = [*(detokenizer.add(id) for id in ids), detokenizer.finish()]
    kept = b"".join(SPM.token_bytes(id) for id in ids if id not in SPM.special_ids)
    assert "".join(pieces) == SPM.decode(ids) == kept.removeprefix(b" ").decode("utf-8", "replace")


@SEARCH
@given(st.text(), st.data())
def test_any_split_of_a_text_s_bytes_gives_the_text(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    tokens = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    pieces = streamed(of_bytes(*tokens), len(tokens))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)
