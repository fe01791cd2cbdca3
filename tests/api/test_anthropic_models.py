"""``/v1/models`` and ``/v1/embeddings`` as the clients of OpenAI and of Anthropic see them."""

import anthropic
import openai
import pytest

from app.config import ServerConfig
from tests.support.api import MODEL, serving_api

NAMES = (MODEL, "other/name")


async def test_both_clients_list_and_read_models() -> None:
    async with serving_api(server=ServerConfig(served_model_names=NAMES)) as api:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="k") as client:
            listed = [model async for model in client.models.list()]
            assert tuple(model.id for model in listed) == NAMES
            assert (await client.models.retrieve(NAMES[1])).object == "model"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("absent")
            with pytest.raises(openai.APIStatusError) as caught:
                await client.with_options(max_retries=0).embeddings.create(model=MODEL, input="x")
            assert (caught.value.status_code, caught.value.code) == (501, "not_supported")
        async with anthropic.AsyncAnthropic(base_url=api.url, api_key="k") as other:
            models = [model async for model in other.models.list()]
            assert tuple(model.id for model in models) == NAMES
            one = await other.models.retrieve(NAMES[1])
            assert (one.type, one.display_name, one.created_at.year) == ("model", NAMES[1], 2023)
            with pytest.raises(anthropic.NotFoundError) as missing:
                await other.models.retrieve("absent")
            assert missing.value.request_id is not None


async def test_the_key_of_an_anthropic_client_opens_the_model_list() -> None:
    async with serving_api(server=ServerConfig(api_keys=("k3y",))) as api:
        version = {"anthropic-version": "2023-06-01"}
        for headers, status in (
            ({**version, "x-api-key": "k3y"}, 200),
            ({**version, "x-api-key": "no"}, 401),
            ({"x-api-key": "k3y"}, 401),
        ):
            answer = await api.http.get("/v1/models", headers=headers)
            assert answer.status_code == status
