// Chat completions and responses through the package `openai` for JavaScript.
import OpenAI from "openai";
import {
  Checks, LONG, PIXEL, PLANT, SHORT, TOOL_QUESTION, TOOL_RESULT, UNSUPPORTED, UNSUPPORTED_PATH, WEATHER, chatTools, fits, key, model,
  neverEnding, secondWord, thinks, tooLong, url, user, watchedFetch,
} from "./common.mjs";

const checks = new Checks("openai (JavaScript)");
const settings = { baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, fetch: watchedFetch };
const client = new OpenAI(settings);
const ask = (messages, fields = {}, options = {}) =>
  client.chat.completions.create(
    { model, messages: typeof messages === "string" ? user(messages) : messages, temperature: 0, max_tokens: 48, ...fields },
    options,
  );
const BadRequest = OpenAI.BadRequestError;

async function streamed(messages, fields = {}) {
  const chunks = [];
  for await (const chunk of await ask(messages, { stream: true, ...fields })) chunks.push(chunk);
  const content = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? "")).join("");
  return { chunks, content };
}

async function answers() {
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  checks.equal(models, [model], "the list of models has the one that is served");
  await checks.raises(OpenAI.NotFoundError, () => client.models.retrieve("nobody"), "another name is not found", model);
  const whole = await ask(LONG);
  const text = whole.choices[0].message.content;
  checks.that(text, "a plain answer", whole);
  const { chunks, content } = await streamed(LONG, { stream_options: { include_usage: true } });
  checks.equal(content, text, "the streamed answer equals the whole one");
  const last = chunks.at(-1);
  const counts = (usage) => [usage.prompt_tokens, usage.completion_tokens];
  checks.equal([last.choices, counts(last.usage)], [[], counts(whole.usage)], "usage comes in one last chunk and counts the same");
  const history = [...user(SHORT), { role: "assistant", content: "An animal." }, ...user("Where does it live?")];
  const second = await ask(history);
  checks.that(second.usage.completion_tokens > 0, "a conversation of several turns", second);
  const word = secondWord(text);
  const stopped = (await ask(LONG, { stop: [word] })).choices[0];
  checks.equal([stopped.message.content, stopped.finish_reason], [text.slice(0, text.indexOf(word)), "stop"], "a stop text ends the answer before it");
  const cut = await ask(LONG, { max_tokens: 5 });
  checks.equal([cut.usage.completion_tokens, cut.choices[0].finish_reason], [5, "length"], "max_tokens cuts the answer and says so");
  const hot = { temperature: 1, seed: 9, max_tokens: 24 };
  const same = await Promise.all([ask(LONG, hot), ask(LONG, hot), streamed(LONG, hot)]);
  checks.equal(same[1].choices[0].message.content, same[0].choices[0].message.content, "the same seed writes the same text, side by side");
  checks.equal(same[2].content, same[0].choices[0].message.content, "also streamed");
  const two = await ask(LONG, { ...hot, n: 2 });
  checks.that(two.choices.length === 2 && two.choices[0].message.content !== two.choices[1].message.content, "n of 2 gives two answers", two);
  const logged = await ask(LONG, { logprobs: true, top_logprobs: 5, max_tokens: 8 });
  const tokens = logged.choices[0].logprobs.content;
  checks.that(tokens.every((token) => token.token === token.top_logprobs[0].token), "the chosen token is the likeliest of five", logged);
}

async function formats() {
  const format = { type: "json_schema", json_schema: { name: "plant", strict: true, schema: PLANT } };
  const reply = await ask("Describe a plant as JSON.", { response_format: format, max_tokens: 1200 });
  const text = reply.choices[0].message.content;
  checks.that(fits(text, PLANT), "an answer with a schema is valid JSON of it", reply);
  checks.equal((await streamed("Describe a plant as JSON.", { response_format: format, max_tokens: 1200 })).content, text, "streamed it is the same");
  const wrong = { type: "json_schema", json_schema: { name: "wrong", schema: UNSUPPORTED } };
  await checks.raises(BadRequest, () => ask(SHORT, { response_format: wrong }), "an unsupported schema is refused with the path", UNSUPPORTED_PATH);
}

