"""What the metadata keys ``tokenizer.ggml.*`` say about the tokens: texts, types, scores, special ids and rules.

Source of the keys and their meaning: the GGUF specification and llama.cpp's conventions.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from engines.errors import CheckpointError
from engines.gguf.tokenizers.texts import TokenTexts
from engines.header import GgufArray

__all__ = ["TokenType", "Vocabulary", "byte_of", "encoded_texts", "metadata_flag", "metadata_list"]

PREFIX = "tokenizer.ggml."
SPACE = "▁"  # how tokens of plain text write a space
_SPACE_BYTES = SPACE.encode()
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    UNDEFINED = 0  # so are numbers that are not in this list
    NORMAL = 1  # text, in the encoding of the model
    UNKNOWN = 2  # stands for what has no token
    CONTROL = 3  # structure (turns, ends): never in an answer's text, found in input only where that is asked for
    USER_DEFINED = 4  # verbatim text that is always one token
    UNUSED = 5  # padding of the vocabulary
    BYTE = 6  # one byte, written <0xAB>


# Texts which end an answer whatever their type: some converters give them the wrong one, and none is ordinary prose.
_ENDS_ANSWER = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
# Texts which end an answer only as control tokens: Gemma's "</s>" is HTML for struck-through text.
_ENDS_ANSWER_AS_CONTROL = frozenset(
    {"</s>", "<eos>", "[EOS]", "[EOT]", "<EOT>", "_<EOT>"}
    # What models of code write after what fills a gap: padding, or the next repository or file.
    | {"<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<fim-repo>", "<REPO>", "<reponame>"}
)
# Keys of ids which end an answer.
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one checkpoint. ``texts[id]`` and ``types[id]`` have one entry a token.

    Invariants: every id named here is below ``len(texts)``; ``end_ids`` contains ``eos_id``; each id of ``end_ids`` is of
    type CONTROL.
    """

    texts: TokenTexts
    types: bytes  # of TokenType
    scores: array[float] | None
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    end_ids: frozenset[int]
    add_bos: bool | None  # None: the file does not say
    add_eos: bool | None
    abnormal: tuple[int, ...] = field(repr=False)  # ids whose type is not NORMAL, ascending

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Reads the lists and ids; CheckpointError where they are missing or do not fit together."""
        texts = TokenTexts(encoded_texts(metadata, PREFIX + "tokens"))
        if not texts:
            raise CheckpointError("tokenizer.ggml.tokens is empty: the file has no vocabulary")
        types = _packed_types(metadata_list(metadata, PREFIX + "token_type", int, optional=True))
        scores = array("f", metadata_list(metadata, PREFIX + "scores", (float, int), optional=True))
        for key, values in (("token_type", types), ("scores", scores)):
            if values and len(values) < len(texts):
                raise CheckpointError(
                    f"{PREFIX}{key} has {len(values)} entries for {len(texts)} tokens; it needs one a token"
                )
        types = types[: len(texts)] or bytearray((TokenType.NORMAL,)) * len(texts)

        def special(name: str) -> int | None:
            value = metadata.get(f"{PREFIX}{name}_token_id")
            return value if isinstance(value, int) and 0 <= value < len(texts) else None

        eos_id = special("eos")
        normal = TokenType.NORMAL.value
        abnormal = [id for id, kind in enumerate(types) if kind != normal]
        end_ids = {id for id in map(special, _ENDS) if id is not None}
        end_ids |= _ends_by_text(texts, types, abnormal)
        for id in end_ids:
            if types[id] == TokenType.NORMAL:
                abnormal.append(id)
            types[id] = TokenType.CONTROL
        return cls(
            texts=texts,
            types=bytes(types),
            scores=scores or None,
            bos_id=special("bos"),
            eos_id=eos_id,
            unknown_id=special("unknown"),
            padding_id=special("padding"),
            end_ids=frozenset(end_ids),
            add_bos=metadata_flag(metadata, PREFIX + "add_bos_token"),
            add_eos=metadata_flag(metadata, PREFIX + "add_eos_token"),
            abnormal=tuple(sorted(abnormal)),
        )

    def normal_ids(self) -> dict[str, int]:
        """Text → id of what text may become: of several tokens with one text the last, and none if that one is not NORMAL."""
        found = {text: id for id, text in enumerate(self.texts)}
        for id in self.abnormal:
            if found.get(text := self.texts[id]) == id:
                del found[text]
        return found

    def plain_bytes(self, id: int) -> bytes:
        """What a token of plain text adds to an output: a NORMAL one has its spaces as :data:`SPACE`, a BYTE one is that byte,
        an UNUSED one nothing, any other its text."""
        kind = self.types[id]
        text = self.texts.encoded(id)
        if kind == TokenType.NORMAL:
            return text.replace(_SPACE_BYTES, b" ")
        if kind == TokenType.BYTE and (byte := byte_of(self.texts[id])) is not None:
            return bytes((byte,))
        return b"" if kind == TokenType.UNUSED else text

    def of_type(self, *types: TokenType) -> dict[str, int]:
        """Text → id of the tokens of these types (none of them NORMAL); tokens without text are left out."""
        wanted = {kind.value for kind in types}
        return {self.texts[id]: id for id in self.abnormal if self.types[id] in wanted and self.texts[id]}


def byte_of(text: str) -> int | None:
    """The byte that a token of type BYTE stands for, by its text; None if it names none."""
    found = _BYTE.fullmatch(text)
    return int(found[1], 16) if found else None


def _packed_types(numbers: list[int]) -> bytearray:
    try:
        return bytearray(numbers)
    except ValueError:  # a number that is no byte is no type either
        return bytearray(number if 0 <= number < 256 else TokenType.UNDEFINED for number in numbers)


def _ends_by_text(texts: TokenTexts, types: bytearray, abnormal: list[int]) -> set[int]:
    found = {texts[id]: id for id in abnormal}
    if not found:  # a file without types
        found = {text: id for id, text in enumerate(texts) if text in _ENDS_ANSWER}
    ends = {id for text, id in found.items() if text in _ENDS_ANSWER}
    ends |= {
        id for text, id in found.items() if text in _ENDS_ANSWER_AS_CONTROL and types[id] == TokenType.CONTROL.value
    }
    # In OpenAI's harmony format <|end|> closes a message, and the answer goes on with the next one.
    # So it is in Solar's, with other names for the rest.
    messages = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
    if "<|end|>" in found and any(names <= found.keys() for names in messages):
        ends.discard(found["<|end|>"])
    return ends


def encoded_texts(metadata: Mapping[str, Any], key: str) -> list[bytes]:
    """The strings of the array at ``key`` in UTF-8. CheckpointError if it is missing or not of strings."""
    texts = metadata.get(key)
    if isinstance(texts, GgufArray):
        return texts.encoded()
    return [text.encode("utf-8", "surrogatepass") for text in metadata_list(metadata, key, str)]


def metadata_list(
    metadata: Mapping[str, Any], key: str, kind: type | tuple[type, ...], *, optional: bool = False
) -> list[Any]:
    """The array at ``key`` as a new list. CheckpointError if it is missing (unless optional) or not of that kind."""
    values = metadata.get(key)
    if values is None:
        if optional:
            return []
        raise CheckpointError(f"{key} is missing: the file has no tokenizer")
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise CheckpointError(f"{key} is not an array")
    listed = list(values.tolist() if hasattr(values, "tolist") else values)
    if listed and not isinstance(listed[0], kind):  # GGUF arrays are of one type: the first entry stands for all
        raise CheckpointError(f"{key} holds {type(listed[0]).__name__} entries, which is not what it should hold")
    return listed


def metadata_flag(metadata: Mapping[str, Any], key: str) -> bool | None:
    """The boolean at ``key``; None if it is missing or something else."""
    value = metadata.get(key)
    return value if isinstance(value, bool) else None
