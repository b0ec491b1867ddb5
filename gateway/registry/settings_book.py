"""All request settings of a registry file: its defaults, profiles, rules and the models' overrides, and which of them are a
model's.

Levels of a model, lowest first::

    family defaults < defaults < matching rules, in file order < its profile, or the one asked for < its overrides

A rule gives the settings of the profile it names. A profile is its parents' values and its own over them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from gateway.registry.problems import Problem, nearest, shorten
from gateway.registry.request_layers import Layer
from gateway.registry.request_schema import ProfileSection, RuleSection
from gateway.registry.schema import ModelEntry, RegistryFile
from gateway.registry.settings_section import section_layer

__all__ = ["SettingsBook", "read_settings"]

_PROFILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # what can stand behind an id's @; no colon, which begins a tag


@dataclass(frozen=True)
class SettingsBook:
    """Settings by level. ``profiles`` hold their parents' layers first; ``overrides`` are by model id."""

    defaults: Layer = field(default_factory=lambda: Layer("defaults"))
    profiles: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)
    rules: tuple[RuleSection, ...] = ()
    overrides: Mapping[str, Layer] = field(default_factory=dict)

    def layers(self, entry: ModelEntry, profile: str | None, family: Layer) -> tuple[Layer, ...]:
        """The levels of a model with this profile, lowest first. ``profile`` is one of ``offered``, or None."""
        return (
            family,
            self.defaults,
            *self._of_rules(entry.id),
            *(self.profiles[profile] if profile is not None else ()),
            *((self.overrides[entry.id],) if entry.id in self.overrides else ()),
        )

    def offered(self, entry: ModelEntry) -> tuple[str, ...]:
        """The profiles that a request may name for a model: those it lists (all, when it lists none) and its own."""
        listed = self.profiles if entry.profiles is None else entry.profiles
        return tuple(dict.fromkeys((*listed, *((entry.profile,) if entry.profile is not None else ()))))

    def _of_rules(self, model_id: str) -> Iterator[Layer]:
        for rule in self.rules:
            glob = next((glob for glob in rule.globs if fnmatchcase(model_id, glob)), None)
            if glob is not None:
                yield from (layer.named(f"rule {glob} ({layer.origin})") for layer in self.profiles[rule.profile])


def read_settings(file: RegistryFile, directory: Path, problems: list[Problem]) -> SettingsBook:
    """The file's settings, their templates read. What is wrong with them joins ``problems``: with any, it is not to be used."""
    defaults = section_layer("defaults", file.defaults.settings, "defaults", directory, problems)
    own = {
        name: section_layer(f"profile {name}", section, f"profiles.{name}", directory, problems)
        for name, section in file.profiles.items()
    }
    overrides = {
        entry.id: section_layer("overrides", entry.overrides, f"models[{i}].overrides", directory, problems)
        for i, entry in enumerate(file.models)
    }
    problems += _profile_problems(file.profiles)
    problems += _reference_problems(file)
    if problems:
        return SettingsBook()
    profiles = {name: tuple(own[parent] for parent in _lineage(name, file.profiles)) for name in file.profiles}
    return SettingsBook(defaults, profiles, file.rules, {id: layer for id, layer in overrides.items() if layer.values})


def _profile_problems(profiles: Mapping[str, ProfileSection]) -> Iterator[Problem]:
    for name, section in profiles.items():
        if _PROFILE_NAME.fullmatch(name) is None:
            message = f"a profile's name is 1 to 64 letters, digits and ._- (found {shorten(name)})"
            yield Problem(f"profiles.{name[:100]}", message)
        where = f"profiles.{name}.extends"
        if section.extends is not None and section.extends not in profiles:
            yield Problem(where, _unknown(section.extends, [other for other in profiles if other != name]))
        elif name in (cycle := _ancestors(name, profiles)):
            yield Problem(where, f"leads back to itself: {' → '.join((name, *cycle))}")


def _ancestors(name: str, profiles: Mapping[str, ProfileSection]) -> tuple[str, ...]:
    """Parent, grandparent and so on, up to one without a parent or the first that comes again."""
    seen: dict[str, None] = {}
    parent = profiles[name].extends
    while parent is not None and parent in profiles and parent not in seen:
        seen[parent] = None
        parent = profiles[parent].extends
    return tuple(seen)


def _lineage(name: str, profiles: Mapping[str, ProfileSection]) -> tuple[str, ...]:
    """The profile's ancestors and it itself, the eldest first."""
    return (*reversed(_ancestors(name, profiles)), name)


def _reference_problems(file: RegistryFile) -> Iterator[Problem]:
    """Names of profiles that there are not."""
    named = [(f"rules[{i}].profile", rule.profile) for i, rule in enumerate(file.rules)]
    for i, entry in enumerate(file.models):
        named += [(f"models[{i}].profile", entry.profile)] if entry.profile is not None else []
        named += [(f"models[{i}].profiles[{j}]", name) for j, name in enumerate(entry.profiles or ())]
    return (Problem(where, _unknown(name, file.profiles)) for where, name in named if name not in file.profiles)


def _unknown(name: str, known: Collection[str]) -> str:
    return f"there is no profile {shorten(name)}{nearest(name, known, 'profiles')}"
