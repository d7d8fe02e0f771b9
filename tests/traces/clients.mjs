// The JavaScript half of record.py: node clients.mjs CLIENT BASE_URL, with the packages openai, ai,
// @ai-sdk/openai-compatible and zod installed in the folder that TRACE_MODULES names.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.TRACE_MODULES}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const [client, base] = process.argv.slice(2);
const SYSTEM = "You are a helpful assistant. It is 2026-11-21 09:15:00.";
const QUESTIONS = ["Hello!", "What is the weather?", "And what should I wear, {}?", "Thank you."];
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "number" } },
  required: ["city"],
};

async function openaiJs(label) {
  const { default: OpenAI } = await load("openai");
  const api = new OpenAI({ baseURL: `${base}/${label}/v1`, apiKey: "x", maxRetries: 0 });
  const messages = [{ role: "system", content: SYSTEM }];
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  for (const question of QUESTIONS) {
    messages.push({ role: "user", content: question.replace("{}", label) });
    for (;;) {
      const stream = api.chat.completions.stream({ model: "m", messages, tools });
      const { message } = (await stream.finalChatCompletion()).choices[0];
      messages.push(message);
      if (!message.tool_calls?.length) break;
      for (const call of message.tool_calls)
        messages.push({ role: "tool", tool_call_id: call.id, content: "sunny" });
    }
  }
}

async function aiSdk(label) {
  const { generateText, stepCountIs, tool, jsonSchema } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({ name: "stub", baseURL: `${base}/${label}/v1`, apiKey: "x" });
  const weather = tool({
    description: "Weather of a city.",
    inputSchema: jsonSchema(parameters),
    execute: async ({ city }) => `sunny in ${city}`,
  });
  let messages = [];
  for (const question of QUESTIONS) {
    messages.push({ role: "user", content: question.replace("{}", label) });
    const result = await generateText({
      model: provider("m"), system: SYSTEM, messages, tools: { get_weather: weather },
      stopWhen: stepCountIs(4), maxRetries: 0,
    });
    messages = messages.concat(result.response.messages);
  }
}

const talk = { "openai-js": openaiJs, "ai-sdk": aiSdk }[client];
await Promise.all([talk(`${client}-a`), talk(`${client}-b`)]);
