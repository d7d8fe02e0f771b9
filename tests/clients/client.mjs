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
console.log("1 passed, 0 failed");
