#!/usr/bin/env python3
"""Decode rate of several streams at once against one alone, on `coldpress serve`.

usage: tools/clients/throughput.py MODEL.gguf [--budget SIZE] [--streams 4] [--prompts different|alike|same] [--tokens 128] [--rounds 5] [--program FILE] [--serve ARGUMENT...]
Every round measures each prompt alone and then all at once, in turns, so that a machine that changes its speed changes both. Prompts are
real texts of different kinds, places of one text (alike), or one place that every stream continues by its own drawing (same). Their prefix is
known beforehand, end tokens are banned: what is measured is decoding. Needs the standard library only.
Prints one JSON line per round and the medians.
"""
import argparse
import json
import os
import statistics
import sys
import threading
import time

from server import Server
from traffic import Ask

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = ["prose.txt", "code.txt", "dialogue.txt", "dictionary.txt"]


def prompts(kind, count):
    """Beginnings of different texts (beyond four, later places of them), places of one text, or one place, each with its seed."""
    found = []
    for number in range(count):
        with open(os.path.join(HERE, "../texts", TEXTS[number % len(TEXTS) if kind == "different" else 0])) as file:
            text = file.read()
        at = {"different": len(text) // 3 * (number // len(TEXTS)), "alike": (len(text) - 400) // max(count - 1, 1) * number, "same": 0}[kind]
        found.append((text[at:at + 400], number + 1 if kind == "same" else None))
    return found


class Stream(threading.Thread):
    """One answer, with the time of each token: every token comes with its log probability, so none is hidden in joined text."""

    def __init__(self, server, prompt, tokens, bias, begin):
        super().__init__(daemon=True)
        text, seed = prompt
        body = {"model": "any", "prompt": text, "max_tokens": tokens, "stream": True, "logprobs": 0, "logit_bias": bias}
        body |= {"temperature": 0} if seed is None else {"temperature": 1, "seed": seed}
        self.request = Ask(server, "/v1/completions", body, client=str(id(self)))
        self.begin, self.times, self.text, self.error = begin, [], "", None

    def run(self):
        try:
            self.begin.wait()
            self.request.send()
            response = self.request.response = self.request.connection.getresponse()
            while line := response.readline():
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", []):
                    self.text += choice["text"]
                    count = len((choice.get("logprobs") or {}).get("tokens", []))
                    self.times += [time.monotonic()] * count
        except (OSError, ValueError) as error:
            self.error = error
        finally:
            self.request.close()


def measure(server, chosen, tokens, bias):
    """Tokens per second of these prompts at once: tokens after the last stream has begun, until the first has ended, by that time."""
    begin = threading.Event()
    streams = [Stream(server, prompt, tokens, bias, begin) for prompt in chosen]
    for stream in streams:
        stream.start()
    begin.set()
    for stream in streams:
        stream.join(600)
    for stream in streams:
        if stream.error or len(stream.times) != tokens:
            sys.exit(f"throughput: {len(stream.times)} of {tokens} tokens, {stream.error}")
    first, last = max(stream.times[0] for stream in streams), min(stream.times[-1] for stream in streams)
    counted = sum(sum(first < at <= last for at in stream.times) for stream in streams)
    return counted / (last - first), [stream.text for stream in streams]


def engine(server):
    found = server.status()["engine"]
    return {name: found[name] for name in ("expert_hits", "expert_misses", "bytes_read")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--budget", default="33%model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", choices=["different", "alike", "same"], default="different")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default=os.path.join(HERE, "../../target/release/coldpress"))
    parser.add_argument("--serve", nargs="*", default=[], help="further arguments of the server")
    options = parser.parse_args()
    server = Server(options.program, options.model, "--budget", options.budget, "--ctx", 2048, "--kv-tokens", 2048 * options.streams, "--parallel",
                    options.streams, *options.serve)
    try:
        server.wait_until_ready()
        print("\n".join(server.notes), file=sys.stderr)
        bias, chosen = server.never_ending(), prompts(options.prompts, options.streams)
        # Learns the prefixes, and brings in what is used most.
        alone = [measure(server, [prompt], options.tokens, bias)[1][0] for prompt in chosen]
        rounds = []
        for number in range(options.rounds):
            before, solo = engine(server), []
            for prompt in chosen:
                rate, _ = measure(server, [prompt], options.tokens, bias)
                solo.append(rate)
            middle = engine(server)
            together, texts = measure(server, chosen, options.tokens, bias)
            after = engine(server)
            one = statistics.mean(solo)
            rounds.append({"round": number + 1, "solo": round(one, 2), "together": round(together, 2), "times": round(together / one, 2),
                           "same_text": texts == alone,
                           "solo_mib_per_token": round((middle["bytes_read"] - before["bytes_read"]) / 2**20 / options.tokens / len(chosen), 2),
                           "together_mib_per_token": round((after["bytes_read"] - middle["bytes_read"]) / 2**20 / options.tokens / len(chosen), 2)})
            print(json.dumps(rounds[-1]), flush=True)
        medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0] if name not in ("round", "same_text")}
        spread = [min(one["times"] for one in rounds), max(one["times"] for one in rounds)]
        print(json.dumps({"streams": options.streams, "prompts": options.prompts, "median": medians, "times_least_most": spread, "same_text": all(one["same_text"] for one in rounds)}))
        sys.exit(0 if all(one["same_text"] for one in rounds) else 1)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
