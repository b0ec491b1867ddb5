"""What texts become: from tokenizer.json, and from GGUF metadata of WordPiece and unigram, against the files' own tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from engines.encoders.tokenizer import PairFrame, gguf_tokenizer, json_tokenizer
from engines.errors import CheckpointError
from engines.header import read_header
from tests.engines.encoders.helpers_minilm import minilm, write_minilm_gguf
from tests.engines.encoders.helpers_tiny_encoders import SPECIALS, tokenizer_json
from tests.engines.encoders.helpers_tiny_gguf import tokenizer_metadata

CLS, SEP, UNK = (SPECIALS.index(name) for name in ("[CLS]", "[SEP]", "[UNK]"))
TEXTS = [
    "The innkeeper's ledger, unaffable; 1999!",
    "Über naïve façades — “quoted” … 日本語 と emoji 🙂",
    "  spaces \t and\nlines  ",
    "",
    "antidisestablishmentarianism " * 3,
]


@pytest.fixture(scope="module")
def minilm_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_minilm_gguf(tmp_path_factory.mktemp("minilm") / "minilm.gguf")


def test_wordpiece_of_gguf_equals_the_checkpoint_s_tokenizer(minilm_gguf: Path) -> None:
    ours = gguf_tokenizer(read_header(minilm_gguf).metadata)
    reference = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()
    assert [ours.single.around(ids) for ids in ours.split(TEXTS)] == [reference.encode(text).ids for text in TEXTS]
    first, second = ours.split(TEXTS[:2])
    wanted = reference.encode(TEXTS[0], TEXTS[1])
    assert ours.pair is not None
    assert ours.pair.around(first, second) == (wanted.ids, wanted.type_ids)


def test_wordpiece_keeps_capitals_where_its_vocabulary_has_some() -> None:
    tokenizer = gguf_tokenizer(tokenizer_metadata(("▁Inn", "▁inn", "s")))
    assert tokenizer.split(["Inn inn inns"]) == [[5, 6, 6, 7]]
    tokenizer = gguf_tokenizer(
        {**tokenizer_metadata(("▁Inn", "▁inn", "s")), "tokenizer.ggml.normalizer.lowercase": True}
    )
    assert tokenizer.split(["Inn"]) == [[6]]


def test_control_token_spelled_out_is_text_but_for_templates() -> None:
    for tokenizer in (json_tokenizer(minilm()), gguf_tokenizer(tokenizer_metadata())):
        control = {tokenizer.find(name) for name in ("[CLS]", "[SEP]", "[MASK]")}
        assert not control & set(tokenizer.split(["[CLS] w5 [SEP] [MASK]"])[0])
    assert json_tokenizer(minilm()).control("[SEP]") == [102]


def test_json_tokenizer_says_what_goes_around_texts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(doubled=True)))
    tokenizer = json_tokenizer(tmp_path)
    assert tokenizer.single.around([7]) == [CLS, 7, SEP]
    assert tokenizer.pair == PairFrame((CLS,), (SEP, SEP), (SEP,))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(typed=True)))
    pair = json_tokenizer(tmp_path).pair
    assert pair is not None and pair.around([7], [8, 9]) == ([CLS, 7, SEP, 8, 9, SEP], [0, 0, 0, 1, 1, 1])


def test_lone_surrogate_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    assert json_tokenizer(tmp_path).split(["w5 \ud800"]) == [[5, UNK]]


def unigram() -> tuple[dict[str, Any], Tokenizer]:
    """Metadata as of XLM-R, and the same tokenizer as transformers builds it."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁inn", -3.0), ("keep", -4.0)]
    pieces += [
        ("er", -3.5),
        ("▁innkeep", -9.0),
        ("s", -3.0),
        ("▁the", -2.5),
        ("e", -5.0),
        ("r", -5.0),
        ("<", -6.0),
        (">", -6.0),
    ]
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [text for text, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score in pieces],
        "tokenizer.ggml.token_type": [3, 3, 3, 2] + [1] * (len(pieces) - 4),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    reference = Tokenizer(Unigram(pieces, 3, False))
    reference.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace("  ", " ")])
    reference.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    reference.decoder = decoders.Metaspace()
    return metadata, reference


def test_unigram_of_gguf_equals_the_library_s() -> None:
    metadata, reference = unigram()
    tokenizer = gguf_tokenizer(metadata)
    texts = ["the innkeeper", "innkeepers  the", "inn é s"]
    assert tokenizer.split(texts) == [reference.encode(text).ids for text in texts]
    assert tokenizer.single.around([6]) == [0, 6, 2]
    assert tokenizer.pair == PairFrame((0,), (2, 2), (2,))
    assert not {0, 2} & set(tokenizer.split(["<s> the </s>"])[0])


def test_tokenizer_without_what_it_needs_is_refused(tmp_path: Path) -> None:
    metadata, _ = unigram()
    with pytest.raises(CheckpointError, match="scores is missing"):
        gguf_tokenizer({key: value for key, value in metadata.items() if not key.endswith("scores")})
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        json_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        json_tokenizer(tmp_path)
