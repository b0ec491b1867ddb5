"""What every family of models is held to: a tiny random model of the stock class, written as GGUF in llama.cpp's conventions.

A family's test file declares ``CASES``, from which the table of ``docs/gguf.md`` is made too::

    CASES = [Case(...), ...]
    test_logits, test_quantised, test_batches, test_broken = checks(CASES)

A case's names, keys and transforms are written in the test, apart from the family's own, so that a mistake is not mirrored.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from engines.errors import CheckpointError
from engines.footprint import estimate
from engines.gguf.model import BuiltModel, build_model
from engines.gguf.placing import placed
from engines.gguf.quants import QUANT_TYPES, QuantType
from engines.gguf.writer import CheckpointTensor, CheckpointValue, write_checkpoint
from engines.header import GgufHeader, TensorInfo, read_header
from tests.engines.gguf.families.helpers_shapes import check_rules, planned
from tests.engines.gguf.families.recorded import FARTHEST, recordings
from tests.engines.gguf.helpers_blocks import random_blocks

__all__ = ["VOCABULARY", "Array", "Case", "Wide", "checks", "logits_of", "stock_of", "widened", "write_case"]

Array = NDArray[np.float32]
Weights = dict[str, Array]

VOCABULARY = 96
TOLERANCE = 1e-4  # of the logits' spread: float32 sums in another order
PROMPT, STEPS = 17, 6  # tokens; longer than every window that cases use
LENGTHS = (5, 23, 11, 8)  # of the prompts of a batch's rows
JOINS_AT = (0, 2, 3, 3)  # ticks
TICKS = 8
REQUIRED = ("block_count", "embedding_length", "context_length", "attention.head_count")
CONVERTER = "stock mlx-lm weights, renamed and transformed as llama.cpp's converter does"


@dataclass(frozen=True)
class Wide:
    """What a case with rows of 256 has besides its hidden width: configuration and keys in the place of its own."""

    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, CheckpointValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One variant of one architecture.

    ``config`` is the stock class's, with ``model_type`` the module of ``mlx_lm.models``. ``tensors`` makes GGUF tensors (float32,
    by whole name) of the stock model's weights (by their mlx-lm names); ``metadata`` are keys without the architecture's prefix.
    """

    id: str
    architecture: str
    config: dict[str, Any]
    metadata: Mapping[str, CheckpointValue]
    tensors: Callable[[Weights, dict[str, Any]], Weights]
    proof: str = CONVERTER
    classes: tuple[str, str] = ("Model", "ModelArgs")
    extra: Weights = field(default_factory=dict)  # tensors that are no weights of the stock model
    floats: tuple[str, ...] = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv")  # parts of names that files keep in F32
    optional: tuple[str, ...] = ()  # stems that may be missing from a single block of their set
    required: tuple[str, ...] = REQUIRED  # keys whose absence is an error
    initial: Callable[[str, Array], Array | None] = lambda name, random: None  # other random weights, where it says so
    rows: tuple[int, ...] = (2, 3)  # of batches, besides as many as there are KV heads; () where the width is 1
    prepare: Callable[[Any], None] = lambda model: None  # the stock model, where it must be told something
    whole_keys: Mapping[str, CheckpointValue] = field(default_factory=dict)  # that have no prefix
    wide: Wide = field(default_factory=Wide)
    light: bool = False  # a variant of another case: held to the stock class's logits only


def checks(cases: Sequence[Case]) -> tuple[Any, Any, Any, Any]:
    """The four tests of a family: against the stock class, quantised, in batches, broken."""
    each = pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])
    whole = [case for case in cases if not case.light]
    each_whole = pytest.mark.parametrize("case", whole, ids=[case.id for case in whole])

    @each
    def test_logits(case: Case, tmp_path: Path) -> None:
        _check_logits(case, tmp_path)

    @each_whole
    def test_quantised(case: Case, tmp_path: Path) -> None:
        _check_quantised(case, tmp_path)

    @each_whole
    def test_batches(case: Case, tmp_path: Path) -> None:
        _check_batches(case, tmp_path)

    @each_whole
    def test_broken(case: Case, tmp_path: Path) -> None:
        _check_broken(case, tmp_path)

    return test_logits, test_quantised, test_batches, test_broken


