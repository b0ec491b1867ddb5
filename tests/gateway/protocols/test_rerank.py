"""Bodies of the rerank routes and of ``/v1/score`` that are refused, the limits they are held to, and the order of results."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engines.wire import Scores, Usage
from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.protocols import rerank, score
from gateway.protocols.options import Limits

LIMITS = Limits(max_inputs=3, max_chars=20)


def rerank_body(**options: Any) -> bytes:
    return json.dumps({"model": "a", "query": "q", "documents": ["x", "y"], **options}).encode()


def score_body(**options: Any) -> bytes:
    return json.dumps({"model": "a", **options}).encode()


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"documents": None}, "documents", "documents is missing"),
        ({"documents": []}, "documents", "an array of 0"),
        ({"documents": "x"}, "documents", "an array of strings"),
        ({"documents": ["x", 5]}, "documents[1]", "documents[1] is 5"),
        ({"documents": [{"title": "x"}]}, "documents[0]", "has no 'text'"),
        ({"documents": [{"text": {"a": 1}}]}, "documents[0]", "has an object for 'text'"),
        ({"documents": [{"image": "data:"}]}, "documents[0]", "rerankers here read text"),
        ({"documents": [{"a": "x"}, {"b": "y"}], "rank_fields": ["a"]}, "documents[1]", "has no 'a'"),
        ({"rank_fields": ["a"]}, "rank_fields", "documents[0] must be an object"),
        ({"rank_fields": []}, "rank_fields", "an array of names"),
        ({"rank_fields": [1]}, "rank_fields", "an array of names"),
        ({"query": ""}, "query", "at least one character"),
        ({"query": None}, "query", "query is missing"),
        ({"top_n": 0}, "top_n", "an integer from 1"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc", "an integer from 1"),
        ({"return_documents": "yes"}, "return_documents", "true or false"),
        ({"priority": 1000}, "priority", "interactive, normal, batch"),
        ({"priority": True}, "priority", "interactive, normal, batch"),
        ({"top_k": 3}, "top_k", "use top_n"),
    ],
)
def test_rerank_refuses_by_name(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        rerank.parse(rerank_body(**options))
    assert refusal.value.param == param
    assert says in refusal.value.message


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({}, "text_1", "text_1 is missing"),
        ({"text_1": "x"}, "text_2", "text_2 is missing"),
        ({"documents": ["x"]}, "queries", "queries is missing"),
        ({"text_1": "x", "text_2": "y", "documents": ["z"]}, "documents", "either text_1"),
        ({"text_1": ["x", "y"], "text_2": ["z"]}, "text_1", "text_1 holds 2 texts and text_2 1"),
        ({"text_1": "x", "text_2": ["y", 1]}, "text_2[1]", "text_2[1] is 1"),
        ({"text_1": "x", "text_2": {"content": []}}, "text_2", "text_2 is an object"),
        ({"text_1": "x", "text_2": "y", "use_activation": False}, "use_activation", "use raw_scores"),
    ],
)
def test_score_refuses_by_name(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        score.parse(score_body(**options))
    assert refusal.value.param == param
    assert says in refusal.value.message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"documents": ["x"] * 4}, "4 inputs; server.max_inputs allows 3"),
        ({"documents": ["x" * 20]}, "21 characters; server.max_chars allows 20"),
        ({"query": "q" * 10, "documents": ["x", ""]}, "21 characters"),
        ({"instruction": "i" * 9, "documents": ["x", ""]}, "21 characters"),
    ],
)
def test_rerank_counts_a_query_with_each_document(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestTooLarge, match=says):
        rerank.parse(rerank_body(**options), LIMITS)


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"text_1": "x", "text_2": ["y"] * 4}, "text_2", "4 inputs"),
        ({"queries": "q" * 10, "documents": ["x", ""]}, "documents", "21 characters"),
        ({"queries": ["q" * 10, "r" * 10], "documents": ["x", ""]}, "documents", "21 characters"),
    ],
)
def test_score_is_held_to_the_limits(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestTooLarge, match=says) as refusal:
        score.parse(score_body(**options), LIMITS)
    assert refusal.value.param == param


def test_results_of_one_score_keep_their_order_and_those_alike_but_for_rounding_do_not() -> None:
    request = rerank.parse(rerank_body(documents=["a", "b", "c", "d"]))
    parts = [
        Scores(request_id=1, first=0, raw=(40.0, 50.0), sigmoid=(1.0, 1.0), tokens=(1, 1)),
        Scores(request_id=1, first=2, raw=(-1.0, 50.0), sigmoid=(0.27, 1.0), tokens=(1, 1)),
    ]
    answer = msgspec.json.decode(rerank.render("id", "a", request, parts, Usage(prompt_tokens=4)))
    assert [result["index"] for result in answer["results"]] == [1, 3, 0, 2]


def test_coheres_priority_is_a_hint_and_ours_is_not() -> None:
    theirs, ours = rerank.parse(rerank_body(priority=7)), rerank.parse(rerank_body(priority="batch"))
    assert (theirs.priority, theirs.ignored) == (None, ("priority",))
    assert (ours.priority, ours.ignored) == ("batch", ())
