"""How ``tokenizer.ggml.pre`` cuts text into words before byte-pair merges, which never cross a cut.

Each rule is a list of patterns in Oniguruma syntax, applied one after the other: matches and what lies between them are the
pieces that the next pattern sees. The patterns are those of the models' own published tokenizers. A new ``pre`` is one
entry in :data:`RULES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import UnsupportedModel

__all__ = ["RULES", "PreRule", "pre_refusal", "pre_rule"]


@dataclass(frozen=True)
class PreRule:
    """One way of cutting, and what goes with it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, whatever the merges would make of it
    add_bos: bool = False  # where the file does not say
    always_bos: bool = False  # also where the file says otherwise: files of this kind are known to be wrong
    plain: bool = False  # tokens are text as SentencePiece writes it (a space is ▁), not bytes as printable characters
    whole_breaks: bool = False  # a run of line breaks that is a token is that token
    begins_lines: bool = False  # a line gets a space before it, unless it begins with one
    spaces_are_cuts: bool = False  # whitespace is in no word, and in no token


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+" + "{contraction}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*" + "{contraction}",
)


def _tiktoken(digits: str) -> str:
    """The pattern of OpenAI's cl100k vocabulary and its many followers, with this pattern for numbers."""
    return "|".join((_CONTRACTION, _WORD, digits, _SYMBOLS, _SPACES))


def _cased(contraction: str, digits: str) -> str:
    """The pattern of OpenAI's o200k vocabulary: words end where capitals begin, and where ``contraction`` ends."""
    words = (word.replace("{contraction}", contraction) for word in _CASED)
    return "|".join((*words, digits, _SYMBOLS_SLASH, _SPACES))


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = _tiktoken(r"\p{N}{1,3}")
_QWEN2 = _tiktoken(r"\p{N}")
_PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _KANA,
    _PUNCTUATED + r" ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)

