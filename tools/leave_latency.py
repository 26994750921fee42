#!/usr/bin/env python3
"""How long a request that nobody wants any more keeps its place while others are computed beside it (docs/server.md).

usage: tools/leave_latency.py MODEL.gguf [--program FILE] [--budget BYTES] [--rounds 10] [--words 700] [--serve ARGUMENT ...]
Three answers run all the time. A fourth request is left in the middle of its long prompt, or in its answer; the time is from closing its
socket until `/v1/status` shows its place free. Beside it stands what a layer took: a forward pass, seen as the time between two tokens of the
others, divided by the layers. Prints one line per case; judges nothing, for a layer's time varies with what the disk delivers.
"""
import argparse
import json
import os
import random
import statistics
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))

from server import Server  # noqa: E402
from traffic import PROTOCOLS, Ask  # noqa: E402

with open(os.path.join(HERE, "texts/prose.txt")) as file:
    WORDS = file.read().split()


class Talker(threading.Thread):
    """An answer that runs as long as the measurement; keeps the times of its tokens."""

    def __init__(self, server, number):
        super().__init__(daemon=True)
        body = PROTOCOLS["completions"].body(f"Story {number}:", 100_000, 0.9, number)
        body.update(stream=True, logit_bias=server.never_ending())
        self.ask, self.times, self.ended = Ask(server, PROTOCOLS["completions"].path, body, client=f"talker {number}"), [], False

    def run(self):
        def read(response):
            line = response.readline()
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
            return line
        self.ask.run(PROTOCOLS["completions"], read)
        self.ended = True


def leave(server, prompt, phase, number):
    """Seconds from closing the socket to a free place, None where the request was over before."""
    body = PROTOCOLS["completions"].body(prompt, 2000, 0.9, number)
    body.update(stream=True, logit_bias=server.never_ending())
    request = Ask(server, PROTOCOLS["completions"].path, body, client="leaver")
    request.send()
    response = request.connection.getresponse()
    seen = 0
    while seen < 2:
        line = response.readline()
        if not line:
            return None
        seen += line.startswith(b": prefill" if phase == "prompt" else b"data: {")
        if phase == "prompt" and line.startswith(b"data: {"):
            request.close()
            return None
    began = time.monotonic()
    request.leave()
    request.close()
    while server.status()["engine"]["running"] > 3:
        pass
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--program", default=os.path.join(HERE, "../target/release/coldpress"))
    parser.add_argument("--budget", type=int)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--words", type=int, default=700)
    parser.add_argument("--serve", nargs="*", default=[], metavar="ARGUMENT", help="further arguments of the server, such as cold-fraction=0.75")
    options = parser.parse_args()
    budget = ["--budget", options.budget] if options.budget else []
    server = Server(options.program, options.model, "--ctx", 2048, "--kv-tokens", 8192, "--parallel", 4, *budget, *(f"--{argument}" for argument in options.serve))
    try:
        server.wait_until_ready()
        layers = len(json.loads(server.get("/v1/status?experts=1")[2])["engine"]["detail"]["telemetry"]["layers"])
        for phase in ("prompt", "answer"):
            took, others = [], []
            for number in range(options.rounds):
                talkers = [Talker(server, 3 * number + index) for index in range(3)]
                for talker in talkers:
                    talker.start()
                while server.status()["engine"]["running"] < 3 or any(len(talker.times) < 3 for talker in talkers):
                    time.sleep(0.01)
                words = random.Random(number).sample(WORDS, min(len(WORDS), options.words if phase == "prompt" else 5))
                began = time.monotonic()
                seconds = leave(server, f"{number} " + " ".join(words), phase, number)
                if seconds is not None:
                    took.append(1000 * seconds)
                    for talker in talkers:
                        near = [at for at in talker.times if at > began - 1]
                        others.extend(1000 * (b - a) for a, b in zip(near, near[1:]))
                for talker in talkers:
                    talker.ask.leave()
                server.wait_until_idle()
            if took:
                passes = statistics.quantiles(others, n=10) if len(others) > 10 else [0] * 9
                print(f"left in the {phase}, {len(took)} times: place free after {statistics.median(took):.1f} ms ({min(took):.1f} to {max(took):.1f}); "
                      f"a pass took {statistics.median(others):.1f} ms (a tenth more than {passes[8]:.1f}), {layers} layers", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
