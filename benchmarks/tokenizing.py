"""How fast text becomes ids, beside the `tokenizers` library with the same vocabulary.

    python -m benchmarks.tokenizing FILE.gguf [FILE.gguf ...]

For each file and each kind of text: characters a second of our tokenizer and of a `tokenizers` one that has the same words and
merges, as its ``tokenizer.json`` would state them, and the ratio (1 is as fast, 0.5 half as fast). "Cold" is a tokenizer that
has just been made, reading text it has never seen; "warm" the same text again, the best of several tries. Seconds are the
processor's, of one thread; the texts are made of the vocabulary's own words, so no data is needed. The memory is what each
takes once it is made.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers.pre import pre_rule
from engines.gguf.tokenizers.vocabulary import PREFIX, TokenType
from engines.header import read_header

_CHARACTERS = 200_000  # of a text
_LONG_WORD = 20_000
_TRIES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        measure(path)


def measure(path: Path) -> None:
    """Prints a table of one file."""
    metadata: dict[str, Any] = {key: listed(value) for key, value in read_header(path).metadata.items()}
    raw = read_header(path).metadata
    print(path.name)
    ours, ours_bytes, ours_seconds = weighed(lambda: GgufTokenizer.from_metadata(raw))
    theirs, their_bytes, their_seconds = weighed(lambda: library_tokenizer(metadata))
    mib = 1 << 20
    print(
        f"  made in {ours_seconds:.2f} s and {ours_bytes / mib:.0f} MiB, the library's in {their_seconds:.2f} s and "
        f"{their_bytes / mib:.0f} MiB"
    )
    print(f"  {'text':10} {'when':5} {'ours':>12} {'library':>12} {'ratio':>6}  same ids")
    for name, text in texts(ours, metadata).items():
        same = ours.encode(text, add_bos=False) == theirs.encode(text, add_special_tokens=False).ids
        for when, tries in (("cold", 1), ("warm", _TRIES)):
            if when == "cold":
                our_encode, their_encode = GgufTokenizer.from_metadata(raw).encode, library_tokenizer(metadata).encode
            else:
                our_encode, their_encode = ours.encode, theirs.encode
            our_time, their_time = best(our_encode, text, tries), best(their_encode, text, tries)
            print(
                f"  {name:10} {when:5} {len(text) / our_time:10,.0f}/s {len(text) / their_time:10,.0f}/s "
                f"{their_time / our_time:6.2f}  {'yes' if same else 'no'}"
            )


def listed(value: Any) -> Any:
    return list(value) if hasattr(value, "tolist") or hasattr(value, "encoded") else value


def best(encode: Callable[[str], Any], text: str, tries: int) -> float:
    """Seconds of processor time of the fastest try."""
    times = []
    for _ in range(tries):
        start = time.process_time()
        encode(text)
        times.append(time.process_time() - start)
    return min(times)


def weighed(make: Callable[[], Any]) -> tuple[Any, int, float]:
    """What is made, the resident bytes it added, and the seconds it took."""
    gc.collect()
    before, start = resident(), time.perf_counter()
    made = make()
    seconds = time.perf_counter() - start
    gc.collect()
    return made, max(0, resident() - before), seconds


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def library_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The `tokenizers` library with this vocabulary, as the model's ``tokenizer.json`` has it: byte-level with its own merges,
    SentencePiece with merges by the score of what they make."""
    tokens, types = metadata[PREFIX + "tokens"], metadata[PREFIX + "token_type"]
    ids = {token: id for id, token in enumerate(tokens)}
    special = [
        AddedToken(token, normalized=False, special=kind != TokenType.USER_DEFINED)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED) and token
    ]
    if metadata[PREFIX + "model"] == "gpt2":
        merges = [tuple(merge.split(" ")) for merge in metadata[PREFIX + "merges"]]
        rule = pre_rule(metadata.get(PREFIX + "pre"))
        tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=rule.ignore_merges))
        cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    else:
        merges = list(merges_by_score(ids, metadata[PREFIX + "scores"]))
        tokenizer = Tokenizer(BPE(ids, merges, byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens(special)
    tokenizer.encode_special_tokens = True
    return tokenizer


def merges_by_score(ids: Mapping[str, int], scores: list[float]) -> Iterator[tuple[str, str]]:
    """Every pair of tokens that makes a token, the best score first."""
    for token in sorted(ids, key=lambda token: (-scores[ids[token]], ids[token])):
        for cut in range(1, len(token)):
            if token[:cut] in ids and token[cut:] in ids:
                yield token[:cut], token[cut:]


def texts(tokenizer: GgufTokenizer, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Words of the vocabulary at random: English, code, Chinese; and one very long word."""
    generator = random.Random(5)
    pieces = [tokenizer.token_bytes(id).decode("utf-8", "ignore") for id in range(tokenizer.vocab_size)]
    words = sorted({piece.strip() for piece in pieces if piece.startswith(" ") and piece.strip().isascii()})
    letters = [word for word in words if word.isalpha() and word.islower()]
    frequent = letters[:: max(1, len(letters) // 8000)]
    han = [piece for piece in pieces if piece and all("一" <= character <= "龥" for character in piece)]
    han = han or ["你好", "世界", "中文", "文字", "学习"]
    weights = [1 / (rank + 3) for rank in range(len(frequent))]
    generator.shuffle(frequent)

    def english() -> str:
        return " ".join(generator.choices(frequent, weights, k=_CHARACTERS // 6))[:_CHARACTERS]

    def code() -> str:
        lines = []
        names = generator.choices(frequent, weights, k=_CHARACTERS)
        for place in range(0, _CHARACTERS // 8, 4):
            a, b, c, d = names[place : place + 4]
            lines.append(
                f"    def {a}_{b}(self, {c}: int = {place % 97}) -> {d.title()}:\n        return self.{a}[{c}]  # {d}"
            )
        return "\n".join(lines)[:_CHARACTERS]

    return {
        "English": english(),
        "code": code(),
        "Chinese": "".join(generator.choices(han, k=_CHARACTERS // 4)),
        "long word": "".join(generator.choices(letters, k=_LONG_WORD // 3))[:_LONG_WORD],
    }


if __name__ == "__main__":
    main()