async function tools() {
  const reply = await ask(TOOL_QUESTION, { tools: chatTools(), tool_choice: "required", max_tokens: 800 });
  const message = reply.choices[0].message;
  const call = message.tool_calls?.[0];
  checks.that(call?.function.name === "weather" && fits(call.function.arguments, WEATHER), "a required call fits its tool's schema", reply);
  const history = [...user(TOOL_QUESTION), message, { role: "tool", tool_call_id: call.id, content: TOOL_RESULT }];
  const further = await ask(history, { tools: chatTools() });
  checks.that(further.usage.completion_tokens >= 1, "an answer follows the tool's result", further);
  const { chunks } = await streamed(TOOL_QUESTION, { tools: chatTools(), tool_choice: "required", max_tokens: 800 });
  const pieces = chunks.flatMap((chunk) => chunk.choices.flatMap((choice) => choice.delta.tool_calls ?? []));
  checks.equal(pieces.map((piece) => piece.function.arguments).join(""), call.function.arguments, "streamed, its pieces join to the same");
  const none = await ask(TOOL_QUESTION, { tools: chatTools(), tool_choice: "none" });
  checks.that(!none.choices[0].message.tool_calls?.length, "tool_choice none makes no call", none);
  await checks.raises(BadRequest, () => ask(SHORT, { tools: chatTools(UNSUPPORTED), tool_choice: "required" }),
    "a tool with an unsupported schema is refused with the path", UNSUPPORTED_PATH);
}

async function responses() {
  const respond = (input, fields = {}) => client.responses.create({ model, input, temperature: 0, max_output_tokens: 48, ...fields });
  const reply = await respond(LONG);
  checks.that(reply.output_text && reply.output[0].type === "message", "a response with text", reply);
  const events = [];
  for await (const event of await respond(LONG, { stream: true })) events.push(event);
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  checks.equal(deltas.map((event) => event.delta).join(""), reply.output_text, "its stream joins to the same");
  checks.equal(events.map((event) => event.sequence_number), events.map((_, index) => index), "its events are numbered");
  const tool = { type: "function", name: "weather", parameters: WEATHER, strict: true };
  const called = await respond(TOOL_QUESTION, { tools: [tool], tool_choice: "required", max_output_tokens: 800 });
  const call = called.output.at(-1);
  checks.that(call.type === "function_call" && fits(call.arguments, WEATHER), "a required call is an item that fits its schema", called);
  const output = { type: "function_call_output", call_id: call.call_id, output: TOOL_RESULT };
  const further = await respond([...user(TOOL_QUESTION), call, output], { tools: [tool] });
  checks.that(further.usage.output_tokens >= 1, "a response follows its output", further);
}

async function thinking() {
  if (!thinks) return checks.skip("thinking", `${model} has no way to think`);
  const reply = await ask(LONG, { reasoning_effort: "medium", max_tokens: 800 });
  checks.that(reply.choices[0].message.reasoning_content, "with thinking there is reasoning", reply);
}

async function refusals() {
  await checks.raises(BadRequest, () => ask(tooLong), "a prompt beyond the context is refused with both numbers", "tokens", "context");
  await checks.raises(BadRequest, () => ask(SHORT, { temperatur: 1 }), "an unknown field is named, with the known one", "temperatur", "temperature?");
  const image = [{ role: "user", content: [{ type: "image_url", image_url: { url: `data:image/png;base64,${PIXEL}` } }] }];
  await checks.raises(BadRequest, () => ask(image), "an image is refused by name and place", "messages[0].content[0]", "image_url");
  const stranger = new OpenAI({ ...settings, apiKey: "wrong" });
  const call = () => stranger.chat.completions.create({ model, messages: user(SHORT) });
  await checks.raises(OpenAI.AuthenticationError, call, "a wrong key is refused", "key");
  await checks.raises(BadRequest, () => client.embeddings.create({ model, input: "text" }), "embeddings are refused with a sentence", "no embedding");
}

async function leaving() {
  const stream = await ask(LONG, { stream: true, max_tokens: 1500, logit_bias: await neverEnding() });
  let count = 0;
  for await (const _ of stream) if (++count === 4) break;
  await checks.idle("leaving the loop over a stream frees its slot");
  const controller = new AbortController();
  const pending = ask(SHORT, { max_tokens: 1500, logit_bias: await neverEnding() }, { signal: controller.signal });
  setTimeout(() => controller.abort(), 100);
  await checks.raises(OpenAI.APIUserAbortError, () => pending, "a request without a stream can be aborted");
  await checks.idle("and frees its slot");
}

for (const part of [answers, formats, tools, responses, thinking, refusals, leaving]) await part();
