"""Responses, completions and embeddings through the package `openai` for Python."""
import openai

from material import (BOOK, BOOK_QUESTION, LONG, PARAMETERS, PIXEL, SHORT, TOOL_QUESTION, TOOL_RESULT, UNSUPPORTED, UNSUPPORTED_PATH, Plant,
                      fits, prose, response_tools, second_word)

LIBRARY = "openai responses, completions (Python)"


class Others:
    """The client, with the fields that most checks share."""

    def __init__(self, checks, served):
        self.served = served
        self.client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0, timeout=120)
        checks.watch(self.client._client)

    def respond(self, items, **fields):
        fields = {"temperature": 0, "max_output_tokens": 48, **fields}
        return self.client.responses.create(model=self.served.model, input=items, **fields)

    def complete(self, prompt, **fields):
        fields = {"temperature": 0, "max_tokens": 24, **fields}
        body = {name: fields.pop(name) for name in ("seed",) if name in fields}
        return self.client.completions.create(model=self.served.model, prompt=prompt, extra_body=body or None, **fields)


def run(checks, served):
    others = Others(checks, served)
    for part in (responses, response_stream, response_formats, response_calls, response_refusals, completions, completion_logprobs, embeddings, leaving):
        part(others, checks, served)


def responses(others, checks, served):
    reply = others.respond(LONG)
    checks.that(reply.output_text and reply.output[-1].type == "message", "a response with text", reply)
    served.answers["openai responses"] = reply.output_text
    usage = reply.usage
    checks.that(usage.total_tokens == usage.input_tokens + usage.output_tokens, "usage adds up", reply)
    cut = others.respond(LONG, max_output_tokens=5)
    checks.that(cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", "a cut one says that it is incomplete", cut)
    turns = [{"role": "user", "content": SHORT}, {"role": "assistant", "content": "A large animal."}, {"role": "user", "content": "Where?"}]
    second = others.respond(turns, instructions="Be brief.")
    checks.that(second.usage.input_tokens > usage.input_tokens // 2 and second.output, "a conversation with instructions", second)
    typed = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": LONG}]}]
    checks.equal(others.respond(typed).output_text, reply.output_text, "typed items are the same as their text")
    logged = others.respond(LONG, top_logprobs=3, include=["message.output_text.logprobs"], max_output_tokens=8)
    tokens = logged.output[-1].content[0].logprobs
    checks.that(tokens and all(len(token.top_logprobs) == 3 for token in tokens), "log probabilities when asked for", logged)
    if not served.thinks:
        return checks.skip("reasoning items", f"{served.model} has no way to think")
    thought = others.respond(LONG, reasoning={"effort": "medium"}, max_output_tokens=300)
    checks.that(thought.output[0].type == "reasoning", "reasoning is an item of its own", thought)


def response_stream(others, checks, served):
    events = list(others.respond(LONG, stream=True))
    kinds = [event.type for event in events]
    texts = kinds.count("response.output_text.delta")
    ended = "response.completed" if events[-1].response.status == "completed" else "response.incomplete"
    wanted = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
              *texts * ["response.output_text.delta"], "response.output_text.done", "response.content_part.done", "response.output_item.done", ended]
    checks.equal(kinds, wanted, f"the events come in order, {texts} of them text")
    checks.equal([event.sequence_number for event in events], list(range(len(events))), "they are numbered")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    checks.equal(text, served.answers["openai responses"], "the pieces join to the whole answer")
    checks.equal(events[-1].response.output_text, text, "and the last event repeats it")
    # It knows no response that the limit cut.
    word = second_word(text)
    with others.client.responses.stream(model=served.model, input=LONG, temperature=0, max_output_tokens=48, extra_body={"stop": [word]}) as stream:
        for _ in stream:
            pass
        checks.equal(stream.get_final_response().output_text, text[:text.index(word)], "the package's own stream helper")


def response_formats(others, checks, served):
    form = {"format": {"type": "json_schema", "name": "book", "strict": True, "schema": BOOK}}
    reply = others.respond(BOOK_QUESTION, text=form, max_output_tokens=1500)
    checks.that(fits(reply.output_text, BOOK), "a response with a schema is valid JSON of it", reply)
    plant = others.client.responses.parse(model=served.model, input="A plant.", text_format=Plant, temperature=0, max_output_tokens=800)
    checks.that(isinstance(plant.output_parsed, Plant), "the package's own parse helper reads its class", plant)


def response_calls(others, checks, _served):
    items = [{"role": "user", "content": TOOL_QUESTION}]
    reply = others.respond(items, tools=response_tools(), tool_choice="required", max_output_tokens=800)
    call = reply.output[-1]
    checks.that(call.type == "function_call" and fits(call.arguments, PARAMETERS[call.name]), "a required call fits its tool's schema", reply)
    items += [call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": TOOL_RESULT}]
    further = others.respond(items, tools=response_tools())
    checks.that(further.usage.output_tokens >= 1, "a response follows the call's output", further)
    choice = {"type": "function", "name": "sum"}
    events = list(others.respond(TOOL_QUESTION, tools=response_tools(), tool_choice=choice, max_output_tokens=800, stream=True))
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    checks.that(fits(arguments, PARAMETERS["sum"]) and done and done[0].arguments == arguments, "streamed, the pieces join to the arguments", events)
    hosted = others.respond(SHORT, tools=[{"type": "web_search"}], max_output_tokens=4)
    checks.that(hosted.usage.output_tokens > 0, "tools that run elsewhere are left away", hosted)


def response_refusals(others, checks, _served):
    refused = [("previous_response_id", {"previous_response_id": "resp_1"}), ("background", {"background": True}),
               ("truncation", {"truncation": "auto"}), ("conversation", {"conversation": "conv_1"})]
    for name, fields in refused:
        checks.raises(openai.BadRequestError, lambda: others.respond(SHORT, **fields), f"{name} is refused by name", name)
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}]}]
    checks.raises(openai.BadRequestError, lambda: others.respond(image), "an image is refused by name and place", "input[0].content[0]", "input_image")
    tools = [{"type": "function", "name": "weather", "parameters": UNSUPPORTED, "strict": True}]
    checks.raises(openai.BadRequestError, lambda: others.respond(SHORT, tools=tools, tool_choice="required"),
                  "a tool with an unsupported schema is refused with the path", UNSUPPORTED_PATH)


