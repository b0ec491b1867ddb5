"""YAML as a registry file may use it: keys are text and stand there once, and what a tag cannot read is a YAML error."""

from __future__ import annotations

from typing import Any

import yaml

from gateway.registry.problems import shorten

__all__ = ["read_yaml"]


def read_yaml(text: str) -> Any:
    """The document's value. yaml.YAMLError says what is wrong and where; RecursionError when it is nested too deeply."""
    return yaml.load(text, _StrictLoader)


class _StrictLoader(yaml.SafeLoader):
    """YAML without repeated keys: the plain loader lets the last one win in silence. Values that are not of their tag's kind
    (``!!int x``, the date 2024-13-45) are YAML errors like others.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
        ) as error:  # whatever the tag's constructor raises
            kind = node.tag.rpartition(":")[2]
            problem = f"{shorten(node.value)} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
