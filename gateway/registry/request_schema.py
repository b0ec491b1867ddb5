"""Request settings in the registry file: their keys, types, ranges, and where each may stand.

They say what a request gets where it is silent, and never how a model is loaded: ids that differ in nothing else share one
resident. The same keys stand in ``defaults``, in a profile and in a model's ``overrides``. Ranges are the API's.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.registry.reasoning_settings import Effort

__all__ = [
    "Kwargs",
    "ProfileSection",
    "ReasoningSection",
    "RuleSection",
    "SamplingSection",
    "SettingsSection",
    "Template",
    "Text",
    "ToolSyntaxName",
    "misplaced",
]

Text = Annotated[str, Meta(min_length=1)]
Template = Annotated[str, Meta(min_length=1)]  # the template itself, or a path: chat_template.py
Kwargs = dict[str, Any]
ProfileName = Annotated[str, Meta(min_length=1)]
Glob = Annotated[str, Meta(min_length=1, max_length=256)]

# The table of engines/text/tool_syntax, which the gateway must not import; a test compares them.
ToolSyntaxName = Literal[
    "command",
    "command_r",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "function_gemma",
    "functionary_v31",
    "functionary_v32",
    "gemma3",
    "gemma4",
    "generic",
    "glm4",
    "glm45",
    "granite",
    "harmony",
    "hermes",
    "kimi_k2",
    "lfm2",
    "llama3",
    "llama4",
    "minimax_m1",
    "minimax_m2",
    "mistral",
    "mistral_array",
    "nemotron",
    "phi4",
    "qwen3_coder",
    "seed_oss",
]

_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SamplingSection(msgspec.Struct, kw_only=True, frozen=True):
    """``sampling``: how the next token is drawn, and how many at most. UNSET leaves a key to the level below."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType = UNSET
    top_p: _Share | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET  # 0: off
    min_p: _Share | UnsetType = UNSET
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType | None = UNSET  # None: another one every time
    frequency_penalty: _Penalty | UnsetType = UNSET
    presence_penalty: _Penalty | UnsetType = UNSET
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | UnsetType = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET  # None: the route's own default


class ReasoningSection(msgspec.Struct, kw_only=True, frozen=True):
    """``reasoning``: thinking before the answer. None leaves it to the model's template, and splits what thinking there is."""

    enabled: bool | UnsetType | None = UNSET
    effort: Effort | UnsetType | None = UNSET
    budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET  # tokens
    split: bool | UnsetType | None = UNSET


class SettingsSection(msgspec.Struct, kw_only=True, frozen=True):
    """One level of request settings. None takes away what the levels below gave."""

    sampling: SamplingSection | UnsetType = UNSET
    system: Text | UnsetType | None = UNSET
    chat_template: Template | UnsetType | None = UNSET
    chat_template_kwargs: Kwargs | UnsetType = UNSET
    reasoning: ReasoningSection | UnsetType = UNSET
    tool_syntax: ToolSyntaxName | UnsetType | None = UNSET  # None: what the template shows


class ProfileSection(SettingsSection, kw_only=True, frozen=True):
    """One of ``profiles``: settings with a name, over those of the profile it ``extends``."""

    extends: ProfileName | None = None


class RuleSection(msgspec.Struct, kw_only=True, frozen=True):
    """One of ``rules``: models whose id matches (one of) the globs get a profile's settings."""

    match: Glob | Annotated[tuple[Glob, ...], Meta(min_length=1)]
    profile: ProfileName

    @property
    def globs(self) -> tuple[str, ...]:
        """All of ``match``."""
        return (self.match,) if isinstance(self.match, str) else self.match


_SETTINGS: Final = frozenset(SettingsSection.__struct_fields__)
_SAMPLING: Final = frozenset(SamplingSection.__struct_fields__)
_LEVELS: Final = frozenset({"defaults", "profiles[]", "models[].overrides"})


def misplaced(section: str, key: str, model_keys: frozenset[str]) -> str | None:
    """What is wrong with a key that is known but not allowed in this section of the file; None where there is no such advice.

    ``model_keys``: what a model may hold. A section is a key path with ``[]`` for every index or name.
    """
    if key == "logit_bias":
        return "only a request may hold it: token ids mean something else to every tokenizer"
    if section == "models[]":
        if key in _SETTINGS:
            return "a request setting: it stands under the model's overrides"
        return "a request setting: it stands under the model's overrides.sampling" if key in _SAMPLING else None
    if section in _LEVELS and key in _SAMPLING:
        return "stands one level down, under sampling"
    if section == "profiles[]" and key in model_keys:
        return "a profile holds request settings only, for it shares the loaded model of its id; this key stands in the model"
    if section == "models[].overrides" and key in model_keys:
        return "overrides are request settings only; this key stands in the model itself, beside overrides"
    return None
