"""What people ask of a checkpoint beyond :mod:`engines.detect`: types by role, templates, tokenizer, licence. From the headers
and the small files beside them alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engines.detect import Checkpoint
from engines.footprint import active_parameters
from engines.header import GgufHeader
from engines.safetensors_header import load_json

__all__ = ["ROLES", "Inspection", "RoleMix", "inspect_checkpoint", "role_of"]

RoleMix = Mapping[str, Mapping[str, tuple[int, int]]]
"""Role to type name to (tensors, bytes)."""

ROLES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        ("norms and biases", r"norm|\.bias$|(?:^|[._])ln_|LayerNorm|sinks"),
        ("routers", r"ffn_gate_inp|mlp\.gate\.|router|exp_probs"),
        ("shared experts", r"_shexp|shared_expert"),
        ("experts", r"_exps\b|ffn_(?:gate|up|down)\.\d|\.experts\.|switch_mlp"),
        ("embedding", r"^(?:token|position|per_layer_token)_embd|token_types|embed_tokens|embeddings|\bwte\b|\bwpe\b"),
        ("output", r"^output\.|^cls|lm_head|classifier|^score\."),
        ("state", r"ssm_|shortconv|time_mix|\bmixer\b|linear_attn|\bmamba\b|\.conv\."),
        ("attention output", r"attn_output|\bo_proj|attn\.out_proj|attention\.output\."),
        ("attention value", r"attn_(?:qkv|v|kv_b|v_b)\b|\bv_proj|\bqkv|self\.value|\bkv_b_proj"),
        ("attention query, key", r"attn_|\b[qk]_|self_attn|attention"),
        ("feed-forward down", r"ffn_down|down_proj|\bfc2|output\.dense|\bw2\b"),
        ("feed-forward gate, up", r"ffn_(?:up|gate)|up_proj|gate_proj|gate_up|\bfc1|intermediate\.dense|\bw[13]\b"),
    )
)
"""Roles of tensors and the names that tell them, in GGUF and in Hugging Face's files; the first that fits counts, else other."""

_TEMPLATE: Final = "tokenizer.chat_template"
_SMALL_FILE: Final = 64 << 20  # bytes: a tokenizer_config.json can list a whole vocabulary
_LICENSE_LINE: Final = re.compile(r"^license:[ \t]*[\"']?([^\"'\r\n]+?)[\"']?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint holds."""

    active_parameters: int
    roles: RoleMix  # in the order of the roles, types with the most bytes first
    templates: tuple[str, ...]  # names of the chat template's variants, ``default`` first
    tokenizer_model: str | None  # ``gpt2``, ``llama``; of safetensors the tokenizer's class
    tokenizer_pre: str | None
    license: str | None


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Reads it. CheckpointError when a file beside the weights is damaged."""
    header = checkpoint.header
    if isinstance(header, GgufHeader):
        return Inspection(
            active_parameters=active_parameters(header),
            roles=_roles((name, tensor.type.name, tensor.nbytes) for name, tensor in header.tensors.items()),
            templates=_in_order(
                key.removeprefix(_TEMPLATE).removeprefix(".") or "default"
                for key, value in header.metadata.items()
                if (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")) and isinstance(value, str)
            ),
            tokenizer_model=header.text("tokenizer.ggml.model"),
            tokenizer_pre=header.text("tokenizer.ggml.pre"),
            license=header.text("general.license"),
        )
    directory = Path(checkpoint.paths[0]).parent
    tokenizer = _json(directory / "tokenizer_config.json")
    return Inspection(
        active_parameters=_active_safetensors(checkpoint, _json(directory / "config.json")),
        roles=_roles((name, tensor.dtype, tensor.nbytes) for name, tensor in header.tensors.items()),
        templates=_in_order(_template_names(directory, tokenizer)),
        tokenizer_model=_text(tokenizer.get("tokenizer_class")),
        tokenizer_pre=None,
        license=_card_license(directory / "README.md"),
    )


def role_of(name: str) -> str:
    """The role of a tensor of this name."""
    return next((role for role, pattern in ROLES if pattern.search(name)), "other")


def _roles(tensors: Iterator[tuple[str, str, int]]) -> RoleMix:
    found: dict[str, dict[str, tuple[int, int]]] = {role: {} for role in (*(role for role, _ in ROLES), "other")}
    for name, kind, nbytes in tensors:
        count, total = found[role_of(name)].get(kind, (0, 0))
        found[role_of(name)][kind] = (count + 1, total + nbytes)
    return {
        role: dict(sorted(kinds.items(), key=lambda item: (-item[1][1], item[0])))
        for role, kinds in found.items()
        if kinds
    }


def _in_order(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name != "default", name)))


# --- safetensors ------------------------------------------------------------------------------------------------------


def _active_safetensors(checkpoint: Checkpoint, config: Mapping[str, Any]) -> int:
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    counts = [inner.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")] if inner else []
    experts = next((count for count in counts if type(count) is int and count > 0), 0)
    used = inner.get("num_experts_per_tok") if inner else None
    tensors = checkpoint.header.tensors.values()
    total = sum(tensor.count for tensor in tensors)
    if not experts or type(used) is not int or not 0 < used < experts or not total:
        return checkpoint.parameters
    in_experts = sum(tensor.count for tensor in tensors if role_of(tensor.name) == "experts")
    # By share, since packed weights are fewer elements than they are parameters.
    return int(checkpoint.parameters * (1 - in_experts / total * (1 - used / experts)))


def _template_names(directory: Path, tokenizer: Mapping[str, Any]) -> Iterator[str]:
    if (directory / "chat_template.jinja").exists() or (directory / "chat_template.json").exists():
        yield "default"
    for file in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        yield file.stem
    template = tokenizer.get("chat_template")
    if isinstance(template, str):
        yield "default"
    elif isinstance(template, list):
        for variant in template:
            if isinstance(variant, dict) and isinstance(variant.get("name"), str):
                yield variant["name"]


def _card_license(card: Path) -> str | None:
    """The licence that a model card names in the block between its first two lines of dashes."""
    try:
        with card.open(encoding="utf-8", errors="replace") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    parts = head.split("---", 2)
    found = _LICENSE_LINE.search(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    return found[1] if found else None


def _json(path: Path) -> Mapping[str, Any]:
    return load_json(path, _SMALL_FILE) if path.exists() else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
