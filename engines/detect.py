"""What a checkpoint is, from its headers alone: task, architecture, size, quant mix, and whether this version can run it.

The task is decided in this order; the first that answers wins:

1. config metadata: ``general.type``, ``general.architecture``, the pooling type and the classifier of a GGUF file;
   ``model_type`` and ``architectures`` of a ``config.json``
2. the loader: files beside the weights that only one kind of loader reads (``modules.json``, ``preprocessor_config.json``)
3. the name, where 1 and 2 say no more than "a decoder": an embedding model or a reranker may be one

A checkpoint of a kind that is known but cannot be run yet is a :class:`Checkpoint` with ``unsupported`` set to the reason. A
file that is no model, or no model on its own (a vision projector, an adapter), is a CheckpointError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from engines.encoders.families import blueprint_of
from engines.encoders.hf_config import HfConfig, sentence_limit
from engines.errors import CheckpointError, GgufFormatError, UnsupportedModel
from engines.ggml_types import GgmlType
from engines.gguf import families
from engines.gguf.config import Hyperparameters
from engines.gguf.placing import placed
from engines.gguf.tokenizers.kinds import KINDS
from engines.gguf.tokenizers.kinds import refusal as tokenizer_refusal
from engines.header import GgufArray, GgufHeader, SafetensorsHeader, read_header, read_safetensors_header
from engines.safetensors_header import BITS, load_json
from engines.wire import Task

__all__ = ["ENCODER_TASKS", "TEXT_ARCHITECTURES", "TEXT_TYPES", "Checkpoint", "detect"]

TEXT_ARCHITECTURES: Final = frozenset(families.FAMILIES)
"""``general.architecture`` of the text models that can be built; Mistral and SmolLM2 are ``llama``."""

TEXT_TYPES: Final = frozenset(
    GgmlType[name]
    for name in (
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"),
        *("MXFP4", "NVFP4"),
    )
)
"""Tensor types that can be computed with."""

ENCODER_TASKS: Final[frozenset[Task]] = frozenset({"embedding", "rerank"})
"""Tasks of models that read a text whole (:mod:`engines.encoders`)."""

_EMBEDDING_ARCHITECTURES: Final = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert"}
    | {"gemma-embedding", "llama-embed", "t5encoder"}
)
_NO_MODEL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mmproj": "is a vision or audio projector, not a model on its own: name it as a model's mmproj",
        "clip": "is a vision or audio projector, not a model on its own: name it as a model's mmproj",
        "adapter": "is an adapter, not a model on its own",
        "imatrix": "is an importance matrix, not a model",
    }
)
_POOLING_RANK: Final = 4  # llama.cpp's enum: 0 none, 1 mean, 2 CLS, 3 last, 4 rank

_HF_TASKS: Final[tuple[tuple[str, Task], ...]] = (
    (r"ForSequenceClassification$", "rerank"),
    (r"^Whisper|ForSpeechSeq2Seq$|ForCTC$", "stt"),
    (r"TextToSpeech|^Kokoro|^Bark|^Vits", "tts"),
    (r"ForImageTextToText$|ForConditionalGeneration$|ForVision2Seq$", "vision"),
    (r"ForCausalLM$|LMHeadModel$", "text"),
    (r"Model$|ForMaskedLM$", "embedding"),
)
_HF_MODEL_TYPES: Final[Mapping[str, Task]] = MappingProxyType(
    {
        "whisper": "stt",
        "kokoro": "tts",
        **dict.fromkeys(("bert", "xlm-roberta", "modernbert", "nomic_bert"), "embedding"),
    }
)
_FLOATS: Final = frozenset({"F32", "F16", "BF16"})
_CONFIG_BYTES: Final = 16 << 20
_TOKENIZER_CONFIG_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Checkpoint:
    """What the headers of a model's files say. ``unsupported`` is why this version cannot run it, None when it can."""

    task: Task
    format: Literal["gguf", "safetensors"]
    architecture: str
    paths: tuple[str, ...]  # absolute; all parts or shards, in order
    name: str
    parameters: int
    context: int | None  # tokens; None when the checkpoint does not say
    quant_mix: Mapping[str, tuple[int, int]]  # type name to (tensors, bytes), most bytes first
    has_chat_template: bool
    tokenizer: str | None  # "byte-level BPE (smollm)", "SPM (default)"; None when the checkpoint does not say
    vocabulary: int | None  # tokens
    unsupported: str | None
    header: GgufHeader | SafetensorsHeader = field(repr=False, compare=False)

    @property
    def file_bytes(self) -> int:
        """Size of all its files."""
        return self.header.file_bytes


