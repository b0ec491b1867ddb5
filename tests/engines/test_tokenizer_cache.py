"""The tokenizers that are kept: built once, dropped in order, and what they answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engines.errors import CheckpointError, InvalidField
from engines.tokenizer_cache import TextTokens, TokenizerCache, WordTokens, answer, build
from engines.wire import (
    ChatMessage,
    ChatPrompt,
    DecodeTokens,
    EncodeChat,
    EncodeText,
    TokenizerRequest,
    TokenizerSource,
)

BOUND_S = 30.0


def source(key: str, path: str | None = None) -> TokenizerSource:
    return TokenizerSource(key=key, path=path)


def counting(builds: list[str]) -> Callable[[TokenizerSource], TextTokens]:
    def make(source: TokenizerSource) -> TextTokens:
        builds.append(source.key)
        return WordTokens()

    return make


def text(words: str) -> EncodeText:
    return EncodeText(text=words, add_special=True, parse_special=False)


def chat(*contents: str) -> EncodeChat:
    messages = tuple(ChatMessage(role="user", content=content) for content in contents)
    return EncodeChat(prompt=ChatPrompt(messages=messages), add_special=True, continues=True)


def test_cache_builds_each_tokenizer_once() -> None:
    builds: list[str] = []
    cache = TokenizerCache(build=counting(builds))
    first, again = cache.get(source("a")), cache.get(source("a"))
    assert first is again
    assert cache.get(source("b")).result() is not first.result()
    assert builds == ["a", "b"]


def test_cache_drops_what_was_used_least_recently() -> None:
    builds: list[str] = []
    cache = TokenizerCache(limit=2, build=counting(builds))
    for key in ("a", "b", "a", "c", "a", "b"):
        cache.get(source(key))
    assert builds == ["a", "b", "c", "b"]


def test_cache_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    begun, go_on = threading.Event(), threading.Event()
    builds: list[str] = []

    def fail(source: TokenizerSource) -> TextTokens:
        builds.append(source.key)
        begun.set()
        assert go_on.wait(BOUND_S)
        raise CheckpointError("no vocabulary")

    cache = TokenizerCache(build=fail)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(cache.get, source("a"))
        assert begun.wait(BOUND_S)
        waiting = cache.get(source("a"))
        assert not waiting.done()
        go_on.set()
        for future in (waiting, building.result(BOUND_S)):
            with pytest.raises(CheckpointError, match="no vocabulary"):
                future.result(BOUND_S)
    cache.get(source("a"))
    assert builds == ["a", "a"]


def test_build_names_the_file_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"no such thing")
    with pytest.raises(CheckpointError, match=r"x\.gguf"):
        build(source("a", str(file)))


def test_words_are_tokens_with_ids_of_their_own() -> None:
    words = build(source("sim:a"))
    request = TokenizerRequest(source=source("sim:a"), what=text("w0 w17 hello  hello\nWorld"), texts=True, pieces=True)
    got = answer(words, request)
    assert got.tokens[:2] == (0, 17)
    assert got.tokens[2] == got.tokens[3] != got.tokens[4]
    assert all(1_000_000 <= token < 2**31 for token in got.tokens[2:])
    assert got.texts[:2] == ("w0", "w17")
    assert got.pieces[:2] == (b"w0", b"w17")
    assert answer(words, TokenizerRequest(source=source("s"), what=DecodeTokens(tokens=(0, 17)))).text == "w0 w17"
    assert answer(words, TokenizerRequest(source=source("s"), what=chat("w1 w2", "w3"))).tokens == (1, 2, 3)


@pytest.mark.parametrize("token", [-1, 2**31])
def test_decode_id_outside_of_the_vocabulary_is_named(token: int) -> None:
    with pytest.raises(InvalidField, match=r"tokens\[1\].*0 to 2147483647") as refusal:
        answer(WordTokens(), TokenizerRequest(source=source("s"), what=DecodeTokens(tokens=(0, token))))
    assert refusal.value.param == "tokens[1]"
