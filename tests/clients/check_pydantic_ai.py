"""Pydantic AI: text, typed output by schema and by tool, a tool round trip."""

from checks import BASE_URL, KEY, MODEL, PAINT, QUESTION, WEATHER, Paint, get_weather, report
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
CHAT = OpenAIChatModel(MODEL, provider=PROVIDER)
SETTINGS = {"temperature": 0, "max_tokens": 64}


async def chat() -> None:
    result = await Agent(CHAT).run(QUESTION, model_settings=SETTINGS)
    assert result.output


async def stream() -> None:
    async with Agent(CHAT).run_stream(QUESTION, model_settings=SETTINGS) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 2 and "".join(pieces)


async def structured() -> None:
    result = await Agent(CHAT, output_type=NativeOutput(Paint)).run(PAINT, model_settings=SETTINGS)
    assert isinstance(result.output, Paint)


async def output_tool() -> None:
    result = await Agent(CHAT, output_type=ToolOutput(Paint)).run(PAINT, model_settings=SETTINGS)
    assert isinstance(result.output, Paint)


async def tools() -> None:
    """The first request is made to call; the agent then goes on by itself."""
    agent = Agent(CHAT, tools=[get_weather])
    calls = 0

    def settings_of(context: object) -> dict[str, object]:
        nonlocal calls
        calls += 1
        return {**SETTINGS, "tool_choice": "required" if calls == 1 else "none"}

    result = await agent.run(WEATHER, model_settings=settings_of)
    parts = [part for message in result.all_messages() for part in message.parts]
    assert any(isinstance(p, ToolReturnPart) and "21 degrees" in p.content for p in parts)
    assert result.output


if __name__ == "__main__":
    report("pydantic-ai-slim", chat, stream, structured, output_tool, tools)
