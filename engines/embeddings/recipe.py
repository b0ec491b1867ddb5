"""What makes a text's vector of its tokens' features, as the files say it.

Sources: ``modules.json`` and what it names, of sentence-transformers; the metadata of a GGUF file. Where the files are silent,
what the family's authors published (:data:`FAMILY_PROMPTS`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from engines.encoders.hf_config import CONFIG_BYTES, HfConfig
from engines.errors import CheckpointError, UnsupportedModel
from engines.header import GgufHeader
from engines.safetensors_header import load_json

__all__ = ["FAMILY_PROMPTS", "Dense", "Pooling", "Prompts", "Recipe", "gguf_recipe", "hf_recipe"]

Pooling = Literal["mean", "cls", "last"]

_GGUF_POOLING: Final[Mapping[int, Pooling]] = MappingProxyType({1: "mean", 2: "cls", 3: "last"})
_DECODERS: Final = frozenset({"qwen3"})
_MODES: Final[Mapping[str, Pooling]] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_lasttoken": "last",
    }
)
_MODE_NAMES: Final[Mapping[str, Pooling]] = MappingProxyType({"cls": "cls", "mean": "mean", "lasttoken": "last"})
_README_BYTES: Final = 1 << 20

# Names of models whose authors trained them for fewer dimensions, where no file says so.
_MATRYOSHKA_NAMES: Final = re.compile(
    r"nomic-embed-text-v(1\.5|2)|mxbai-embed-(large|xsmall)|arctic-embed-(m|l)-v(1\.5|2)|matryoshka|modernbert-embed",
    re.I,
)


@dataclass(frozen=True)
class Prompts:
    """What comes before a text. ``instructed`` takes the task where ``{task}`` stands; None: the model has no such prompt."""

    query: str = ""
    document: str = ""
    default: str = ""
    instructed: str | None = None


_QWEN3 = "Instruct: {task}\nQuery:"
FAMILY_PROMPTS: Final[Mapping[str, Prompts]] = MappingProxyType(
    {
        "qwen3": Prompts(
            query=_QWEN3.format(task="Given a web search query, retrieve relevant passages that answer the query"),
            instructed=_QWEN3,
        ),
        "gemma": Prompts(
            query="task: search result | query: ",
            document="title: none | text: ",
            instructed="task: {task} | query: ",
        ),
        "nomic": Prompts(query="search_query: ", document="search_document: "),
        "": Prompts(),
    }
)
"""By the beginning of the architecture's name: what the authors' model cards say."""


@dataclass(frozen=True)
class Dense:
    """A layer behind the pooling: where its tensor is, and what follows it."""

    name: str  # of the tensor, without .weight
    directory: Path | None = None  # None: in the file of the model
    activation: Literal["tanh"] | None = None
    rows: int | None = None  # that its configuration says
    biased: bool = False  # it must have a bias


@dataclass(frozen=True)
class Recipe:
    """``dimensions`` are the lengths that a vector may be cut to: None, the model is not made for it; empty, any."""

    pooling: Pooling
    prompts: Prompts = field(default_factory=Prompts)
    dense: tuple[Dense, ...] = ()
    dimensions: tuple[int, ...] | None = None


def family_prompts(architecture: str) -> Prompts:
    """Of the family that the name begins with."""
    return next(prompts for start, prompts in FAMILY_PROMPTS.items() if architecture.startswith(start))


def gguf_recipe(header: GgufHeader) -> Recipe:
    """Of a GGUF file's metadata and tensors."""
    architecture = header.text("general.architecture") or ""
    pooling = header.integer(f"{architecture}.pooling_type")
    if pooling and pooling not in _GGUF_POOLING:
        raise UnsupportedModel(f"{header.path}: {architecture}.pooling_type is {pooling}; 1 to 3 can be computed here")
    dense = tuple(Dense(name) for name in ("dense_2", "dense_3") if f"{name}.weight" in header.tensors)
    name = " ".join(
        filter(None, (header.text("general.name"), header.text("general.basename"), Path(header.path).name))
    )
    cut = architecture in ("qwen3", "gemma-embedding") or _MATRYOSHKA_NAMES.search(name.replace(" ", "-"))
    return Recipe(
        pooling=_GGUF_POOLING.get(pooling or 0, "last" if architecture in _DECODERS else "mean"),
        prompts=family_prompts(architecture),
        dense=dense,
        dimensions=() if cut else None,
    )