def detect(path: str | os.PathLike[str], task: Task | None = None) -> Checkpoint:
    """What the checkpoint at ``path`` is: a GGUF file, the first part of a split set, or a directory with either format.

    ``task`` is what it is to be used for, whatever its files say it was made for: ``unsupported`` tells whether it can be.

    Raises CheckpointError (GgufFormatError) for damaged files and things that are no model, UnsupportedModel for formats
    and tensor types that are not known.
    """
    place = Path(os.path.abspath(path))  # noqa: PTH100 - not resolve(): parts and shards are beside the link
    if place.suffix == ".safetensors" and not place.is_dir():
        place = place.parent
    if not place.is_dir():
        return _detect_gguf(read_header(place), task)
    if any(place.glob("*.safetensors")):
        return _detect_safetensors(place, task)
    models = [file for file in sorted(place.glob("*.gguf")) if _is_main_file(file.name)]
    if len(models) == 1:
        return _detect_gguf(read_header(models[0]), task)
    if models:
        raise CheckpointError(f"{place}: has several GGUF files; name one of {', '.join(file.name for file in models)}")
    if (place / "model.bin").exists():
        raise UnsupportedModel(f"{place}: a CTranslate2 or PyTorch checkpoint; GGUF files are what this version runs")
    raise CheckpointError(f"{place}: no .gguf or .safetensors file in this directory")


# --- GGUF -----------------------------------------------------------------------------------------------------------


def _is_main_file(name: str) -> bool:
    """False for projectors, and for parts of a split set after the first."""
    return "mmproj" not in name.lower() and not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", name)


def _detect_gguf(header: GgufHeader, task: Task | None) -> Checkpoint:
    architecture = header.text("general.architecture")
    if architecture is None:
        raise GgufFormatError(header.path, "has no general.architecture, so it is no model")
    for kind in (header.text("general.type"), architecture):
        if kind is not None and kind in _NO_MODEL:
            raise CheckpointError(f"{header.path}: {_NO_MODEL[kind]}")
    if not header.tensors:
        raise CheckpointError(f"{header.path}: has no tensors: a vocabulary, not a model")
    name = header.text("general.name") or Path(header.path).stem
    task = task or _gguf_task(header, architecture, name)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return Checkpoint(
        task=task,
        format="gguf",
        architecture=architecture,
        paths=header.paths,
        name=name,
        parameters=sum(tensor.count for tensor in header.tensors.values()),
        context=header.integer(f"{architecture}.context_length"),
        quant_mix=_mix((tensor.type.name, tensor.nbytes) for tensor in header.tensors.values()),
        has_chat_template=header.text("tokenizer.chat_template") is not None,
        tokenizer=_gguf_tokenizer(header),
        vocabulary=len(tokens) if isinstance(tokens, GgufArray) else None,
        unsupported=_gguf_unsupported(header, architecture, task),
        header=header,
    )


def _gguf_task(header: GgufHeader, architecture: str, name: str) -> Task:
    # 1. what the metadata says
    pooling = header.integer(f"{architecture}.pooling_type")
    if pooling == _POOLING_RANK or "cls.output.weight" in header.tensors or "cls.weight" in header.tensors:
        return "rerank"
    if architecture in _EMBEDDING_ARCHITECTURES or pooling:
        return "embedding"
    if architecture == "wavtokenizer-dec":
        return "tts"
    # 3. a GGUF file has no other files beside it that a loader would read
    return _task_of_name(name, Path(header.path).name) or "text"


def _gguf_tokenizer(header: GgufHeader) -> str | None:
    model = header.text("tokenizer.ggml.model")
    if model is None:
        return None
    flavour = header.text("tokenizer.ggml.pre")
    return KINDS.get(model, model) + (f" ({flavour})" if flavour else "")


def _gguf_unsupported(header: GgufHeader, architecture: str, task: Task) -> str | None:
    if task in ENCODER_TASKS:
        unknown = None
    elif task != "text":
        return f"{task} models in GGUF files cannot be run by this version"
    else:
        unknown = families.refusal_of(architecture)
    if unknown is not None:
        return unknown
    types = sorted({tensor.type.name for tensor in header.tensors.values() if tensor.type not in TEXT_TYPES})
    if types:
        return f"the quant type{'s' if len(types) > 1 else ''} {', '.join(types)} cannot be computed with"
    kind = header.text("tokenizer.ggml.model")
    if kind is None:
        return "the file has no tokenizer (tokenizer.ggml.model is missing)"
    unusable = tokenizer_refusal(kind, header.text("tokenizer.ggml.pre"))
    if unusable is not None:
        return unusable
    if task in ENCODER_TASKS:
        return _encoder_unsupported(header, None, header.path)
    try:  # as the build will: the keys that it needs, understands, and those it must refuse; then the table of tensors
        parameters = Hyperparameters(header.path, architecture, header.metadata)
        family = families.FAMILIES[architecture]
        plan = family.plan(families.Checkpoint(header, parameters))
        parameters.finish()
        placed(header, family, plan)
    except CheckpointError as refusal:
        return refusal.message.removeprefix(f"{header.path}: ")
    return None


def _encoder_unsupported(header: GgufHeader | SafetensorsHeader, config: HfConfig | None, path: str) -> str | None:
    """As the build of an embedding model or a reranker will say it."""
    try:
        blueprint_of(header, config)
    except CheckpointError as refusal:
        return refusal.message.removeprefix(f"{path}: ")
    return None


