#!/usr/bin/env python3
"""How much slower `coldpress bench` gets when another process keeps one processor busy.

usage: tools/crowded.py MODEL.gguf [--repeat 5] [--at-most 2.2] [--program PATH] [--busy 1]
Runs in turns without and with `--busy` processes that spin, each tied to a processor of its own. Thread pools that wait for every thread at
every step collapse here: one late thread stops all others, some hundred times per token. Exits with 1 when the median of prefill or decode
is more than --at-most times slower.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--at-most", type=float, default=2.2)
parser.add_argument("--busy", type=int, default=1)
parser.add_argument("--program", default=os.path.join(os.path.dirname(__file__), "../target/release/coldpress"))
options = parser.parse_args()


def measure():
    command = [options.program, "bench", options.model, "--budget", "unlimited", "--prompt-tokens", "256", "--gen-tokens", "64", "--repeat", "3", "--json"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    depth = json.loads(result.stdout)["configurations"][0]["depths"][0]
    return {part: depth[part]["tokens_per_second"]["median"] for part in ("prefill", "decode")}


def measure_crowded():
    processors = sorted(os.sched_getaffinity(0))[:options.busy]
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin, preexec_fn=lambda cpu=cpu: os.sched_setaffinity(0, {cpu})) for cpu in processors]
    try:
        return measure()
    finally:
        for process in busy:
            process.kill()
            process.wait()


alone, crowded = [], []
for _ in range(options.repeat):
    alone.append(measure())
    crowded.append(measure_crowded())
failed = False
for part in ("prefill", "decode"):
    rates = [statistics.median(run[part] for run in runs) for runs in (alone, crowded)]
    slower = rates[0] / rates[1]
    failed |= slower > options.at_most
    print(f"{part}: {rates[0]:.1f} tok/s alone, {rates[1]:.1f} with {options.busy} of {len(os.sched_getaffinity(0))} processors taken: {slower:.2f} times slower")
sys.exit(failed)
