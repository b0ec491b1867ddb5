"""The official clients of OpenAI, Cohere and Ollama against a running gateway of simulated embedding models and rerankers."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import cohere
import ollama
import openai
import pytest
import pytest_asyncio
from cohere.core.api_error import ApiError

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

DIMENSIONS = 32  # of the simulated models
REGISTRY = """
workers: {spare: 0}
models:
  - {id: emb, source: "sim:", aliases: [text-embedding-3-small], context: 128, simulate: {weights: 1MiB, task: embedding}}
  - {id: slow, source: "sim:", simulate: {weights: 1MiB, task: embedding, ttft_s: 600}}
  - {id: rr, source: "sim:", context: 32, simulate: {weights: 1MiB, task: rerank}}
  - {id: chat, source: "sim:", simulate: {weights: 1MiB}}
"""
QUERY = "red fox jumps high"
DOCUMENTS = ["a hen sleeps", "the fox", "red fox jumps", "a red fox jumps high", "nothing"]
BEST = [3, 2, 1, 0, 4]  # the last two have no word of the query


@dataclass(frozen=True)
class House:
    """A running gateway, and the clients that speak to it."""

    gateway: Gateway
    openai: openai.AsyncOpenAI
    ollama: ollama.AsyncClient

    @property
    def url(self) -> str:
        return str(self.gateway.client.base_url)

    async def post(self, path: str, **body: Any) -> Any:
        """The body of an answer, which must be one."""
        answer = await bounded(self.gateway.client.post(path, json=body))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def vectors(self, texts: Any, **options: Any) -> list[list[float]]:
        """By OpenAI's client, whose numbers come as base64."""
        answer = await bounded(self.openai.embeddings.create(model="emb", input=texts, **options))
        assert [item.index for item in answer.data] == list(range(len(answer.data)))
        return [item.embedding for item in answer.data]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as gateway:
        url = str(gateway.client.base_url)
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none needed", max_retries=0) as client,
            ollama.AsyncClient(host=url, trust_env=False) as theirs,
        ):
            yield House(gateway, client, theirs)


# --- OpenAI ---------------------------------------------------------------------------------------------------------


async def test_e1_default_call_is_base64_of_little_endian_float32(house: House) -> None:
    by_default = await house.vectors("the red fox")
    as_floats = await house.vectors("the red fox", encoding_format="float")
    assert by_default == as_floats
    assert len(as_floats[0]) == DIMENSIONS
    body = await house.post("/v1/embeddings", model="emb", input="the red fox", encoding_format="base64")
    raw = base64.b64decode(body["data"][0]["embedding"])
    assert list(struct.unpack(f"<{DIMENSIONS}f", raw)) == as_floats[0]


async def test_e2_forty_inputs_are_each_as_alone(house: House) -> None:
    texts = [f"text {i} of {'many ' * (i % 7)}words" for i in range(40)]
    together = await house.vectors(texts)
    for text, vector in zip(texts, together, strict=True):
        (alone,) = await house.vectors(text)
        assert vector == pytest.approx(alone, abs=1e-4)
    assert len(set(map(tuple, together))) > 30


async def test_options_of_embeddings(house: House) -> None:
    answer = await house.openai.embeddings.create(
        model="text-embedding-3-small",
        input=["w7 w9", "one two three"],
        dimensions=4,
        user="me",
        extra_body={"input_type": "document", "truncate": "end"},
    )
    assert (answer.model, answer.object, answer.data[1].object) == ("emb", "list", "embedding")
    assert [len(item.embedding) for item in answer.data] == [4, 4]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (5, 5)
    assert await house.vectors([[7, 9], "w7 w9"]) == [(await house.vectors([7, 9]))[0]] * 2
    raw = await house.vectors("fox fox", extra_body={"normalize": False})
    assert sum(number * number for number in raw[0]) == pytest.approx(4.25)


async def test_input_that_is_too_long_is_refused_or_cut_where_it_says(house: House) -> None:
    words = [f"w{i}" for i in range(200)]
    text = " ".join(words)
    with pytest.raises(openai.BadRequestError, match=r"input 1 has 200 tokens; this model reads 128") as refusal:
        await house.vectors(["x", text])
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "input")
    end = await house.vectors(text, extra_body={"truncate": "end"})
    start = await house.vectors(text, extra_body={"truncate": "START"})
    assert end == await house.vectors(" ".join(words[:128]))
    assert start == await house.vectors(" ".join(words[-128:]))


