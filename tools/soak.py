#!/usr/bin/env python3
"""Proofs of the memory promise under hard limits of the system (docs/memory.md). Needs Linux, root and a memory control group.

usage: tools/soak.py COMMAND MODEL.gguf [--pack FILE.cpack] [--minutes 10] [--quick] [--program FILE] [--session FILE]
       [--rate GB_PER_S]... [--phase decode|prefill]... [--length TOKENS]...
  matrix     budgets x residencies x prompt lengths under a limit of the budget and 64 MiB: no kill, peak within, same tokens
  topics     prompts on code and prose in turns in one process, watched every 5 ms: never above the budget
  neighbour  another process takes half of the group's limit, 1 GB/s or --rate: ours shrinks, lives, and answers the same
  lowered    the group's limit falls by 40 %: the same; both while tokens are decoded and in a long prompt
  idle       after some idle time a model gives its experts back, or all but program and tokenizer, and answers the same later
  cache      minutes of streaming, with a pack and without, and every command that reads: the page cache stays empty
  repeat     100 equal requests in one process: its memory does not grow
  locked     `ulimit -l 64`, without root's exemption from it
  plan       `plan --json` says what `run --json` uses, share by share
  all        everything that holds here; --quick for a minute and a half of it
Every command prints Markdown and exits with 1 if a promise was broken. Without --pack one is written beside the model and removed.
Build first: cargo build --release && cargo build --release -p coldpress --example soak_session
"""
import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from soak_system import Group, Watch, cached, forget, read

HERE = os.path.dirname(os.path.abspath(__file__))
RELEASE = os.path.join(HERE, "../target/release")
MIB = 1 << 20
# What a limit leaves beside the budget: page tables, sockets and files of the kernel, pages of the program's file.
OVERHEAD = 64 * MIB
ENVIRONMENT = {**os.environ, "COLDPRESS_PRESTACK_CACHE_DIR": "/nonexistent", "COLDPRESS_HOTLIST": "0", "COLDPRESS_PRESTACK": "0"}

failures = []


def check(holds, what):
    """Notes a broken promise and goes on: one run shows all of them."""
    if not holds:
        failures.append(what)
        print(f"BROKEN: {what}", flush=True)
    return holds


def mib(count):
    return f"{count / MIB:.1f}"


