"""The policy of a resident that several ids share."""

from __future__ import annotations

import typing

from gateway.registry.schema import Priority
from gateway.residency.shared_policy import SharedPolicy
from tests.gateway.residency.helpers_core import model


def test_shared_policy_takes_the_highest_priority_the_registry_knows() -> None:
    """Every priority of the registry's schema has a rank."""
    ranks = {
        name: SharedPolicy.of([model("a", priority=name), model("b", priority="batch")]).priority
        for name in typing.get_args(Priority)
    }
    assert ranks == {"batch": 0, "normal": 1, "interactive": 2}


def test_shared_policy_ttl_is_the_longest_of_those_used() -> None:
    policy = SharedPolicy.of([model("a", ttl_s=5), model("b", ttl_s=50), model("c", ttl_s=500)])
    assert policy.ttl_s({"a", "b"}) == 50
    assert policy.ttl_s(set()) == 500
