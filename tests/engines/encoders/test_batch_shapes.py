"""Batches in few shapes: what is cut, how many shapes there are, and that padding changes no answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.encoders.batch_shapes import FewShapes
from engines.encoders.batches import BatchLimits
from engines.encoders.encoder import Encoder, Pass
from engines.rerank import build
from engines.wire import EmbedRequest, LoadModel, ModelSpec, ScoreRequest, Scores
from tests.engines.embeddings.helpers_engine import embed, engine_of, run
from tests.engines.encoders.helpers_tiny_encoders import ROWS, TYPES, write_tiny
from tests.engines.encoders.test_families import FAMILIES, tiny

SHAPES = FewShapes(context=512, width=256, free_places=16384)
WIDE = BatchLimits(rows=256, places=1 << 16)


def cut_all(shapes: FewShapes, lengths: list[int], limits: BatchLimits, rng: random.Random) -> list[tuple[int, int]]:
    """The shapes of the batches that a queue of these is cut into, leads drawn."""
    left, made = sorted(lengths), []
    while left:
        begin, end = shapes.cut(left, rng.randrange(len(left)), lambda length: limits)
        length = shapes.length(left[end - 1])
        made.append((shapes.rows(end - begin, length), length))
        del left[begin:end]
    return made


@given(st.integers(1, 9000), st.integers(1, 300), st.integers(1, 300), st.sampled_from([256, 512, 8192]))
def test_shape_has_room_and_stays_in_the_context(tokens: int, count: int, width: int, context: int) -> None:
    shapes = FewShapes(context, width, 4096)
    tokens, count = min(tokens, context), min(count, width)
    length = shapes.length(tokens)
    assert tokens <= length <= context and (length < 2 * tokens or length == 16)
    assert count <= shapes.rows(count, length) <= width
    assert shapes.length(length) == length


@given(st.lists(st.integers(1, 512), min_size=1, max_size=80).map(sorted), st.data())
def test_cut_holds_its_lead_within_the_limits_of_the_padded_shape(lengths: list[int], data: st.DataObject) -> None:
    lead = data.draw(st.integers(0, len(lengths) - 1))
    shapes = FewShapes(context=512, width=32, free_places=data.draw(st.sampled_from([256, 2048, 16384])))

    def limits_of(length: int) -> BatchLimits:
        return BatchLimits(rows=32, places=2048 if length < 256 else 1024)

    begin, end = shapes.cut(lengths, lead, limits_of)
    assert 0 <= begin <= lead < end <= len(lengths)
    length = shapes.length(lengths[end - 1])
    places = shapes.rows(end - begin, length) * length
    assert end - begin == 1 or (end - begin <= 32 and places <= limits_of(length).places)
    assert end - begin == 1 or places - sum(lengths[begin:end]) <= max(places / 4, shapes.free_places)


def test_short_texts_go_in_one_batch_and_long_ones_are_not_padded_to_twice_their_work() -> None:
    rng = random.Random(0)
    assert len(cut_all(SHAPES, [rng.randint(3, 60) for _ in range(256)], WIDE, rng)) <= 2
    large = FewShapes(context=512, width=256, free_places=512)  # of a model for which every token counts
    lengths = [rng.randint(200, 512) for _ in range(200)]
    places = sum(rows * length for rows, length in cut_all(large, lengths, WIDE, rng))
    assert places < 1.5 * sum(lengths)


def test_random_queues_come_in_few_shapes() -> None:
    rng = random.Random(1)
    made: set[tuple[int, int]] = set()
    for _ in range(400):
        lengths = [min(512, 1 + int(rng.expovariate(1 / 80))) for _ in range(rng.choice([1, 1, 2, 5, 30, 32, 256]))]
        made.update(cut_all(SHAPES, lengths, WIDE, rng))
    assert len(made) <= 60  # 256 graphs are kept


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_and_dummies_change_no_answer(tmp_path: Path, family: str) -> None:
    encoder = tiny(tmp_path, family, "safetensors")
    typed = family in ("bert", "nomic_bert", "jina")
    rows = [*ROWS, list(range(5, 45)) + list(range(5, 28))]  # the last nearly fills the context
    types = [*TYPES, [0] * 40 + [1] * 23] if typed else None
    shapes = FewShapes(context=encoder.shape.context, width=16, free_places=encoder.shape.free_places)
    for at in [[0], [2], [1], [3], [0, 1, 2, 3]]:
        count, length = len(at), shapes.length(max(len(rows[i]) for i in at))
        dummies = [[0]] * (shapes.rows(max(count, 2), length) - count)
        chosen = None if types is None else [*(types[i] for i in at), *dummies]
        padded = Pass(encoder, [*(rows[i] for i in at), *dummies], chosen, length)
        padded.advance(None)
        for place, i in enumerate(at):
            alone = encoder([rows[i]], None if types is None else [types[i]])
            for pooled in ("first", "last", "mean"):
                got = np.array(getattr(padded.encoded(), pooled)())[place]
                want = np.array(getattr(alone, pooled)())[0]
                assert np.abs(got - want).max() < 3e-5, (i, pooled)  # features of up to 3


class Shaped:
    """Notes the shapes that an engine's encoder is given."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[int, int]] = []
        embed = Encoder.embed

        def noted(encoder: Encoder, rows: Any, types: Any, length: int) -> Any:
            self.made.append((len(rows), length))
            return embed(encoder, rows, types, length)

        monkeypatch.setattr(Encoder, "embed", noted)
        engine._shapes = FewShapes(engine.info.context, engine.info.width, engine._encoder.shape.free_places)


