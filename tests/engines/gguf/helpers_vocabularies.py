"""Two tiny vocabularies as GGUF metadata: a byte-level BPE and an SPM with byte fallback, each with specials and a template."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from engines.gguf.writer import CheckpointValue

__all__ = ["bpe_vocabulary", "spm_vocabulary"]

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # GGUF's token types

_TEXT = (
    "the innkeeper has a room for the model and the model has a key to the room; "
    "when the guest leaves the innkeeper takes the key and the room is free for another guest. "
    "hello world, how are you today? one two three four five six seven eight nine ten. "
    "a small model answers a small question in the inn by the river."
)

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TURNS = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def _merges(count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges that byte-pair training on ``_TEXT`` makes; ties go to the smaller pair."""
    words = Counter(("Ġ" if i else "") + word for i, word in enumerate(_TEXT.split()))
    split = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in split.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, pieces in split.items():
            joined: list[str] = []
            for piece in pieces:
                if joined and (joined[-1], piece) == best:
                    joined[-1] += piece
                else:
                    joined.append(piece)
            split[word] = joined
    return merges


def bpe_vocabulary(size: int, pre: str) -> dict[str, CheckpointValue]:
    """``size`` (at least 300) tokens: three specials, 256 bytes, merges. ChatML template; EOS ``<|im_end|>``, no BOS added."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = _merges(size - len(specials) - 256)
    tokens = [*specials, *_byte_characters().values(), *("".join(pair) for pair in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL] * len(specials) + [_NORMAL] * (size - len(specials)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHATML,
    }


def spm_vocabulary(size: int) -> dict[str, CheckpointValue]:
    """``size`` (at least 320) tokens: six specials, 256 byte tokens, characters and words with scores. BOS is added."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    spaced = "▁" + _TEXT.replace(" ", "▁")
    characters = [character for character, _ in Counter(spaced).most_common()]
    room = size - len(specials) - len(bytes_) - len(characters)
    if room < 0:
        raise ValueError(f"a vocabulary of {size} has no room for {len(characters)} characters")
    words = ["".join(pair).replace("Ġ", "▁") for pair in _merges(room)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*specials, *bytes_, *words, *characters],
        # Earlier merges have higher scores, characters the lowest: SPM joins the best-scoring pair first.
        "tokenizer.ggml.scores": [0.0] * (len(specials) + 256)
        + [-float(i) for i in range(len(words) + len(characters))],
        "tokenizer.ggml.token_type": [
            *(_UNKNOWN if special == "<unk>" else _CONTROL for special in specials),
            *[_BYTE] * 256,
            *[_NORMAL] * (len(words) + len(characters)),
        ],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": _TURNS,
    }
