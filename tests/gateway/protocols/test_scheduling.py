"""``capacity`` and ``scheduling`` of a model, as the document describes them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from engines.scheduling.capacity import Depth
from gateway.protocols import admin
from gateway.protocols.openapi_answers import SCHEMAS
from gateway.protocols.scheduling import scheduling_objects
from gateway.residency.scheduling import ResidentScheduling
from tests.gateway.helpers_scheduling import report, resident

UNBOUNDED = 2**31 - 1
DETAIL = SCHEMAS["AdminModelDetail"]["properties"]


@pytest.mark.parametrize(
    "told",
    [None, resident(), resident(told=report()), resident(told=report(headroom_bytes=None), width=None, estimate=True)],
)
def test_objects_are_what_the_document_says(told: ResidentScheduling | None) -> None:
    objects: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(scheduling_objects(told)))
    assert list(objects) == ["capacity", "scheduling"]
    assert set(DETAIL) == {*admin.MODEL, *objects}
    for name, value in objects.items():
        jsonschema_rs.validate(DETAIL[name], value)


def test_capacity_has_its_numbers_and_no_bound_is_null() -> None:
    bounded = scheduling_objects(resident())["capacity"]
    assert bounded == {
        "estimate": False, "context": 8192, "grant_bytes": 1 << 30, "width": 4, "queue_limit": 16,
        "rows": [{"rows": 1, "tokens": 8192}, {"rows": 2, "tokens": 4096}, {"rows": 32, "tokens": 0}],
    }  # fmt: skip
    free = scheduling_objects(resident(context=UNBOUNDED, depths=(Depth(1, UNBOUNDED),), width=None))["capacity"]
    assert (free["context"], free["width"], free["rows"]) == (None, None, [{"rows": 1, "tokens": None}])


def test_scheduling_has_every_field_of_the_report() -> None:
    told = report()
    shown = scheduling_objects(resident(told=told))["scheduling"]
    assert set(shown) == set(told.__struct_fields__)
    assert shown["by_priority"] == {"interactive": 1, "normal": 2, "batch": 3}
    assert (shown["band"], shown["failures_by_memory"], shown["ratio"]) == ("yellow", 9, 4.5)
    wait = shown["queue_wait"]
    assert (wait["count"], wait["sum_s"]) == (2, pytest.approx(3.0005))
    assert [bucket["count"] for bucket in wait["buckets"] if bucket["le_s"] in (0.001, 2.5, 5.0)] == [1, 1, 2]