# --- safetensors ----------------------------------------------------------------------------------------------------


def _detect_safetensors(directory: Path, task: Task | None) -> Checkpoint:
    header = read_safetensors_header(directory)
    config_path = directory / "config.json"
    config = load_json(config_path, _CONFIG_BYTES) if config_path.exists() else {}
    text_config = config.get("text_config")
    inner = text_config if isinstance(text_config, dict) else config
    architecture = _text(config, "model_type") or next(iter(_architectures(config)), "unknown")
    context, vocabulary = inner.get("max_position_embeddings"), inner.get("vocab_size")
    limit = sentence_limit(directory)
    if limit is not None and type(context) is int:
        context = min(context, limit)
    task = task or _safetensors_task(directory, config)
    return Checkpoint(
        task=task,
        format="safetensors",
        architecture=architecture,
        paths=header.paths,
        name=directory.name,
        parameters=_safetensors_parameters(header, config),
        context=context if type(context) is int else None,
        quant_mix=_mix((tensor.dtype, tensor.nbytes) for tensor in header.tensors.values()),
        has_chat_template=_has_chat_template(directory),
        tokenizer="tokenizer.json" if (directory / "tokenizer.json").exists() else None,
        vocabulary=vocabulary if type(vocabulary) is int else None,
        unsupported=_safetensors_unsupported(directory, header, config, task),
        header=header,
    )


def _safetensors_unsupported(
    directory: Path, header: SafetensorsHeader, config: Mapping[str, Any], task: Task
) -> str | None:
    if task not in ENCODER_TASKS:
        return "safetensors checkpoints cannot be run by this version; a GGUF file of the model can, where there is one"
    if not (directory / "tokenizer.json").exists():
        return "it has no tokenizer.json"
    types = sorted({tensor.dtype for tensor in header.tensors.values() if tensor.dtype[0] in "FU"} - _FLOATS)
    if types:
        return f"tensors of the type {', '.join(types)} cannot be computed with"
    path = str(directory / "config.json")
    return _encoder_unsupported(header, HfConfig(path, config), path)


def _safetensors_task(directory: Path, config: Mapping[str, Any]) -> Task:
    # 1. what the config says
    model_type = _text(config, "model_type")
    has_vision = isinstance(config.get("vision_config"), dict)
    for architecture in _architectures(config):
        task = next((task for pattern, task in _HF_TASKS if re.search(pattern, architecture)), None)
        if task == "vision" and model_type in {"t5", "bart", "mbart", "pegasus"}:
            return "text"  # encoder-decoders share the suffix with vision models
        if task == "text" and not has_vision:
            return _task_of_name(directory.name) or ("embedding" if _pools(directory) else task)  # 3, else 2
        if task is not None:
            return "vision" if has_vision and task == "text" else task
    if model_type is not None and model_type in _HF_MODEL_TYPES:
        return _HF_MODEL_TYPES[model_type]
    # 2. what the loaders' own files say
    if _pools(directory):
        return "embedding"
    if has_vision or (directory / "preprocessor_config.json").exists():
        return "vision"
    # 3. the name
    return _task_of_name(directory.name) or "text"


def _pools(directory: Path) -> bool:
    """Whether sentence-transformers' files are there."""
    return (directory / "modules.json").exists() or (directory / "1_Pooling").is_dir()


def _safetensors_parameters(header: SafetensorsHeader, config: Mapping[str, Any]) -> int:
    """Weights; MLX's packed ones (U32 beside ``scales``) are counted by the config's bits."""
    quantization = config.get("quantization")
    bits = quantization.get("bits") if isinstance(quantization, dict) else None
    total = 0
    for name, tensor in header.tensors.items():
        base = name.rpartition(".")[0]
        if type(bits) is int and 0 < bits <= 32 and f"{base}.scales" in header.tensors:
            if tensor.dtype == "U32":
                total += tensor.count * BITS["U32"] // bits
        else:
            total += tensor.count
    return total


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").exists() or (directory / "chat_template.json").exists():
        return True
    config = directory / "tokenizer_config.json"
    return config.exists() and bool(load_json(config, _TOKENIZER_CONFIG_BYTES).get("chat_template"))


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    return value if isinstance(value, str) else None


# --- both -----------------------------------------------------------------------------------------------------------


def _task_of_name(*names: str) -> Task | None:
    for name in names:
        words = set(re.split(r"[^a-z0-9]+", name.lower()))
        if words & {"reranker", "rerank"}:
            return "rerank"
        if words & {"embedding", "embeddings", "embed"}:
            return "embedding"
    return None


def _mix(tensors: Iterable[tuple[str, int]]) -> Mapping[str, tuple[int, int]]:
    mix: dict[str, tuple[int, int]] = {}
    for kind, nbytes in tensors:
        count, total = mix.get(kind, (0, 0))
        mix[kind] = (count + 1, total + nbytes)
    return MappingProxyType(dict(sorted(mix.items(), key=lambda item: -item[1][1])))
