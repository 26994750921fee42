#!/usr/bin/env python3
"""coldpress beside llama.cpp and ftllm on a model larger than memory: one file, one hard limit, one text, in turns, as a Markdown table.

usage: tools/compare_streaming.py MODEL.gguf [--pack FILE] [--budgets 50%,25%] [--prompt-tokens 512,4096] [--gen-tokens 64] [--repeat 3]
                                  [--peer-repeat 2] [--peer-gen-tokens 8] [--peer-seconds 900] [--engines NAME,..] [--json-lines FILE]
       tools/compare_streaming.py --table --json-lines FILE
Every run is cold (the file is dropped from the page cache first) and inside a control group of its own whose limit also counts the page cache;
--memcg names the program that makes it (default ../shared/tools/memcg_run: `memcg_run --cold FILE [--readahead KIB FILE] LIMIT COMMAND`).
coldpress gets the budget, its group 64 MiB more; the peers get the same group. A peer that is not done after --peer-seconds is ended, and
the table says so. --json-lines appends each finished run to a file and skips those that are there, so an interrupted comparison goes on;
a run of another build of coldpress is made again. --pack is written first if it does not exist.

Engines (--engines picks some by name):
  pack, gguf         coldpress, reading experts from its pack or from the model file
  mmap, mmap128      llama.cpp with mmap and no repacking; the system's read-ahead decides how fast it is, so it is measured with the machine's
                     own and with --read-ahead KiB
  mmap128-batch      the same with 2,048 tokens computed together instead of 512, for longer prompts: fewer passes over the experts, more memory
  ftllm              disk mode, with the largest of the caches --ftllm-caches (shares of the budget) that the limit leaves alive
  ftllm-more         ftllm with 2.5 times the limit and a cache of half the budget; measured where the limit kills ftllm with every cache
Needs root, and llama.cpp as tools/compare_llama.py builds it; ftllm is installed into target/peer-ftllm on the first run.
"""
import argparse
import ctypes
import hashlib
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OVERHEAD = 64 << 20
FTLLM = ROOT / "target/peer-ftllm"
FTLLM_VERSION = "1.9.0"
# What ftllm imports in disk mode; with all that it declares come pandas, triton and forty more.
FTLLM_NEEDS = ("transformers jinja2 fastapi pydantic openai shortuuid uvicorn httpx websockets jsonschema tiktoken numpy psutil pyreadline3 "
               "safetensors partial-json-parser pillow imageio sentencepiece protobuf gguf blobfile XlsxWriter").split()
FTLLM_MORE = 2.5
LONG_BATCH = 2048
NAMES = {"pack": "coldpress, pack", "gguf": "coldpress, GGUF", "mmap": "llama.cpp, this machine's read-ahead",
         "mmap128": "llama.cpp, read-ahead {read_ahead} KiB", "mmap128-batch": f"llama.cpp, read-ahead {{read_ahead}} KiB, batches of {LONG_BATCH:,}",
         "ftllm": "ftllm", "ftllm-more": f"ftllm, {FTLLM_MORE} times the limit"}
OURS = ("pack", "gguf")

parser = argparse.ArgumentParser()
parser.add_argument("model", nargs="?")
parser.add_argument("--pack")
parser.add_argument("--budgets", default="50%,25%")
parser.add_argument("--repeat", type=int, default=3)
parser.add_argument("--peer-repeat", type=int, default=2)
parser.add_argument("--prompt-tokens", default="512")
parser.add_argument("--gen-tokens", type=int, default=64)
parser.add_argument("--peer-gen-tokens", type=int, default=8)
parser.add_argument("--peer-seconds", type=int, default=900)
parser.add_argument("--engines", default=",".join(NAMES))
parser.add_argument("--ftllm-caches", default="75%,50%,25%,10%,0%")
parser.add_argument("--read-ahead", type=int, default=128)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--json-lines")
parser.add_argument("--table", action="store_true")
parser.add_argument("--memcg", default=str(ROOT / "../shared/tools/memcg_run"))
parser.add_argument("--program", default=str(ROOT / "target/release/coldpress"))
options = parser.parse_args()