async def test_request_and_answer_of_many_frames(house: House) -> None:
    texts = [f"{'x' * 300} w{i}" for i in range(2048)]  # more than 600 KiB there, 256 KiB of float32 back
    vectors = await house.vectors(texts)
    assert len(vectors) == 2048
    for index in (0, 511, 512, 2047):
        assert [vectors[index]] == await house.vectors(texts[index])


async def test_limits_are_looked_at_before_any_model_is(house: House) -> None:
    loads = (await house.gateway.model("slow"))["loads"]
    for texts, limit in ((["x"] * 2049, "max_inputs"), ("x" * 1_000_001, "max_chars")):
        with pytest.raises(openai.APIStatusError, match=rf"server\.{limit} allows") as refusal:
            await house.openai.embeddings.create(model="slow", input=texts)
        assert (refusal.value.status_code, refusal.value.code) == (413, "request_too_large")
    assert (await house.gateway.model("slow"))["loads"] == loads


async def test_client_that_leaves_ends_its_request_and_others_are_served(house: House) -> None:
    asking = asyncio.create_task(house.openai.embeddings.create(model="slow", input="x"))
    await house.gateway.transition("slow", "loaded")
    while not (await house.gateway.status())["leases"]:
        pass  # each look is a round trip
    await house.vectors("meanwhile")
    asking.cancel()
    status = await house.gateway.quiet()
    slow = next(model for model in status["models"] if model["id"] == "slow")
    assert (slow["state"], slow["leases"]) == ("loaded", 0)


# --- Cohere ---------------------------------------------------------------------------------------------------------


async def test_e3_rerank_of_coheres_clients_is_best_first_with_original_indices(house: House) -> None:
    async with cohere.AsyncClientV2(api_key="none needed", base_url=house.url) as client:
        two = await bounded(client.rerank(model="rr", query=QUERY, documents=DOCUMENTS, top_n=2))
        every = await bounded(client.rerank(model="rr", query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=8))
    assert [result.index for result in two.results] == BEST[:2]
    assert [result.index for result in every.results] == BEST
    scores = [result.relevance_score for result in every.results]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    assert every.id and every.meta is not None and every.meta.tokens is not None
    assert every.meta.tokens.input_tokens


async def test_rerank_of_coheres_older_client_reads_objects_and_shows_them(house: House) -> None:
    documents: list[Any] = [{"text": document, "title": f"t{i}"} for i, document in enumerate(DOCUMENTS)]
    async with cohere.AsyncClient(api_key="none needed", base_url=house.url) as client:
        by_text = await bounded(
            client.rerank(model="rr", query=QUERY, documents=documents, top_n=2, return_documents=True)
        )
        by_title = await bounded(
            client.rerank(model="rr", query="t4", documents=documents, rank_fields=["title"], top_n=1)
        )
        with pytest.raises(ApiError) as refusal:
            await client.rerank(model="chat", query=QUERY, documents=DOCUMENTS)
    assert [result.index for result in by_text.results] == BEST[:2]
    assert [result.document.text for result in by_text.results if result.document] == [DOCUMENTS[i] for i in BEST[:2]]
    assert [(result.index, result.document) for result in by_title.results] == [(4, None)]
    assert refusal.value.status_code == 400 and refusal.value.body["error"]["code"] == "wrong_model_kind"