class Session:
    """One process of `soak_session` in a group: a request in, an answer out."""

    def __init__(self, options, group, budget, context, residency="auto", pack=None, choices=(), before=lambda: None):
        command = [options.session, options.model, str(budget), str(context), "--residency", residency, *choices]
        command += ["--pack", pack] if pack else []

        def prepare():
            group.enter()
            before()

        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=ENVIRONMENT, preexec_fn=prepare)
        self.notes = []
        threading.Thread(target=lambda: self.notes.extend(self.process.stderr), daemon=True).start()
        self.watch = Watch(self.process.pid)
        self.status = (self.line() or {}).get("status")

    def line(self):
        text = self.process.stdout.readline()
        return json.loads(text) if text else None

    def send(self, prompt, max_tokens, prompt_tokens=None):
        """Sends a request; False if the process is gone."""
        return self.say({"prompt": prompt, "max_tokens": max_tokens, "prompt_tokens": prompt_tokens})

    def say(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def begin(self, *request):
        """Sends a request and returns when the first token of its answer is there; False if the process is gone."""
        return self.send(*request) and self.line() is not None

    def live(self):
        """The state as other threads see it, without a request that would wake the model."""
        return (self.line() or {}).get("live", {}) if self.say({"look": True}) else {}

    def end(self):
        return self.line()

    def answer(self, *request):
        return self.end() if self.begin(*request) else None

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.watch.stop()
        code = self.process.wait(timeout=60)
        if code:
            print("".join(self.notes[-5:]), end="")
        return code


def text(name):
    with open(os.path.join(HERE, "texts", name)) as file:
        return file.read()


def plan(options, *arguments):
    command = [options.program, "plan", options.model, "--no-probe", "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout)


def quietly(options, *arguments):
    """Runs the program for what it does; what it says is shown where it fails."""
    done = subprocess.run([options.program, *arguments], capture_output=True, env=ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"{arguments[0]} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}")


def run(options, group, *arguments):
    """`coldpress run --json` in `group`; None when it did not end well."""
    command = [options.program, "run", options.model, "--raw", "--ignore-eos", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, preexec_fn=group.enter if group else None)
    if result.returncode:
        print(f"exit {result.returncode}: {result.stderr.strip()[-300:]}")
        return None
    return json.loads(result.stdout)


def smallest(options, context):
    return plan(options, "--ctx", str(context))["room"]["smallest_budget"]


def prompt_of(tokens):
    """About so many tokens of prose: four characters and a bit each."""
    prose = text("prose.txt")
    return (prose * (1 + 5 * tokens // len(prose)))[: 4 * tokens]


def matrix(options):
    size = os.path.getsize(options.model)
    lengths = [16, 256] if options.quick else options.length or [16, 512, 4096]
    most = 8 if options.quick else 24
    answers, runs = {}, 0
    print("| budget | residency | prompt | peak of the process | of budget | peak of the group | kills | tokens |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens in lengths:
        # Two tokens per word at worst.
        context = str(2 * tokens + 64 + most)
        room = plan(options, "--ctx", context)["room"]
        shares = [("minimum", room["smallest_budget"]), ("0.25 x file", size // 4), ("0.5 x file", size // 2), ("1.0 x file", size)]
        if room["resident_budget"] > size:
            shares.append(("resident", room["resident_budget"]))
        for name, budget in shares:
            for residency in ("resident", "streamed", "paged", "mapped"):
                # A place of a mapped pack takes more than a slot, so its smallest budget is another one.
                wanted = ["--ctx", context, "--residency", residency] + (["--pack", options.pack] if residency == "mapped" else [])
                if residency == "resident" and budget < room["resident_budget"]:
                    continue
                if options.quick and (name, residency) not in QUICK[:1 if tokens > 16 else None]:
                    continue
                if residency == "mapped":
                    budget = max(budget, plan(options, *wanted)["room"]["smallest_budget"])
                if budget < room["smallest_budget"]:
                    continue
                forget(options.model, options.pack)
                group = Group(budget + OVERHEAD)
                report = run(options, group, "--budget", str(budget), "--max-tokens", str(most), "-p", prompt_of(tokens), *wanted)
                kills, peak = group.kills(), group.peak()
                group.close()
                runs += 1
                what = f"{name}, {residency}, {tokens} tokens"
                if not check(report is not None and kills == 0, f"{what}: did not end, {kills} kills"):
                    continue
                rss = report["peak_bytes"]["rss"]
                same = answers.setdefault(tokens, report["tokens"]) == report["tokens"]
                print(f"| {mib(budget)} ({name}) | {residency} | {report['prompt_tokens']} | {mib(rss)} | {100 * rss / budget:.0f} % | {mib(peak)} "
                      f"| {kills} | {'same' if same else 'OTHER'} |", flush=True)
                check(rss <= budget, f"{what}: peak {mib(rss)} of a budget of {mib(budget)}")
                check(peak <= budget + OVERHEAD, f"{what}: the group had {mib(peak)}")
                check(same, f"{what}: other tokens")
    print(f"\n{runs} runs, sizes in MiB")
    check(runs >= (5 if options.quick else 10 if options.length else 30), f"only {runs} runs")


QUICK = [("0.25 x file", "streamed"), ("minimum", "streamed"), ("0.25 x file", "mapped"), ("0.25 x file", "paged")]


def middle_budget(options, context):
    """A budget with a few hundred slots, of which half can go."""
    return max(os.path.getsize(options.model) // 2, 3 * smallest(options, context))


def topics(options):
    context, rounds = 1024, 2 if options.quick else 10
    budget = max(os.path.getsize(options.model) // 4, smallest(options, context))
    group = Group(budget + OVERHEAD)
    session = Session(options, group, budget, context)
    first, evicted = {}, 0
    for _ in range(rounds):
        for topic in ("code.txt", "prose.txt"):
            answer = session.answer(text(topic), *((4, 96) if options.quick else (32, 400)))
            if not check(answer is not None, f"topics: gone at {topic}, {group.kills()} kills"):
                break
            evicted += answer["experts"]["evictions"]
            check(first.setdefault(topic, answer["tokens"]) == answer["tokens"], f"topics: another answer to {topic}")
    session.close()
    watch = session.watch
    print("| changes of topic | budget | largest sample | samples | experts evicted | kills |\n|---|---|---|---|---|---|")
    print(f"| {2 * rounds - 1} | {mib(budget)} | {mib(watch.rss)} | {watch.samples} | {evicted} | {group.kills()} |")
    check(watch.rss <= budget, f"topics: {mib(watch.rss)} of a budget of {mib(budget)}")
    check(evicted > 0, "topics: nothing was evicted, so nothing was shown")
    check(group.kills() == 0, "topics: killed")
    group.close()


# Private memory, touched in steps as programs do it, at a rate on average; huge pages, where small ones would be too slow. Says
# how long it took.
HOG = """
import mmap, sys, time
total, rate, step = int(sys.argv[1]), float(sys.argv[2]) * 1e9, 4 << 20
memory, zeros = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), bytes(step)
if rate > 1e9:
    memory.madvise(mmap.MADV_HUGEPAGE)
started = time.monotonic()
for at in range(0, total, step):
    memory[at:at + step] = zeros[:total - at]
    time.sleep(max(0, started + (at + step) / rate - time.monotonic()))
print(time.monotonic() - started, flush=True)
sys.stdin.read()
"""


def squeezed(options, name, phase, squeeze):
    """Answers undisturbed, then while `squeeze(group)` makes memory short; both answers must be the same.

    `phase` is `decode`, from the first token of the answer on, or `prefill`, in the middle of a long prompt.
    """
    if phase == "decode":
        length, answer = (32, 40) if options.quick else (256, 300)
    else:
        length, answer = (768, 4) if options.quick else (4096, 16)
    context = length + answer + 16
    budget = middle_budget(options, context)
    group = Group(budget + OVERHEAD)
    session = Session(options, group, budget, context)
    request = (text("prose.txt"), answer, length)
    began = time.monotonic()
    first_token = time.monotonic() - began if session.begin(*request) else 0
    undisturbed = session.end() if first_token else None
    before = session.watch.now()[0]
    session.send(*request)
    if phase == "decode":
        session.line()
    else:
        time.sleep(first_token * 0.4)
    release, said = squeeze(group) if undisturbed else (lambda: None, "never began")
    if phase == "prefill":
        check(session.line() is not None, f"{name}: gone")
    disturbed = session.end()
    after, peak = session.watch.now()[0], group.peak()
    release()
    code, kills = session.close(), group.kills()
    same = bool(undisturbed and disturbed and undisturbed["tokens"] == disturbed["tokens"])
    events = (disturbed or {}).get("live", {}).get("pressure", {}).get("events", [])
    causes = ", ".join(f"{event['cause']} {event['from'] >> 20} to {event['to'] >> 20}" for event in events)
    print(f"| {said} | {phase} | {mib(budget)} | {mib(budget + OVERHEAD)} | {mib(group.limit)} | {mib(before)} | {mib(after)} | {mib(peak)} | {causes} "
          f"| {kills} | {'same' if same else 'none' if disturbed is None else 'OTHER'} |", flush=True)
    check(kills == 0 and code == 0, f"{name}, {phase}: exit {code}, {kills} kills")
    check(same, f"{name}, {phase}: not the same answer")
    check(after < before, f"{name}, {phase}: nothing was given back")
    check(events, f"{name}, {phase}: the status shows no pressure")
    group.close()


SQUEEZED = """| what | while | budget | limit before | limit after | memory before | after | peak of the group | slots | kills | answer |
|---|---|---|---|---|---|---|---|---|---|---|"""


def neighbour(options):
    def squeeze(group, rate):
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(group.limit // 2), str(rate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, preexec_fn=group.enter)
        seconds = float(hog.stdout.readline().strip() or 0)
        check(seconds > 0, "neighbour: the other process did not get its memory")

        def release():
            hog.stdin.close()
            hog.wait()

        taken = group.limit // 2
        return release, f"another process takes {mib(taken)} at {taken / max(seconds, 1e-9) / 1e9:.2f} GB/s"

    print(SQUEEZED)
    for rate in options.rate or [1.0]:
        for phase in options.phase or ["decode", "prefill"]:
            squeezed(options, "neighbour", phase, lambda group: squeeze(group, rate))


def lowered(options):
    def squeeze(group):
        limit = group.limit * 6 // 10 // 4096 * 4096
        began = time.monotonic()
        check(group.lower(limit), "lowered: the system refused the lower limit for ten seconds")
        return lambda: None, f"the limit falls by 40 %, hard after {1000 * (time.monotonic() - began):.0f} ms"

    print(SQUEEZED)
    for phase in options.phase or (["decode"] if options.quick else ["decode", "prefill"]):
        squeezed(options, "lowered", phase, squeeze)


def cache(options):
    context = 1024
    minutes = 0.1 if options.quick else options.minutes
    size = os.path.getsize(options.model)
    budget = max(size // 4, smallest(options, context))
    files = [options.model, options.pack]
    print("| what | minutes | tokens | read | left of the model | left of the pack |\n|---|---|---|---|---|---|")

    def left(what, minutes="", tokens="", bytes_read=""):
        cold = [cached(path) for path in files]
        print(f"| {what} | {minutes} | {tokens} | {bytes_read} | {mib(cold[0])} | {mib(cold[1])} |", flush=True)
        for path, count in zip(files, cold):
            check(count < 0.05 * os.path.getsize(path), f"cache: {what} left {mib(count)} of {os.path.basename(path)}")

    for pack in (None, options.pack):
        forget(*files)
        group = Group(budget + OVERHEAD)
        session = Session(options, group, budget, context, "streamed", pack)
        until, tokens, bytes_read, most = time.monotonic() + 30 * minutes, 0, 0, 0
        while time.monotonic() < until:
            for topic in ("prose.txt", "code.txt"):
                answer = session.answer(text(topic), *((8, 64) if options.quick else (64, 256)))
                if not check(answer is not None, "cache: gone"):
                    break
                tokens, bytes_read = tokens + len(answer["tokens"]), bytes_read + answer["experts"]["device_bytes_read"]
                most = max(most, *(cached(path) for path in files))
            else:
                continue
            break
        session.close()
        check(most < 0.05 * size, f"cache: {mib(most)} in the page cache while streaming")
        left("streaming " + ("from the pack" if pack else "from the model"), f"{minutes / 2:.1f}", tokens, f"{bytes_read / 1e9:.1f} GB")
        group.close()
    common = ["--budget", str(budget)]
    other = [["plan", options.model], ["inspect", options.model], ["doctor", options.model], ["disk", options.model],
             ["bench", options.model, "--prompt-tokens", "64", "--gen-tokens", "16", "--repeat", "1", *common],
             ["trace", options.model, "-p", "The whale is", "--raw", "--gen-tokens", "16", "--out", options.pack + ".cptrace", *common],
             ["pack", options.model, "--out", options.pack, *common], ["pack", options.model, "--out", options.pack, "--verify", *common]]
    for arguments in other[:2] + other[5:6] + other[7:] if options.quick else other:
        forget(*files)
        quietly(options, *arguments)
        left(" ".join(word for word in arguments[:1] + [word for word in arguments if word == "--verify"]))
    os.remove(options.pack + ".cptrace")


def idle(options):
    context, after = 1024, 1 if options.quick else 2
    budget = middle_budget(options, context)
    shares = plan(options, "--budget", str(budget), "--ctx", str(context))["plan"]
    # What is left may be all that is not experts; or the program and the tokenizer, which `fixed` counts, and what they never gave back.
    most = {"experts": sum(shares[share] for share in SHARES if share != "slots"), "all": min(shares["fixed"] + 32 * MIB, 200_000_000)}
    print("| given back | budget | memory after an answer | may remain | remains | given back after | next first token after | answer | kills |")
    print("|---|---|---|---|---|---|---|---|---|")
    for release in ("experts", "all"):
        group = Group(budget + OVERHEAD)
        session = Session(options, group, budget, context, choices=["--idle-after", str(after), "--idle-release", release])
        request, first = (text("prose.txt"), 8 if options.quick else 64, 32 if options.quick else 256), None
        for _ in range(1 if options.quick else 3):
            answer = session.answer(*request)
            first = first or answer
            before, began = session.watch.now()[0], time.monotonic()
            while session.watch.now()[0] > most[release] and time.monotonic() < began + after + 10:
                time.sleep(0.05)
            seconds = time.monotonic() - began
            time.sleep(after)
            remains, live = session.watch.now()[0], session.live()
            check(live.get("released") == release, f"idle: {release} was not given back: {live.get('released')}")
            check(0 < remains <= most[release], f"idle: {mib(remains)} remain where {mib(most[release])} may")
            began = time.monotonic()
            first_token = time.monotonic() - began if session.begin(*request) else 0
            again = session.end() if first_token else None
            same = bool(first and again and first["tokens"] == again["tokens"])
            print(f"| {release} | {mib(budget)} | {mib(before)} | {mib(most[release])} | {mib(remains)} | {seconds:.1f} s | {first_token:.1f} s "
                  f"| {'same' if same else 'OTHER'} | {group.kills()} |", flush=True)
            check(same, f"idle: another answer after {release} were given back")
        code = session.close()
        check(code == 0 and group.kills() == 0, f"idle: exit {code}, {group.kills()} kills")
        group.close()


def repeat(options):
    context, requests, warm = 512, 8 if options.quick else 100, 3 if options.quick else 10
    budget = max(os.path.getsize(options.model) // 4, smallest(options, context))
    group = Group(budget + OVERHEAD)
    session = Session(options, group, budget, context)
    memory, first = [], None
    for _ in range(requests):
        answer = session.answer(text("prose.txt"), *((4, 16) if options.quick else (16, 64)))
        if not check(answer is not None, "repeat: gone"):
            break
        first = first or answer["tokens"]
        check(answer["tokens"] == first, "repeat: another answer")
        memory.append(session.watch.now()[1])
    session.close()
    growth = [after - before for before, after in zip(memory[warm:], memory[warm + 1:])]
    total = memory[-1] - memory[warm]
    print("| requests | budget | after the first few | at the end | largest step | kills |\n|---|---|---|---|---|---|")
    print(f"| {len(memory)} | {mib(budget)} | {mib(memory[warm])} | {mib(memory[-1])} | {mib(max(growth))} | {group.kills()} |")
    check(max(growth) < MIB, f"repeat: one request kept {mib(max(growth))} MiB")
    check(total < MIB, f"repeat: {mib(total)} MiB more after {len(memory) - warm} requests")
    group.close()


def locked(options):
    context = 512
    budget = max(os.path.getsize(options.model) // 4, smallest(options, context))
    group = Group(budget + OVERHEAD)

    def restrict():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        # PR_CAPBSET_DROP and a fresh program: root could lock whatever it likes (CAP_IPC_LOCK is 14).
        ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)

    session = Session(options, group, budget, context, "streamed", before=restrict)
    allowed = read(f"/proc/{session.process.pid}/limits")
    effective = int(next(line.split()[1] for line in read(f"/proc/{session.process.pid}/status").splitlines() if line.startswith("CapEff")), 16)
    answer = session.answer(text("prose.txt"), 16, 64)
    code = session.close()
    works = answer is not None and code == 0
    print("| locked memory allowed | exempt | reader | works |\n|---|---|---|---|")
    line = next((line for line in allowed.splitlines() if line.startswith("Max locked")), "")
    print(f"| {line.split()[3] if line else '?'} bytes | {bool(effective >> 14 & 1)} | {answer['status']['reader'] if answer else '-'} | {works} |")
    check(works, f"locked: exit {code}")
    check(not effective >> 14 & 1, "locked: the process was exempt, so nothing was shown")
    group.close()


def plans(options):
    size = os.path.getsize(options.model)
    cases = [(budget, context) for context in (256, 1024, 4096) for budget in (None, size // 4, size // 2, size)]
    cases = cases[4:7] if options.quick else cases
    print("| budget | context | " + " | ".join(SHARES) + " | the same in run |\n|" + "---|" * (len(SHARES) + 3))
    for budget, context in cases:
        budget = budget or smallest(options, context)
        arguments = ["--budget", str(budget), "--ctx", str(context)]
        planned = plan(options, *arguments)["plan"]
        report = run(options, None, "--max-tokens", "2", "-p", "The whale is", *arguments)
        used = report["planned"] if report else {}
        same = all(planned[share] == used.get(share) for share in SHARES) and set(used) == set(SHARES)
        print(f"| {mib(budget)} | {context} | " + " | ".join(mib(planned[share]) for share in SHARES) + f" | {same} |", flush=True)
        check(same, f"plan: {budget} bytes, {context} tokens: {planned} and {used}")
        check(sum(planned[share] for share in SHARES) <= budget, "plan: the shares are more than the budget")


SHARES = ["fixed", "dense", "kv", "scratch", "read_ring", "row_cache", "slots"]
COMMANDS = {"matrix": matrix, "topics": topics, "neighbour": neighbour, "lowered": lowered, "idle": idle, "cache": cache,
            "repeat": repeat, "locked": locked, "plan": plans}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("model")
    parser.add_argument("--pack")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--length", type=int, action="append", help="of a prompt of the matrix, in tokens; may be given more than once")
    parser.add_argument("--rate", type=float, action="append", help="of the neighbour, in GB/s; may be given more than once")
    parser.add_argument("--phase", choices=["decode", "prefill"], action="append")
    parser.add_argument("--program", default=os.path.join(RELEASE, "coldpress"))
    parser.add_argument("--session", default=os.path.join(RELEASE, "examples/soak_session"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    written = None
    if options.pack is None and options.command in ("matrix", "cache", "all"):
        options.pack = written = options.model + ".soak.cpack"
        quietly(options, "pack", options.model, "--out", written)
    try:
        for name in COMMANDS if options.command == "all" else [options.command]:
            started = time.monotonic()
            print(f"\n## {name}\n", flush=True)
            COMMANDS[name](options)
            print(f"\n{time.monotonic() - started:.0f} s", flush=True)
    finally:
        if written and os.path.exists(written):
            os.remove(written)
    print("\n" + (f"{len(failures)} promises broken" if failures else "all promises held"))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
