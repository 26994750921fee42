"""Prefix reuse as an agent sees it: a chat of ten turns through the package `openai`, a restart in its middle, and what was computed again."""
import time

import openai

from material import prose

LIBRARY = "prefix reuse (openai, Python)"
TURNS = 10
PAGE_POSITIONS = 64
QUESTIONS = ["What is in the house?", "Who lives there?", "What does the garden look like?", "Is there a dog?", "What is the weather like?",
             "Where does the road lead?", "What do they eat?", "Who comes to visit?", "What happened in the end?", "What is the name of the book?",
             "And then?"]


class Conversation:
    """A chat that grows, and its bill: tokens that had been computed before, and those of them that were computed again."""

    def __init__(self, served):
        text = f"You are an assistant of session {time.monotonic_ns()}. Answer from this text.\n" + prose(1600)
        self.messages = [{"role": "system", "content": text}]
        self.known = self.seen = self.again = 0
        self.connect(served)

    def connect(self, served):
        self.served = served
        self.client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0, timeout=120)

    def ask(self, question):
        """One turn: prompt tokens that were known, and those that came from the cache."""
        self.messages.append({"role": "user", "content": question})
        reply = self.client.chat.completions.create(model=self.served.model, messages=self.messages, temperature=0, max_tokens=40)
        self.messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        cached, known = reply.usage.prompt_tokens_details.cached_tokens, self.known
        self.seen += known
        self.again += max(0, known - cached)
        self.known = reply.usage.prompt_tokens + reply.usage.completion_tokens
        return known, cached, reply


def run(checks, served, restart):
    """Runs the conversation; `restart` gives the server after a restart. Gives the server at the end."""
    talk = Conversation(served)
    checks.watch(talk.client._client)
    for number in range(TURNS):
        known, cached, reply = talk.ask(QUESTIONS[number])
        if number:
            checks.that(cached >= known - PAGE_POSITIONS, f"turn {number + 1}: {cached} of {known} known tokens were reused", reply)
    share = talk.again / talk.seen
    checks.that(share <= 0.05, f"{TURNS} turns: {talk.again} of {talk.seen} known tokens were computed again, {100 * share:.1f} %", talk.messages)
    served = restart()
    talk.connect(served)
    checks.watch(talk.client._client)
    known, cached, reply = talk.ask(QUESTIONS[TURNS])
    checks.that(known - cached <= max(PAGE_POSITIONS, 0.05 * known), f"after a restart: {cached} of {known} known tokens were reused", reply)
    return served
