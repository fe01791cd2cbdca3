"""Instructor: models out of text, by tools, by schema and by JSON mode."""

import instructor
from checks import BASE_URL, KEY, MODEL, PAINT, QUESTION, Paint, report
from openai import OpenAI

USER = [{"role": "user", "content": PAINT}]
FIELDS = {"model": MODEL, "max_tokens": 64, "temperature": 0, "max_retries": 0}


def client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=KEY), mode=mode)


def chat() -> None:
    answer = client(instructor.Mode.TOOLS).create(
        response_model=None, messages=[{"role": "user", "content": QUESTION}], **FIELDS
    )
    assert answer.choices[0].message.content


def stream() -> None:
    partial = client(instructor.Mode.TOOLS).create_partial(
        response_model=Paint, messages=USER, **FIELDS
    )
    *_, last = partial
    assert last.colour in ("red", "green", "blue") and 1 <= last.walls <= 9


def structured() -> None:
    answer = client(instructor.Mode.JSON_SCHEMA).create(
        response_model=Paint, messages=USER, **FIELDS
    )
    assert isinstance(answer, Paint)


def tools() -> None:
    answer = client(instructor.Mode.TOOLS).create(response_model=Paint, messages=USER, **FIELDS)
    assert isinstance(answer, Paint)


if __name__ == "__main__":
    report("instructor", chat, stream, structured, tools)
