#!/usr/bin/env python3
"""What an agent's chat computes again, turn by turn and over restarts (docs/server.md).

usage: tools/agent_reuse.py MODEL.gguf [--program FILE] [--ctx 2048] [--system-tokens 600] [--turns 10] [--share 0.05]
Ten turns with tool calls that the client sends back as JSON of its own, and with reasoning that it drops, in four settings: the model's own
template and one that thinks or writes an empty think block (clients/thinking_model.py), in one run of the server and with a restart before
every turn (--kv-dir). A token counts as known when an earlier prompt or answer had it, dropped reasoning excepted. Prints a line per
setting and exits with 1 if more than --share of the known tokens were computed again where the template writes again what it wrote before.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))

from server import Server  # noqa: E402

TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {
    "type": "object", "properties": {"word": {"type": "string", "maxLength": 20}, "pages": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["word", "pages"], "additionalProperties": False}}}
with open(os.path.join(HERE, "texts/prose.txt")) as file:
    PROSE = file.read()
WORDS = ["house", "lane", "garden", "dog", "road", "river", "bread", "guest", "book", "winter"]


class Agent:
    """A chat that grows, and its bill."""

    def __init__(self, start, options, thinks, has_tools):
        self.start, self.options, self.thinks, self.has_tools = start, options, thinks, has_tools
        self.messages = [{"role": "system", "content": "You are an agent. " + PROSE[:4 * options.system_tokens]}]
        self.prompt = self.known = self.known_sum = self.again = self.calls = 0

    def turn(self, server, number):
        word = WORDS[number % len(WORDS)]
        self.messages.append({"role": "user", "content": f"Tell me about the {word}, and what became of it in the end."})
        message = self.ask(server, must_call=self.has_tools and number % 2 == 0)
        if message.get("tool_calls"):
            self.calls += 1
            for call in message["tool_calls"]:
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"The {word} is mentioned {number + 3} times."})
            self.ask(server, must_call=False)

    def ask(self, server, must_call):
        body = {"messages": self.messages, "temperature": 0, "max_tokens": (160 if self.thinks else 64) if must_call else 32, "reasoning_effort": "low" if self.thinks else "none"}
        if self.has_tools:
            body.update(tools=[TOOL], tool_choice="required" if must_call else "auto")
        status, _, content = server.post("/v1/chat/completions", body)
        reply = json.loads(content)
        if status != 200:
            sys.exit(f"agent_reuse: {status} {content[:400]}")
        usage = reply["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.known_sum += self.known
        self.again += max(0, self.known - cached)
        dropped = usage["completion_tokens_details"]["reasoning_tokens"]
        # The last token of an answer is chosen and not computed.
        self.known = usage["prompt_tokens"] + max(0, usage["completion_tokens"] - dropped - 1)
        self.prompt = usage["prompt_tokens"]
        message = reply["choices"][0]["message"]
        kept = {"role": "assistant", "content": message["content"]}
        if message.get("tool_calls"):
            kept["tool_calls"] = [{**call, "function": {**call["function"], "arguments": json.dumps(json.loads(call["function"]["arguments"]))}}
                                  for call in message["tool_calls"] if is_json(call["function"]["arguments"])]
            if not kept["tool_calls"]:
                del kept["tool_calls"]
        kept["content"] = kept["content"] or ""
        self.messages.append(kept)
        return kept


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def measure(options, model, thinks, has_tools, restarts):
    with tempfile.TemporaryDirectory() as folder:
        def start():
            return Server(options.program, model, "--ctx", options.ctx, "--kv-tokens", 2 * options.ctx, "--kv-dir", folder, *options.serve).wait_until_ready()
        server, agent = start(), Agent(start, options, thinks, has_tools)
        try:
            for number in range(options.turns):
                if restarts and number:
                    server.stop()
                    server = start()
                agent.turn(server, number)
        finally:
            server.stop()
        return agent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--program", default=os.path.join(HERE, "../target/release/coldpress"))
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--system-tokens", type=int, default=600)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--serve", nargs="*", default=[], metavar="ARGUMENT")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        thinking = os.path.join(folder, "thinking.gguf")
        subprocess.run([sys.executable, os.path.join(HERE, "clients/thinking_model.py"), options.model, thinking], check=True)
        for name, model, thinks, has_tools, judged in (("own template", options.model, False, False, True),
                                                       ("tools, reasoning kept by the server", thinking, True, True, False),
                                                       ("tools, empty think block in the generation prompt", thinking, False, True, False)):
            for restarts in (False, True):
                agent = measure(options, model, thinks, has_tools, restarts)
                share = agent.again / max(1, agent.known_sum)
                fails = share > options.share
                bad += judged and fails
                print(f"{name}, {'a restart before every turn' if restarts else 'one run'}: {agent.again} of {agent.known_sum} known tokens computed again, "
                      f"{100 * share:.1f} % ({agent.calls} calls, {agent.prompt} tokens at the end)", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
