// The openai package for Node: zod schemas of forms and tools, over both APIs. Arguments: URL, model.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [, , baseURL, model] = process.argv;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const Report = z.object({
  city: z.string(),
  kelvin: z.number().int().min(0),
  sky: z.enum(["clear", "cloudy"]),
  wind: z.object({ from: z.string().nullable(), knots: z.number() }),
  days: z.array(z.object({ day: z.string(), kelvin: z.number() })).max(3),
});
// Spaces as a strict form has them.
const written =
  '{"city": "Rome", "kelvin": 290, "sky": "clear", "wind": {"from": null, "knots": 2.5}, "days": []}';
const content = `Say it as JSON. @@SAY:${written}@@`;

const chat = await client.chat.completions.parse({
  model,
  messages: [{ role: "user", content }],
  response_format: zodResponseFormat(Report, "report"),
});
const response = await client.responses.parse({
  model,
  input: content,
  text: { format: zodTextFormat(Report, "report") },
});
const called = await client.chat.completions.parse({
  model,
  messages: [{ role: "user", content: '@@CALL:get_weather {"place": "Rome"}@@' }],
  tools: [zodFunction({ name: "get_weather", parameters: z.object({ place: z.string() }) })],
});

console.log(JSON.stringify({
  expected: JSON.parse(written),
  chat: chat.choices[0].message.parsed,
  response: response.output_parsed,
  called: called.choices[0].message.tool_calls[0].function.parsed_arguments,
}));
