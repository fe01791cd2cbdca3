"""``/tokenize`` and ``/detokenize`` over HTTP."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.words import FIRST_BYTE, VOCAB_SIZE, byte_ids, piece_ids


async def post(api: Api, path: str, **fields: Any) -> Any:
    answer = await api.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_tokenize_text(api: Api) -> None:
    body = await post(api, "/tokenize", model="scripted", prompt="h\u00e9", return_token_strs=True)
    assert body == {
        "count": 3,
        "max_model_len": 256,
        "tokens": list(byte_ids("h\u00e9")),
        "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"],
    }


async def test_special_text_can_be_plain(api: Api) -> None:
    on = await post(api, "/tokenize", prompt="<|im_end|>")
    off = await post(api, "/tokenize", prompt="<|im_end|>", parse_special_tokens=False)
    assert on["tokens"] == [2]
    assert off["tokens"] == list(byte_ids("<|im_end|>"))


async def test_round_trip(api: Api) -> None:
    text = "<|im_start|>user\nGr\u00fc\u00df \u4e2d\U0001f600<|im_end|>"
    tokens = (await post(api, "/tokenize", prompt=text))["tokens"]
    assert (await post(api, "/detokenize", tokens=tokens))["prompt"] == text
    plain = await post(api, "/detokenize", tokens=tokens, skip_special_tokens=True)
    assert plain["prompt"] == "user\nGr\u00fc\u00df \u4e2d\U0001f600"


async def test_empty(api: Api) -> None:
    assert (await post(api, "/tokenize", prompt=""))["count"] == 0
    assert (await post(api, "/detokenize", tokens=[])) == {"prompt": ""}
    assert (await post(api, "/detokenize", tokens=piece_ids("one")))["prompt"] == "one"


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        (
            "/tokenize",
            {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
            400,
            "prompt",
        ),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "absent"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "tools": [{"type": "function"}]}, 400, "tools"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens"),
        ("/detokenize", {"tokens": [FIRST_BYTE, 1.5]}, 400, "tokens"),
    ],
)
async def test_refusals(
    api: Api, path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = await api.http.post(path, json=fields)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