_KIMI_UPPER, _KIMI_LOWER = (f"[{letters[1:-1]}&&[^\\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_KIMI = "|".join(
    (
        r"\p{Han}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?",
        r"\p{N}{1,3}",
        _SYMBOLS,
        _SPACES,
    )
)
# Threes counted from a number's end. The models' own patterns look ahead to the end from every digit, which takes time
# quadratic in the number's length; these cut a number that is a word of its own already, and look ahead once.
_THREES = r"\A\p{N}{1,2}(?=(?:\p{N}{3})+\z)|\p{N}{3}"
_THREES_ALONE = _THREES.replace(r"\p{N}", r"\d")
_DECIMAL_THREES = r"(?<!\d)\d{1,2}(?=(?:\d{3})+(?!\d))|\d{3}"
# The only digits that Cohere's pattern leaves whole are those that letters or underscores touch on their right.
_UNTOUCHED_NUMBER = r"(?<!\d)\d+\b"
_SCRIPTS = (  # written without spaces: Han, kana, radicals, Thai, Lao, Khmer, Burmese, Hangul
    r"[一-鿿㐀-䶿豈-\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-\x{2FDF}เ-\x{0E7F}\x{0E80}-\x{0EFF}ក-\x{17FF}က-႟ꩠ-ꩿꧠ-\x{A9FF}"
    r"가-\x{D7AF}ᄀ-ᇿ]+"
)
_JAIS2 = "|".join(
    (
        *(_CONTRACTION, _WORD, r"\p{N}{1,3}", _SYMBOLS, r"\s*[\r\n]+"),
        *(rf"\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4)),
        *(r"\s{1,2}(?!\S)", r"\s"),
    )
)
_YOUTU_SCRIPTS = rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_KANA}"
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_BAILING = "|".join(
    (
        *("'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"\p{N}"),
        *(r" ?[^\s\p{L}\p{N}]++[\r\n]*", r"\s*[\r\n]|\s+(?!\S)|\s+"),
    )
)
_EXAONE_MOE = "|".join(
    (
        *(_CONTRACTION, r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", r"\p{N}"),
        *(r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]|\s+(?!\S)|\s+"),
    )
)
_LINES = (r"\n+",)

_BY_WORDS = PreRule((_GPT2,))
_BY_DIGITS = PreRule((r"\p{N}", _GPT2))
_LLAMA3 = PreRule((_CL100K,), ignore_merges=True, add_bos=True)
_LLAMA3_MERGES = PreRule((_CL100K,))
_QWEN = PreRule((_QWEN2,))
_O200K = PreRule((_cased(_CONTRACTION + "?", r"\p{N}{1,3}"),))
# DeepSeek's list of cased letters: those of Unicode but for scripts and blocks that it leaves out.
_DEEPSEEK_LETTERS = (
    "[[\\p{Lu}\\p{Ll}\\p{Lt}\u0295]&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab6d"
    "\U00010570-\U000105bc\U00010d50-\U00010d85\U00016e40-\U0001df96]]"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_DEEPSEEK_LETTERS}+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"

RULES: dict[str, PreRule] = {
    # What files from before this key get, as llama.cpp does it.
    "default": PreRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _BY_WORDS),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum"), _BY_WORDS),
    **dict.fromkeys(("roberta-bpe", "modern-bert", "jina-v1-en", "jina-v2-code"), _BY_WORDS),
    **dict.fromkeys(("jina-v2-de", "jina-v2-es", "jina-de", "jina-es"), _BY_WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _BY_DIGITS),
    "mellum2": _BY_DIGITS,
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"), _LLAMA3),
    **dict.fromkeys(("midm-2.0", "lfm2", "jina-v5-nano"), _LLAMA3),
    "minicpm5": PreRule((r"\p{N}{1,3}", _tiktoken(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreRule((_JAIS2,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3_MERGES),
    **dict.fromkeys(("glm4", "glm5"), PreRule((_CL100K,), ignore_merges=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open"), _QWEN),
    **dict.fromkeys(("f2llmv2", "grok-2"), _QWEN),
    "ufakzeka": PreRule((_QWEN2.removeprefix(_CONTRACTION + "|"),)),  # Turkish suffixes stay at their apostrophes
    "laguna": PreRule((*_LINES, _QWEN2)),
    "qwen35": PreRule(
        (_QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),)
    ),
    "tekken": PreRule((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _O200K),
    "granite-embed-multi-97m": PreRule(_O200K.patterns, ignore_merges=True),
    "youtu": PreRule((_YOUTU_SCRIPTS, _cased(_CONTRACTION + "?", r"\p{N}")), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreRule((_UNTOUCHED_NUMBER, _THREES_ALONE, *_O200K.patterns))),
    "kimi-k2": PreRule((_KIMI,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), PreRule(_DEEPSEEK3)),
    "spark2_5": PreRule(
        (r"\p{N}{1,3}", _KANA, _PUNCTUATED + r" ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    ),
    "afmoe": PreRule((r"\p{N}+", _THREES, _SCRIPTS, _DEEPSEEK3[-1])),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreRule((_BAILING,))),
    "exaone-moe": PreRule((_EXAONE_MOE,)),
    "superbpe": PreRule((r"\p{N}+", _DECIMAL_THREES)),
    "chameleon": PreRule(_CHAMELEON, add_bos=True),
    "deepseek-llm": PreRule(_DEEPSEEK_LLM),
    "deepseek-coder": PreRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "falcon": PreRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "seed-coder": PreRule((_tiktoken(r"\p{N}").replace(_SYMBOLS, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreRule((_SENTENCES,))),
    "viking": PreRule((_SENTENCES, r"\p{N}")),
    # Merges run over whole lines of plain text.
    "gemma4": PreRule(_LINES, add_bos=True, always_bos=True, plain=True, whole_breaks=True),
    "granite-embed-multi-311m": PreRule(_LINES, plain=True, whole_breaks=True),
    "sarvam-moe": PreRule(_LINES, plain=True),
    "mmbert": PreRule((*_LINES, "▁[^▁]*"), plain=True, whole_breaks=True, begins_lines=True),
    "whitespace": PreRule((), plain=True, spaces_are_cuts=True),
}


def pre_rule(name: str | None) -> PreRule:
    """The rule of this ``tokenizer.ggml.pre``; None is "default". UnsupportedModel names one that is not known."""
    unknown = pre_refusal(name)
    if unknown is not None:
        raise UnsupportedModel(unknown)
    return RULES[name or "default"]


def pre_refusal(name: str | None) -> str | None:
    """Why this ``tokenizer.ggml.pre`` cannot be used; None if it can."""
    if (name or "default") in RULES:
        return None
    return (
        f"the tokenizer needs the pre-tokenizer {name!r} (tokenizer.ggml.pre), which is not supported; "
        f"supported are {', '.join(sorted(RULES))}"
    )
