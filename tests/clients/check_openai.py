"""The OpenAI SDK for Python: chat, streaming, parsed answers, tools, responses."""

import json

from checks import BASE_URL, KEY, MODEL, PAINT, QUESTION, TOOL, WEATHER, Paint, get_weather, report
from openai import OpenAI

CLIENT = OpenAI(base_url=BASE_URL, api_key=KEY)
USER = [{"role": "user", "content": QUESTION}]


def chat() -> None:
    answer = CLIENT.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=16, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 16


def stream() -> None:
    with CLIENT.chat.completions.stream(
        model=MODEL, messages=USER, max_tokens=16, temperature=0
    ) as events:
        text = "".join(e.delta for e in events if e.type == "content.delta")
        final = events.get_final_completion()
    assert text and final.choices[0].message.content == text


def structured() -> None:
    answer = CLIENT.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": PAINT}],
        response_format=Paint,
        max_tokens=64,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Paint)


def tools() -> None:
    messages = [{"role": "user", "content": WEATHER}]
    first = CLIENT.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=64,
        temperature=0,
    )
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls
    result = get_weather(**json.loads(call.function.arguments))
    messages += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]
    last = CLIENT.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=24
    )
    assert last.choices[0].message.content


def streamed_tools() -> None:
    with CLIENT.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=64,
        temperature=0,
    ) as events:
        final = events.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert get_weather(**json.loads(call.function.arguments))


def responses() -> None:
    first = CLIENT.responses.create(model=MODEL, input=QUESTION, max_output_tokens=16)
    assert first.output_text
    parsed = CLIENT.responses.parse(
        model=MODEL, input=PAINT, text_format=Paint, max_output_tokens=64, temperature=0
    )
    assert isinstance(parsed.output_parsed, Paint)
    with CLIENT.responses.stream(
        model=MODEL,
        input=PAINT,
        previous_response_id=first.id,
        text_format=Paint,
        max_output_tokens=64,
    ) as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert events.get_final_response().output_text == text


if __name__ == "__main__":
    report("openai", chat, stream, structured, tools, streamed_tools, responses)
