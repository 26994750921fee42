"""Chat completions through the package `openai` for Python."""
import json
import math

import openai

from material import (BOOK, BOOK_QUESTION, LONG, PARAMETERS, PIXEL, SHORT, TOOL_QUESTION, TOOL_RESULT, UNSUPPORTED, UNSUPPORTED_PATH, Plant,
                      chat_tools, fits, prose, second_word)

LIBRARY = "openai (Python)"


def user(text):
    return [{"role": "user", "content": text}]


class Chat:
    """The client, with the fields that most checks share."""

    def __init__(self, checks, served):
        self.checks, self.served = checks, served
        self.client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0, timeout=120)
        checks.watch(self.client._client)

    def create(self, messages, **fields):
        """One request at temperature 0, unless said otherwise. Fields that the package has no name for go into the body."""
        fields = {"temperature": 0, "max_tokens": 48, **fields}
        body = {name: fields.pop(name) for name in ("seed", "top_k", "min_p", "coldpress", "enable_thinking", "temperatur") if name in fields}
        messages = user(messages) if isinstance(messages, str) else messages
        return self.client.chat.completions.create(model=self.served.model, messages=messages, extra_body=body or None, **fields)

    def text(self, messages, **fields):
        return self.create(messages, **fields).choices[0].message.content

    def streamed(self, messages, **fields):
        """Joined content, joined reasoning, and all chunks."""
        chunks = list(self.create(messages, stream=True, **fields))
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        content = "".join(delta.content or "" for delta in deltas)
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        return content, reasoning, chunks


def run(checks, served):
    chat = Chat(checks, served)
    for part in (models, plain_answers, streams, limits, seeds, probabilities, biases, choices, formats, tools, tool_stream, thinking, refusals, leaving):
        part(chat, checks, served)


def models(chat, checks, served):
    names = [model.id for model in chat.client.models.list()]
    checks.equal(names, [served.model], "the list of models has the one that is served")
    checks.equal(chat.client.models.retrieve(served.model).id, served.model, "the model is found by its name")
    checks.raises(openai.NotFoundError, lambda: chat.client.models.retrieve("nobody"), "another name is not found", served.model)
    raw = chat.client.chat.completions.with_raw_response.create(model="gpt-4o", messages=user(SHORT), max_tokens=4)
    checks.that("model" in raw.headers.get("x-coldpress-ignored", ""), "a request to another model is answered, and a header says so",
                dict(raw.headers))


def plain_answers(chat, checks, served):
    reply = chat.create(LONG)
    message, usage = reply.choices[0].message, reply.usage
    served.answers["openai chat"] = message.content
    checks.that(message.role == "assistant" and message.content, "a plain answer", reply)
    checks.that(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens > 0, "usage adds up", reply)
    extension = usage.model_extra["coldpress"]
    checks.that(extension["peak_memory_bytes"] > 0 and 0 <= extension["hit_rate"] <= 1, "usage tells memory and hit rate", reply)
    turns = user(SHORT) + [{"role": "assistant", "content": message.content}] + user("And what is a ship?")
    second = chat.create([{"role": "system", "content": "You are brief."}, *turns])
    checks.that(second.usage.prompt_tokens > usage.prompt_tokens, "a conversation of several turns", second)
    parts = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
    checks.equal(chat.text(parts), message.content, "a list of text parts is the same as their text")
    developer = chat.create([{"role": "developer", "content": "Be brief."}, *user(SHORT)])
    system = chat.create([{"role": "system", "content": "Be brief."}, *user(SHORT)])
    checks.equal(developer.choices[0].message.content, system.choices[0].message.content, "developer means system to these models")


