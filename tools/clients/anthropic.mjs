// Messages through the package `@anthropic-ai/sdk` for JavaScript.
import Anthropic from "@anthropic-ai/sdk";
import {
  Checks, LONG, PIXEL, PLANT, SHORT, TOOL_QUESTION, TOOL_RESULT, UNSUPPORTED, UNSUPPORTED_PATH, WEATHER, fits, key, model, secondWord,
  thinks, tooLong, url, user, watchedFetch,
} from "./common.mjs";

const checks = new Checks("anthropic (JavaScript)");
const settings = { baseURL: url, apiKey: key, maxRetries: 0, fetch: watchedFetch };
const client = new Anthropic(settings);
const fieldsOf = (messages, fields) => ({
  model, messages: typeof messages === "string" ? user(messages) : messages, temperature: 0, max_tokens: 48, ...fields,
});
const ask = (messages, fields = {}) => client.messages.create(fieldsOf(messages, fields));
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
const tool = (schema = WEATHER) => ({ name: "weather", description: "The weather of the next days.", input_schema: schema });
const BadRequest = Anthropic.BadRequestError;

async function answers() {
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  checks.equal(models, [model], "the list of models has the one that is served");
  const whole = await ask(LONG);
  const text = textOf(whole);
  checks.that(text && ["end_turn", "max_tokens"].includes(whole.stop_reason), "a plain answer", whole);
  const kinds = [];
  const stream = client.messages.stream(fieldsOf(LONG, {}));
  stream.on("streamEvent", (event) => kinds.push(event.type));
  const final = await stream.finalMessage();
  checks.equal(textOf(final), text, "the streamed message equals the whole one");
  checks.equal([kinds[0], kinds.at(-2), kinds.at(-1)], ["message_start", "message_delta", "message_stop"], "its events begin and end as they must");
  const history = [...user(SHORT), { role: "assistant", content: "An animal." }, ...user("Where does it live?")];
  const second = await ask(history, { system: "Be brief." });
  checks.that(second.usage.output_tokens > 0, "a conversation with a system text", second);
  const word = secondWord(text);
  const stopped = await ask(LONG, { stop_sequences: [word] });
  checks.equal([textOf(stopped), stopped.stop_reason, stopped.stop_sequence], [text.slice(0, text.indexOf(word)), "stop_sequence", word],
    "a stop sequence ends the answer before it and is named");
  const counted = await client.messages.countTokens({ model, messages: user(LONG) });
  checks.equal(whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted.input_tokens, "countTokens equals the input of the request");
}

async function formats() {
  const config = { format: { type: "json_schema", schema: PLANT } };
  const reply = await ask("Describe a plant as JSON.", { output_config: config, max_tokens: 1200 });
  checks.that(fits(textOf(reply), PLANT), "an answer with a schema is valid JSON of it", reply);
}

async function tools() {
  const reply = await ask(TOOL_QUESTION, { tools: [tool()], tool_choice: { type: "any" }, max_tokens: 800 });
  const block = reply.content.at(-1);
  checks.that(block.type === "tool_use" && fits(block.input, WEATHER) && reply.stop_reason === "tool_use", "a call fits its tool's schema", reply);
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: block.id, content: TOOL_RESULT }] };
  const further = await ask([...user(TOOL_QUESTION), { role: "assistant", content: reply.content }, result], { tools: [tool()] });
  checks.that(further.usage.output_tokens >= 1, "an answer follows the tool's result", further);
  const pieces = [];
  const stream = client.messages.stream(fieldsOf(TOOL_QUESTION, { tools: [tool()], tool_choice: { type: "any" }, max_tokens: 800 }));
  stream.on("inputJson", (piece) => pieces.push(piece));
  const final = await stream.finalMessage();
  checks.that(pieces.length && fits(final.content.at(-1).input, WEATHER), "a streamed call comes in pieces of its input", final);
  await checks.raises(BadRequest, () => ask(SHORT, { tools: [tool(UNSUPPORTED)], tool_choice: { type: "any" } }),
    "a tool with an unsupported schema is refused with the path", UNSUPPORTED_PATH);
}

async function thinking() {
  if (!thinks) return checks.skip("thinking blocks", `${model} has no way to think`);
  const reply = await ask(LONG, { thinking: { type: "enabled", budget_tokens: 1024 }, max_tokens: 1200 });
  checks.equal(reply.content[0].type, "thinking", "with thinking there is a block of it");
}

async function refusals() {
  await checks.raises(BadRequest, () => ask(tooLong), "a prompt beyond the context is refused with both numbers", "tokens", "context");
  await checks.raises(BadRequest, () => ask(SHORT, { max_token: 1 }), "an unknown field is named", "max_token ");
  const image = [{ role: "user", content: [{ type: "image", source: { type: "base64", media_type: "image/png", data: PIXEL } }] }];
  await checks.raises(BadRequest, () => ask(image), "an image is refused by name and place", "messages[0].content[0]", "image");
  const stranger = new Anthropic({ ...settings, apiKey: "wrong" });
  const call = () => stranger.messages.create(fieldsOf(SHORT, {}));
  await checks.raises(Anthropic.AuthenticationError, call, "a wrong key is refused", "key");
}

async function leaving() {
  const stream = client.messages.stream(fieldsOf(LONG, { temperature: 1, max_tokens: 1500 }));
  let count = 0;
  for await (const _ of stream) if (++count === 6) break;
  stream.abort();
  await checks.idle("leaving the loop over a stream frees its slot");
}

for (const part of [answers, formats, tools, thinking, refusals, leaving]) await part();
