"""LangChain: langchain-openai against the chat completions."""

from checks import BASE_URL, KEY, MODEL, PAINT, QUESTION, WEATHER, Paint, get_weather, report
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL_64 = ChatOpenAI(base_url=BASE_URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=64)
WEATHER_TOOL = tool(get_weather)


def chat() -> None:
    answer = MODEL_64.invoke(QUESTION)
    assert answer.content and answer.usage_metadata["output_tokens"] > 0


def stream() -> None:
    chunks = list(MODEL_64.stream(QUESTION))
    assert len(chunks) > 2 and "".join(chunk.content for chunk in chunks)


async def async_stream() -> None:
    assert "".join([chunk.content async for chunk in MODEL_64.astream(QUESTION)])


def structured() -> None:
    for method in ("json_schema", "function_calling"):
        answer = MODEL_64.with_structured_output(Paint, method=method).invoke(PAINT)
        assert isinstance(answer, Paint), method


def tools() -> None:
    messages = [HumanMessage(WEATHER)]
    first = MODEL_64.bind_tools([WEATHER_TOOL], tool_choice="any").invoke(messages)
    call = first.tool_calls[0]
    result = WEATHER_TOOL.invoke(call)
    assert isinstance(result, ToolMessage) and "21 degrees" in result.content
    last = MODEL_64.bind_tools([WEATHER_TOOL], tool_choice="none")
    assert last.invoke([*messages, first, result]).content


def batch() -> None:
    answers = MODEL_64.batch([QUESTION] * 4)
    assert len({answer.content for answer in answers}) == 1


if __name__ == "__main__":
    report("langchain-openai", chat, stream, async_stream, structured, tools, batch)
