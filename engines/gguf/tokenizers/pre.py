"""How ``tokenizer.ggml.pre`` cuts text into words before byte-pair merges, which never cross a cut.

Each rule is a list of patterns in Oniguruma syntax, applied one after the other: matches and what lies between them are the
pieces that the next pattern sees. The patterns are those of the models' own published tokenizers. A new ``pre`` is one
entry in :data:`RULES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import UnsupportedModel

__all__ = ["RULES", "PreRule", "pre_rule"]


@dataclass(frozen=True)
class PreRule:
    """One way of cutting, and what goes with it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, whatever the merges would make of it
    add_bos: bool = False  # where the file does not say


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
    """The pattern of OpenAI's o200k vocabulary: words end where capitals begin."""
    words = (word.replace("{contraction}", contraction) for word in _CASED)
    return "|".join((*words, digits, _SYMBOLS_SLASH, _SPACES))


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = _tiktoken(r"\p{N}{1,3}")
_QWEN2 = _tiktoken(r"\p{N}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES,
)

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
    **dict.fromkeys(
        ("roberta-bpe", "modern-bert", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es"), _BY_WORDS
    ),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _BY_DIGITS),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3_MERGES),
    **dict.fromkeys(("glm4", "glm5"), PreRule((_CL100K,), ignore_merges=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open"), _QWEN),
    "qwen35": PreRule(
        (_QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),)
    ),
    "grok-2": _QWEN,
    "tekken": PreRule((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _O200K),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), PreRule(_DEEPSEEK3)),
    "deepseek-llm": PreRule(_DEEPSEEK_LLM),
    "deepseek-coder": PreRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "falcon": PreRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "seed-coder": PreRule((_tiktoken(r"\p{N}").replace(_SYMBOLS, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreRule((_SENTENCES,))),
    "viking": PreRule((_SENTENCES, r"\p{N}")),
}


def pre_rule(name: str | None) -> PreRule:
    """The rule of this ``tokenizer.ggml.pre``; None is "default". UnsupportedModel names one that is not known."""
    try:
        return RULES[name or "default"]
    except KeyError:
        raise UnsupportedModel(
            f"the tokenizer needs the pre-tokenizer {name!r} (tokenizer.ggml.pre), which is not supported; "
            f"supported are {', '.join(sorted(RULES))}"
        ) from None
