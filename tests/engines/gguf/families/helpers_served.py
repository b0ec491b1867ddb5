"""The families' tiny checkpoints as files that a gateway serves: with a tokenizer of as many tokens as their embeddings have rows.

The tokenizer has a token for each printable character, so that an answer shows each of its tokens.
"""

from __future__ import annotations

import string
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.model import build_model
from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.writer import CheckpointValue
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import VOCABULARY, Case, floats_of, write_case

__all__ = ["PROMPT_TEXT", "TOKENIZER", "alone", "write_served"]

PROMPT_TEXT = "a guest asks for the key."
_SPECIALS = ("<unk>", "<s>", "</s>")
_UNKNOWN, _CONTROL, _NORMAL = 2, 3, 1
_CHARACTERS = ("▁" + string.ascii_letters + string.digits + string.punctuation)[: VOCABULARY - len(_SPECIALS)]

TOKENIZER: dict[str, CheckpointValue] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": [*_SPECIALS, *_CHARACTERS],
    "tokenizer.ggml.scores": [0.0] * VOCABULARY,
    "tokenizer.ggml.token_type": [_UNKNOWN, _CONTROL, _CONTROL] + [_NORMAL] * len(_CHARACTERS),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": False,
}


def write_served(path: Path, case: Case) -> Path:
    """Writes the case's checkpoint in F32 with :data:`TOKENIZER`."""
    return write_case(path, case, floats_of(case)[1], tokenizer=TOKENIZER)


def alone(path: Path, max_tokens: int) -> str:
    """The model's greedy answer to :data:`PROMPT_TEXT`, token by token without an engine around it."""
    header = read_header(path)
    tokenizer = GgufTokenizer.from_metadata(header.metadata)
    model = build_model(header).model
    cache = make_prompt_cache(model)
    unread = tokenizer.encode(PROMPT_TEXT)
    chosen: list[int] = []
    while len(chosen) < max_tokens:
        chosen.append(int(mx.argmax(model(mx.array([unread]), cache=cache)[0, -1])))
        if chosen[-1] in tokenizer.eos_ids:
            break
        unread = chosen[-1:]
    return tokenizer.decode(chosen)
