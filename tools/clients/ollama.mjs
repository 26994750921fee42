// The Ollama protocol through the package `ollama` for JavaScript.
import { Ollama } from "ollama";
import {
  Checks, LONG, PIXEL, PLANT, SHORT, TOOL_QUESTION, UNSUPPORTED, UNSUPPORTED_PATH, chatTools, fits, key, model, secondWord, thinks, tooLong, url,
  user, watchedFetch,
} from "./common.mjs";

const checks = new Checks("ollama (JavaScript)");
const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` }, fetch: watchedFetch });
const ask = (messages, options = {}, fields = {}) =>
  client.chat({
    model, messages: typeof messages === "string" ? user(messages) : messages, options: { temperature: 0, num_predict: 48, ...options }, ...fields,
  });
class ResponseError extends Error {}

async function answers() {
  const { models } = await client.list();
  checks.equal(models.map((one) => one.model), [model], "the list of models has the one that is served");
  const shown = await client.show({ model });
  checks.that(shown.capabilities.includes("completion"), "show tells what it can do", shown);
  const whole = await ask(LONG);
  const text = whole.message.content;
  checks.that(text && whole.done && whole.total_duration > 0 && whole.eval_duration >= 0, "a plain answer with durations", whole);
  const parts = [];
  for await (const part of await ask(LONG, {}, { stream: true })) parts.push(part);
  checks.equal(parts.map((part) => part.message.content).join(""), text, "streamed it is the same");
  checks.equal([parts.at(-1).done, parts.at(-1).eval_count], [true, whole.eval_count], "its last line is marked and counts the same");
  const word = secondWord(text);
  const stopped = await ask(LONG, { stop: [word] });
  checks.equal([stopped.message.content, stopped.done_reason], [text.slice(0, text.indexOf(word)), "stop"], "a stop text ends the answer before it");
  const generated = await client.generate({ model, prompt: LONG, options: { temperature: 0, num_predict: 48 } });
  checks.equal(generated.response, text, "generate asks through the chat template");
  const offered = await ask(TOOL_QUESTION, {}, { tools: chatTools() });
  checks.that(offered.done, "tools may be offered", offered);
}

async function formats() {
  const reply = await ask("Describe a plant as JSON.", { num_predict: 1200 }, { format: PLANT });
  checks.that(fits(reply.message.content, PLANT), "an answer with a schema is valid JSON of it", reply);
  await checks.raises(ResponseError, () => ask(SHORT, {}, { format: UNSUPPORTED }), "an unsupported schema is refused with the path", UNSUPPORTED_PATH);
}

async function thinking() {
  if (!thinks) return checks.skip("think", `${model} has no way to think`);
  const reply = await ask(LONG, { num_predict: 200 }, { think: true });
  checks.that(reply.message.thinking, "with thinking there is reasoning", reply);
}

async function refusals() {
  await checks.raises(ResponseError, () => ask(tooLong), "a prompt beyond the context is refused with both numbers", "tokens", "context");
  const image = [{ role: "user", content: "?", images: [PIXEL] }];
  await checks.raises(ResponseError, () => ask(image), "an image is refused by name and place", "messages[0].images");
  await checks.raises(ResponseError, () => client.embed({ model, input: "text" }), "embeddings are refused with a sentence", "no embedding");
  const stranger = new Ollama({ host: url, headers: { Authorization: "Bearer wrong" }, fetch: watchedFetch });
  await checks.raises(ResponseError, () => stranger.chat({ model, messages: user(SHORT) }), "a wrong key is refused", "key");
}

async function leaving() {
  const prompt = "The old house stood at the end of the lane, and";
  const stream = await client.generate({ model, prompt, raw: true, stream: true, options: { num_predict: 1500, temperature: 1 } });
  let count = 0;
  for await (const _ of stream) if (++count === 3) break;
  stream.abort();
  await checks.idle("aborting a stream frees its slot");
}

for (const part of [answers, formats, thinking, refusals, leaving]) await part();