def english(size):
    """The first `size` bytes of the text that `coldpress bench` reads (crates/cli/src/bench/text.rs): paragraphs in another order each pass."""
    paragraphs = [part.strip() for part in (ROOT / "crates/cli/src/bench/english.txt").read_text().split("\n\n")]
    strides = (1, 3, 7, 9, 11, 13, 17, 19)
    text, number = "", 0
    while len(text) < size:
        one_pass, index = divmod(number, len(paragraphs))
        text += paragraphs[(one_pass + index * strides[one_pass % len(strides)]) % len(paragraphs)] + "\n\n"
        number += 1
    return text[:size]


def children(pid):
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


def touch(size):
    """Writes to `size` bytes of memory and frees them. A virtual machine whose host takes free memory back finds the pages of a run that begins
    at once ten times faster; without it each run pays for what the pause before it was long."""
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, size)


def run_limited(limit, command, seconds=None, read_ahead=None, cold=()):
    """Runs a command in a group of `limit` bytes. Returns the last object it printed (or None), how it ended, and what the group measured."""
    group = [options.memcg]
    for file in cold:
        group += ["--cold", file]
    if read_ahead:
        group += ["--readahead", str(read_ahead), model]
    environment = {**os.environ, "COLDPRESS_PRESTACK_CACHE_DIR": "/nonexistent", "COLDPRESS_HOTLIST": "0"}
    touch(limit)
    started = subprocess.Popen([*group, str(limit), *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment, errors="replace")
    late = False
    try:
        printed, errors = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        for child in children(started.pid):  # not the program that made the group: it has to take the group down
            os.kill(child, signal.SIGKILL)
        printed, errors = started.communicate()
    except BaseException:
        for child in children(started.pid):
            os.kill(child, signal.SIGKILL)
        started.communicate()
        raise
    objects = [line for line in printed.splitlines() if line.startswith("{")]
    try:
        measured = json.loads(errors.strip().splitlines()[-1])
    except (ValueError, IndexError):
        sys.exit(f"{' '.join(map(str, command))}\n{printed[-2000:]}{errors[-2000:]}")
    try:
        last = json.loads(objects[-1]) if objects else None
    except ValueError:
        last = json.loads(objects[-2]) if len(objects) > 1 else None
    if measured["oom_kills"]:
        return last, "killed", None, measured
    if late:
        return last, "late", None, measured
    if started.returncode != 0 or last is None:
        said = [line.strip() for line in (printed + "\n" + "\n".join(errors.strip().splitlines()[:-1])).splitlines() if line.strip()]
        told = [line for line in said if "error" in line.lower()] or said or ["nothing"]
        return last, "failed", f"exit status {started.returncode}: {told[-1].replace(str(ROOT), '.')[:240]}", measured
    return last, "done", None, measured


def ours(engine, budget, prompt):
    pack = str(Path(options.pack).resolve()) if engine == "pack" else None
    command = [options.program, "bench", model, "--budget", budget, "--prompt-tokens", prompt, "--gen-tokens", options.gen_tokens,
               "--threads", options.threads, "--repeat", 1, "--json"]
    command += ["--pack", pack] if pack else []
    printed, ended, said, measured = run_limited(budget + OVERHEAD, command, cold=[model] + ([pack] if pack else []))
    if ended == "failed":
        sys.exit(f"{' '.join(map(str, command))}\n{said}")
    found = {"ended": ended, "said": said, "group": measured}
    if ended == "done":
        depth = printed["configurations"][0]["depths"][0]
        for part in ("prefill", "decode"):
            figures = depth[part]
            read = figures["experts"]["bytes_read"]
            found |= {part: figures["tokens_per_second"]["median"], f"{part}_limit_percent": (figures["limit"] or {}).get("percent"),
                      f"{part}_bound": (figures["limit"] or {}).get("bound"),
                      f"{part}_device_per_needed": figures["experts"]["device_bytes_read"] / read if read else None}
        found["generated"] = options.gen_tokens
    return found


def theirs(command, limit, read_ahead=None):
    printed, ended, said, measured = run_limited(limit, command, options.peer_seconds, read_ahead, cold=[model])
    printed = printed or {}
    return {"ended": ended, "said": said, "group": measured, **{key: printed.get(key) for key in ("prefill", "decode", "generated", "cache")}}


def llama(engine, budget, prompt):
    command = [ROOT / "target/peer/bin/python", ROOT / "tools/compare_llama.py", "--as-peer", model, "--runs", 1, "--progress", "--text", text_file,
               "--prompt-tokens", prompt, "--gen-tokens", options.peer_gen_tokens, "--threads", options.threads,
               "--batch", LONG_BATCH if engine == "mmap128-batch" else 512]
    return theirs(command, budget + OVERHEAD, None if engine == "mmap" else options.read_ahead)


def ftllm(budget, prompt, share, times=1.0):
    command = [FTLLM / "bin/python", ROOT / "tools/peer_ftllm.py", model, "--text", text_file, "--prompt-tokens", prompt,
               "--gen-tokens", options.peer_gen_tokens, "--threads", options.threads, "--cache", int(budget * share / 100)]
    return theirs(command, int((budget + OVERHEAD) * times))


def install_ftllm():
    python = FTLLM / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", FTLLM], check=True)
    if subprocess.run([python, "-c", "from ftllm import llm"], capture_output=True).returncode != 0:
        print("installing ftllm", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", f"ftllm=={FTLLM_VERSION}"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *FTLLM_NEEDS], check=True)


IDENTITY = ("model", "model_bytes", "share", "budget", "prompt_tokens", "engine", "threads", "gen_tokens", "turn", "cache_share", "read_ahead")


class Runs:
    """Finished runs, in memory and in the --json-lines file; of two with the same identity the later one counts."""

    def __init__(self, file):
        self.file = file
        self.all = []
        for line in open(file) if file and os.path.exists(file) else []:
            try:
                self.add(json.loads(line))
            except ValueError:
                print(f"{file}: skipping a line that is not whole", file=sys.stderr)

    def add(self, run):
        self.all = [other for other in self.all if any(other.get(name) != run.get(name) for name in IDENTITY)] + [run]

    def get(self, key, make):
        for run in self.all:
            # A run that was ended early is good for every shorter limit of wall time, any other for all.
            if all(run.get(name) == key.get(name) for name in (*IDENTITY, "build")) and (run["ended"] != "late" or run["seconds"] >= key["seconds"]):
                return run
        said = " ".join(str(key[name]) for name in ("engine", "share", "prompt_tokens", "cache_share", "turn") if key.get(name) is not None)
        print(f"{said} ...", end=" ", file=sys.stderr, flush=True)
        run = {**key, **make()}
        print(f"{run['ended']}, prefill {run.get('prefill')}, decode {run.get('decode')}, {run['group']['wall_s']:.0f} s", file=sys.stderr)
        self.add(run)
        if self.file:
            with open(self.file, "a") as file:
                file.write(json.dumps(run) + "\n")
        return run


def measure(runs):
    size = os.path.getsize(model)
    engines = [name for name in NAMES if name in options.engines.split(",") and (name != "pack" or options.pack)]
    unknown = set(options.engines.split(",")) - set(NAMES)
    if unknown:
        sys.exit(f"no such engine: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if {"mmap", "mmap128", "mmap128-batch"} & set(engines) and not (ROOT / "target/peer/bin/python").exists():
        sys.exit("run tools/compare_llama.py first: it builds llama.cpp")
    if {"mmap128", "mmap128-batch"} & set(engines) and size % 512:
        sys.exit(f"{model}: {size} bytes are no whole number of 512, which another read-ahead needs; tools/grow_moe.py fills the file up")
    if {"ftllm", "ftllm-more"} & set(engines):
        install_ftllm()
    if options.pack and not os.path.exists(options.pack):
        print("writing the pack", file=sys.stderr)
        subprocess.run([options.program, "pack", model, "--out", options.pack], check=True, stdout=subprocess.DEVNULL)
    build = hashlib.sha256(Path(options.program).read_bytes()).hexdigest()[:12]
    prompts = [int(number) for number in options.prompt_tokens.split(",")]
    settings = [(share, int(size * float(share.rstrip("%")) / 100), prompt) for share in options.budgets.split(",") for prompt in prompts]
    for turn in range(max(options.repeat, options.peer_repeat)):
        for share, budget, prompt in settings:
            for engine in engines:
                mine = engine in OURS
                if turn >= (options.repeat if mine else options.peer_repeat) or (engine == "mmap128-batch" and prompt <= 512):
                    continue
                key = {"model": Path(model).name, "model_bytes": size, "share": share, "budget": budget, "prompt_tokens": prompt,
                       "engine": engine, "threads": options.threads, "gen_tokens": options.gen_tokens if mine else options.peer_gen_tokens}
                one(runs, key, engine, turn, {"build": build} if mine else {"seconds": options.peer_seconds})


def one(runs, key, engine, turn, more):
    budget, prompt = key["budget"], key["prompt_tokens"]
    if engine in OURS:
        runs.get({**key, "turn": turn, **more}, lambda: ours(engine, budget, prompt))
        return
    # A peer that ended without a figure would do so again: one run says it.
    hopeless = [run for run in runs.all if same(run, key) and run["turn"] < turn and not rates([run], "prefill")]
    if hopeless and engine != "ftllm":
        return
    if engine.startswith("mmap"):
        runs.get({**key, "turn": turn, "read_ahead": options.read_ahead, **more}, lambda: llama(engine, budget, prompt))
    elif engine == "ftllm-more":
        within = [run for run in runs.all if same(run, {**key, "engine": "ftllm"})]
        if within and all(run["ended"] == "killed" for run in within):
            runs.get({**key, "turn": turn, "cache_share": 50.0, **more}, lambda: ftllm(budget, prompt, 50, FTLLM_MORE))
    else:
        for cache in options.ftllm_caches.split(","):
            cache = float(cache.rstrip("%"))
            known = [run["ended"] for run in hopeless if run["cache_share"] == cache]
            if known and set(known) != {"killed"}:
                return
            if known:
                continue
            if runs.get({**key, "turn": turn, "cache_share": cache, **more}, lambda: ftllm(budget, prompt, cache))["ended"] != "killed":
                return


def same(run, key):
    return all(run.get(name) == value for name, value in key.items())


def rates(some, part):
    """What the runs that lived to the end, or to that of the wall time, measured of one part."""
    return [run[part] for run in some if run["ended"] in ("done", "late") and run.get(part)]


def figure(some, part):
    """Median and range of one rate, or why there is none."""
    values = rates(some, part)
    if values:
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        cut = [run for run in some if run["ended"] == "late"] if part == "decode" else []
        short = f", {cut[0]['generated']} tokens in {cut[0]['seconds']} s" if cut else ""
        return f"{statistics.median(values):.2f}{spread}{short}"
    late = [run for run in some if run["ended"] == "late"]
    if late:
        bound = f" (< {late[0]['prompt_tokens'] / late[0]['seconds']:.2f})" if part == "prefill" else ""
        return f"not done after {late[0]['seconds']} s{bound}"
    return "killed" if any(run["ended"] == "killed" for run in some) else "failed"


def median(some, part, pattern="{:.2f}"):
    values = [run[part] for run in some if run.get(part) is not None]
    return pattern.format(statistics.median(values)) if values else "-"


def ratio(mine, peers, part):
    """The median of ours over the best median of a peer within the limit; a bound where every such peer was too slow to have one."""
    value = rates(mine, part)
    if not value:
        return "-"
    medians = [statistics.median(rates(some, part)) for some in peers if rates(some, part)]
    if medians:
        return f"**{statistics.median(value) / max(medians):.2f}**"
    # No token of this part within the whole wall time.
    late = [run for some in peers for run in some if run["ended"] == "late"]
    if late and part == "prefill":
        return f"**> {statistics.median(value) * max(run['seconds'] / run['prompt_tokens'] for run in late):.1f}**"
    return "no peer has a figure"


def shown_runs(some):
    """The runs of one engine that the table's row is about: those of the newest build; of ftllm those with the largest cache that lived."""
    if some[0]["engine"] in OURS:
        return [run for run in some if run["build"] == some[-1]["build"]]
    alive = [run for run in some if run["ended"] != "killed"]
    return [run for run in alive if run.get("cache_share") == alive[0].get("cache_share")] if alive else some


def table(runs):
    notes = []
    for name in dict.fromkeys(run["model"] for run in runs):
        of_model = [run for run in runs if run["model"] == name]
        first = of_model[0]
        print(f"\n{name} ({first['model_bytes'] / 1e9:.1f} GB), {first['threads']} threads, every run cold, medians (and ranges) in turns; "
              f"limit = budget + {OVERHEAD >> 20} MiB, page cache included\n")
        print("| budget | prompt | engine | runs | prefill tok/s | decode tok/s | peak of the group / limit, MiB | killed | prefill / best peer | "
              "decode / best peer | % of the physical limit, prefill | decode | device / needed bytes, prefill | decode |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        for share, budget, prompt in dict.fromkeys((run["share"], run["budget"], run["prompt_tokens"]) for run in of_model):
            rows = {}
            for engine in NAMES:
                some = [run for run in of_model if (run["share"], run["prompt_tokens"], run["engine"]) == (share, prompt, engine)]
                if some:
                    rows[engine] = some
            peers = [shown_runs(some) for engine, some in rows.items() if engine not in OURS and engine != "ftllm-more"]
            for engine, some in rows.items():
                shown = shown_runs(some)
                mine = engine in OURS
                label = NAMES[engine].format(read_ahead=shown[0].get("read_ahead"))
                if shown[0].get("cache_share") is not None:
                    several = len({run["cache_share"] for run in shown}) > 1
                    label += ", every cache size" if several else f", cache {shown[0]['cache_share']:g} % of the budget"
                killed = [run for run in some if run["ended"] == "killed"]
                of_caches = ", ".join(f"{run['cache_share']:g} %" for run in killed if run.get("cache_share") is not None)
                of_caches = f" (cache {of_caches})" if of_caches else ""
                notes += [f"{name}, {share}, {prompt} tokens, {label}: {run['said']}" for run in shown if run["ended"] == "failed"]
                generated = dict.fromkeys(run["gen_tokens"] for run in shown)
                peak = max(run["group"]["peak"] for run in shown) / 2**20
                cells = [f"{share} ({budget / 2**20:.0f} MiB)", f"{prompt} + {', '.join(map(str, generated))}", label, len(shown),
                         figure(shown, "prefill"), figure(shown, "decode"), f"{peak:.0f} / {shown[0]['group']['limit'] / 2**20:.0f}",
                         f"{len(killed)} of {len(some)}{of_caches}" if killed else "no"]
                for part in ("prefill", "decode"):
                    cells.append(ratio(shown, peers, part) if mine else "")
                for column in ("limit_percent", "device_per_needed"):
                    for part in ("prefill", "decode"):
                        cells.append(median(shown, f"{part}_{column}", "{:.0f} %" if column == "limit_percent" else "{:.3f}") if mine else "")
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if notes:
        print("\n" + "\n".join(f"- {note}" for note in dict.fromkeys(notes)))


runs = Runs(options.json_lines)
if not options.table:
    if not options.model:
        parser.error("which model?")
    model = str(Path(options.model).resolve())
    text_file = ROOT / "target/tmp/compare_streaming.txt"
    text_file.parent.mkdir(parents=True, exist_ok=True)
    # Ten bytes a token are more than English needs in any vocabulary of thousands of tokens.
    text_file.write_text(english(10 * max(int(number) for number in options.prompt_tokens.split(","))))
    measure(runs)
    table([run for run in runs.all if run["model"] == Path(model).name])
else:
    table(runs.all)