def streams(chat, checks, served):
    whole = chat.create(LONG)
    content, _, chunks = chat.streamed(LONG, stream_options={"include_usage": True})
    checks.equal(content, whole.choices[0].message.content, "the streamed answer equals the whole one")
    checks.that(len(chunks) > 5, "it comes in many chunks", chunks)
    last = chunks[-1]
    checks.that(not last.choices and last.usage and all(chunk.usage is None for chunk in chunks[:-1]), "usage comes in one last chunk", chunks)
    same = (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    checks.that(same, "it counts the same tokens", [last, whole])
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    checks.equal(finishes, [whole.choices[0].finish_reason], "one chunk tells how it ended")
    _, _, silent = chat.streamed(LONG)
    checks.that(all(chunk.usage is None for chunk in silent), "no usage without asking", silent)
    nonce = prose(3000)[7:]
    _, _, chunks = chat.streamed(nonce, max_tokens=2, coldpress={"progress": True})
    notes = [chunk.model_extra["coldpress"] for chunk in chunks if (chunk.model_extra or {}).get("coldpress")]
    checks.that(any("prefill" in note for note in notes), "progress of the prompt is told when asked for", chunks)
    # It takes an answer that the limit cuts for an error.
    word = second_word(content)
    stopped = content[:content.index(word)]
    with chat.client.chat.completions.stream(model=served.model, messages=user(LONG), temperature=0, max_tokens=48, stop=word) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        checks.equal((text, stream.get_final_completion().choices[0].message.content), (stopped, stopped), "the package's own stream helper")


def limits(chat, checks, served):
    whole = chat.text(LONG)
    word = second_word(whole)
    for streamed in (False, True):
        if streamed:
            content, _, chunks = chat.streamed(LONG, stop=[word, "never written"])
            finish = [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1]
        else:
            reply = chat.create(LONG, stop=word)
            content, finish = reply.choices[0].message.content, reply.choices[0].finish_reason
        checks.equal((content, finish), (whole[:whole.index(word)], "stop"), f"a stop text ends the answer before it{', streamed' if streamed else ''}")
    for field in ("max_tokens", "max_completion_tokens"):
        reply = chat.create(LONG, **{"max_tokens": openai.omit, field: 5})
        found = (reply.usage.completion_tokens, reply.choices[0].finish_reason)
        checks.equal(found, (5, "length"), f"{field} cuts the answer and says so")


def seeds(chat, checks, _served):
    hot = {"temperature": 1.0, "max_tokens": 24}
    first, again = (chat.text(LONG, seed=11, **hot) for _ in range(2))
    checks.equal(again, first, "the same seed writes the same text")
    checks.equal(chat.streamed(LONG, seed=11, **hot)[0], first, "also streamed")
    others = {chat.text(LONG, seed=seed, **hot) for seed in range(20, 24)}
    checks.that(len(others) > 1, "other seeds write other texts", sorted(others))
    checks.equal(chat.text(LONG, seed=5, top_k=1, temperature=1.0), chat.text(LONG), "top_k of 1 is the most likely text")
    checks.equal(chat.text(LONG, seed=5, min_p=1.0, temperature=1.0), chat.text(LONG), "and so is min_p of 1")
    repeated = chat.text(LONG, frequency_penalty=2.0, presence_penalty=2.0)
    checks.that(repeated != chat.text(LONG), "penalties change the answer", repeated)


def probabilities(chat, checks, _served):
    reply = chat.create(LONG, logprobs=True, top_logprobs=20, max_tokens=16)
    choice = reply.choices[0]
    tokens = choice.logprobs.content
    checks.that(len(tokens) in (reply.usage.completion_tokens, reply.usage.completion_tokens - 1), "one log probability for each token", reply)
    sums = [sum(math.exp(top.logprob) for top in token.top_logprobs) for token in tokens]
    checks.that(all(0 < total <= 1.0001 for total in sums), "the likeliest tokens have at most all of the probability", sums)
    checks.that(all(len(token.top_logprobs) == 20 for token in tokens), "there are as many as asked for", reply)
    falling = all(a.logprob >= b.logprob for token in tokens for a, b in zip(token.top_logprobs, token.top_logprobs[1:]))
    checks.that(falling, "they are in order", reply)
    first = all(token.logprob == token.top_logprobs[0].logprob and token.token == token.top_logprobs[0].token for token in tokens)
    checks.that(first, "at temperature 0 the chosen token is the likeliest", reply)
    written = b"".join(bytes(token.bytes) for token in tokens)
    checks.that(written.startswith(choice.message.content.encode()), "their bytes are the answer", [written, choice.message.content])
    _, _, chunks = chat.streamed(LONG, logprobs=True, top_logprobs=20, max_tokens=16)
    streamed = [token for chunk in chunks for part in chunk.choices if part.logprobs for token in part.logprobs.content or []]
    checks.equal([token.logprob for token in streamed], [token.logprob for token in tokens], "streamed they are the same")
    warm = chat.create(LONG, logprobs=True, max_tokens=16, temperature=1.0, seed=3)
    checks.that(all(token.logprob <= 0 for token in warm.choices[0].logprobs.content), "none is above zero", warm)


def biases(chat, checks, served):
    reply = chat.create(LONG, logprobs=True, top_logprobs=2, max_tokens=1)
    first = reply.choices[0].logprobs.content[0]
    ids = served.server.tokens(first.token)
    checks.that(len(ids) == 1, "the first token has one id", [first, ids])
    banned = chat.create(LONG, logprobs=True, max_tokens=1, logit_bias={str(ids[0]): -100})
    found = banned.choices[0].logprobs.content[0].token
    checks.equal(found, first.top_logprobs[1].token, "logit_bias bans a token, and the second likeliest comes")
    forced = chat.create(LONG, max_tokens=4, logit_bias={str(ids[0]): 100})
    checks.equal(forced.choices[0].message.content, 4 * first.token, "and forces one")
    endless = chat.create(SHORT, max_tokens=200, logit_bias=served.server.never_ending())
    checks.equal(endless.usage.completion_tokens, 200, "without an end token the answer goes on to its limit")


def choices(chat, checks, _served):
    reply = chat.create(LONG, n=2, temperature=1.0, seed=4, max_tokens=16)
    texts = [choice.message.content for choice in reply.choices]
    checks.that(len(set(texts)) == 2 and [choice.index for choice in reply.choices] == [0, 1], "n of 2 gives two answers", reply)
    checks.that(reply.usage.completion_tokens > 16, "both count", reply)
    chunks = list(chat.create(LONG, n=2, temperature=1.0, seed=4, max_tokens=16, stream=True))
    joined = ["".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index) for index in (0, 1)]
    checks.equal(joined, texts, "streamed they are the same")


