// The OpenAI SDK for Node: chat, streaming, zod, the tool runner, responses.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  PAINT, Paint, Place, QUESTION, WEATHER, apiKey, baseURL, check, getWeather, model, report,
} from "./checks.mjs";

const client = new OpenAI({ baseURL, apiKey });
const user = (content) => [{ role: "user", content }];
const short = { model, max_tokens: 64, temperature: 0 };
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city.",
    parameters: z.toJSONSchema(Place),
  },
};

await report("openai", {
  async chat() {
    const answer = await client.chat.completions.create({ ...short, messages: user(QUESTION) });
    check(answer.choices[0].message.content, "no text");
  },
  async stream() {
    const stream = client.chat.completions.stream({ ...short, messages: user(QUESTION) });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    check(text && text === await stream.finalContent(), "the stream differs from its end");
  },
  async structured() {
    const answer = await client.chat.completions.parse({
      ...short, messages: user(PAINT), response_format: zodResponseFormat(Paint, "paint"),
    });
    Paint.parse(answer.choices[0].message.parsed);
  },
  async tools() {
    const messages = user(WEATHER);
    const first = await client.chat.completions.create({
      ...short, messages, tools: [weather], tool_choice: "required", parallel_tool_calls: false,
    });
    const [call] = first.choices[0].message.tool_calls;
    const content = getWeather(Place.parse(JSON.parse(call.function.arguments)));
    const last = await client.chat.completions.create({
      ...short, tools: [weather], tool_choice: "none",
      messages: [...messages, first.choices[0].message, { role: "tool", tool_call_id: call.id, content }],
    });
    check(last.choices[0].message.content, "no text after the tool");
  },
  async responses() {
    const answer = await client.responses.create({ model, input: QUESTION, max_output_tokens: 16 });
    check(answer.output_text, "no text");
  },
  async abort() {
    const stream = await client.chat.completions.create({
      ...short, max_tokens: 2000, stream: true, messages: user("Tell a very long story."),
    });
    for await (const _ of stream) break;
    stream.controller.abort();
  },
});
