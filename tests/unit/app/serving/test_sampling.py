"""Request fields to sampling parameters."""

from typing import Any

import pytest

from app.errors import ApiError
from app.protocol.completions import CompletionRequest
from app.serving.limits import completion_budget
from app.serving.sampling import choice_seed, for_choice, sampling_params
from engine.text.info import GenerationDefaults
from engine.types import SamplingParams


def params(defaults: GenerationDefaults | None = None, **fields: Any) -> SamplingParams:
    request = CompletionRequest.model_validate({"model": "m", "prompt": "x", **fields})
    return sampling_params(
        request,
        max_tokens=16,
        vocab_size=100,
        defaults=defaults or GenerationDefaults(),
        logprobs=request.logprobs,
    )


def test_defaults() -> None:
    made = params()
    assert made == SamplingParams(max_tokens=16, seed=made.seed)
    assert params().seed != made.seed


def test_every_field_arrives() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
        "seed": 11,
        "min_tokens": 3,
        "ignore_eos": True,
        "logprobs": 4,
    }
    made = params(**fields, logit_bias={"5": -100, "7": 1.5}, stop_token_ids=[8, 9])
    assert {name: getattr(made, name) for name in fields} == fields
    assert made.logit_bias == {5: -100.0, 7: 1.5}
    assert made.stop_token_ids == {8, 9}


def test_the_request_overrides_the_model() -> None:
    model = GenerationDefaults(0.6, 0.8, 20, 0.05, 1.1)
    made = params(model)
    assert (made.temperature, made.top_p, made.top_k) == (0.6, 0.8, 20)
    assert (made.min_p, made.repetition_penalty) == (0.05, 1.1)
    asked = params(model, temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1)
    assert asked == SamplingParams(max_tokens=16, temperature=0, seed=asked.seed)


@pytest.mark.parametrize("value", [-1, 0])
def test_top_k_off(value: int) -> None:
    assert params(top_k=value).top_k == 0


def test_seeds_are_apart_and_in_range() -> None:
    seeds = [choice_seed(seed, i) for seed in (0, 1, -1, 2**63 - 1, -(2**63)) for i in range(128)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len({choice_seed(42, i) for i in range(128)}) == 128
    assert choice_seed(42, 0) == 42
    base = params(seed=42)
    assert for_choice(base, 0) is base
    assert for_choice(base, 3).seed == choice_seed(42, 3)


@pytest.mark.parametrize("bias", [{"5": float("nan")}, {" 5": 1}, {"+5": 1}, {"5.0": 1}, {"": 1}])
def test_bad_bias(bias: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        params(logit_bias=bias)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("prompt", "asked", "default", "budget"),
    [
        (10, None, None, 90),
        (10, 90, None, 90),
        (10, None, 16, 16),
        (90, None, 16, 10),
        (100, 0, 16, 0),
    ],
)
def test_budget(prompt: int, asked: int | None, default: int | None, budget: int) -> None:
    assert completion_budget(prompt, asked, default, 100, "prompt") == budget


@pytest.mark.parametrize(
    ("prompt", "asked"), [(10, 91), (100, None), (101, 0), (101, None), (100, 1)]
)
def test_over_budget(prompt: int, asked: int | None) -> None:
    with pytest.raises(ApiError) as caught:
        completion_budget(prompt, asked, 16, 100, "prompt")
    assert caught.value.code == "context_length_exceeded"
    assert "100" in caught.value.message and str(prompt) in caught.value.message