def formats(chat, checks, served):
    schema = {"type": "json_schema", "json_schema": {"name": "book", "strict": True, "schema": BOOK}}
    reply = chat.create(BOOK_QUESTION, response_format=schema, max_tokens=1500)
    text = reply.choices[0].message.content
    checks.that(fits(text, BOOK), "an answer with a schema is valid JSON of it", reply)
    checks.equal(chat.streamed(BOOK_QUESTION, response_format=schema, max_tokens=1500)[0], text, "streamed it is the same")
    for seed in range(3):
        hot = chat.create(BOOK_QUESTION, response_format=schema, max_tokens=1500, temperature=1.5, seed=seed)
        checks.that(fits(hot.choices[0].message.content, BOOK), f"also at temperature 1.5, seed {seed}", hot)
    objects = [chat.create("Answer with a JSON object.", response_format={"type": "json_object"}, max_tokens=1000, temperature=1.0, seed=seed)
               for seed in range(6)]
    ended = [reply.choices[0].message.content for reply in objects if reply.choices[0].finish_reason == "stop"]
    checks.that(ended and all(isinstance(json.loads(text), dict) for text in ended), f"json_object: {len(ended)} of 6 answers ended, all are objects",
                objects)
    cut = [reply.choices[0].message.content for reply in objects if reply.choices[0].finish_reason == "length"]
    checks.that(all(text.lstrip().startswith("{") for text in cut), "those cut by the limit begin as one", cut)
    pattern = {"type": "regex", "pattern": "[A-C]{3}-[0-9]{2}"}
    coded = chat.text("Write a code.", response_format=pattern)
    checks.that(len(coded) == 6 and coded[3] == "-" and coded[4:].isdigit(), "an answer with a pattern matches it", coded)
    plant = chat.client.chat.completions.parse(model=served.model, messages=user("A plant."), response_format=Plant, temperature=0, max_tokens=800)
    checks.that(isinstance(plant.choices[0].message.parsed, Plant), "the package's own parse helper reads its class", plant)
    wrong = {"type": "json_schema", "json_schema": {"name": "wrong", "schema": UNSUPPORTED}}
    checks.raises(openai.BadRequestError, lambda: chat.create(SHORT, response_format=wrong), "an unsupported schema is refused with the path",
                  UNSUPPORTED_PATH)


