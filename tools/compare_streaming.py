#!/usr/bin/env python3
"""coldpress beside llama.cpp on a model larger than memory: the same file under the same hard limit, in turns, as a Markdown table.

usage: tools/compare_streaming.py MODEL.gguf [--pack FILE] [--budgets 50%,25%] [--repeat 3] [--prompt-tokens 512] [--gen-tokens 64]
                                  [--peer-gen-tokens 8] [--read-ahead 128] [--memcg PROGRAM]
Every run is cold (the file is dropped from the page cache first) and inside a control group of its own whose limit also counts the page cache;
--memcg names the program that makes it (default ../shared/tools/memcg_run: `memcg_run --cold FILE [--readahead KIB FILE] LIMIT COMMAND`).
coldpress gets the budget, its group 64 MiB more; llama.cpp gets the same group. llama.cpp maps the file, so the system's read-ahead decides
how fast it is: it is measured as the machine is and with --read-ahead KiB. Needs root, and llama.cpp as tools/compare_llama.py builds it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OVERHEAD = 64 << 20

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--pack")
parser.add_argument("--budgets", default="50%,25%")
parser.add_argument("--repeat", type=int, default=3)
parser.add_argument("--prompt-tokens", type=int, default=512)
parser.add_argument("--gen-tokens", type=int, default=64)
parser.add_argument("--peer-gen-tokens", type=int, default=8)
parser.add_argument("--read-ahead", type=int, default=128)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--memcg", default=str(ROOT / "../shared/tools/memcg_run"))
parser.add_argument("--program", default=str(ROOT / "target/release/coldpress"))
options = parser.parse_args()
model = str(Path(options.model).resolve())
python = ROOT / "target/peer/bin/python"
if not python.exists():
    sys.exit("run tools/compare_llama.py first: it builds llama.cpp")


def limited(limit, command, read_ahead=None, cold=()):
    """Runs a command in a group of `limit` bytes: the object it printed, and what the group measured."""
    group = [options.memcg]
    for file in cold:
        group += ["--cold", file]
    if read_ahead:
        group += ["--readahead", str(read_ahead), model]
    environment = {**os.environ, "COLDPRESS_PRESTACK_CACHE_DIR": "/nonexistent", "COLDPRESS_HOTLIST": "0"}
    result = subprocess.run([*group, str(limit), *command], capture_output=True, text=True, env=environment)
    measured = json.loads(result.stderr.strip().splitlines()[-1])
    if result.returncode != 0 or measured["oom_kills"]:
        return None, measured
    return json.loads(result.stdout), measured


def ours(budget, pack):
    command = [options.program, "bench", model, "--budget", str(budget), "--prompt-tokens", str(options.prompt_tokens), "--gen-tokens",
               str(options.gen_tokens), "--threads", str(options.threads), "--repeat", "1", "--json"]
    command += ["--pack", pack] if pack else []
    printed, measured = limited(budget + OVERHEAD, command, cold=[model] + ([pack] if pack else []))
    if printed is None:
        return None, None, measured
    depth = printed["configurations"][0]["depths"][0]
    return depth["prefill"]["tokens_per_second"]["median"], depth["decode"]["tokens_per_second"]["median"], measured


def theirs(budget, read_ahead):
    command = [str(python), str(ROOT / "tools/compare_llama.py"), "--as-peer", model, "--runs", "1", "--prompt-tokens", str(options.prompt_tokens),
               "--gen-tokens", str(options.peer_gen_tokens), "--threads", str(options.threads)]
    printed, measured = limited(budget + OVERHEAD, command, read_ahead, cold=[model])
    return (None, None, measured) if printed is None else (printed["prefill"], printed["decode"], measured)


size = os.path.getsize(model)
engines = [("coldpress, GGUF", lambda budget: ours(budget, None))]
if options.pack:
    engines.append(("coldpress, pack", lambda budget: ours(budget, str(Path(options.pack).resolve()))))
engines += [("llama.cpp, this machine's read-ahead", lambda budget: theirs(budget, None)),
            (f"llama.cpp, read-ahead {options.read_ahead} KiB", lambda budget: theirs(budget, options.read_ahead))]
print(f"{Path(model).name} ({size / 1e9:.1f} GB), {options.prompt_tokens} prompt tokens, {options.gen_tokens} generated "
      f"({options.peer_gen_tokens} by llama.cpp), {options.threads} threads, medians of {options.repeat} cold runs\n")
print("| budget | engine | prefill tok/s | decode tok/s | peak of the group | killed |")
print("|---|---|---|---|---|---|")
for share in options.budgets.split(","):
    budget = int(size * float(share.rstrip("%")) / 100)
    runs = {name: [] for name, _ in engines}
    for _ in range(options.repeat):
        for name, run in engines:
            runs[name].append(run(budget))
    for name, some in runs.items():
        done = [run for run in some if run[0] is not None]
        killed = len(some) - len(done)
        figure = lambda index: f"{statistics.median(run[index] for run in done):.2f}" if done else "-"
        peak = max(run[2]["peak"] for run in some) / 2**20
        print(f"| {share} ({budget / 2**20:.0f} MiB) | {name} | {figure(0)} | {figure(1)} | {peak:.0f} MiB | {killed} of {len(some)} |", flush=True)
