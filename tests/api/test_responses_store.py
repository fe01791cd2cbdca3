"""Kept responses: bounds, conversations, keys, pages of input items."""

from typing import Any

import httpx
import openai
import pytest

from app.config import ServerConfig
from app.serving.responses.store import Exchange, ResponseStore, StoredResponse
from tests.support.api import MODEL, Api, serving_api
from tests.support.words import piece_ids

PATH = "/v1/responses"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def create(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "temperature": 0, "max_output_tokens": 8, **fields}
    return await http.post(PATH, json=body)


async def test_a_conversation_goes_on(api: Api) -> None:
    """Instructions are not carried over; the conversation is."""
    api.script([user("a")], piece_ids("one"))
    api.script([user("a"), said("one"), user("b")], piece_ids(" two"))
    first = (await create(api.http, input="a")).json()
    more = {"input": [user("b")], "previous_response_id": first["id"]}
    second = (await create(api.http, **more)).json()
    assert second["output"][0]["content"][0]["text"] == " two"
    assert second["previous_response_id"] == first["id"]
    api.script(
        [{"role": "system", "content": "S"}, user("a"), said("one"), user("b")], piece_ids("ABC")
    )
    third = (await create(api.http, instructions="S", **more)).json()
    assert third["output"][0]["content"][0]["text"] == "ABC"
    api.script([user("a"), said("one"), user("b"), said("ABC"), user("c")], piece_ids("DEF"))
    fourth = (await create(api.http, input="c", previous_response_id=third["id"])).json()
    assert fourth["output"][0]["content"][0]["text"] == "DEF"


async def test_a_conversation_outlives_its_beginning(api: Api) -> None:
    api.script([user("a")], piece_ids("one"))
    api.script([user("a"), said("one"), user("b")], piece_ids(" two"))
    api.script([user("a"), said("one"), user("b"), said(" two"), user("c")], piece_ids("HI"))
    first = (await create(api.http, input="a")).json()["id"]
    second = (await create(api.http, input="b", previous_response_id=first)).json()["id"]
    assert (await api.http.delete(f"{PATH}/{first}")).json() == {
        "id": first,
        "object": "response",
        "deleted": True,
    }
    answer = await create(api.http, input="b", previous_response_id=first)
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "previous_response_id"
    third = (await create(api.http, input="c", previous_response_id=second)).json()
    assert third["output"][0]["content"][0]["text"] == "HI"


async def test_unknown_responses(api: Api) -> None:
    answers = [
        await api.http.get(f"{PATH}/resp_x"),
        await api.http.delete(f"{PATH}/resp_x"),
        await api.http.post(f"{PATH}/resp_x/cancel"),
        await api.http.get(f"{PATH}/resp_x/input_items"),
    ]
    for answer in answers:
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "resp_x" in error["message"]


async def test_store_false_keeps_nothing(api: Api) -> None:
    body = (await create(api.http, input="a", store=False)).json()
    assert body["store"] is False
    assert (await api.http.get(f"{PATH}/{body['id']}")).status_code == 404


async def test_a_server_that_keeps_nothing() -> None:
    async with serving_api(server=ServerConfig(response_store_bytes=0)) as api:
        body = (await create(api.http, input="a")).json()
        assert body["store"] is False
        assert (await api.http.get(f"{PATH}/{body['id']}")).status_code == 404
        refused = await create(api.http, input="a", store=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
        await api.idle()


async def test_reading_options_and_cancel(api: Api) -> None:
    name = (await create(api.http, input="a")).json()["id"]
    streamed = await api.http.get(f"{PATH}/{name}?stream=true")
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
    included = await api.http.get(f"{PATH}/{name}?include[]=file_search_call.results")
    assert included.json()["error"]["param"] == "include"
    cancelled = await api.http.post(f"{PATH}/{name}/cancel")
    assert cancelled.status_code == 400
    assert "background" in cancelled.json()["error"]["message"]


async def test_input_items_come_in_pages(api: Api) -> None:
    items = [user("a"), said("b"), user("c")]
    first = (await create(api.http, input=items)).json()
    second = (await create(api.http, input="d", previous_response_id=first["id"])).json()
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="k") as client:
        pages = client.responses.input_items.list(second["id"], limit=2, order="asc")
        found = [item async for item in pages]
        backward = [item async for item in client.responses.input_items.list(second["id"])]
    texts = [item.content[0].text for item in found]  # type: ignore[union-attr]
    answered = first["output"][0]["content"][0]["text"]
    assert texts == ["a", "b", "c", answered, "d"]
    assert [item.id for item in backward] == [item.id for item in reversed(found)]
    assert len({item.id for item in found}) == 5
    for query, param in (("limit=0", "limit"), ("order=up", "order"), ("after=x", "after")):
        bad = await api.http.get(f"{PATH}/{first['id']}/input_items?{query}")
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, param)


async def test_keys_do_not_see_each_other() -> None:
    async with serving_api(server=ServerConfig(api_keys=("one", "two"))) as api:
        keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
        ask = {"model": MODEL, "input": "a", "max_output_tokens": 4}
        made = (await api.http.post(PATH, json=ask, headers=keys[0])).json()["id"]
        for key, status in zip(keys, (200, 404), strict=True):
            for method, path in (
                ("GET", f"{PATH}/{made}"),
                ("GET", f"{PATH}/{made}/input_items"),
            ):
                answer = await api.http.request(method, path, headers=key)
                assert answer.status_code == status
        chained = {**ask, "previous_response_id": made}
        assert (await api.http.post(PATH, json=chained, headers=keys[1])).status_code == 404
        assert (await api.http.delete(f"{PATH}/{made}", headers=keys[1])).status_code == 404
        assert (await api.http.get(f"{PATH}/{made}", headers=keys[0])).status_code == 200
        await api.idle()


def exchange(size: int) -> Exchange:
    return Exchange(({"text": "x" * size},), ())


def kept(name: str, *conversation: Exchange) -> StoredResponse:
    return StoredResponse(b"", {"id": name}, conversation)


def test_the_longest_unused_goes_first() -> None:
    store = ResponseStore(1 << 20, max_responses=2)
    store.put(kept("a", exchange(10)))
    store.put(kept("b", exchange(10)))
    assert store.get(b"", "a")
    store.put(kept("c", exchange(10)))
    assert store.get(b"", "b") is None
    assert store.get(b"", "a") and store.get(b"", "c")
    assert len(store) == 2


def test_bytes_are_bounded_and_given_back() -> None:
    store = ResponseStore(1000)
    for number in range(20):
        store.put(kept(f"r{number}", exchange(300)))
        assert store.size <= 1000
    assert len(store) == 2 or len(store) == 3
    store.put(kept("large", exchange(2000)))
    assert store.get(b"", "large") is None and store.get(b"", "r19")
    for number in range(20):
        store.delete(b"", f"r{number}")
    assert (store.size, len(store)) == (0, 0)
    assert not store.delete(b"", "r19")


def test_shared_exchanges_count_once() -> None:
    store = ResponseStore(10_000)
    shared = exchange(500)
    store.put(kept("a", shared))
    alone = store.size
    store.put(kept("b", shared, exchange(1)))
    assert store.size < 2 * alone
    store.delete(b"", "a")
    assert store.size > alone
    store.delete(b"", "b")
    assert store.size == 0


@pytest.mark.parametrize("owner", [b"x", b""])
def test_owners(owner: bytes) -> None:
    store = ResponseStore(10_000)
    store.put(StoredResponse(b"y", {"id": "a"}, (exchange(1),)))
    assert store.get(owner, "a") is None
    assert not store.delete(owner, "a")
    assert store.get(b"y", "a")