def stock_of(case: Case, seed: int = 0) -> tuple[Any, Weights]:
    """The stock model with random weights, and those by name."""
    module = importlib.import_module(f"mlx_lm.models.{case.config['model_type']}")
    model_name, arguments_name = case.classes
    model = getattr(module, model_name)(getattr(module, arguments_name).from_dict(copy.deepcopy(case.config)))
    case.prepare(model)
    generator = np.random.default_rng(seed)
    weights: Weights = {}
    parameters: Any = tree_flatten(model.parameters())
    for name, value in parameters:
        random = generator.standard_normal(value.shape).astype(np.float32)
        initial = case.initial(name, random)
        if initial is None:
            initial = _usual(name, random, model)
        weights[name] = initial.astype(np.float32)
    model.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))
    mx.eval(model.parameters())
    model.eval()
    return model, weights


def _usual(name: str, random: Array, model: Any) -> Array:
    if random.ndim == 1:
        return 1 + 0.2 * random if name.endswith("norm.weight") else 0.2 * random
    if "embed" in name and "lm_head" in model:
        return random
    scaled: Array = random * random.shape[-1] ** -0.5
    return scaled


def write_case(
    path: Path,
    case: Case,
    tensors: Mapping[str, CheckpointTensor],
    metadata: Mapping[str, CheckpointValue] | None = None,
    tokenizer: Mapping[str, CheckpointValue] = MappingProxyType({"tokenizer.ggml.model": "none"}),
) -> Path:
    """Writes a checkpoint of these tensors under the case's metadata, with ``metadata`` added."""
    values = {f"{case.architecture}.{key}": value for key, value in {**case.metadata, **(metadata or {})}.items()}
    values |= case.whole_keys
    return write_checkpoint(path, case.architecture, values, tensors, tokenizer)


def floats_of(case: Case) -> tuple[Any, dict[str, CheckpointTensor]]:
    """The stock model, and its tensors in F32."""
    stock, weights = stock_of(case)
    converted = case.tensors(dict(weights), case.config) | case.extra
    return stock, {name: ("F32", np.ascontiguousarray(value, np.float32)) for name, value in converted.items()}


def tokens(count: int) -> mx.array:
    return mx.array([[(7 * i * i + 3 * i) % VOCABULARY for i in range(count)]])


def _check_logits(case: Case, tmp_path: Path) -> None:
    """A prompt in two chunks and decode steps: the logits of the stock class, and its greedy choices."""
    stock, tensors = floats_of(case)
    header = read_header(write_case(tmp_path / "f32.gguf", case, tensors))
    check_rules(header)
    built = build_model(header)
    ids = tokens(PROMPT + STEPS)
    whole = logits_of(stock, ids, (PROMPT,))
    got = logits_of(built.model, ids, (PROMPT - 6, PROMPT))
    assert _apart(got, whole) < TOLERANCE
    assert (got.argmax(-1) == whole.argmax(-1)).all()
    if case.id in recordings():
        theirs = recordings()[case.id]
        assert np.abs(got[-1] - theirs).max() / theirs.std() < FARTHEST, "llama.cpp's answer: see recorded.py"
    # What says nothing of most weights would prove little.
    assert len(set(whole.argmax(-1).tolist())) > 5
    _check_kv_bytes(built, case, ids)


