"""Heads of rerankers against transformers' classes for sequence classification."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engines.encoders.loading import Opened, open_checkpoint
from engines.errors import UnsupportedModel
from engines.rerank.heads import YesNo, classifier_of
from engines.wire import LoadModel, ModelSpec
from tests.engines.encoders.helpers_golden import LOGITS
from tests.engines.encoders.helpers_tiny_encoders import ROWS, TYPES, tensors_of, write_safetensors, write_tiny
from tests.engines.encoders.helpers_tiny_gguf import write_tiny_gguf
from tests.engines.encoders.reference_jina import jina_logits

TYPED = ("bert", "nomic_bert", "jina")
IN_GGUF = ("bert", "xlm-roberta", "modernbert", "jina")


def opened(path: Path, kind: str) -> Opened:
    spec = ModelSpec(id="m", task="rerank", format="gguf" if kind == "gguf" else "safetensors", paths=(str(path),))
    return open_checkpoint(LoadModel(spec=spec), lambda fraction: None)


def tiny(tmp_path: Path, family: str, kind: str) -> Opened:
    if kind == "gguf":
        return opened(write_tiny_gguf(tmp_path / "m.gguf", family, classifies=True), kind)
    return opened(write_tiny(tmp_path / "m", family, classifies=True) / "model.safetensors", kind)


def logits(model: Opened, family: str) -> np.ndarray:
    head = classifier_of(model)
    model.finish()
    return np.array(head(model.encoder(ROWS, TYPES if family in TYPED else None)))


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, "safetensors") for family in [*LOGITS, "jina"]] + [(family, "gguf") for family in IN_GGUF],
)
def test_head_equals_transformers(tmp_path: Path, family: str, kind: str) -> None:
    model = tiny(tmp_path, family, kind)
    wanted = jina_logits() if family == "jina" else np.array(LOGITS[family])
    assert np.abs(logits(model, family) - wanted).max() < 1e-4


def test_token_types_change_a_bert_score(tmp_path: Path) -> None:
    model = tiny(tmp_path, "bert", "safetensors")
    head = classifier_of(model)
    typed, plain = (np.array(head(model.encoder(ROWS, types))) for types in (TYPES, None))
    assert np.abs(typed - plain).min() > 1e-3


def test_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, "bert", classifies=True)
    tensors = tensors_of("bert", classifies=True)
    tensors["classifier.weight"] = np.zeros((3, 32), np.float32)
    tensors["classifier.bias"] = np.zeros(3, np.float32)
    write_safetensors(directory / "model.safetensors", dict(tensors))
    with pytest.raises(UnsupportedModel, match="has 3 labels; a reranker has one"):
        classifier_of(opened(directory / "model.safetensors", "safetensors"))


def test_yes_and_no_are_two_rows_of_the_head(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((2, 32)).astype(np.float32)
    path = write_tiny_gguf(tmp_path / "m.gguf", "qwen3", extra={"cls.output.weight": rows})
    model = opened(path, "gguf")
    head = classifier_of(model)
    assert isinstance(head, YesNo)
    encoded = model.encoder(ROWS)
    yes, no = (np.array(encoded.last()) @ rows.T).T
    got = np.array(head(encoded))
    assert np.abs(got - (yes - no)).max() < 1e-4
    share = np.exp(yes) / (np.exp(yes) + np.exp(no))
    assert [1 / (1 + math.exp(-score)) for score in got] == pytest.approx(share.tolist(), abs=1e-5)
