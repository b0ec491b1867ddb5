"""Ids equal those of llama.cpp.

Each vocabulary here was written into a GGUF file without tensors, which llama.cpp (build 11434, ``vocab_only``) opened; each of
its texts went through ``llama_tokenize`` without special tokens. :data:`GOLDENS` has the digest of the ids that came back.
Where llama.cpp approximates a model's published pattern, `test_tokenizer_patterns` reads that instead: it takes all letters for
one class (kimi-k2, youtu, tiny_aya, cohere2moe), and leaves what stands before a number with it (afmoe, tiny_aya, cohere2moe).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers.pre import RULES
from tests.engines.gguf.helpers_kinds import (
    crossing_metadata,
    dna_metadata,
    plain_metadata,
    plamo_metadata,
    unigram_metadata,
    world_metadata,
)

APPROXIMATED = {"kimi-k2", "youtu", "tiny_aya", "cohere2moe", "afmoe"}

_WORDS = [*"aabbcA  ", "ab", " ab", "é", "日", "\n", "\n\n", "\t"]
ALPHABETS: dict[str, list[str]] = {
    "rwkv": [*"ther the\n\r\\n'é", "there", "你好", "日", "\r\n", "ré"],
    "plamo2": [*"aabbcc   ", "日", "本", "é", "🙂"],
    "hybriddna": ["<dna>", "</dna>", "ACGTAC", "GGGGGG", "gt", "ab", "x", "GT", "acgtac"],
    "t5": [*"aabbcc   ", "é", "日"],
}
VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    **{
        pre: partial(crossing_metadata, pre)
        for pre in sorted(RULES)
        if not RULES[pre].plain and pre not in APPROXIMATED
    },
    **{pre: partial(plain_metadata, "gpt2", pre) for pre in ("granite-embed-multi-311m", "mmbert", "sarvam-moe")},
    **{kind: partial(plain_metadata, kind, kind) for kind in ("gemma4", "whitespace")},
    "rwkv": world_metadata,
    "plamo2": plamo_metadata,
    "hybriddna": dna_metadata,
    "t5": partial(unigram_metadata, with_bytes=False, add_space_prefix=True, remove_extra_whitespaces=True),
}

GOLDENS: dict[str, str] = {
    "a.x-4.0": "f9e5132071af",
    "bailingmoe": "4ed969a75abf",
    "bailingmoe2": "4ed969a75abf",
    "bloom": "03f37541800d",
    "chameleon": "92f2e6c354fe",
    "chatglm-bpe": "75a5027fa57c",
    "codeshell": "a54f31c754a7",
    "command-r": "a54f31c754a7",
    "dbrx": "75a5027fa57c",
    "deepseek-coder": "9550a18fd0ee",
    "deepseek-llm": "30f302fcf8e5",
    "deepseek-r1-qwen": "4ed969a75abf",
    "deepseek-v3": "e319ea4fbb17",
    "default": "05d5e00b8b44",
    "exaone": "a54f31c754a7",
    "exaone-moe": "3bffc492768d",
    "exaone4": "f9e5132071af",
    "f2llmv2": "4ed969a75abf",
    "falcon": "dbce41997fb8",
    "falcon-h1": "75a5027fa57c",
    "falcon3": "75a5027fa57c",
    "gigachat": "f9e5132071af",
    "glm4": "75a5027fa57c",
    "glm5": "75a5027fa57c",
    "gpt-2": "f9e5132071af",
    "gpt-4o": "1cb1600d7c6d",
    "gpt3-finnish": "03f37541800d",
    "granite-docling": "f9e5132071af",
    "granite-embed-multi-97m": "1cb1600d7c6d",
    "grok-2": "4ed969a75abf",
    "hunyuan": "4ed969a75abf",
    "hunyuan-dense": "e319ea4fbb17",
    "hy_v4": "e319ea4fbb17",
    "jais": "f9e5132071af",
    "jais-2": "75a5027fa57c",
    "jina-de": "f9e5132071af",
    "jina-es": "f9e5132071af",
    "jina-v1-en": "f9e5132071af",
    "jina-v2-code": "f9e5132071af",
    "jina-v2-de": "f9e5132071af",
    "jina-v2-es": "f9e5132071af",
    "jina-v5-nano": "75a5027fa57c",
    "joyai-llm": "e319ea4fbb17",
    "kanana2": "1cb1600d7c6d",
    "kormo": "4ed969a75abf",
    "laguna": "5397ba0018ac",
    "lfm2": "75a5027fa57c",
    "llada-moe": "4ed969a75abf",
    "llama-bpe": "75a5027fa57c",
    "llama-v3": "75a5027fa57c",
    "llama3": "75a5027fa57c",
    "llama4": "1cb1600d7c6d",
    "megrez": "4ed969a75abf",
    "mellum": "f9e5132071af",
    "mellum2": "a54f31c754a7",
    "midm-2.0": "75a5027fa57c",
    "minerva-7b": "a54f31c754a7",
    "minicpm5": "065c02c128ba",
    "minimax-m2": "1cb1600d7c6d",
    "modern-bert": "f9e5132071af",
    "mpt": "f9e5132071af",
    "olmo": "f9e5132071af",
    "phi-2": "f9e5132071af",
    "pixtral": "75a5027fa57c",
    "poro-chat": "03f37541800d",
    "qwen2": "4ed969a75abf",
    "qwen35": "4ed969a75abf",
    "refact": "a54f31c754a7",
    "roberta-bpe": "f9e5132071af",
    "seed-coder": "6956f77af163",
    "smaug-bpe": "75a5027fa57c",
    "smollm": "a54f31c754a7",
    "solar-open": "4ed969a75abf",
    "spark2_5": "60e5ec6cc5ff",
    "stablelm2": "4ed969a75abf",
    "starcoder": "a54f31c754a7",
    "superbpe": "085561559af2",
    "talkie": "1cb1600d7c6d",
    "tekken": "08f1258f4827",
    "trillion": "f9e5132071af",
    "ufakzeka": "c2d877b4d614",
    "viking": "c634a9e4035b",
    "granite-embed-multi-311m": "beb7683d08f0",
    "mmbert": "3eb39e4472d7",
    "sarvam-moe": "fcdf27b5ea60",
    "gemma4": "beb7683d08f0",
    "whitespace": "33518a3ce962",
    "rwkv": "97694acfc4ab",
    "plamo2": "29971fd59486",
    "hybriddna": "46ff15d66dce",
    "t5": "d8fb14695193",
}


def texts_for(name: str) -> list[str]:
    """The same ones each time; of ASCII where a pattern decides, since Unicode's classes differ from one library to the next."""
    alphabet = list("01asA .'\n/") if name in RULES and not RULES[name].plain else ALPHABETS.get(name, _WORDS)
    generator = random.Random(11)
    return ["".join(generator.choices(alphabet, k=generator.randrange(1, 30))) for _ in range(150)]


def digest(ids: list[list[int]]) -> str:
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_equal_those_of_llama_cpp(name: str) -> None:
    tokenizer = GgufTokenizer.from_metadata(VOCABULARIES[name]())
    assert digest([tokenizer.encode(text, add_bos=False) for text in texts_for(name)]) == GOLDENS[name]
