"""Every family's forward pass against transformers, from safetensors and from GGUF, alone and in a padded batch."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.activations import relu

from engines.encoders import weights as weights_module
from engines.encoders.assembly import assemble, check_left
from engines.encoders.blocks import Mixture
from engines.encoders.encoder import Encoded, Encoder, Pass
from engines.encoders.families import blueprint_of
from engines.encoders.hf_config import HfConfig
from engines.encoders.weights import Linear, weights_of
from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.experts import KQuantSwitchLinear
from engines.gguf.quants import quant_type
from engines.header import GgufHeader, SafetensorsHeader, read_header, read_safetensors_header
from tests.engines.encoders.helpers_golden import FEATURES
from tests.engines.encoders.helpers_tiny_encoders import ROWS, TYPES, write_tiny
from tests.engines.encoders.helpers_tiny_gguf import ARCHITECTURES, write_tiny_gguf
from tests.engines.encoders.reference_jina import jina_features

FAMILIES = [*FEATURES, "jina"]
WITHIN = 1e-4


def encoder_of(header: GgufHeader | SafetensorsHeader, directory: Path | None) -> Encoder:
    blueprint = blueprint_of(header, None if directory is None else HfConfig.read(directory))
    weights = weights_of(header, mx.float32)
    encoder = assemble(blueprint, weights)
    check_left(blueprint, weights)
    return encoder


def tiny(tmp_path: Path, family: str, kind: str) -> Encoder:
    directory = write_tiny(tmp_path / family, family)
    if kind == "safetensors":
        return encoder_of(read_safetensors_header(directory), directory)
    return encoder_of(read_header(write_tiny_gguf(tmp_path / "model.gguf", family)), None)


def wanted(family: str) -> np.ndarray:
    return jina_features() if family == "jina" else np.array(FEATURES[family])


def numbers(encoded: Encoded) -> np.ndarray:
    """As FEATURES has them."""
    last, first = np.array(encoded.last()), np.array(encoded.first())
    return np.concatenate([last[:, :6], first[:, :2]], axis=1)


@pytest.mark.parametrize("kind", ["safetensors", "gguf", "gguf, nothing joined"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_transformers_row_by_row_and_in_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: str
) -> None:
    if kind == "gguf, nothing joined":  # as models are that are larger than these
        monkeypatch.setattr(weights_module, "_JOINED_BYTES", 0)
    encoder = tiny(tmp_path, family, kind)
    types = TYPES if family in ("bert", "nomic_bert", "jina") else [[0] * len(row) for row in ROWS]
    alone = np.concatenate([numbers(encoder([row], [kinds])) for row, kinds in zip(ROWS, types, strict=True)])
    assert np.abs(alone - wanted(family)).max() < WITHIN
    assert np.abs(numbers(encoder(ROWS, types)) - wanted(family)).max() < WITHIN


def test_family_layer_by_layer_equals_the_whole_pass(tmp_path: Path) -> None:
    encoder = tiny(tmp_path, "modernbert", "safetensors")
    run, steps = Pass(encoder, ROWS), 1
    while not run.advance(0.0):
        steps += 1
    assert steps == len(encoder.blocks)
    assert np.abs(numbers(run.encoded()) - wanted("modernbert")).max() < WITHIN


def test_mean_leaves_padding_out(tmp_path: Path) -> None:
    encoder = tiny(tmp_path, "bert", "safetensors")
    together = np.array(encoder(ROWS).mean())
    alone = np.array([np.array(encoder([row]).features)[0].mean(axis=0) for row in ROWS])
    assert np.abs(together - alone).max() < 1e-5


@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_gguf_with_a_key_that_is_not_understood_is_refused(tmp_path: Path, family: str) -> None:
    key = f"{ARCHITECTURES[family]}.attention.temperature"
    header = read_header(write_tiny_gguf(tmp_path / "model.gguf", family, {key: 0.5}))
    with pytest.raises(UnsupportedModel, match=r"attention\.temperature"):
        blueprint_of(header, None)


def test_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "model.gguf", "bert", extra={"blk.0.attn_gate.weight": np.zeros((2, 32), np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_gate\.weight"):
        encoder_of(read_header(path), None)


def test_config_with_a_decoder_or_quantised_weights_is_refused(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, "bert")
    header, values = read_safetensors_header(directory), dict(HfConfig.read(directory).values)
    for change in ({"is_decoder": True}, {"quantization": {"bits": 4}}, {"model_type": "deberta-v2"}):
        with pytest.raises(UnsupportedModel):
            blueprint_of(header, HfConfig("config.json", {**values, **change}))


def test_mixture_weighs_its_experts_by_the_router(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    count, width, hidden, used = 4, 32, 64, 2
    router, up = rng.standard_normal((count, width)), rng.standard_normal((count, hidden, width)) / 4
    down = rng.standard_normal((count, width, hidden)) / 4

    def matrices(weights: np.ndarray) -> KQuantSwitchLinear:
        return KQuantSwitchLinear(mx.array(weights.astype(np.float32)).view(mx.uint8), quant_type("F32"))

    blocks = mx.array(router.astype(np.float32)).view(mx.uint8)
    layer = Mixture(relu, Linear(blocks, quant_type("F32"), None, mx.float32), matrices(up), matrices(down), used)
    x = rng.standard_normal((2, 5, width))
    logits = x @ router.T
    share = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    made = np.einsum("ewh,bteh->btew", down, np.maximum(np.einsum("ehw,btw->bteh", up, x), 0))
    kept = np.where(np.argsort(np.argsort(-share, axis=-1), axis=-1) < used, share, 0.0)
    wanted = (made * kept[..., None]).sum(axis=-2)
    assert np.abs(np.array(layer(mx.array(x.astype(np.float32)))) - wanted).max() < 1e-4
