// The AI SDK: loops of two tools and an object of a zod schema, whole and streamed. Arguments: URL, model, provider.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [, , baseURL, name, provider] = process.argv;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const model = {
  responses: () => openai.responses(name),
  chat: () => openai.chat(name),
  compatible: () => createOpenAICompatible({ name: "speculant", baseURL, supportsStructuredOutputs: true })(name),
}[provider]();

const tools = {
  get_weather: tool({
    description: "Weather of a place.",
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => `sunny in ${place}, 17 degrees`,
  }),
  to_kelvin: tool({
    description: "Convert degrees.",
    inputSchema: z.object({ celsius: z.number().int() }),
    execute: async ({ celsius }) => ({ kelvin: celsius + 273 }),
  }),
};
const calls = '@@CALL:get_weather {"place": "Rome"}@@ @@CALL:to_kelvin {"celsius": 17}@@';
const stopWhen = (isStepCount ?? stepCountIs)(5);

const whole = await generateText({ model, tools, stopWhen, prompt: `How warm? ${calls} @@SAY:It is 290 K.@@` });
const stream = streamText({ model, tools, stopWhen, prompt: `How warm? ${calls} @@SAY:It is 290 K.@@` });
let text = "";
for await (const piece of stream.textStream) text += piece;
const steps = await stream.steps;

const schema = z.object({ city: z.string(), kelvin: z.number().int(), notes: z.record(z.string(), z.string()) });
const written = '{"city": "Rome", "kelvin": 290, "notes": {"sky": "clear"}}'; // spaces as a strict form has them
const { output } = await generateText({
  model,
  output: Output.object({ schema }),
  prompt: `Say it as JSON. @@SAY:${written}@@`,
});

console.log(JSON.stringify({
  whole: whole.text,
  wholeSteps: whole.steps.length,
  results: whole.steps.flatMap((step) => step.toolResults).map((result) => result.output),
  streamed: text,
  streamedSteps: steps.length,
  output,
}));