async def test_rerank_of_long_documents(house: House) -> None:
    long = f"{'word ' * 40}fox"
    body = {"model": "rr", "query": QUERY, "documents": ["fox", long]}
    refused = await house.gateway.client.post("/rerank", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")
    assert "documents 1 has 46 tokens" in refused.json()["error"]["message"]
    cut = await house.post("/rerank", **body, truncate="end")
    assert [result["index"] for result in cut["results"]] == [0, 1]
    fewer = await house.post("/rerank", **body, max_tokens_per_doc=3, raw_scores=True)
    assert fewer["usage"]["total_tokens"] == 6 + 8
    assert [result["relevance_score"] for result in fewer["results"]] == [-1.0, -2.0]


async def test_scores_are_in_the_requests_order(house: House) -> None:
    one_and_many = await house.post("/v1/score", model="rr", text_1=QUERY, text_2=DOCUMENTS)
    scores = [item["score"] for item in one_and_many["data"]]
    assert sorted(range(5), key=lambda i: -scores[i]) == BEST
    pairs = await house.post("/v1/score", model="rr", queries=["hen", "fox"], documents=["a hen", "a hen"])
    assert pairs["data"][0]["score"] > 0.8 > 0.2 > pairs["data"][1]["score"]
    assert [item["index"] for item in pairs["data"]] == [0, 1]
    refused = await house.gateway.client.post("/v1/score", json={"model": "rr", "text_1": "q " * 40, "text_2": "x"})
    assert refused.json()["error"]["param"] == "text_2"


# --- Ollama ---------------------------------------------------------------------------------------------------------


async def test_ollamas_client_embeds(house: House) -> None:
    answer = await house.ollama.embed("emb", ["the red fox", "a hen"], dimensions=8, options={"num_ctx": 64})
    assert answer.model == "emb" and answer.prompt_eval_count == 5
    assert answer.total_duration is not None and answer.load_duration is not None
    assert answer.total_duration >= answer.load_duration >= 0
    theirs = await house.vectors(["the red fox", "a hen"], dimensions=8)
    assert [list(vector) for vector in answer.embeddings] == theirs
    older = await house.ollama.embeddings("emb:latest", "fox fox")
    assert sum(number * number for number in older.embedding) == pytest.approx(4.25)


async def test_ollamas_client_has_long_texts_cut_unless_it_says_otherwise(house: House) -> None:
    words = [f"w{i}" for i in range(200)]
    cut = await house.ollama.embed("emb", " ".join(words))
    assert [list(vector) for vector in cut.embeddings] == await house.vectors(" ".join(words[:128]))
    with pytest.raises(ollama.ResponseError, match="input 0 has 200 tokens"):
        await house.ollama.embed("emb", " ".join(words), truncate=False)
    with pytest.raises(ollama.ResponseError, match="num_ctx is 4096"):
        await house.ollama.embed("emb", "x", options={"num_ctx": 4096})


async def test_ollamas_client_keeps_and_drops_the_model(house: House) -> None:
    nothing = await house.ollama.embed("emb", "", keep_alive=-1)
    assert list(nothing.embeddings) == []
    shown = next(model for model in (await house.ollama.ps()).models if model.model == "emb")
    assert shown.expires_at is not None and shown.expires_at.year > 2200
    steps = len([step for step in await house.gateway.steps("emb") if step == "unloaded"])
    await house.ollama.embed("emb", "x", keep_alive=0)
    await house.gateway.transition("emb", "unloaded", count=steps + 1)
    assert "embedding" in ((await house.ollama.show("emb")).capabilities or ())


# --- all of them ----------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "x"}]
TEXT_ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/api/generate", {"prompt": "x"}),
]
EMBEDDING_ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "x"}),
    ("/api/embed", {"input": "x"}),
    ("/api/embed", {}),
    ("/api/embeddings", {"prompt": "x"}),
]
RERANK_ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/rerank", {"query": "x", "documents": ["y"]}),
    ("/v2/rerank", {"query": "x", "documents": ["y"]}),
    ("/rerank", {"query": "x", "documents": ["y"]}),
    ("/v1/score", {"text_1": "x", "text_2": "y"}),
]


def told(path: str, body: Any) -> tuple[str, str | None]:
    """Message and code of an error, from the envelope that the path's protocol has."""
    if path.startswith("/api/"):
        assert body.keys() == {"error"}
        return body["error"], None
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        return body["error"]["message"], None
    return body["error"]["message"], body["error"]["code"]


@pytest.mark.parametrize(
    ("routes", "models", "suitable"),
    [
        (TEXT_ROUTES, ("emb", "rr"), "suitable: chat"),
        (EMBEDDING_ROUTES, ("chat", "rr"), "suitable: emb, slow"),
        (RERANK_ROUTES, ("chat", "emb"), "suitable: rr"),
    ],
    ids=["text", "embedding", "rerank"],
)
async def test_model_of_another_kind_is_told_which_are_suitable(
    house: House, routes: Sequence[tuple[str, dict[str, Any]]], models: Sequence[str], suitable: str
) -> None:
    for path, body in routes:
        for model in models:
            answer = await house.gateway.client.post(path, json={"model": model, **body})
            message, code = told(path, answer.json())
            assert (answer.status_code, code) in ((400, "wrong_model_kind"), (400, None)), path
            assert message.endswith(suitable), path


async def test_p10_unknown_and_missing_model(house: House) -> None:
    for path, body in EMBEDDING_ROUTES + RERANK_ROUTES:
        unknown = await house.gateway.client.post(path, json={"model": "nobody", **body})
        missing = await house.gateway.client.post(path, json=body)
        message, code = told(path, unknown.json())
        assert (unknown.status_code, code) in ((404, "model_not_found"), (404, None)), path
        assert "the registry has: emb, slow, rr, chat" in message
        message, code = told(path, missing.json())
        assert (missing.status_code, code) in ((400, "invalid_request_error"), (400, None)), path
        assert message.startswith("model is missing")