def hf_recipe(directory: Path, config: HfConfig, architecture: str) -> Recipe:
    """Of the files of a directory. UnsupportedModel names the file and the setting that cannot be honoured."""
    modules = _modules(directory)
    pooling: Pooling | None = None
    dense = []
    for kind, path in modules:
        place = directory / path
        match kind:
            case "Transformer" | "Normalize":
                pass
            case "Pooling":
                pooling = _pooling(place)
            case "Dense":
                dense.append(_dense(place))
            case _:
                raise UnsupportedModel(f"{directory / 'modules.json'}: the module {kind} is not supported")
    return Recipe(
        pooling=pooling or ("last" if architecture in _DECODERS else "mean"),
        prompts=_prompts(directory, architecture),
        dense=tuple(dense),
        dimensions=_dimensions(directory, config, architecture),
    )


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Kind and path of each module; without the file, those of a plain checkpoint."""
    path = directory / "modules.json"
    if not path.exists():
        return [("Transformer", ""), *([("Pooling", "1_Pooling")] if (directory / "1_Pooling").is_dir() else [])]
    if not path.is_file():
        raise CheckpointError(f"{path}: not a regular file")
    listed = _load(path)
    if not isinstance(listed, list):
        raise CheckpointError(f"{path}: not a list of modules")
    found = []
    for module in listed:
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if (
            not isinstance(kind, str)
            or not isinstance(place, str)
            or ".." in Path(place).parts
            or Path(place).is_absolute()
        ):
            raise CheckpointError(f"{path}: a module has no type, or a path outside of the directory")
        found.append((kind.rpartition(".")[2], place))
    return found


def _pooling(place: Path) -> Pooling:
    path = place / "config.json"
    values = load_json(path, CONFIG_BYTES)
    if values.get("include_prompt") is False:
        raise UnsupportedModel(f"{path}: include_prompt is false; pooling without the prompt's tokens is not supported")
    named = values.get("pooling_mode")
    modes = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if isinstance(named, str) and named in _MODE_NAMES:
        return _MODE_NAMES[named]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedModel(
            f"{path}: pooling by {' and '.join(modes) or named} is not supported; {', '.join(_MODES)} are"
        )
    return _MODES[modes[0]]


def _dense(place: Path) -> Dense:
    path = place / "config.json"
    values = load_json(path, CONFIG_BYTES)
    function = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    rows, biased = values.get("out_features"), values.get("bias") is True
    match str(function).rpartition(".")[2]:
        case "Identity":
            return Dense("linear", place, rows=rows, biased=biased)
        case "Tanh":
            return Dense("linear", place, "tanh", rows=rows, biased=biased)
    raise UnsupportedModel(f"{path}: the activation {function!r} is not supported")


def _prompts(directory: Path, architecture: str) -> Prompts:
    base = family_prompts(architecture)
    settings = _optional(directory / "config_sentence_transformers.json")
    prompts = settings.get("prompts")
    named = (
        {key: value for key, value in prompts.items() if isinstance(value, str)} if isinstance(prompts, dict) else {}
    )

    def first(keys: tuple[str, ...], default: str) -> str:
        return next((named[key] for key in keys if named.get(key)), default)

    default = settings.get("default_prompt_name")
    return Prompts(
        query=first(("query", "search_query", "s2p_query", "retrieval.query"), base.query),
        document=first(("document", "passage", "search_document", "retrieval.passage"), base.document),
        default=named.get(default, "") if isinstance(default, str) else "",
        instructed=base.instructed,
    )


def _dimensions(directory: Path, config: HfConfig, architecture: str) -> tuple[int, ...] | None:
    for values in (config.values, _optional(directory / "config_sentence_transformers.json")):
        for key in ("matryoshka_dimensions", "matryoshka_dims"):
            listed = values.get(key)
            if isinstance(listed, list) and listed and all(type(size) is int for size in listed):
                return tuple(sorted(listed))
        if values.get("is_matryoshka") is True or values.get("truncate_dim"):
            return ()
    if architecture in ("qwen3", "gemma3_text"):
        return ()
    return () if _MATRYOSHKA_NAMES.search(f"{directory.name} {_card(directory)}") else None


def _card(directory: Path) -> str:
    """The beginning of the model card: those of models made so say it."""
    path = directory / "README.md"
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_README_BYTES).decode("utf-8", "replace")


def _optional(path: Path) -> dict[str, Any]:
    return load_json(path, CONFIG_BYTES) if path.exists() else {}


def _load(path: Path) -> Any:
    if path.stat().st_size > CONFIG_BYTES:
        raise CheckpointError(f"{path}: at most {CONFIG_BYTES} bytes are read")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