def text(length: int, start: int) -> str:
    return " ".join(f"w{5 + (start + i) % 40}" for i in range(length))


def test_engine_answers_as_without_padding_in_shapes_that_were_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_tiny(tmp_path / "bert", "bert")
    inputs = [text(1 + i * 7 % 60, i) for i in range(60)]
    wanted = embed(engine_of(directory), *inputs)
    engine = engine_of(directory)
    shaped, told = Shaped(engine, monkeypatch), list[float]()
    engine.warm_up(told.append)
    prepared = set(shaped.made)
    assert (
        told == sorted(told) and told[-1] == 1 and len(told) == len(prepared) == len(shaped.made) - 1
    )  # once with types
    shaped.made.clear()
    assert np.abs(embed(engine, *inputs) - wanted).max() < 1e-5
    assert np.abs(embed(engine, inputs[3]) - wanted[3]).max() < 1e-5
    assert len(shaped.made) == 2 and set(shaped.made) <= prepared


def test_grant_bounds_the_padded_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(write_tiny(tmp_path / "bert", "bert"))
    shaped, shape = Shaped(engine, monkeypatch), engine._encoder.shape
    grant = 2 * 5 * shape.row_bytes(32, 4)
    engine.set_grant(grant)
    assert embed(engine, *[text(18, i) for i in range(20)]).shape == (20, 32)
    assert shaped.made and all(2 * rows * shape.row_bytes(length, 4) <= grant for rows, length in shaped.made)
    assert engine.growth() is None
    engine.set_grant(shape.row_bytes(40, 4))  # 34 tokens are computed as 48
    assert engine._tokens_in(shape.row_bytes(40, 4)) == 32
    engine.submit(1, engine.prepare(EmbedRequest(inputs=(text(32, 0),))))
    growth = engine.growth()
    assert growth is not None and growth.bytes == shape.row_bytes(48, 4) - shape.row_bytes(40, 4)


def test_reranker_scores_as_without_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_tiny(tmp_path / "bert", "bert", classifies=True)
    spec = ModelSpec(id="m", task="rerank", format="safetensors", paths=(str(directory / "model.safetensors"),))
    request = ScoreRequest(queries=("w5 w6",), documents=tuple(text(1 + i % 11, i) for i in range(30)))
    answers = []
    for few in (False, True):
        engine = build(LoadModel(spec=spec, grant_bytes=1 << 28), lambda fraction: None)
        if few:
            shaped = Shaped(engine, monkeypatch)
        engine.submit(1, engine.prepare(request))
        answers += [event for event in run(engine) if isinstance(event, Scores)]
    assert shaped.made == [(32, 16)]
    assert np.abs(np.array(answers[0].raw) - answers[1].raw).max() < 1e-5


@pytest.mark.skipif(not mx.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_engine_on_cuda_computes_in_shapes_that_were_prepared(tmp_path: Path, family: str) -> None:
    engine = engine_of(write_tiny(tmp_path / family, family))
    assert isinstance(engine._shapes, FewShapes)
    inputs = [text(1 + i * 7 % 40, i) for i in range(60)]
    together = embed(engine, *inputs, normalize=False)
    rows = engine.prepare(EmbedRequest(inputs=tuple(inputs[:6]))).rows
    alone = np.concatenate([np.array(engine.finish_batch(engine._encoder([row.ids]))) for row in rows])  # as they are
    assert np.isfinite(together).all()
    assert np.linalg.norm(together[:6] - alone) < 2e-2 * np.linalg.norm(alone)


@pytest.mark.parametrize("held", [1, 2, 100])
def test_a_batch_waits_within_its_layers_where_they_outgrow_the_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """The grant holds what so many layers compute."""
    engine = engine_of(write_tiny(tmp_path / "bert", "bert"))
    engine._cuda = True
    engine._grant = held * 2 * engine._row_bytes(32)
    assert engine._layers_at_once(2, 32) == held
    run = Pass(engine._encoder, [[5] * 30, [6] * 20], None, 32, held)
    waited: list[mx.array] = []

    class Counted:  # the module's own name alone: back ends wait for arrays, too
        eval = staticmethod(waited.append)

        def __getattr__(self, name: str) -> Any:
            return getattr(mx, name)

    monkeypatch.setattr("engines.encoders.encoder.mx", Counted())
    run.advance(None)
    assert len(waited) == len(engine._encoder.blocks) // held
