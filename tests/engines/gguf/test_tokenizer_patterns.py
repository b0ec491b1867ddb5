"""Where pre-tokenizers cut, read a second time: the models' published patterns, by the `regex` package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from engines.gguf.tokenizers.pre import RULES
from tests.engines.gguf.helpers_tokenizers import CORPUS, ReferenceBpe, bpe_metadata, gpt2_reference

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"(?V1)[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--[\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--[\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--[\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--[\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
JAIS2 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|").replace(
    r"|\s+(?!\S)|\s+",
    "".join(rf"|\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}",
)
SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"
PATTERNS: dict[str, list[str]] = {
    "chameleon": [
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
    ],
    "mellum2": [r"\p{N}", GPT2],
    "minicpm5": [r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")],
    "jais-2": [JAIS2],
    "qwen35": [
        SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "ufakzeka": [QWEN2.removeprefix(SHORT + "|")],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "seed-coder": [SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "exaone-moe": [
        SHORT
        + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "youtu": [
        r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        O200K.replace("{1,3}", ""),
    ],
    "kimi-k2": [KIMI],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", O200K],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "afmoe": [
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
        DEEPSEEK3,
    ],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
    "spark2_5": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        DEEPSEEK3.replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]"),
        r"\p{N}",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "bloom": [SENTENCES],
    "viking": [SENTENCES, r"\p{N}"],
}
SAME = {
    "minimax-m2": "gpt-4o",
    "talkie": "gpt-4o",
    "granite-embed-multi-97m": "gpt-4o",
    "cohere2moe": "tiny_aya",
    "joyai-llm": "deepseek-v3",
    "hy_v4": "deepseek-v3",
    "bailingmoe2": "bailingmoe",
    "llada-moe": "bailingmoe",
    "f2llmv2": "qwen2",
    "grok-2": "qwen2",
    "jina-v5-nano": "llama-bpe",
    "poro-chat": "bloom",
}
SEARCH = settings(max_examples=60, deadline=None, derandomize=True)
PARTS = [
    *"".join(CORPUS),
    "  ",
    "\r\n",
    "'S",
    "'re",
    "e\u0301",
    "\u00a0",
    "12",
    "345",
    "1234567",
    "12a",
    "9_",
    "中文",
    "かな",
    "camelCase",
]
PARTS += ["<sentinel:7>", "IMGIMGABZ", "\t", "한국", "ไทย", "ㄅ", "！", "नम", " a b"]
# Characters that this Python knows: the two libraries were made with different versions of Unicode.
KNOWN = st.characters(exclude_categories=("Cs", "Cn"), max_codepoint=0x2FFFF)
TEXTS = st.one_of(st.text(KNOWN, max_size=40), st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
METADATA = bpe_metadata(gpt2_reference())


def words(patterns: Sequence[str], text: str) -> list[str]:
    cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [word for word, _ in pre_tokenizers.Sequence(cuts).pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", PATTERNS)
@SEARCH
@given(text=TEXTS)
@example("x1234567 12345a 1_000 ١٢٣٤ 99")
@example("HelloWorld's 你好abc世界ÉCOLE don'T")
def test_words_are_those_of_the_published_pattern(pre: str, text: str) -> None:
    if pre == "superbpe":  # numerals that are no decimal digits part its threes otherwise
        text = "".join(character for character in text if character.isdecimal() or not character.isnumeric())
    assert words(RULES[pre].patterns, text) == ReferenceBpe(METADATA, PATTERNS[pre]).words(text)


@pytest.mark.parametrize(("pre", "other"), SAME.items())
def test_rules_that_are_the_same_by_another_name(pre: str, other: str) -> None:
    assert RULES[pre].patterns == RULES[other].patterns


def test_numbers_take_linear_time() -> None:
    """The published patterns of these look ahead from every third digit to the number's end."""
    number = "1234567890" * 20_000
    for pre in ("afmoe", "superbpe", "tiny_aya", "cohere2moe"):
        cut = words(RULES[pre].patterns, number)
        assert "".join(cut) == number
        assert {len(word) for word in cut[1:]} == {3}