def completions(others, checks, served):
    prompt = prose(200)
    reply = others.complete(prompt)
    text = reply.choices[0].text
    checks.that(text and reply.usage.completion_tokens == 24, "a text is continued", reply)
    ids = served.server.tokens(prompt)
    checks.equal(reply.usage.prompt_tokens, len(ids), "its prompt has the tokens of /tokenize")
    checks.equal(others.complete(ids).choices[0].text, text, "ids are the same as their text")
    streamed = list(others.complete(prompt, stream=True, stream_options={"include_usage": True}))
    checks.equal("".join(choice.text for chunk in streamed for choice in chunk.choices), text, "streamed it is the same")
    checks.that(streamed[-1].usage.completion_tokens == 24, "with usage in the last chunk", streamed)
    word = second_word(text)
    checks.equal(others.complete(prompt, stop=[word]).choices[0].text, text[:text.index(word)], "a stop text ends it")
    checks.equal(others.complete(prompt, max_tokens=openai.omit).usage.completion_tokens, 16, "without a limit there are 16 tokens")
    checks.that(len({choice.text for choice in others.complete(prompt, n=2, temperature=1.0, seed=1).choices}) == 2, "n of 2 gives two", None)
    checks.raises(openai.BadRequestError, lambda: others.complete(prompt, echo=True), "echo is refused by name", "echo")
    checks.raises(openai.BadRequestError, lambda: others.complete(prompt, suffix="x"), "suffix is refused by name", "suffix")
    checks.raises(openai.BadRequestError, lambda: others.complete(["a", "b"]), "several prompts are refused", "prompt")


def completion_logprobs(others, checks, _served):
    reply = others.complete(prose(200), logprobs=5)
    logged, count = reply.choices[0].logprobs, reply.usage.completion_tokens
    lengths = [len(part) for part in (logged.tokens, logged.token_logprobs, logged.top_logprobs, logged.text_offset)]
    checks.equal(lengths, [count] * 4, "log probabilities of completions: four lists of one length")
    checks.that(all(len(top) == 5 for top in logged.top_logprobs), "five of the likeliest for each", reply)
    likeliest = all(max(top.values()) == chosen for top, chosen in zip(logged.top_logprobs, logged.token_logprobs))
    checks.that(likeliest, "at temperature 0 the chosen one is the likeliest", reply)
    ends = [offset + len(token) for offset, token in zip(logged.text_offset, logged.tokens)]
    checks.equal(logged.text_offset, [0, *ends[:-1]], "offsets count characters of the text")


def embeddings(others, checks, _served):
    call = lambda: others.client.embeddings.create(model="any", input="text")
    checks.raises(openai.BadRequestError, call, "embeddings are refused with a sentence", "no embedding")


def leaving(others, checks, served):
    server = served.server
    stream = others.complete(prose(200), stream=True, max_tokens=1500, logit_bias=server.never_ending())
    next(stream)
    stream.close()
    seconds = server.wait_until_idle(10)
    checks.that(seconds is not None and seconds < 1, "closing a stream of a completion frees its slot", seconds)
    checks.figure(f"free {1000 * seconds:.1f} ms after the stream was closed")
