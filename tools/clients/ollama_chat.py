"""The Ollama protocol through the package `ollama` for Python."""
import ollama

from material import (BOOK, BOOK_QUESTION, LONG, PIXEL, SHORT, TOOL_QUESTION, TOOL_RESULT, UNSUPPORTED, UNSUPPORTED_PATH, chat_tools, fits, prose,
                      second_word)

LIBRARY = "ollama (Python)"
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def user(text):
    return [{"role": "user", "content": text}]


class Talk:
    """The client, with the options that most checks share."""

    def __init__(self, checks, served):
        self.served = served
        self.client = ollama.Client(host=served.url, headers={"Authorization": f"Bearer {served.key}"}, timeout=120)
        checks.watch(self.client._client)

    def chat(self, messages, options=None, **fields):
        messages = user(messages) if isinstance(messages, str) else messages
        return self.client.chat(model=self.served.model, messages=messages, options={"temperature": 0, "num_predict": 48, **(options or {})}, **fields)

    def generate(self, prompt, options=None, **fields):
        return self.client.generate(model=self.served.model, prompt=prompt, options={"temperature": 0, "num_predict": 24, **(options or {})}, **fields)


def run(checks, served):
    talk = Talk(checks, served)
    for part in (models, chats, generates, limits, formats, tools, thinking, refusals, leaving, protocols):
        part(talk, checks, served)


def models(talk, checks, served):
    listed = talk.client.list().models
    checks.equal([model.model for model in listed], [served.model], "the list of models has the one that is served")
    checks.that(listed[0].size > 0 and listed[0].details.family, "with its size and family", listed)
    shown = talk.client.show(served.model)
    checks.that("completion" in shown.capabilities and shown.modelinfo, "show tells what it can do", shown)
    checks.equal([model.model for model in talk.client.ps().models], [served.model], "it is in memory")
    checks.raises(ollama.ResponseError, lambda: talk.client.show("nobody"), "another name is not found", served.model, status=404)


def chats(talk, checks, served):
    reply = talk.chat(LONG)
    served.answers["ollama"] = reply.message.content
    checks.that(reply.message.role == "assistant" and reply.message.content and reply.done, "a plain answer", reply)
    checks.that(all(getattr(reply, name) is not None for name in DURATIONS) and reply.total_duration > 0, "with all durations", reply)
    checks.that(reply.prompt_eval_count > 0 and reply.eval_count > 0 and reply.done_reason in ("stop", "length"), "and all counts", reply)
    parts = list(talk.chat(LONG, stream=True))
    checks.equal("".join(part.message.content for part in parts), reply.message.content, "streamed it is the same")
    checks.that(parts[-1].done and not any(part.done for part in parts[:-1]) and len(parts) > 5, "in many lines of which the last is marked", parts)
    checks.equal((parts[-1].eval_count, parts[-1].prompt_eval_count), (reply.eval_count, reply.prompt_eval_count), "it counts the same tokens")
    turns = [{"role": "system", "content": "Be brief."}, *user(SHORT), {"role": "assistant", "content": "An animal."}, *user("Where?")]
    second = talk.chat(turns)
    checks.that(second.eval_count > 0, "a conversation of several turns", second)
    logged = talk.chat(LONG, {"num_predict": 4}, logprobs=True, top_logprobs=3)
    checks.that(logged.logprobs and len(logged.logprobs[0].top_logprobs) == 3, "log probabilities when asked for", logged)


def generates(talk, checks, served):
    checks.equal(talk.generate(LONG, {"num_predict": 48}).response, served.answers["ollama"], "generate asks through the chat template")
    raw = talk.generate(prose(200), raw=True)
    checks.that(raw.response and raw.eval_count == 24, "raw continues a text", raw)
    parts = list(talk.generate(prose(200), raw=True, stream=True))
    checks.equal("".join(part.response for part in parts), raw.response, "streamed it is the same")
    checks.that(talk.generate("").done, "an empty prompt asks whether the model is loaded", None)


