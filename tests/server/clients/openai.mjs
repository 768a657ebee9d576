// The `openai` package against the server: chat, stream, abort, choices, errors, models. Usage: openai.mjs URI
import assert from "node:assert/strict";
import OpenAI from "openai";

const uri = process.argv[2];
const client = new OpenAI({ baseURL: uri + "v1", apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "My name is Oda and I live in Bergen." }];

const models = [];
for await (const m of client.models.list()) models.push(m.id);
assert.equal(models.length, 1);
const model = models[0];
assert.equal((await client.models.retrieve(model)).owned_by, "local");

const answer = await client.chat.completions.create({ model, messages, temperature: 0 });
assert.match(answer.choices[0].message.content, /Oda/);
assert.equal(answer.choices[0].finish_reason, "stop");
assert.ok(answer.usage.prompt_tokens > 0 && answer.usage.prompt_tokens_details.cached_tokens >= 0);

let text = "", usage = null;
for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, answer.choices[0].message.content);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);

// The package's own accumulator.
const runner = client.chat.completions.stream({ model, messages, temperature: 0, n: 2 });
const final = await runner.finalChatCompletion();
assert.equal(final.choices.length, 2);
assert.equal(final.choices[1].message.content, text);

// An abort in the middle of a stream stops the work.
const endless = await client.chat.completions.create({ model, messages: [{ role: "user", content: "Tell me a story." }], temperature: 1.9, seed: 5, top_p: 1, stream: true, n: 4 });
let n = 0;
for await (const _ of endless) if (++n === 5) break;
endless.controller.abort();
const metrics = async () => await (await fetch(uri + "metrics")).text();
for (let i = 0; ; i++) {
  const got = await metrics();
  if (/quire_requests_running 0/.test(got) && /quire_requests_queued 0/.test(got)) break;
  assert.ok(i < 500, "the work goes on");
  await new Promise((done) => setTimeout(done, 20));
}

const typed = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 300, response_format: { type: "json_schema",
  json_schema: { name: "person", strict: true, schema: { type: "object", properties: { name: { type: "string", maxLength: 12 } }, required: ["name"], additionalProperties: false } } } });
assert.deepEqual(Object.keys(JSON.parse(typed.choices[0].message.content)), ["name"]);
const probable = await client.chat.completions.create({ model, messages, temperature: 0, logprobs: true, top_logprobs: 2 });
assert.equal(probable.choices[0].logprobs.content.length, probable.usage.completion_tokens);

const raw = await client.completions.create({ model, prompt: "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", temperature: 0, max_tokens: 20 });
assert.ok(raw.choices[0].text.length > 0);

await assert.rejects(client.chat.completions.create({ model: "gpt-9", messages }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
await assert.rejects(client.chat.completions.create({ model, messages, temperature: 7 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
await assert.rejects(client.chat.completions.create({ model, messages: [{ role: "user", content: "word ".repeat(9000) }], stream: true }),
  (e) => e instanceof OpenAI.BadRequestError && e.code === "context_length_exceeded");
// Tools: a call, its result, the next turn; streamed, through the package's accumulator; the package's own runner of tools.
const tools = [{ type: "function", function: { name: "get_weather", description: "The weather of a city.", strict: true, parameters: {
  type: "object", properties: { city: { type: "string", maxLength: 16 }, unit: { enum: ["C", "F"] } }, required: ["city", "unit"], additionalProperties: false } } }];
const ask = [{ role: "user", content: "What is the weather in Bergen?" }];
const called = await client.chat.completions.create({ model, messages: ask, tools, tool_choice: "required", parallel_tool_calls: false, temperature: 0 });
const call = called.choices[0].message.tool_calls[0];
assert.equal(called.choices[0].finish_reason, "tool_calls");
assert.equal(call.function.name, "get_weather");
const given = JSON.parse(call.function.arguments);
assert.ok(typeof given.city === "string" && ["C", "F"].includes(given.unit), call.function.arguments);
const next = await client.chat.completions.create({ model, temperature: 0, max_tokens: 20, tools,
  messages: [...ask, called.choices[0].message, { role: "tool", tool_call_id: call.id, content: "12 degrees" }] });
assert.ok(next.usage.prompt_tokens > called.usage.prompt_tokens && next.usage.prompt_tokens_details.cached_tokens > 0);
const streamed = await client.chat.completions.stream({ model, messages: ask, tools, tool_choice: { type: "function", function: { name: "get_weather" } }, parallel_tool_calls: false, temperature: 0 }).finalChatCompletion();
assert.deepEqual(streamed.choices[0].message.tool_calls.map((c) => c.function.name), ["get_weather"]);
assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
let ran = 0;
const runTools = client.chat.completions.runTools({ model, messages: ask, temperature: 0, max_tokens: 200, parallel_tool_calls: false, tool_choice: "required",
  tools: [{ type: "function", function: { ...tools[0].function, parse: JSON.parse, function: (a) => { assert.ok(a.city !== undefined); ran++; return "12 degrees"; } } }] }, { maxChatCompletions: 2 });
await runTools.done().catch((e) => { throw e; });
assert.ok(ran >= 1, "the runner called no tool");
await assert.rejects(client.chat.completions.create({ model, messages: ask, tools, tool_choice: { type: "function", function: { name: "none" } } }), (e) => e instanceof OpenAI.BadRequestError && e.param === "tool_choice");

await assert.rejects(client.embeddings.create({ model, input: "x" }), (e) => e instanceof OpenAI.NotFoundError);
console.log("done");