def _check_kv_bytes(built: BuiltModel, case: Case, ids: mx.array) -> None:
    """What the build says its caches take is what they take."""
    cache = make_prompt_cache(built.model)
    built.model(ids, cache=cache)
    built.model(ids[:, :1], cache=cache)  # a windowed cache shrinks at the first decode step
    windowed = built.kv_window_tokens * built.kv_window_bytes_per_token
    assert sum(layer.nbytes for layer in cache) == 256 * built.kv_bytes_per_token + windowed + built.state_bytes
    parts = [part for layer in cache for part in getattr(layer, "caches", [layer])]
    kept = [part for part in parts if getattr(part, "keys", None) is not None]
    each = [(part.keys.nbytes + part.values.nbytes) // part.keys.shape[2] for part in kept]
    assert sorted(built.kv_layer_bytes) == sorted(each)


def _check_quantised(case: Case, tmp_path: Path) -> None:
    """All quant types in turn, each where its blocks fit, against the same tensors exactly dequantised."""
    case = widened(case)
    _, tensors = floats_of(case)
    quantised, dequantised = _in_all_types(case, tensors)
    path = write_case(tmp_path / "quantised.gguf", case, quantised)
    header = read_header(path)
    built = build_model(header)
    exact = build_model(read_header(write_case(tmp_path / "exact.gguf", case, dequantised)))
    ids = tokens(PROMPT + STEPS)
    assert _apart(logits_of(built.model, ids, (PROMPT,)), logits_of(exact.model, ids, (PROMPT,))) < 3 * TOLERANCE
    footprint = estimate(header)
    assert footprint.kv_bytes_per_token == built.kv_bytes_per_token
    assert footprint.kv_window_bytes_per_token == built.kv_window_bytes_per_token
    assert footprint.state_bytes == built.state_bytes


def widened(case: Case) -> Case:
    """The case with rows of 256, which blocks of 256 weights fill."""
    metadata = {**case.metadata, "embedding_length": WIDE}
    turned, width = metadata.get("rope.dimension_count"), case.metadata["embedding_length"]
    if isinstance(turned, int) and isinstance(width, int) and "attention.key_length" not in metadata:
        metadata["rope.dimension_count"] = turned * WIDE // width  # of heads that are a share of the width
    return replace(
        case,
        config=_with_width(case.config) | dict(case.wide.config),
        metadata=metadata | dict(case.wide.metadata),
    )


def _with_width(config: dict[str, Any]) -> dict[str, Any]:
    wide = config | {key: WIDE for key in ("hidden_size", "n_embd", "block_dim") if key in config}
    return wide | {key: _with_width(value) for key, value in config.items() if key == "text_config"}


def _in_all_types(
    case: Case, tensors: Mapping[str, CheckpointTensor]
) -> tuple[dict[str, CheckpointTensor], dict[str, CheckpointTensor]]:
    types = [quant for quant in QUANT_TYPES if quant.name != "F32"]
    large, others = ([quant for quant in types if (quant.block_size == WIDE) is wide] for wide in (True, False))
    in_turn = {True: itertools.cycle(large), False: itertools.cycle(others)}
    seen = itertools.count()
    quantised, dequantised = dict(tensors), dict(tensors)
    for index, (name, (_, data)) in enumerate(tensors.items()):
        if data.ndim == 1 or not name.endswith(".weight") or any(part in name for part in case.floats):
            continue
        # Two of three matrices that blocks of 256 fit get such.
        turn = in_turn[data.shape[-1] % WIDE == 0 and next(seen) % 3 < 2]
        kind = next(quant for quant in itertools.islice(turn, 64) if data.shape[-1] % quant.block_size == 0)
        blocks = _blocks(kind, data.shape, 1000 + index, float(data.std()))
        quantised[name] = (kind.name, blocks)
        dequantised[name] = ("F32", kind.dequantize_numpy(blocks))
    assert len({quant.name for quant in large} & {kind for kind, _ in quantised.values()}) > 1
    return quantised, dequantised


def _blocks(kind: QuantType, shape: tuple[int, ...], seed: int, scale: float) -> NDArray[np.uint8]:
    """Random blocks of this type; scales and offsets such that weights are about ``scale`` and not all of one sign."""
    if kind.name in LEGACY:
        weights = (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
        encoded: NDArray[np.uint8] = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind.name])
        return encoded
    return random_blocks(kind, shape[:-1], shape[-1], seed=seed, scale=scale)


WIDE = 256  # weights of a row, and of a block of the K-quants
LEGACY = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # gguf-py quantises to these


def _check_batches(case: Case, tmp_path: Path) -> None:
    """Rows that join at different ticks, after prompts of different lengths, get what they get alone."""
    if not case.rows:
        _, tensors = floats_of(case)
        assert build_model(read_header(write_case(tmp_path / "one.gguf", case, tensors))).most_rows == 1
        return
    _, tensors = floats_of(case)
    model = build_model(read_header(write_case(tmp_path / "rows.gguf", case, tensors))).model
    kv_heads = case.config.get("num_key_value_heads") or 0
    expected: dict[int, tuple[list[int], list[Array]]] = {}
    several = [kv_heads] if 1 < kv_heads <= len(LENGTHS) else []
    for rows in sorted({*case.rows, *several}):
        _check_batch(model, rows, expected)


def _check_batch(model: Any, rows: int, expected: dict[int, tuple[list[int], list[Array]]]) -> None:
    batch = GenerationBatch.empty(model, lambda logits: mx.argmax(logits, axis=-1))
    chosen: dict[int, list[int]] = {row: [] for row in range(rows)}
    likely: dict[int, list[Array]] = {row: [] for row in range(rows)}
    for tick in range(TICKS):
        for row in range(rows):
            if JOINS_AT[row] == tick:
                caches = [make_prompt_cache(model)]
                batch.extend(PromptProcessingBatch(model, [row], caches, prefill_step_size=7).generate([_prompt(row)]))
        for response in batch.next():
            chosen[response.uid].append(response.token)
            likely[response.uid].append(np.array(response.logprobs))
    for row in range(rows):
        if row not in expected:
            expected[row] = _alone(model, row, TICKS - JOINS_AT[row])
        alone, alone_likely = expected[row]
        assert chosen[row] == alone
        for got, wanted in zip(likely[row], alone_likely, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-3)
    assert len({token for answer in chosen.values() for token in answer}) > 3


