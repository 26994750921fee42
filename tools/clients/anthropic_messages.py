"""Messages through the package `anthropic` for Python. Its newest versions have no name for temperature; it goes into the body."""
import anthropic

from material import (BOOK, BOOK_QUESTION, LONG, PARAMETERS, PIXEL, SHORT, TOOL_QUESTION, TOOL_RESULT, UNSUPPORTED, UNSUPPORTED_PATH, fits,
                      message_tools, prose, second_word)

LIBRARY = "anthropic (Python)"


def user(text):
    return [{"role": "user", "content": text}]


class Talk:
    """The client, with the fields that most checks share."""

    def __init__(self, checks, served):
        self.served = served
        self.client = anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0, timeout=120)
        checks.watch(self.client._client)

    def fields(self, messages, fields):
        messages = user(messages) if isinstance(messages, str) else messages
        body = {"temperature": 0, **{name: fields.pop(name) for name in ("temperature", "top_k", "max_token") if name in fields}}
        return {"model": self.served.model, "messages": messages, "max_tokens": 48, "extra_body": body, **fields}

    def create(self, messages, **fields):
        return self.client.messages.create(**self.fields(messages, fields))

    def stream(self, messages, **fields):
        return self.client.messages.stream(**self.fields(messages, fields))


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def run(checks, served):
    talk = Talk(checks, served)
    for part in (models, messages, streams, limits, counts, formats, tools, tool_stream, thinking, refusals, leaving):
        part(talk, checks, served)


def models(talk, checks, served):
    checks.equal([model.id for model in talk.client.models.list()], [served.model], "the list of models has the one that is served")
    checks.equal(talk.client.models.retrieve(served.model).id, served.model, "the model is found by its name")
    checks.raises(anthropic.NotFoundError, lambda: talk.client.models.retrieve("nobody"), "another name is not found", served.model)
    raw = talk.client.messages.with_raw_response.create(model="claude-sonnet-4-5", messages=user(SHORT), max_tokens=4)
    checks.that("model" in raw.headers.get("x-coldpress-ignored", ""), "a request to another model is answered, and a header says so",
                dict(raw.headers))


def messages(talk, checks, served):
    reply = talk.create(LONG)
    served.answers["anthropic"] = text_of(reply)
    checks.that(reply.role == "assistant" and text_of(reply), "a plain answer", reply)
    checks.that(reply.stop_reason in ("end_turn", "max_tokens"), "with the reason of its end", reply)
    turns = user(SHORT) + [{"role": "assistant", "content": "A large animal."}] + user("Where does it live?")
    second = talk.create(turns, system="Be brief.")
    checks.that(second.content and second.usage.output_tokens > 0, "a conversation with a system text", second)
    blocks = [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]}]
    checks.equal(text_of(talk.create(blocks)), text_of(reply), "blocks with marks for caching are the same as their text")
    begun = " ".join(text_of(reply).split(" ")[:3])
    continued = text_of(talk.create([*user(LONG), {"role": "assistant", "content": begun}]))
    # A template may write thinking differently in a past answer; without it the model goes on as it did.
    as_before = "<|im" not in continued if served.thinks else (begun + continued).startswith(text_of(reply))
    checks.that(as_before, "an answer that was begun is continued", [text_of(reply), begun, continued])
    systems = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    checks.equal(text_of(talk.create(turns, system=systems)), text_of(second), "a system text in blocks is the same")


def streams(talk, checks, served):
    with talk.stream(LONG) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    checks.equal(text_of(final), served.answers["anthropic"], "the streamed message equals the whole one")
    own = [kind for kind in kinds if kind not in ("ping", "text", "thinking", "input_json")]
    deltas = own.count("content_block_delta")
    wanted = ["message_start", "content_block_start", *deltas * ["content_block_delta"], "content_block_stop", "message_delta", "message_stop"]
    checks.equal(own, wanted, f"the events come in order, {deltas} of them text")
    checks.that(final.usage.output_tokens > 0, "usage is told at the end", final)


def limits(talk, checks, served):
    whole = served.answers["anthropic"]
    word = second_word(whole)
    reply = talk.create(LONG, stop_sequences=[word])
    found = (text_of(reply), reply.stop_reason, reply.stop_sequence)
    checks.equal(found, (whole[:whole.index(word)], "stop_sequence", word), "a stop sequence ends the answer before it and is named")
    cut = talk.create(LONG, max_tokens=5)
    checks.equal((cut.usage.output_tokens, cut.stop_reason), (5, "max_tokens"), "max_tokens cuts the answer and says so")
    checks.equal(text_of(talk.create(LONG, temperature=1.0, top_k=1)), whole, "top_k of 1 is the most likely text")


def counts(talk, checks, served):
    asked = {"messages": user(prose(600)), "system": "Be brief.", "tools": message_tools()}
    counted = talk.client.messages.count_tokens(model=served.model, **asked).input_tokens
    for name in ("first", "second"):
        usage = talk.create(asked["messages"], system=asked["system"], tools=asked["tools"], max_tokens=2).usage
        checks.equal(usage.input_tokens + (usage.cache_read_input_tokens or 0), counted, f"count_tokens equals the input of the {name} request")
    checks.that(usage.cache_read_input_tokens >= counted - 64, "of which the second time nearly all was cached", usage)


