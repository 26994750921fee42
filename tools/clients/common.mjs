// What the scripts for Node share: one line per check, the record of the last exchange, prompts, tools and schemas.
// Owns the environment variables by which conversation.py tells where the server is. Read next: openai.mjs.
import Ajv2020 from "ajv/dist/2020.js";

export const url = process.env.COLDPRESS_URL;
export const key = process.env.COLDPRESS_KEY;
export const model = process.env.COLDPRESS_MODEL;
export const thinks = Boolean(process.env.COLDPRESS_THINKS);

// The bundled model answers most questions in a few words; a sum makes it talk.
export const LONG =
  "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did she sell?";
export const SHORT = 'What does the noun "whale" mean?';
export const TOOL_QUESTION = "What will the weather be in Rome for 3 days?";
export const TOOL_RESULT = "sunny, 24 degrees";
export const PIXEL =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
export const PLANT = {
  type: "object",
  properties: {
    name: { type: "string", minLength: 1, maxLength: 16 },
    height: { type: "integer", minimum: 1, maximum: 500 },
    parts: { type: "array", items: { enum: ["leaf", "root", "stem"] }, minItems: 1, maxItems: 3 },
  },
  required: ["name", "height", "parts"],
  additionalProperties: false,
};
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome", "Oslo"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
export const UNSUPPORTED = { type: "object", properties: { city: { type: "string", if: { minLength: 1 } } } };
export const UNSUPPORTED_PATH = "properties/city/if";
export const chatTools = (schema = WEATHER) => [
  { type: "function", function: { name: "weather", description: "The weather of the next days.", parameters: schema } },
];
export const user = (content) => [{ role: "user", content }];
export const tooLong = "The old house stood at the end of the lane. ".repeat(2000);

const ajv = new Ajv2020({ strict: false });

/** Whether a text, or a value, is JSON that the schema allows. */
export function fits(value, schema) {
  try {
    return ajv.validate(schema, typeof value === "string" ? JSON.parse(value) : value);
  } catch {
    return false;
  }
}

/** A text to stop at, which stands in the middle of the answer. */
export const secondWord = (text) => text.split(/\s+/).slice(1).find((word) => word.length > 2);

let exchange = {};

/** A `fetch` that remembers the last exchange. Streams pass untouched, so that cancelling them reaches the socket. */
export async function watchedFetch(input, init) {
  exchange = { request: String(input?.url ?? input), body: String(init?.body ?? "") };
  const response = await fetch(input, init);
  exchange.status = response.status;
  const kind = response.headers.get("content-type") ?? "";
  if (!kind.startsWith("application/json")) return response;
  const text = await response.text();
  exchange.reply = text;
  return new Response(text, { status: response.status, statusText: response.statusText, headers: response.headers });
}

const shown = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return (text ?? "").slice(0, 6000);
};

export class Checks {
  constructor(library) {
    this.library = library;
    this.passed = 0;
  }

  fail(what, reply) {
    console.log(`BROKEN ${this.library}: ${what}`);
    if (reply !== undefined) console.log(`got: ${shown(reply)}`);
    console.log(`request: ${exchange.request}\n${shown(exchange.body ?? "")}`);
    console.log(`reply: ${exchange.status}\n${shown(exchange.reply ?? "(a stream)")}`);
    process.exit(1);
  }

  that(holds, what, reply) {
    if (!holds) this.fail(what, reply);
    this.passed += 1;
    console.log(`ok       ${this.library}: ${what}`);
  }

  equal(found, wanted, what) {
    this.that(JSON.stringify(found) === JSON.stringify(wanted), what, `${shown(found)}, not ${shown(wanted)}`);
  }

  skip(what, why) {
    console.log(`SKIPPED  ${this.library}: ${what}: ${why}`);
  }

  async raises(kind, call, what, ...parts) {
    let reply;
    try {
      reply = await call();
    } catch (error) {
      const missing = parts.filter((part) => !String(error.message).includes(String(part)));
      const right = error instanceof kind || error.name === kind.name;
      if (!right || missing.length) this.fail(`${what}: without ${missing}`, `${error.name}: ${error.message}`);
      return this.that(true, what);
    }
    this.fail(`${what}: no ${kind.name}`, reply);
  }

  /** Milliseconds until the server computes nothing; fails after `limit`. */
  async idle(what, limit = 1000) {
    const began = performance.now();
    for (;;) {
      const status = await (await fetch(`${url}/v1/status`, { headers: { Authorization: `Bearer ${key}` } })).json();
      const milliseconds = performance.now() - began;
      if (status.engine.running + status.engine.waiting === 0) {
        this.that(milliseconds < limit, what, status);
        return console.log(`         ${this.library}: free ${milliseconds.toFixed(1)} ms after the stream was closed`);
      }
      if (milliseconds > 10 * limit) this.fail(what, status);
    }
  }
}

/** A bias under which an answer ends by its limit only. */
export async function neverEnding() {
  const bias = {};
  for (const content of ["<|im_end|>", "<|endoftext|>"]) {
    const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
    const reply = await fetch(`${url}/tokenize`, { method: "POST", headers, body: JSON.stringify({ content }) });
    const { tokens } = await reply.json();
    if (tokens.length === 1) bias[tokens[0]] = -100;
  }
  return bias;
}
