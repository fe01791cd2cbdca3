// What the Node clients share: the server, the tool, and how an outcome is told (see checks.py).
import { readFile } from "node:fs/promises";
import { z } from "zod";

export const baseURL = `${process.env.FLARE_URL}/v1`;
export const model = process.env.FLARE_MODEL;
export const apiKey = process.env.FLARE_KEY ?? "unused";
export const QUESTION = "What is the capital of France?";
export const PAINT = "Choose a colour and how many walls to paint with it. Answer in JSON.";
export const WEATHER = "What is the weather in Paris?";

export const Paint = z.object({
  colour: z.enum(["red", "green", "blue"]),
  walls: z.number().int().min(1).max(9),
});
export const Place = z.object({
  city: z.enum(["Paris", "Rome"]),
  unit: z.enum(["celsius", "fahrenheit"]),
});

export function getWeather({ city, unit }) {
  return `It is 21 degrees ${unit} and sunny in ${city}.`;
}

export function check(condition, message) {
  if (!condition) throw new Error(message);
}

async function version(name) {
  const file = new URL(`./node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(await readFile(file, "utf8")).version;
}

export async function report(name, checks) {
  for (const [check, run] of Object.entries(checks)) {
    let error = null;
    try {
      await run();
    } catch (exc) {
      error = `${exc.name}: ${exc.message}`;
      console.error(exc);
      process.exitCode = 1;
    }
    console.log(JSON.stringify({ client: name, version: await version(name), check, error }));
  }
}