def _prompt(row: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(row).integers(3, VOCABULARY, LENGTHS[row])]


def _alone(model: Any, row: int, count: int) -> tuple[list[int], list[Array]]:
    cache = make_prompt_cache(model)
    logits = model(mx.array([_prompt(row)]), cache=cache)
    chosen, likely = [], []
    for _ in range(count):
        last = np.array(logits[0, -1])
        likely.append(last - np.logaddexp.reduce(last))
        chosen.append(int(last.argmax()))
        logits = model(mx.array([[chosen[-1]]]), cache=cache)
    return chosen, likely


def _check_broken(case: Case, tmp_path: Path) -> None:
    """A missing tensor, one without a place, a wrong shape and a missing key are named."""
    _, tensors = floats_of(case)
    header = read_header(write_case(tmp_path / "whole.gguf", case, tensors))
    build_model(header)
    named: set[str] = set()
    config = planned(header)[1].config
    for name, info in header.tensors.items():
        stem = _stem(name)
        if stem in named or name in case.extra:
            continue
        named.add(stem)
        others = {key: value for key, value in header.tensors.items() if key != name}
        renamed = replace(info, name=f"{name}x")
        if stem == "output.weight":
            with contextlib.suppress(CheckpointError):  # where the embedding is no head
                build_model(replace(header, tensors=others))
        elif not (stem.startswith("output.") or any(stem == f"blk.{part}" for part in case.optional)):
            _refused(replace(header, tensors=others), f"'{name}'")
        _gone(header, stem)
        _refused(replace(header, tensors={**others, renamed.name: renamed}), "'")
        for axis in range(int(name == "token_embd.weight"), len(info.shape)):  # whose rows are the vocabulary
            size = 2 * info.shape[axis] if axis else info.shape[axis] - 1
            _misshapen(header, config, info, (*info.shape[:axis], size, *info.shape[axis + 1 :]))
    for key in case.required:
        full = f"{case.architecture}.{key}"
        metadata = {each: value for each, value in header.metadata.items() if each != full}
        _refused(replace(header, metadata=metadata), f"'{full}'")
    odd = {**header.metadata, f"{case.architecture}.some_twist": 0.5}
    _refused(replace(header, metadata=odd), f"'{case.architecture}.some_twist'")


def _gone(header: GgufHeader, stem: str) -> None:
    """Without the tensors of a stem in all blocks: what the gateway lets pass is built."""
    others = {name: info for name, info in header.tensors.items() if _stem(name) != stem}
    without = replace(header, tensors=others)
    try:
        placed(without, *planned(without))
    except CheckpointError:
        return
    build_model(without)


def _stem(name: str) -> str:
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _misshapen(header: GgufHeader, config: dict[str, Any], info: TensorInfo, shape: tuple[int, ...]) -> None:
    """The gateway, which has no stock class, names the tensor; not where its shape is what the plan reads a size from."""
    changed = replace(header, tensors={**header.tensors, info.name: replace(info, shape=shape)})
    own_size = False
    try:
        family, plan = planned(changed)
        own_size = plan.config != config
        placed(changed, family, plan)
    except CheckpointError as refusal:
        assert own_size or f"'{info.name}'" in refusal.message, refusal.message
    else:
        assert own_size, f"{info.name} may be {shape}"


def _refused(header: GgufHeader, named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_model(header)
    assert named in caught.value.message, caught.value.message


def logits_of(model: Any, ids: mx.array, chunks: Sequence[int]) -> Array:
    """Logits of all positions: prompt chunks that end at these, then a token at a time."""
    cache = make_prompt_cache(model)
    ends = [0, *chunks, *range(chunks[-1] + 1, ids.shape[1] + 1)]
    parts = [np.array(model(ids[:, start:end], cache=cache)[0]) for start, end in itertools.pairwise(ends)]
    return np.concatenate(parts)


def _apart(got: Array, wanted: Array) -> float:
    """The largest difference, in spreads of the wanted logits."""
    return float(np.abs(got - wanted).max() / wanted.std())
