"""LiteLLM: the generic OpenAI provider."""

import json
from typing import Any

import litellm
from checks import BASE_URL, KEY, MODEL, PAINT, QUESTION, TOOL, WEATHER, Paint, get_weather, report

litellm.telemetry = False


def ask(question: str, **more: Any) -> Any:
    messages = more.pop("messages", [{"role": "user", "content": question}])
    return litellm.completion(
        model=f"openai/{MODEL}",
        api_base=BASE_URL,
        api_key=KEY,
        messages=messages,
        temperature=0,
        max_tokens=64,
        **more,
    )


def chat() -> None:
    answer = ask(QUESTION)
    assert answer.choices[0].message.content and answer.usage.total_tokens > 0


def stream() -> None:
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(QUESTION, stream=True)]
    assert len(pieces) > 2 and "".join(pieces)


def structured() -> None:
    answer = ask(PAINT, response_format=Paint)
    Paint.model_validate_json(answer.choices[0].message.content)


def tools() -> None:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    first = ask("", messages=messages, tools=[TOOL], tool_choice="required")
    call = first.choices[0].message.tool_calls[0]
    result = get_weather(**json.loads(call.function.arguments))
    reply = {"role": "tool", "tool_call_id": call.id, "content": result}
    messages += [first.choices[0].message.model_dump(), reply]
    last = ask("", messages=messages, tools=[TOOL], tool_choice="none")
    assert last.choices[0].message.content


if __name__ == "__main__":
    report("litellm", chat, stream, structured, tools)
