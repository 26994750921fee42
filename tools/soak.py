#!/usr/bin/env python3
"""Proofs of the memory promise under hard limits of the system (docs/memory.md). Needs Linux, root and a memory control group.

usage: tools/soak.py COMMAND MODEL.gguf [--pack FILE.cpack] [--minutes 10] [--quick] [--program FILE] [--session FILE]
  matrix     budgets x residencies x prompt lengths under a limit of the budget and 64 MiB: no kill, peak within, same tokens
  topics     prompts on code and prose in turns in one process, watched every 5 ms: never above the budget
  neighbour  another process takes half of the group's limit within moments: ours shrinks, lives, and answers the same
  lowered    the group's limit falls by 40 % while tokens are decoded: the same
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
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
RELEASE = os.path.join(HERE, "../target/release")
MIB = 1 << 20
# What a limit leaves beside the budget: page tables, sockets and files of the kernel, pages of the program's file.
OVERHEAD = 64 * MIB
SAMPLE_S = 0.005
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


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


class Group:
    """A memory control group of its own (version 1 or 2) with a hard limit and no swap; gone when it is closed."""

    def __init__(self, limit):
        self.one = os.path.isdir("/sys/fs/cgroup/memory")
        name = f"coldpress_soak_{uuid.uuid4().hex[:8]}"
        self.path = f"/sys/fs/cgroup/memory/{name}" if self.one else f"/sys/fs/cgroup/{name}"
        os.mkdir(self.path)
        self.write("memory.limit_in_bytes" if self.one else "memory.max", limit)
        for knob, value in (("memory.swappiness", 0), ("memory.memsw.limit_in_bytes", limit), ("memory.swap.max", 0)):
            try:
                self.write(knob, value)
            except OSError:
                pass
        self.limit = limit

    def write(self, knob, value):
        # Opening must not create: a file that is not there is a knob that this version does not have.
        descriptor = os.open(f"{self.path}/{knob}", os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def number(self, one, two):
        return int(read(f"{self.path}/{one if self.one else two}").strip() or 0)

    def field(self, file, name):
        for line in read(f"{self.path}/{file}").splitlines():
            words = line.split()
            if words[:1] == [name]:
                return int(words[1])
        return 0

    def peak(self):
        return self.number("memory.max_usage_in_bytes", "memory.peak")

    def kills(self):
        return self.field("memory.oom_control" if self.one else "memory.events", "oom_kill")

    def lower(self, limit, seconds=10):
        """Lowers the limit: first softly, so that everybody may react, then hard, as soon as the system lets us."""
        self.write("memory.soft_limit_in_bytes" if self.one else "memory.high", limit)
        until = time.monotonic() + seconds
        while True:
            try:
                # Version 2 never refuses, and kills instead; so it waits for the use to fall.
                if self.one or self.number("", "memory.current") <= limit or time.monotonic() > until:
                    self.write("memory.limit_in_bytes" if self.one else "memory.max", limit)
                    self.limit = limit
                    return True
            except OSError:
                if time.monotonic() > until:
                    return False
            time.sleep(0.02)

    def close(self):
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)


class Watch:
    """Samples the memory of a process from outside until it is told to stop."""

    def __init__(self, pid):
        self.rss, self.anon, self.samples = 0, 0, 0
        self.page = resource.getpagesize()
        self.path = f"/proc/{pid}/statm"
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def now(self):
        words = read(self.path).split()
        if len(words) < 3:
            return 0, 0
        resident, shared = int(words[1]) * self.page, int(words[2]) * self.page
        return resident, resident - shared

    def sample(self):
        while not self.ended.wait(SAMPLE_S):
            rss, anon = self.now()
            self.rss, self.anon, self.samples = max(self.rss, rss), max(self.anon, anon), self.samples + 1

    def stop(self):
        self.ended.set()
        self.thread.join()


class Session:
    """One process of `soak_session` in a group: a request in, an answer out."""

    def __init__(self, options, group, budget, context, residency="auto", pack=None, before=lambda: None):
        command = [options.session, options.model, str(budget), str(context), residency] + ([pack] if pack else [])

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

    def begin(self, prompt, max_tokens, prompt_tokens=None):
        """Sends a request and returns when the first token of its answer is there; False if the process is gone."""
        request = {"prompt": prompt, "max_tokens": max_tokens, "prompt_tokens": prompt_tokens}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return self.line() is not None

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


def run(options, group, *arguments):
    """`coldpress run --json` in `group`; None when it did not end well."""
    command = [options.program, "run", options.model, "--raw", "--ignore-eos", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, preexec_fn=group.enter if group else None)
    if result.returncode:
        print(f"exit {result.returncode}: {result.stderr.strip()[-300:]}")
        return None
    return json.loads(result.stdout)


def cached(path):
    """Bytes of a file in the page cache (`mincore` of a mapping that touches nothing)."""
    size, page = os.path.getsize(path), resource.getpagesize()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with open(path, "rb") as file:
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if start in (None, ctypes.c_void_p(-1).value):
        sys.exit(f"soak: cannot map {path}")
    pages = ctypes.create_string_buffer(-(-size // page))
    libc.mincore(start, size, pages)
    libc.munmap(start, size)
    return sum(byte & 1 for byte in pages.raw) * page


def forget(*paths):
    """Puts files out of the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def smallest(options, context):
    return plan(options, "--ctx", str(context))["room"]["smallest_budget"]