def formats(talk, checks, _served):
    form = {"format": {"type": "json_schema", "schema": BOOK}}
    reply = talk.create(BOOK_QUESTION, output_config=form, max_tokens=1500)
    checks.that(fits(text_of(reply), BOOK), "an answer with a schema is valid JSON of it", reply)
    with talk.stream(BOOK_QUESTION, output_config=form, max_tokens=1500) as stream:
        checks.equal(text_of(stream.get_final_message()), text_of(reply), "streamed it is the same")


def tools(talk, checks, _served):
    for choice, names in (({"type": "any"}, set(PARAMETERS)), ({"type": "tool", "name": "weather"}, {"weather"})):
        reply = talk.create(TOOL_QUESTION, tools=message_tools(), tool_choice=choice, max_tokens=800)
        block = reply.content[-1]
        checks.that(block.type == "tool_use" and block.name in names and block.id, f"tool_choice {choice['type']} makes a call", reply)
        checks.that(fits(block.input, PARAMETERS[block.name]), "its input fits the tool's schema", reply)
        checks.equal(reply.stop_reason, "tool_use", "the answer says that it ended in a call")
    content = [part.model_dump(exclude_none=True) for part in reply.content]
    result = [{"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": TOOL_RESULT}]}]
    history = [*user(TOOL_QUESTION), {"role": "assistant", "content": content}, {"role": "user", "content": result}]
    further = talk.create(history, tools=message_tools())
    checks.that(further.usage.output_tokens >= 1, "an answer follows the tool's result", further)
    none = talk.create(TOOL_QUESTION, tools=message_tools(), tool_choice={"type": "none"})
    checks.that(all(part.type != "tool_use" for part in none.content), "tool_choice none makes no call", none)
    hosted = talk.create(SHORT, tools=[{"type": "web_search_20250305", "name": "web_search"}], max_tokens=4)
    checks.that(hosted.usage.output_tokens > 0, "tools that run elsewhere are left away", hosted)
    call = lambda: talk.create(TOOL_QUESTION, tools=message_tools({"weather": UNSUPPORTED}), tool_choice={"type": "any"})
    checks.raises(anthropic.BadRequestError, call, "a tool with an unsupported schema is refused with the path", UNSUPPORTED_PATH)


def tool_stream(talk, checks, _served):
    with talk.stream(TOOL_QUESTION, tools=message_tools(), tool_choice={"type": "tool", "name": "weather"}, max_tokens=800) as stream:
        events = list(stream)
        final = stream.get_final_message()
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta" and event.delta.type == "input_json_delta"]
    checks.that(pieces and fits("".join(pieces), PARAMETERS["weather"]), "pieces of a streamed call join to valid input", events)
    checks.that(final.content[-1].type == "tool_use" and fits(final.content[-1].input, PARAMETERS["weather"]), "and the package reads it", final)


def thinking(talk, checks, served):
    if not served.thinks:
        return checks.skip("thinking blocks", f"{served.model} has no way to think")
    reply = talk.create(LONG, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1200)
    checks.that(reply.content[0].type == "thinking" and reply.content[0].thinking, "with thinking there is a block of it", reply)
    off = talk.create(LONG)
    checks.that(all(block.type == "text" for block in off.content), "without there is none", off)
    with talk.stream(LONG, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1200) as stream:
        checks.equal(stream.get_final_message().content[0].thinking, reply.content[0].thinking, "streamed it is the same")


def refusals(talk, checks, served):
    long = prose(5 * served.context)
    checks.raises(anthropic.BadRequestError, lambda: talk.create(long), "a prompt beyond the context is refused with both numbers", served.context,
                  "tokens", status=400)
    checks.raises(anthropic.BadRequestError, lambda: talk.create(SHORT, max_token=4), "an unknown field is named", "max_token ")
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}]}]
    checks.raises(anthropic.BadRequestError, lambda: talk.create(image), "an image is refused by name and place", "messages[0].content[0]", "image")
    stranger = anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0)
    call = lambda: stranger.messages.create(model=served.model, max_tokens=4, messages=user(SHORT))
    error = checks.raises(anthropic.AuthenticationError, call, "a wrong key is refused", "key", status=401)
    checks.equal(error.body["error"]["type"], "authentication_error", "in this protocol's own words")


def leaving(talk, checks, served):
    server = served.server
    with talk.stream(LONG, max_tokens=1500, temperature=1.0) as stream:
        for _, _ in zip(range(3), stream.text_stream):
            pass
    seconds = server.wait_until_idle(10)
    checks.that(seconds is not None and seconds < 1, "closing a stream frees its slot", seconds)
    checks.figure(f"free {1000 * seconds:.1f} ms after the stream was closed")