def tools(chat, checks, _served):
    for choice, names in (("required", set(PARAMETERS)), ({"type": "function", "function": {"name": "sum"}}, {"sum"})):
        reply = chat.create(TOOL_QUESTION, tools=chat_tools(), tool_choice=choice, max_tokens=800)
        message = reply.choices[0].message
        call = (message.tool_calls or [None])[0]
        checks.that(call and call.function.name in names and call.id, f"tool_choice {choice} makes a call", reply)
        checks.that(fits(call.function.arguments, PARAMETERS[call.function.name]), "its arguments fit the tool's schema", reply)
        checks.equal(reply.choices[0].finish_reason, "tool_calls", "the answer says that it ended in a call")
    history = [*user(TOOL_QUESTION), message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": TOOL_RESULT}]
    further = chat.create(history, tools=chat_tools())
    checks.that(further.usage.completion_tokens >= 1 and further.choices[0].finish_reason, "an answer follows the tool's result", further)
    none = chat.create(TOOL_QUESTION, tools=chat_tools(), tool_choice="none")
    checks.that(not none.choices[0].message.tool_calls, "tool_choice none makes no call", none)
    auto = chat.create(TOOL_QUESTION, tools=chat_tools())
    checks.that(auto.choices[0].finish_reason in ("stop", "length", "tool_calls"), "tools may be offered without force", auto)
    wrong = chat_tools({"weather": UNSUPPORTED})
    wrong[0]["function"]["description"] = "x"
    checks.raises(openai.BadRequestError, lambda: chat.create(TOOL_QUESTION, tools=wrong, tool_choice="required"),
                  "a tool with an unsupported schema is refused with the path", UNSUPPORTED_PATH)
    wrong = [{"type": "function", "function": {"name": "two words", "parameters": {}}}]
    checks.raises(openai.BadRequestError, lambda: chat.create(TOOL_QUESTION, tools=wrong), "a bad name of a tool is refused with its place", "tools[0]")


def tool_stream(chat, checks, _served):
    choice = {"type": "function", "function": {"name": "weather"}}
    _, _, chunks = chat.streamed(TOOL_QUESTION, tools=chat_tools(), tool_choice=choice, max_tokens=800)
    pieces = [call for chunk in chunks for part in chunk.choices for call in part.delta.tool_calls or []]
    checks.that(pieces and pieces[0].function.name == "weather" and pieces[0].id, "a streamed call begins with its name and id", chunks)
    arguments = "".join(piece.function.arguments or "" for piece in pieces)
    checks.that(fits(arguments, PARAMETERS["weather"]), "its pieces join to valid arguments", chunks)
    finishes = [part.finish_reason for chunk in chunks for part in chunk.choices if part.finish_reason]
    checks.equal(finishes, ["tool_calls"], "and the stream says that it ended in a call")


def thinking(chat, checks, served):
    if not served.thinks:
        return checks.skip("thinking on and off", f"{served.model} has no way to think")
    on = chat.create(LONG, enable_thinking=True, max_tokens=800)
    off = chat.create(LONG, enable_thinking=False, max_tokens=800)
    checks.that(getattr(on.choices[0].message, "reasoning_content", None), "with thinking there is reasoning", on)
    checks.that(on.usage.completion_tokens_details.reasoning_tokens > 0, "its tokens are counted apart", on)
    checks.that(not getattr(off.choices[0].message, "reasoning_content", None), "without there is none", off)
    _, reasoning, chunks = chat.streamed(LONG, enable_thinking=True, max_tokens=800)
    checks.equal(reasoning, on.choices[0].message.reasoning_content, "streamed it is the same")
    none = chat.create(LONG, reasoning_effort="none", max_tokens=800)
    checks.equal(none.choices[0].message.content, off.choices[0].message.content, "reasoning_effort none turns it off")


def refusals(chat, checks, served):
    count = len(served.server.tokens(prose(5 * served.context)))
    checks.that(count >= served.context, "the long text is longer than the context", count)
    error = checks.raises(openai.BadRequestError, lambda: chat.create(prose(5 * served.context)), "a prompt beyond the context is refused",
                          served.context, status=400)
    numbers = [int(word) for word in error.message.split() if word.isdigit()]
    checks.that(any(number >= count for number in numbers) and error.code == "context_length_exceeded", "with both numbers and the code", error.message)
    checks.raises(openai.BadRequestError, lambda: chat.create(SHORT, temperatur=1), "an unknown field is named, with the known one", "temperatur",
                  "temperature?")
    checks.raises(openai.BadRequestError, lambda: chat.create(SHORT, top_p=3), "a value out of range is named", "top_p", "3")
    checks.raises(openai.BadRequestError, lambda: chat.create([]), "an empty conversation is refused", "messages")
    image = [{"role": "user", "content": [{"type": "text", "text": "?"},
                                          {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]}]
    checks.raises(openai.BadRequestError, lambda: chat.create(image), "an image is refused by name and place", "messages[0].content[1]", "image_url")
    stranger = openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
    call = lambda: stranger.chat.completions.create(model=served.model, messages=user(SHORT))
    checks.raises(openai.AuthenticationError, call, "a wrong key is refused", "key", status=401)


def leaving(chat, checks, served):
    """A client that closes its stream ends the work at once."""
    server = served.server
    before = server.status()["server"]
    stream = chat.create(LONG, stream=True, max_tokens=1500, logit_bias=server.never_ending())
    pieces = [next(stream) for _ in range(4)]
    checks.that(server.busy() == 1, "the server is at work while the stream is read", pieces)
    stream.close()
    seconds = server.wait_until_idle(10)
    checks.that(seconds is not None and seconds < 1, "closing a stream frees its slot", seconds)
    checks.figure(f"free {1000 * seconds:.1f} ms after the stream was closed, as /v1/status shows it")
    after = server.status()["server"]
    checks.equal(after["answers_abandoned"], before["answers_abandoned"] + 1, "and counts as an answer whose client left")
