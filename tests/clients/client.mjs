// The Node SDK against the server: lists models, chats, streams.
import assert from "node:assert";
import OpenAI from "openai";

const [, , baseURL, model] = process.argv;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });

const models = [];
for await (const entry of client.models.list()) models.push(entry.id);
assert(models.includes(model), `models: ${models}`);

const messages = [{ role: "user", content: "What is the capital of Italy?" }];
const plain = await client.chat.completions.create({ model, messages, seed: 3 });
assert(plain.choices[0].message.content.length > 0);
assert(plain.hone.turn_id);

const stream = await client.chat.completions.create({ model, messages, seed: 3, stream: true });
let text = "";
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
assert.strictEqual(text, plain.choices[0].message.content);

await assert.rejects(
  client.chat.completions.create({ model: "nobody", messages }),
  (error) => error.status === 404,
);

const tool = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"], additionalProperties: false },
  },
};
const called = await client.chat.completions.create({
  model,
  messages,
  tools: [tool],
  tool_choice: "required",
  parallel_tool_calls: false,
});
const call = called.choices[0].message.tool_calls[0];
assert.strictEqual(called.choices[0].finish_reason, "tool_calls");
assert(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));
const after = await client.chat.completions.create({
  model,
  messages: [...messages, called.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }],
  tools: [tool],
});
assert.strictEqual(after.hone.session_id, called.hone.session_id);

const response = await client.responses.create({ model, input: "Hello!", stream: true });
const kinds = [];
for await (const event of response) kinds.push(event.type);
assert.strictEqual(kinds.at(-1), "response.completed");
console.log("1 passed, 0 failed");
