"""The real all-MiniLM-L6-v2: against sentence-transformers, and its GGUF files against itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.gguf.quantise import quantise_file
from tests.engines.embeddings.helpers_engine import embed, engine_of
from tests.engines.encoders.helpers_minilm import minilm, write_minilm_gguf

SENTENCES = (
    "The innkeeper gives every guest a key, and takes it back when they leave.",
    "A memory budget is shared by all models that are loaded.",
    "Mountains in winter are beautiful, but the roads are closed.",
    "def evict(model): return min(models, key=lambda m: m.last_used)",
    "What is the capital of France?",
    "Paris is the capital and largest city of France, with an estimated population of two million.",
    "Die Würde des Menschen ist unantastbar.",
    "Rooms are free upstairs, and breakfast is at eight.",
)
SIMILARITIES = (
    (1.000000, 0.094521, -0.077007, 0.222027, 0.041575, 0.042497, 0.016759, 0.285986),
    (0.094521, 1.000000, 0.075975, 0.183520, 0.062429, 0.095397, 0.013953, 0.139118),
    (-0.077007, 0.075975, 1.000000, 0.031733, 0.099877, -0.020666, 0.043028, -0.002152),
    (0.222027, 0.183520, 0.031733, 1.000000, 0.002164, -0.023177, 0.009896, 0.058175),
    (0.041575, 0.062429, 0.099877, 0.002164, 1.000000, 0.643162, 0.134898, 0.092067),
    (0.042497, 0.095397, -0.020666, -0.023177, 0.643162, 0.999999, 0.063943, -0.008814),
    (0.016759, 0.013953, 0.043028, 0.009896, 0.134898, 0.063943, 1.000000, -0.055684),
    (0.285986, 0.139118, -0.002152, 0.058175, 0.092067, -0.008814, -0.055684, 1.000000),
)
FIRST = (
    (0.049191, 0.060442, -0.043186, 0.010695, 0.009435, 0.030959, 0.065482, -0.105344),
    (0.035991, -0.014740, -0.089533, 0.045514, 0.040370, 0.011675, -0.068629, 0.040210),
    (-0.023274, 0.039276, 0.096071, 0.116153, -0.030449, -0.033583, -0.023473, -0.055633),
    (0.036737, 0.049054, -0.045856, 0.035924, 0.034508, -0.011620, 0.005226, 0.024025),
    (0.082048, 0.036055, -0.003893, -0.004881, 0.025651, -0.057143, 0.012192, 0.004679),
    (0.162282, -0.067129, 0.024409, 0.010386, 0.028032, -0.044418, -0.026269, 0.032442),
    (-0.000085, 0.082134, -0.028701, 0.026449, -0.057239, 0.025913, 0.077672, 0.015940),
    (0.029041, 0.054039, 0.045880, 0.054866, 0.009891, 0.075711, -0.062409, -0.030305),
)
"""Made with sentence-transformers 6.2.0 on torch 2.13.0 (CPU, float32): ``SentenceTransformer(minilm()).encode(SENTENCES)``; the
dot products of all pairs, and the first eight numbers of each vector."""


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return embed(engine_of(minilm()), *SENTENCES)


def test_minilm_equals_sentence_transformers(reference: np.ndarray) -> None:
    assert np.abs(reference[:, :8] - np.array(FIRST)).max() < 1e-5
    assert np.abs(reference @ reference.T - np.array(SIMILARITIES)).max() < 1e-5


@pytest.mark.parametrize(
    ("mix", "mean", "least"),
    [
        ("F32", 0.999999, 0.999999),
        ("Q8_0", 0.999, 0.999),
        # What 4 bits without an importance matrix keep of so small a model.
        ("Q4_K_M", 0.99, 0.985),
    ],
)
def test_gguf_of_minilm_is_near_it(tmp_path: Path, reference: np.ndarray, mix: str, mean: float, least: float) -> None:
    path = write_minilm_gguf(tmp_path / "minilm.gguf")
    if mix != "F32":
        quantise_file(path, tmp_path / "quantised.gguf", mix)
        path = tmp_path / "quantised.gguf"
    cosines = (embed(engine_of(path), *SENTENCES, truncate="end") * reference).sum(axis=1)
    assert cosines.mean() >= mean and cosines.min() >= least


@pytest.mark.slow
def test_forty_inputs_of_minilm_equal_forty_calls() -> None:
    engine = engine_of(minilm())
    inputs = [f"{SENTENCES[i % 8]} {'And so on. ' * (i % 5)}" for i in range(40)]
    alone = np.concatenate([embed(engine, text) for text in inputs])
    assert np.abs(embed(engine, *inputs) - alone).max() < 1e-4