def prompt_of(tokens):
    """About so many tokens of prose: four characters and a bit each."""
    prose = text("prose.txt")
    return (prose * (1 + 5 * tokens // len(prose)))[: 4 * tokens]


def matrix(options):
    size = os.path.getsize(options.model)
    lengths = [16, 512] if options.quick else [16, 512, 4096]
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
                if options.quick and (name, residency) not in QUICK[:3 if tokens > 16 else None]:
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
    check(runs >= (6 if options.quick else 30), f"only {runs} runs")


QUICK = [("minimum", "streamed"), ("0.25 x file", "streamed"), ("0.25 x file", "mapped"), ("0.25 x file", "paged"), ("0.5 x file", "streamed")]


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
            answer = session.answer(text(topic), *((8, 200) if options.quick else (32, 400)))
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


HOG = """
import mmap, sys, time
total, step, rate = int(sys.argv[1]), 16 << 20, 1e9
memory = mmap.mmap(-1, total)
started = time.monotonic()
for at in range(0, total, step):
    for page in range(at, min(at + step, total), 4096):
        memory[page] = 1
    time.sleep(max(0, started + (at + step) / rate - time.monotonic()))
print("taken", flush=True)
sys.stdin.read()
"""


def squeezed(options, name, squeeze):
    """Decodes undisturbed, then while `squeeze(group)` makes memory short; both answers must be the same."""
    context, length = 1024, 64 if options.quick else 256
    budget = middle_budget(options, context)
    prose = text("prose.txt")
    group = Group(budget + OVERHEAD)
    session = Session(options, group, budget, context)
    request = (prose, length, 300)
    undisturbed = session.answer(*request)
    before = session.watch.now()[0]
    started = session.begin(*request)
    release, said = squeeze(group) if started else (lambda: None, "never began")
    disturbed = session.end() if started else None
    after = session.watch.now()[0]
    release()
    code, kills = session.close(), group.kills()
    print("| what | budget | limit before | limit after | memory before | after | kills | answer |\n|---|---|---|---|---|---|---|---|")
    same = bool(undisturbed and disturbed and undisturbed["tokens"] == disturbed["tokens"])
    print(f"| {said} | {mib(budget)} | {mib(budget + OVERHEAD)} | {mib(group.limit)} | {mib(before)} | {mib(after)} | {kills} "
          f"| {'same' if same else 'none' if disturbed is None else 'OTHER'} |")
    check(kills == 0 and code == 0, f"{name}: exit {code}, {kills} kills")
    check(same, f"{name}: not the same answer")
    check(after < before, f"{name}: nothing was given back")
    group.close()


def neighbour(options):
    def squeeze(group):
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(group.limit // 2)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, preexec_fn=group.enter)
        taken = hog.stdout.readline().strip()
        check(taken == "taken", "neighbour: the other process did not get its memory")

        def release():
            hog.stdin.close()
            hog.wait()

        return release, f"another process takes {mib(group.limit // 2)}"

    squeezed(options, "neighbour", squeeze)


def lowered(options):
    def squeeze(group):
        limit = group.limit * 6 // 10 // 4096 * 4096
        check(group.lower(limit), "lowered: the system refused the lower limit for ten seconds")
        return lambda: None, "the limit falls by 40 %"

    squeezed(options, "lowered", squeeze)


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
                answer = session.answer(text(topic), 64, 256)
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
    for arguments in other[:2] + other[5:] if options.quick else other:
        forget(*files)
        subprocess.run([options.program, *arguments], check=True, capture_output=True, env=ENVIRONMENT)
        left(" ".join(word for word in arguments[:1] + [word for word in arguments if word == "--verify"]))
    os.remove(options.pack + ".cptrace")


def repeat(options):
    context, requests, warm = 512, 16 if options.quick else 100, 10
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
    print("| requests | budget | after the tenth | at the end | largest step | kills |\n|---|---|---|---|---|---|")
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


SHARES = ["fixed", "dense", "kv", "scratch", "read_ring", "slots"]
COMMANDS = {"matrix": matrix, "topics": topics, "neighbour": neighbour, "lowered": lowered, "cache": cache, "repeat": repeat,
            "locked": locked, "plan": plans}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("model")
    parser.add_argument("--pack")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--program", default=os.path.join(RELEASE, "coldpress"))
    parser.add_argument("--session", default=os.path.join(RELEASE, "examples/soak_session"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    written = None
    if options.pack is None and options.command in ("matrix", "cache", "all"):
        options.pack = written = options.model + ".soak.cpack"
        subprocess.run([options.program, "pack", options.model, "--out", written], check=True, capture_output=True, env=ENVIRONMENT)
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
