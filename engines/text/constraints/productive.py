"""Which schemas no finite value can match, because each value would have to hold another one.

A schema is productive if some finite value may match it. Each is taken to be unproductive first, and found to be productive
from the leaves up (the least fixed point), so that ``{"next": <itself>}`` with ``next`` required stays out. What this module
does not look at is taken to be productive: it finds endless schemas, not every unsatisfiable one.

Sources: JSON Schema 2020-12, and for the fixed point in linear time Dowling and Gallier, "Linear-time algorithms for testing
the satisfiability of propositional Horn formulae", 1984: each schema waits for its conditions, each condition for one of its
alternatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

__all__ = ["is_productive"]


def is_productive(schema: Any) -> bool:
    """Whether some finite value may match this JSON Schema. RecursionError for one nested deeper than Python goes."""
    references = _References(schema)
    schemas = [schema]  # grows while conditions are read: those that matter to the first
    numbers = {id(schema): 0}
    unmet: list[int] = []  # by schema, its conditions that are not met yet
    owners: list[int] = []  # by condition, the schema
    waiting = defaultdict[int, list[int]](list)  # by schema, the conditions of which it is an alternative
    for number, node in enumerate(schemas):
        conditions = list(_conditions(node, references))
        unmet.append(len(conditions))
        for alternatives in conditions:
            for alternative in alternatives:
                known = numbers.setdefault(id(alternative), len(schemas))
                if known == len(schemas):
                    schemas.append(alternative)
                waiting[known].append(len(owners))
            owners.append(number)
    met = set[int]()
    productive = [number for number, count in enumerate(unmet) if count == 0]
    for number in productive:
        for condition in waiting[number]:
            if condition not in met:
                met.add(condition)
                owner = owners[condition]
                unmet[owner] -= 1
                if unmet[owner] == 0:
                    productive.append(owner)
    return unmet[0] == 0


class _References:
    """What the references of a document point at."""

    def __init__(self, root: Any) -> None:
        self._root = root
        own = root.get("$id") if isinstance(root, Mapping) else None
        self._id = own.removesuffix("#") if isinstance(own, str) else ""
        self._anchors = dict(_anchors(root))

    def target(self, reference: str) -> Any:
        """True, which anything matches, for what is not in the document."""
        local = reference.removeprefix(self._id)
        if local and not local.startswith("#"):
            return True
        fragment = local[1:]
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, True)
        node = self._root
        for key in filter(None, fragment.split("/")):
            name = unquote(key).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return True
        return node


def _anchors(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and isinstance(name := node.get("$anchor"), str):
        yield name, node
    for value in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from _anchors(value)


def _conditions(node: Any, references: _References) -> Iterator[Sequence[Any]]:
    """What has to be productive for this schema to be: of each of these, one."""
    if not isinstance(node, Mapping):
        if node is False:
            yield []
        return
    if isinstance(reference := node.get("$ref"), str):
        yield [references.target(reference)]
    if isinstance(parts := node.get("allOf"), list):
        yield from ([part] for part in parts)
    for key in ("anyOf", "oneOf"):
        if isinstance(options := node.get(key), list):
            yield options
    kinds = node.get("type")
    if kinds in ("object", ["object"]):
        yield from _conditions_of_object(node)
    elif kinds in ("array", ["array"]):
        yield from _conditions_of_array(node)


def _conditions_of_object(node: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    properties, required = _mapping(node.get("properties")), node.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    yield from ([schema] for name, schema in properties.items() if name in names)
    others = [*_mapping(node.get("patternProperties")).values(), node.get("additionalProperties", True)]
    if names - properties.keys():
        yield others
    least = node.get("minProperties")
    if isinstance(least, int) and least > 0:
        yield [*properties.values(), *others]


def _conditions_of_array(node: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    least, first = node.get("minItems"), node.get("prefixItems")
    if not isinstance(least, int) or least < 1:
        return
    leading = first[:least] if isinstance(first, list) else []
    yield from ([item] for item in leading)
    if len(leading) < least:
        yield [node.get("items", True)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
