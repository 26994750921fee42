#!/usr/bin/env python3
"""Median speeds of `coldpress run` on one model, as a Markdown table for docs/performance.md.

usage: tools/measure.py MODEL.gguf [--repeat 5] [--tokens 64] [--prompt-words 11] [--pack FILE] [--program FILE] BUDGET [BUDGET ...]
Each budget is measured without and, with --pack, with a pack; configurations take turns, so that a slow minute of the machine hits all of
them. The prompt is the beginning of a fixed English text, repeated as needed; generation ignores the end-of-text token.
"""
import argparse, json, os, statistics, subprocess

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("budgets", nargs="+")
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--prompt-words", type=int, default=11)
parser.add_argument("--pack")
parser.add_argument("--program", default=os.path.join(os.path.dirname(__file__), "../target/release/coldpress"))
options = parser.parse_args()

words = ("The old house stood at the end of the lane, and the windows were dark. Nobody had lived there since the winter when the river "
         "came over the fields and took the bridge. ").split()
prompt = " ".join(words[i % len(words)] for i in range(options.prompt_words))


def run(budget, pack):
    command = [options.program, "run", options.model, "--raw", "--json", "--ignore-eos", "--ctx", "2048", "--max-tokens", str(options.tokens),
               "--budget", budget, "-p", prompt] + (["--pack", pack] if pack else [])
    environment = {**os.environ, "COLDPRESS_PRESTACK_CACHE_DIR": "/nonexistent", "COLDPRESS_HOTLIST": "0"}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


configurations = [(budget, pack) for budget in options.budgets for pack in ([None, options.pack] if options.pack else [None])]
results = {configuration: [] for configuration in configurations}
for _ in range(options.repeat):
    for configuration in configurations:
        results[configuration].append(run(*configuration))

texts = {tuple(result["tokens"]) for runs in results.values() for result in runs}
print("| budget | from | residency | prefill tok/s | decode tok/s | hits | read per token | disk wait | peak |")
print("|---|---|---|---|---|---|---|---|---|")
for (budget, pack), runs in results.items():
    median = lambda value: statistics.median(value(result) for result in runs)
    first = runs[0]
    experts = first["experts"]
    looked_up = max(1, experts["hits"] + experts["misses"])
    wall = lambda result: sum(result["time_ms"].values())
    tokens = first["prompt_tokens"] + first["completion_tokens"]
    print(f"| {budget} | {'pack' if pack else 'GGUF'} | {first['residency']} | {median(lambda r: r['prefill_tokens_per_second']):.1f} "
          f"| {median(lambda r: r['decode_tokens_per_second']):.1f} | {100 * experts['hits'] / looked_up:.0f} % "
          f"| {experts['device_bytes_read'] / tokens / 1e6:.0f} MB | {100 * median(lambda r: r['time_ms']['disk_wait'] / wall(r)):.0f} % "
          f"| {median(lambda r: r['peak_bytes']['rss']) / 2**20:.0f} MiB |")
print(f"\n{options.repeat} runs each, prompt of {next(iter(results.values()))[0]['prompt_tokens']} tokens, {options.tokens} generated; "
      f"{'the same tokens in every run' if len(texts) == 1 else 'TOKENS DIFFER'}")