def limits(talk, checks, served):
    whole = served.answers["ollama"]
    word = second_word(whole)
    reply = talk.chat(LONG, {"stop": [word]})
    checks.equal((reply.message.content, reply.done_reason), (whole[:whole.index(word)], "stop"), "a stop text ends the answer before it")
    cut = talk.chat(LONG, {"num_predict": 5})
    checks.equal((cut.eval_count, cut.done_reason), (5, "length"), "num_predict cuts the answer and says so")
    hot = {"temperature": 1.0, "seed": 7}
    checks.equal(talk.chat(LONG, hot).message.content, talk.chat(LONG, hot).message.content, "the same seed writes the same text")


def formats(talk, checks, _served):
    reply = talk.chat(BOOK_QUESTION, {"num_predict": 1500}, format=BOOK)
    checks.that(fits(reply.message.content, BOOK), "an answer with a schema is valid JSON of it", reply)
    parts = list(talk.chat(BOOK_QUESTION, {"num_predict": 1500}, format=BOOK, stream=True))
    checks.equal("".join(part.message.content for part in parts), reply.message.content, "streamed it is the same")
    raw = talk.generate("A book: ", {"num_predict": 1500}, format=BOOK)
    checks.that(fits(raw.response, BOOK), "generate takes a schema too", raw)
    loose = talk.chat(BOOK_QUESTION, {"num_predict": 8}, format="json")
    checks.that(loose.message.content.lstrip().startswith("{"), "format json begins an object", loose)
    checks.raises(ollama.ResponseError, lambda: talk.chat(SHORT, format=UNSUPPORTED), "an unsupported schema is refused with the path",
                  UNSUPPORTED_PATH, status=400)


def tools(talk, checks, _served):
    offered = talk.chat(TOOL_QUESTION, tools=chat_tools())
    checks.that(offered.done, "tools may be offered", offered)
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome", "days": 3}}}]}
    history = [*user(TOOL_QUESTION), called, {"role": "tool", "content": TOOL_RESULT, "tool_name": "weather"}]
    checks.that(talk.chat(history, tools=chat_tools()).eval_count >= 1, "an answer follows a tool's result", None)


def thinking(talk, checks, served):
    if not served.thinks:
        return checks.skip("think", f"{served.model} has no way to think")
    on = talk.chat(LONG, {"num_predict": 200}, think=True)
    off = talk.chat(LONG, {"num_predict": 200}, think=False)
    checks.that(on.message.thinking and not off.message.thinking, "think turns reasoning on and off", [on, off])


def refusals(talk, checks, served):
    checks.raises(ollama.ResponseError, lambda: talk.chat(prose(5 * served.context)), "a prompt beyond the context is refused with both numbers",
                  served.context, "tokens", status=400)
    image = [{"role": "user", "content": "?", "images": [PIXEL]}]
    checks.raises(ollama.ResponseError, lambda: talk.chat(image), "an image is refused by name and place", "messages[0].images", status=400)
    checks.raises(ollama.ResponseError, lambda: talk.client.embed(model=served.model, input="x"), "embeddings are refused with a sentence",
                  "no embedding", status=400)
    checks.raises(ollama.ResponseError, lambda: talk.chat(SHORT, {"mirostat": 1}), "an unsupported option is named", "mirostat", status=400)
    stranger = ollama.Client(host=served.url, headers={"Authorization": "Bearer wrong"})
    checks.raises(ollama.ResponseError, lambda: stranger.chat(model=served.model, messages=user(SHORT)), "a wrong key is refused", "key", status=401)


def leaving(talk, checks, served):
    stream = talk.generate(prose(200), {"num_predict": 1500, "temperature": 1.0}, raw=True, stream=True)
    next(stream)
    stream.close()
    seconds = served.server.wait_until_idle(10)
    checks.that(seconds is not None and seconds < 1, "closing a stream frees its slot", seconds)
    checks.figure(f"free {1000 * seconds:.1f} ms after the stream was closed")


def protocols(_talk, checks, served):
    answers = served.answers
    if served.thinks:
        return checks.skip("one answer by all protocols", "they differ in whether a model thinks unasked")
    checks.that(len(set(answers.values())) == 1, f"{' and '.join(answers)} give one answer to one question at temperature 0", answers)
