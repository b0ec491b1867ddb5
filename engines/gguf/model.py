"""From a GGUF header to a model that runs: the stock mlx-lm class with the checkpoint's tensors in its leaves.

The steps of :func:`build_model`:

1. family by architecture; its plan: configuration, context, what the stock class must be told besides
2. every tensor gets its module and has the shape that the metadata makes it, or the model is refused (``placing.py``)
3. the stock class is made; its own weights are lazy and are never computed
4. each module with weights is replaced: matrices of blocks by K-quant leaves, F32 matrices by ``nn.Linear`` and
   ``nn.Embedding``, norms by norms with the file's weight; shapes are held against the stock module's (``filling.py``)
5. rotary embedding and caches are replaced where the plan says so
6. norms, rotary embedding, gated MLPs and whole blocks are replaced by compiled ones where there are such
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from engines.errors import UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.gguf.families import Checkpoint, Plan, family_of
from engines.gguf.filling import fill
from engines.gguf.fused import fuse
from engines.gguf.fused_block import fuse_blocks
from engines.gguf.names import Placement
from engines.gguf.placing import placed
from engines.header import GgufHeader
from engines.interface import ReportProgress

__all__ = ["DTYPES", "BuiltModel", "build_model", "stock_model"]

DTYPES: Final[dict[str, mx.Dtype]] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
"""What activations can be computed in."""


@dataclass(frozen=True)
class BuiltModel:
    """A model in memory, and what is known of it."""

    model: Any  # an mlx.nn.Module (untyped): the stock class with its leaves replaced
    config: dict[str, Any]  # what the stock class was made from
    architecture: str
    context: int  # tokens
    dtype: mx.Dtype  # of activations and KV
    kv_bytes_per_token: int  # a row, of the layers that keep every token
    kv_window_tokens: int  # the window of the other layers; 0 where there are none
    kv_window_bytes_per_token: int  # a row, of the other layers, up to that window
    kv_layer_bytes: tuple[int, ...]  # a token of a row, of each layer that keeps tokens
    state_bytes: int = 0  # a row, of layers that keep a state instead of tokens
    most_rows: int | None = None  # of a batch; None: any number, as far as the caches can be joined


def build_model(
    header: GgufHeader,
    report: ReportProgress | None = None,
    *,
    dtype: str | None = None,
    context: int | None = None,
) -> BuiltModel:
    """Builds the model of a GGUF checkpoint, on the calling thread, whose MLX streams it is bound to.

    ``report`` is told the fraction of tensor bytes read. ``dtype`` is the compute dtype, a key of :data:`DTYPES`: None means
    float32 on the CPU and bfloat16 elsewhere. ``context`` (tokens) limits the checkpoint's own.

    Raises UnsupportedModel that names the architecture, the metadata key or the quant type at fault, and CheckpointError that
    names the tensor which is missing, left over or of the wrong shape, or the key which is missing or impossible.
    """
    compute = _compute_dtype(dtype)
    family = family_of(header)
    parameters = Hyperparameters(header.path, family.architecture, header.metadata)
    plan = family.plan(Checkpoint(header, parameters, context))
    parameters.finish()
    placements = placed(header, family, plan)
    model = stock_model(header.path, plan, placements)
    fill(header, model, plan, placements, compute, report)
    fuse(model, plan.gate or family.gate)
    fuse_blocks(model)
    if not plan.stock_caches:
        # An attribute of the instance, which mlx-lm's make_prompt_cache finds before anything of the class.
        model.make_cache = lambda: _caches(plan.windows)
    model.eval()
    full, windowed = plan.kv_numbers_per_token()
    return BuiltModel(
        model=model,
        config=plan.config,
        architecture=family.architecture,
        context=plan.context,
        dtype=compute,
        kv_bytes_per_token=full * compute.size,
        kv_window_tokens=max((window for window in plan.windows if window), default=0),
        kv_window_bytes_per_token=windowed * compute.size,
        kv_layer_bytes=tuple(numbers * compute.size for numbers in plan.kv_numbers_by_layer() if numbers),
        state_bytes=plan.state_numbers * compute.size + plan.state_float32 * mx.float32.size,
        most_rows=plan.most_rows,
    )


def _compute_dtype(name: str | None) -> mx.Dtype:
    if name is None:
        # On the CPU MLX multiplies half precision some sixty times slower; bfloat16 has float32's range, which Gemma needs.
        return mx.float32 if mx.default_device().type == mx.DeviceType.cpu else mx.bfloat16
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype '{name}' is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[name]


def stock_model(path: str, plan: Plan, placements: Sequence[Placement]) -> Any:
    """The stock class as the plan has it, with weights of its own that nobody has computed yet. UnsupportedModel for sizes that
    do not go together."""
    module = importlib.import_module(f"mlx_lm.models.{plan.config['model_type']}")
    model_name, arguments_name = plan.classes
    try:
        model = getattr(module, model_name)(getattr(module, arguments_name).from_dict(plan.config))
    except (ArithmeticError, ValueError) as error:  # sizes that are each possible, but not together
        raise UnsupportedModel(f"{path}: the metadata makes no {plan.config['model_type']} model: {error}") from error
    headless = not any(placement.module.endswith("lm_head") for placement in placements) and "lm_head" in model
    if headless and hasattr(model, "sanitize"):
        # Some stock classes drop their head only when they see that the checkpoint has none.
        model.sanitize({})
    if plan.stand_ins is not None:
        importlib.import_module(f"engines.gguf.stand_ins.{plan.stand_ins}").adapt(model, plan)
    modules = dict(model.named_modules()) if plan.attributes else {}
    for path, value in plan.attributes.items():
        owner, _, name = path.rpartition(".")
        setattr(modules[owner], name, value)
    return model


def _caches(windows: Sequence[int | None]) -> list[Any]:
    """A row's KV caches, one a layer."""
    full: Callable[[], Any] = KVCache
    rotating: Callable[[int], Any] = RotatingKVCache
    return [full() if window is None else rotating(window) for window in windows]
