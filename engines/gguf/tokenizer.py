"""The tokenizer of a GGUF file, built from its metadata alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.tokenizers.bpe import BytePairModel
from engines.gguf.tokenizers.detokenizer import StreamingDetokenizer
from engines.gguf.tokenizers.dna import DnaModel
from engines.gguf.tokenizers.infill import infill_ids
from engines.gguf.tokenizers.kinds import refusal
from engines.gguf.tokenizers.plamo2 import CheapestModel
from engines.gguf.tokenizers.rwkv import WorldModel
from engines.gguf.tokenizers.specials import SpecialSplitter
from engines.gguf.tokenizers.spm import SentencePieceModel
from engines.gguf.tokenizers.unigram import UnigramModel
from engines.gguf.tokenizers.vocabulary import PREFIX, TokenType, Vocabulary
from engines.gguf.tokenizers.wordpiece import WordPieceModel

__all__ = ["GgufTokenizer", "StreamingDetokenizer"]

_TEMPLATE = "tokenizer.chat_template"
_SURROGATES = re.compile("[\ud800-\udfff]")


class _Model(Protocol):
    """What turns text without special tokens into ids, and an id into bytes."""

    add_space_prefix: bool
    add_bos: bool
    always_bos: bool

    def encode(self, text: str, *, at_start: bool) -> list[int]: ...

    def token_bytes(self, id: int) -> bytes: ...


# A model kind is one entry: tokenizer.ggml.model, its class, and the ids of BOS, EOS and unknown where the file is silent.
_MODELS: dict[str, tuple[Callable[[Mapping[str, Any], Vocabulary], _Model], dict[str, int]]] = {
    "gpt2": (BytePairModel, {}),
    "gemma4": (BytePairModel, {}),
    "whitespace": (BytePairModel, {}),
    "hybriddna": (DnaModel, {}),
    "llama": (SentencePieceModel, {"bos": 1, "eos": 2, "unknown": 0}),
    "bert": (WordPieceModel, {"bos": 101, "unknown": 100, "padding": 0}),
    "t5": (UnigramModel, {"eos": 1, "unknown": 2, "padding": 0}),
    "rwkv": (WorldModel, {}),
    "plamo2": (CheapestModel, {"bos": 1, "eos": 2, "unknown": 0, "padding": 3}),
}


class GgufTokenizer:
    """Text to ids and back. Everything is fixed at construction: threads may share it."""

    def __init__(self, model: _Model, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary.texts)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids: frozenset[int] = vocabulary.end_ids
        """Every id that ends an answer: EOS, end of turn, end of message."""
        self.add_bos = model.add_bos if vocabulary.add_bos is None or model.always_bos else vocabulary.add_bos
        self.add_eos = vocabulary.add_eos is True
        control = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        verbatim = vocabulary.of_type(TokenType.USER_DEFINED)
        self.special_ids: frozenset[int] = frozenset(control.values())
        """Ids that are structure and not text; ``decode`` leaves them out unless told otherwise."""
        strips = _strips_right(metadata, control | verbatim)
        self._control = SpecialSplitter(control)
        self._verbatim = SpecialSplitter(verbatim, strips)
        self._all_specials = SpecialSplitter(control | verbatim, strips)
        self.templates: dict[str, str] = _templates(metadata)
        """Chat templates by name; the main one is "default"."""
        self.chat_template = self.templates.get("default")
        self._infill = infill_ids(metadata, vocabulary.texts)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> GgufTokenizer:
        """UnsupportedModel for a kind of tokenizer (or pre-tokenizer) that is not known, CheckpointError for metadata
        that is missing or does not fit together."""
        kind = metadata.get(PREFIX + "model")
        if kind is None:
            raise CheckpointError("tokenizer.ggml.model is missing: the file has no tokenizer")
        unusable = refusal(kind, metadata.get(PREFIX + "pre"))
        if unusable is not None:
            raise UnsupportedModel(unusable)
        model_class, defaults = _MODELS[kind]
        ids = {f"{PREFIX}{name}_token_id": id for name, id in defaults.items()}
        vocabulary = Vocabulary.from_metadata({**ids, **{key: metadata[key] for key in metadata}})
        return cls(model_class(metadata, vocabulary), vocabulary, metadata)

    def encode(
        self,
        text: str,
        *,
        add_bos: bool | None = None,
        add_eos: bool | None = False,
        parse_special: bool = False,
        guard: str = "",
        at_start: bool = True,
    ) -> list[int]:
        """The ids of ``text``.

        ``add_bos``, ``add_eos``: None asks the file; an EOS is not added unless asked for, since no answer follows one.
        ``parse_special``: control tokens spelled out in the text are those tokens; otherwise they are plain text.
        User-defined tokens are found either way. ``guard`` is a character that keeps what it was put into from being read
        as a control token, and is itself no text (see :meth:`guarded`). Lone surrogates become U+FFFD. ``at_start``: False
        where another text stands right before this one, so that SentencePiece puts no space between them.
        """
        if _SURROGATES.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        if self.bos_id is not None and (self.add_bos if add_bos is None else add_bos):
            ids.append(self.bos_id)
        # What each piece of the text is: the id of a special token, or None for the next of ``texts``.
        pieces: list[int | None] = []
        texts: list[tuple[str, bool]] = []
        after_special = at_start
        for part in (self._all_specials if parse_special else self._verbatim).split(text):
            if isinstance(part, int):
                pieces.append(part)
                after_special = True
                continue
            if guard:
                part = part.replace(guard, "")
            if part:
                pieces.append(None)
                texts.append((part, after_special))
                after_special = False
        encoded = self._encoded(texts)
        for id in pieces:
            if id is None:
                ids += next(encoded)
            else:
                ids.append(id)
        if self.eos_id is not None and (self.add_eos if add_eos is None else add_eos):
            ids.append(self.eos_id)
        return ids

    def encode_infill(self, prefix: str, suffix: str) -> list[int] | None:
        """The ids after which comes what stands between the two texts; None where the vocabulary has none for that.

        Prefix, suffix, then the gap, each behind its token; BOS first where the file wants one. The suffix goes on where the
        gap ends. Control tokens spelled out in either are text.
        """
        if self._infill is None:
            return None
        ids = [self.bos_id] if self.bos_id is not None and self.add_bos else []
        ids += [self._infill.prefix, *self.encode(prefix, add_bos=False)]
        ids += [self._infill.suffix, *self.encode(suffix, add_bos=False, at_start=False)]
        return [*ids, self._infill.middle]

    def guarded(self, text: str, guard: str) -> str:
        """``text`` with ``guard`` put into each control token spelled out in it, after its first character."""
        pieces: list[str] = []
        start = 0
        for first in self._control.starts(text):
            pieces += (text[start : first + 1], guard)
            start = first + 1
        return "".join((*pieces, text[start:]))

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``; control tokens are left out, or spelled out with ``skip_special=False``."""
        detokenizer = self.detokenizer(skip_special=skip_special)
        return "".join([detokenizer.add(id) for id in ids]) + detokenizer.finish()

    def detokenizer(
        self, *, skip_special: bool = True, keep_leading_space: bool = False, shown: frozenset[int] = frozenset()
    ) -> StreamingDetokenizer:
        """A new one, for one answer. Of the control tokens it skips, ``shown`` are spelled out after all.

        A SentencePiece tokenizer puts a space before a text; decoding takes it off again. ``keep_leading_space`` leaves it,
        for an answer that goes on where its prompt's text ends.
        """
        skipped = self.special_ids - shown if skip_special else frozenset[int]()
        strip_space = self._model.add_space_prefix and not keep_leading_space
        return StreamingDetokenizer(self.token_bytes, skipped, strip_space=strip_space)

    def token_text(self, id: int) -> str:
        """The token as the vocabulary writes it. IndexError outside of it."""
        return self._vocabulary.texts[self._checked(id)]

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to an output, control tokens spelled out. IndexError outside of the vocabulary."""
        return self._model.token_bytes(self._checked(id))

    def special_texts(self) -> dict[str, str]:
        """``bos_token``, ``eos_token``, … → text, of those that the file names: what chat templates may print."""
        named = {
            "bos_token": self.bos_id,
            "eos_token": self.eos_id,
            "unk_token": self._vocabulary.unknown_id,
            "pad_token": self._vocabulary.padding_id,
        }
        return {name: self._vocabulary.texts[id] for name, id in named.items() if id is not None}

    def _encoded(self, texts: list[tuple[str, bool]]) -> Iterator[list[int]]:
        """The ids of each text without special tokens, which may begin the prompt or follow a special token."""
        if isinstance(self._model, SentencePieceModel):  # the one that is faster when it has all of them
            return self._model.encode_all(texts)
        return (self._model.encode(text, at_start=at_start) for text, at_start in texts)

    def _checked(self, id: int) -> int:
        if not 0 <= id < self.vocab_size:
            raise IndexError(f"token {id} is outside of the vocabulary of {self.vocab_size} tokens")
        return id


def _strips_right(metadata: Mapping[str, Any], specials: Mapping[str, int]) -> frozenset[int]:
    """The tokens which take the whitespace after them along. GGUF does not store this property of Phi-3's tokens."""
    if metadata.get("general.architecture") != "phi3" or metadata.get(PREFIX + "model") != "llama":
        return frozenset()
    return frozenset(id for text, id in specials.items() if text not in ("<unk>", "<s>", "<|endoftext|>"))


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    named = {key.removeprefix(_TEMPLATE + "."): metadata[key] for key in metadata if key.startswith(_TEMPLATE + ".")}
    if _TEMPLATE in metadata:
        named["default"] = metadata[_TEMPLATE]
    return {name: source for name, source in named.items() if isinstance(source, str) and source.strip()}
