// The Vercel AI SDK with its provider for OpenAI-compatible servers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import {
  PAINT, Paint, Place, QUESTION, WEATHER, apiKey, baseURL, check, getWeather, model, report,
} from "./checks.mjs";

const flare = createOpenAICompatible({
  name: "flare", baseURL, apiKey, supportsStructuredOutputs: true, includeUsage: true,
});
const short = { model: flare(model), temperature: 0, maxOutputTokens: 64, maxRetries: 0 };

await report("ai", {
  async chat() {
    const { text, usage } = await generateText({ ...short, prompt: QUESTION });
    check(text && usage.outputTokens > 0, "no text or usage");
  },
  async stream() {
    const { textStream } = streamText({ ...short, prompt: QUESTION });
    const pieces = [];
    for await (const piece of textStream) pieces.push(piece);
    check(pieces.length > 2, "not streamed");
  },
  async structured() {
    const { output } = await generateText({
      ...short, prompt: PAINT, output: Output.object({ schema: Paint }),
    });
    Paint.parse(output);
  },
  async tools() {
    const weather = tool({
      description: "The weather of a city.", inputSchema: Place, execute: async (place) => getWeather(place),
    });
    const { steps, text } = await generateText({
      ...short,
      prompt: WEATHER,
      tools: { get_weather: weather },
      providerOptions: { flare: { parallel_tool_calls: false } },
      stopWhen: stepCountIs(3),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    const [result] = steps[0].toolResults;
    check(result?.output.includes("21 degrees"), `no tool run: ${JSON.stringify(steps[0].content)}`);
    check(text, "no text after the tool");
  },
});
