"""OpenAI Agents SDK: over chat completions and over responses."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import (
    BASE_URL,
    KEY,
    MODEL,
    PAINT,
    QUESTION,
    WEATHER,
    City,
    Paint,
    Unit,
    get_weather,
    report,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
SHORT = ModelSettings(temperature=0, max_tokens=64)
CALL = ModelSettings(
    temperature=0, max_tokens=600, tool_choice="required", parallel_tool_calls=False
)


def models() -> list[object]:
    """Fresh clients: each check has an event loop of its own."""
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
    return [OpenAIChatCompletionsModel(MODEL, client), OpenAIResponsesModel(MODEL, client)]


async def chat() -> None:
    for model in models():
        agent = Agent(name="a", model=model, model_settings=SHORT)
        assert (await Runner.run(agent, QUESTION)).final_output


async def stream() -> None:
    for model in models():
        agent = Agent(name="a", model=model, model_settings=SHORT)
        result = Runner.run_streamed(agent, QUESTION)
        events = [event.type async for event in result.stream_events()]
        assert events.count("raw_response_event") > 3 and result.final_output


async def structured() -> None:
    for model in models():
        agent = Agent(name="a", model=model, model_settings=SHORT, output_type=Paint)
        assert isinstance((await Runner.run(agent, PAINT)).final_output, Paint)


def unused(context: RunContextWrapper[list[str]], agent: object) -> bool:
    return not context.context


def ask_weather(context: RunContextWrapper[list[str]], city: City, unit: Unit) -> str:
    """The weather of a city."""
    context.context.append(city)
    return get_weather(city, unit)


async def tools() -> None:
    """The first turn must call; then the tool is gone, so that a small model comes to an end."""
    weather = function_tool(ask_weather, is_enabled=unused)
    for model in models():
        agent = Agent(name="a", model=model, model_settings=CALL, tools=[weather])
        result = await Runner.run(agent, WEATHER, context=[], max_turns=3)
        outputs = [item for item in result.new_items if item.type == "tool_call_output_item"]
        assert "21 degrees" in outputs[0].output
        assert result.final_output


if __name__ == "__main__":
    report("openai-agents", chat, stream, structured, tools)
