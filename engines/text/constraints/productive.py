"""Which schemas no finite value can match, because each value would have to hold another one.

A schema is productive if some finite value may match it. References are taken to be unproductive first, and found to be
productive from the leaves up (the least fixed point), so that ``{"next": <itself>}`` with ``next`` required stays out. What
this module does not look at is taken to be productive: it finds endless schemas, not every unsatisfiable one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["is_productive"]


def is_productive(schema: Any) -> bool:
    """Whether some finite value may match this JSON Schema. RecursionError for one nested deeper than Python goes."""
    found: set[str] = set()  # references known to be productive
    while True:
        grown = {reference for reference in _references(schema) if _productive(_target(schema, reference), found)}
        if grown <= found:
            return _productive(schema, found)
        found |= grown


def _references(node: Any) -> set[str]:
    if isinstance(node, list):
        return {reference for item in node for reference in _references(item)}
    if not isinstance(node, Mapping):
        return set()
    own = node.get("$ref")
    inner = {reference for value in node.values() for reference in _references(value)}
    return inner | {own} if isinstance(own, str) else inner


def _target(root: Any, reference: str) -> Any:
    """What a reference into the document itself points at; True, which anything matches, for any other."""
    if not reference.startswith("#"):
        return True
    node = root
    for key in filter(None, reference[1:].split("/")):
        name = unquote(key).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return True
    return node


def _productive(node: Any, found: set[str]) -> bool:
    if not isinstance(node, Mapping):
        return node is not False
    reference = node.get("$ref")
    if isinstance(reference, str) and reference not in found:
        return False
    for key, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        options = node.get(key)
        if isinstance(options, list) and not enough(_productive(option, found) for option in options):
            return False
    kinds = node.get("type")
    if kinds in ("object", ["object"]):
        return _object_is_productive(node, found)
    if kinds in ("array", ["array"]):
        return _array_is_productive(node, found)
    return True


def _object_is_productive(node: Mapping[str, Any], found: set[str]) -> bool:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return True
    return all(_productive(properties[name], found) for name in required if name in properties)


def _array_is_productive(node: Mapping[str, Any], found: set[str]) -> bool:
    least, first = node.get("minItems"), node.get("prefixItems")
    if not isinstance(least, int) or least < 1:
        return True
    leading = first[:least] if isinstance(first, list) else []
    if not all(_productive(item, found) for item in leading):
        return False
    return len(leading) >= least or _productive(node.get("items", True), found)
