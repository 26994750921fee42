#!/usr/bin/env python3
"""Mixed load on `coldpress serve` under a hard memory limit: nothing lost, nothing mixed up, nothing left behind (docs/server.md).

usage: tools/serve_soak.py MODEL.gguf [--minutes 10] [--quick] [--budget BYTES] [--program FILE] [--clients 12] [--idle 1000] [--seed 1]
Conversations over all protocols at once, clients that leave in the queue, the prompt and the answer, long prompts, slow readers, sockets that
are closed by half, malformed requests, and connections that do nothing, in a control group of the budget and 64 MiB. Fixed questions, answered
alone at the start, must get the same answers every time; some drawn answers are asked for again alone at the end.
Prints one JSON line per interval and a verdict; exits with 1 if a promise was broken. Needs Linux and root. --quick takes about a minute.
"""
import argparse
import collections
import json
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))

from server import Server  # noqa: E402
from soak_system import Group  # noqa: E402
from traffic import BEGINNINGS, PROTOCOLS, QUESTIONS, RAW, RECORD, Ask, ask, ask_and_leave, ask_and_leave_in  # noqa: E402

MIB = 1 << 20
# What a limit leaves beside the budget: page tables, sockets and files of the kernel, pages of the program's file.
OVERHEAD = 64 * MIB
# Growth of private memory over the measured time, by a straight line through the smallest sample of each interval. A request that
# left a page of keys and values behind (64 positions, 0.4 MiB in the 2 GB model) or its body would show as hundreds of MiB in ten
# minutes; allocators of some threads and the answers that are remembered for reuse (4 MiB at most) come to a few.
GROWTH_MAX = 8 * MIB
CONTEXT, PARALLEL, QUEUE = 2048, 4, 8
MALFORMED = [b'{"model": ', b"[]", b"", b"\xff\xfe", b'{"messages": 3}', b'{"messages": [{"role": "user", "content": "x"}], "surprise": 1}']


def mib(count):
    return round(count / MIB, 1)


class Tally:
    """What happened to requests, counted by all clients."""

    def __init__(self):
        self.lock, self.counts, self.broken, self.drawn = threading.Lock(), collections.Counter(), [], []

    def add(self, name, count=1):
        with self.lock:
            self.counts[name] += count

    def breaks(self, what):
        with self.lock:
            self.broken.append(what)
            if len(self.broken) <= 20:
                print(f"BROKEN: {what}", flush=True)

    def remember(self, name, body, text):
        """Keeps some drawn answers, to be asked for again alone."""
        with self.lock:
            if len(self.drawn) < 400:
                self.drawn.append((name, body, text))

    def total(self, prefix):
        with self.lock:
            return sum(count for name, count in self.counts.items() if name.startswith(prefix))


class Canary:
    """A fixed question with the answer it got alone."""

    def __init__(self, name, text, tokens):
        self.name, self.body, self.answer = name, PROTOCOLS[name].body(text, tokens, 0, None), None

    def streamed(self, stream):
        return {**self.body, "stream": stream}


def canaries(tokens):
    texts = {name: BEGINNINGS if name in RAW else QUESTIONS for name in PROTOCOLS}
    return [Canary(name, texts[name][(number + turn) % 4], tokens) for number, name in enumerate(PROTOCOLS) for turn in range(2)]


class Client(threading.Thread):
    """One client that does one thing after the other, drawn at random, until the time is over."""

    def __init__(self, number, options, server, tally, known, prose, until):
        super().__init__(daemon=True)
        self.random = random.Random(options.seed * 1000 + number)
        self.name, self.options, self.server, self.tally, self.known, self.prose, self.until = f"client {number}", options, server, tally, known, prose, until
        self.doing = "nothing"

    def run(self):
        kinds = [(self.canary, 30), (self.draw, 22), (self.converse, 8), (self.abort, 25), (self.long_prompt, 3), (self.abort_long_prompt, 4),
                 (self.slow, 2), (self.half_close, 2), (self.malformed, 6), (self.structured, 6), (self.several, 3)]
        weights = [weight for _, weight in kinds]
        while time.monotonic() < self.until:
            act = self.random.choices(kinds, weights)[0][0]
            self.doing = act.__name__
            try:
                act()
            except Exception as error:
                self.tally.breaks(f"{self.name}, {self.doing}: {type(error).__name__}: {error}")
        self.doing = "finished"

    def settle(self, kind, reply, left=False, choices=1):
        """Counts a reply; True if the answer is complete."""
        self.tally.add("sent", choices)
        if left and not reply.complete:
            self.tally.add(f"left in {reply.phase}", choices)
            return False
        if reply.status in (429, 503):
            self.tally.add(f"refused {reply.status}", choices)
            # The first answers may have been taken before the queue was full; they end with the refusal.
            self.tally.add("refused in part", choices - 1)
            time.sleep(self.random.uniform(0.05, 0.5))
            return False
        if not reply.complete:
            self.tally.breaks(f"{kind} lost: status {reply.status}, {reply.phase}, {reply.error}, {json.dumps(reply.reply)[:300]}")
            return False
        self.tally.add("ended", choices)
        return True

    def canary(self):
        canary = self.random.choice(self.known)
        reply = ask(self.server, canary.name, canary.streamed(self.random.random() < 0.5), client=self.name)
        if self.settle(f"canary {canary.name}", reply):
            self.tally.add("canaries")
            if reply.text != canary.answer:
                self.tally.breaks(f"canary {canary.name}: {reply.text!r}, alone {canary.answer!r}")

    def text(self, name, least=20, most=600):
        """A text that no other request has, of so many characters."""
        length, at = self.random.randint(least, most), self.random.randrange(len(self.prose))
        cut = (self.prose[at:] + self.prose)[:length]
        return f"{self.random.randrange(10**9)} {cut}" + ("" if name in RAW else "\n" + self.random.choice(QUESTIONS))

    def request(self, least=20, most=600):
        name = self.random.choice(list(PROTOCOLS))
        seed = self.random.randrange(2**31)
        # Messages have no seed, so they are asked at temperature 0.
        temperature = 0 if name == "messages" else self.random.choice([0, 0.7, 1.0])
        body = PROTOCOLS[name].body(self.text(name, least, most), self.random.randint(1, self.options.tokens), temperature, seed)
        return name, {**body, "stream": self.random.random() < 0.7}

    def draw(self):
        name, body = self.request()
        reply = ask(self.server, name, body, client=self.name)
        if self.settle(name, reply):
            self.tally.remember(name, body, reply.text)

    def converse(self):
        """Turns that repeat all that was said."""
        messages = [{"role": "system", "content": self.text("chat")}]
        for _ in range(self.random.randint(2, 4)):
            messages.append({"role": "user", "content": self.random.choice(QUESTIONS)})
            body = {"model": "any", "messages": messages, "max_tokens": 16, "temperature": 0, "stream": self.random.random() < 0.5}
            reply = ask(self.server, "chat", body, client=self.name)
            if not self.settle("conversation", reply):
                return
            messages.append({"role": "assistant", "content": reply.text})
        self.tally.add("conversations")

    def abort(self, least=20, most=600):
        """Leaves in the queue, the prompt or the answer, as the server tells them; or after some time, whatever it does then."""
        name, body = self.request(least, most)
        reset, phase = self.random.random() < 0.3, self.random.choice(["queue", "prompt", "answer", None])
        if phase:
            reply, left = ask_and_leave_in(self.server, name, self.longer(name, body), phase, reset, client=self.name)
        else:
            seconds = self.random.choice([self.random.uniform(0, 0.3), self.random.uniform(0, 5)])
            reply, left = ask_and_leave(self.server, name, body, seconds, reset, client=self.name)
        self.settle(name, reply, left)

    @staticmethod
    def longer(name, body):
        """The same with an answer that is not over when its client has heard its first word."""
        if name.startswith("ollama"):
            return {**body, "options": {**body["options"], "num_predict": 400}}
        return {**body, ("max_output_tokens" if name == "responses" else "max_tokens"): 400}

    def long_prompt(self):
        name, body = self.request(2000, 3 * CONTEXT)
        self.settle("long prompt", ask(self.server, name, body, client=self.name))

    def abort_long_prompt(self):
        self.abort(2000, 3 * CONTEXT)

    def slow(self):
        """Reads little at a time, from a small buffer, while the server has much to say."""
        body = {**PROTOCOLS["chat"].body(self.text("chat"), self.options.tokens, 0, 0), "stream": True, "logprobs": True, "top_logprobs": 20}
        pending = bytearray()

        def read(response):
            while b"\n" not in pending:
                piece = response.read1(512)
                if not piece:
                    line, pending[:] = bytes(pending), b""
                    return line
                pending.extend(piece)
                if self.random.random() < 0.1:
                    time.sleep(0.02)
            line, _, rest = bytes(pending).partition(b"\n")
            pending[:] = rest
            return line + b"\n"

        request = Ask(self.server, PROTOCOLS["chat"].path, body, client=self.name, receive_buffer=4096)
        self.settle("slow reader", request.run(PROTOCOLS["chat"], read))

    def half_close(self):
        """Closes the sending half after the request; the server takes that for leaving."""
        name, body = self.request()
        request = Ask(self.server, PROTOCOLS[name].path, {**body, "stream": True}, client=self.name)
        try:
            request.send()
            request.socket.shutdown(socket.SHUT_WR)
            while request.socket.recv(4096):
                pass
        except OSError:
            pass
        request.close()
        self.tally.add("sent")
        self.tally.add("left by half")

    def malformed(self):
        name = self.random.choice(["chat", "messages", "responses", "ollama chat"])
        request = Ask(self.server, PROTOCOLS[name].path, self.random.choice(MALFORMED), client=self.name)
        reply = request.run(PROTOCOLS[name])
        self.tally.add("malformed")
        if reply.status != 400:
            self.tally.breaks(f"malformed request: status {reply.status}, {reply.error}")

    def structured(self):
        """An answer with a schema, or a call that must be made."""
        body = {**PROTOCOLS["chat"].body(self.text("chat"), 120, 1.0, self.random.randrange(2**31)), "stream": False}
        if self.random.random() < 0.5:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD}}
        else:
            body["tools"] = [{"type": "function", "function": {"name": "note", "parameters": RECORD}}]
            body["tool_choice"] = "required"
        reply = ask(self.server, "chat", body, client=self.name)
        if self.settle("structured", reply):
            if reply.reply["choices"][0]["finish_reason"] == "length":
                return self.tally.add("structured, cut")
            message = reply.reply["choices"][0]["message"]
            text = message["tool_calls"][0]["function"]["arguments"] if message.get("tool_calls") else message["content"]
            try:
                value = json.loads(text)
                fits = set(value) == {"name", "count"} and 0 <= value["count"] <= 99
            except ValueError:
                fits = False
            if not fits:
                self.tally.breaks(f"structured answer: {text!r}")

    def several(self):
        body = {**PROTOCOLS["chat"].body(self.text("chat"), 12, 1.0, self.random.randrange(2**31)), "n": 2, "stream": False}
        reply = ask(self.server, "chat", body, client=self.name)
        if self.settle("two answers", reply, choices=2) and len(reply.reply["choices"]) != 2:
            self.tally.breaks("two answers were asked for, and not given")


class Idlers(threading.Thread):
    """Connections that send nothing, or half a request; the server may close them, and then they come back."""

    def __init__(self, server, count):
        super().__init__(daemon=True)
        self.server, self.count, self.sockets, self.reopened, self.ended = server, count, [], 0, threading.Event()

    def connect(self, number):
        connected = socket.create_connection(self.server.address, timeout=30)
        if number % 4 == 0:
            connected.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-")
        connected.setblocking(False)
        return connected

    def run(self):
        while not self.ended.wait(1):
            while len(self.sockets) < self.count and not self.ended.is_set():
                self.sockets.append(self.connect(len(self.sockets)))
            for number, connected in enumerate(self.sockets):
                try:
                    while connected.recv(4096):
                        pass
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                connected.close()
                self.sockets[number] = self.connect(number)
                self.reopened += 1

    def close(self):
        self.ended.set()
        self.join()
        for connected in self.sockets:
            connected.close()


class Memory(threading.Thread):
    """Samples the group; keeps the smallest private memory of each interval."""

    def __init__(self, group, process, interval):
        super().__init__(daemon=True)
        self.group, self.process, self.interval = group, process, interval
        self.began, self.smallest, self.anon, self.ended = time.monotonic(), {}, 0, threading.Event()

    def run(self):
        while not self.ended.wait(0.1):
            self.anon = self.group.field("memory.stat", "rss" if self.group.one else "anon")
            slot = int((time.monotonic() - self.began) / self.interval)
            self.smallest[slot] = min(self.anon, self.smallest.get(slot, self.anon))

    def slope(self, after):
        """Bytes per minute of the straight line through the intervals after so many seconds, and the minutes it spans."""
        # The last interval is cut and may have no load.
        points = [(slot * self.interval / 60, low) for slot, low in sorted(self.smallest.items()) if slot * self.interval >= after][:-1]
        if len(points) < 3:
            return 0.0, 0.0
        middle = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
        spread = sum((x - middle[0]) ** 2 for x, _ in points)
        return sum((x - middle[0]) * (y - middle[1]) for x, y in points) / spread, points[-1][0] - points[0][0]


def line_of(seconds, server, tally, memory, idlers):
    status = server.status()
    engine, counts = status["engine"], dict(sorted(tally.counts.items()))
    return {"seconds": round(seconds), **counts, "running": engine["running"], "waiting": engine["waiting"], "connections": status["server"]["connections"],
            "reopened": idlers.reopened, "private_mib": mib(memory.anon), "peak_of_group_mib": mib(memory.group.peak()),
            "held_mib": mib(engine["held_bytes"]), "hits": engine["expert_hits"], "misses": engine["expert_misses"]}


def learn_alone(server, known):
    for canary in known:
        answers = {ask(server, canary.name, canary.streamed(stream)).text for stream in (False, True)}
        if len(answers) != 1 or not answers - {""}:
            sys.exit(f"serve_soak: alone, {canary.name} has no one answer: {answers}")
        canary.answer = answers.pop()


def fill(server, prose):
    """Uses every page of keys and values once, and the tables of grammars: what is used for the first time later is no growth."""
    for number in range(16):
        if server.status()["engine"]["detail"]["prefix"]["free_pages"] == 0:
            break
        at = number * 5000 % len(prose)
        ask(server, "completions", PROTOCOLS["completions"].body(f"{number} " + (prose[at:] + prose)[:5000], 1, 0, 0))
    body = {**PROTOCOLS["chat"].body(QUESTIONS[0], 120, 0, 0), "response_format": {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD}}}
    ask(server, "chat", body)


def replay(server, tally, count):
    """Asks for drawn answers again, alone."""
    chosen = random.Random(0).sample(tally.drawn, min(count, len(tally.drawn)))
    for name, body, text in chosen:
        again = ask(server, name, {**body, "stream": False})
        if again.text != text:
            tally.breaks(f"{name} drew {text!r} under load and {again.text!r} alone")
    return len(chosen)


def settle_accounts(server, tally, before):
    """After the load: nothing is at work, and the server counted what the clients counted."""
    seconds = server.wait_until_idle(60)
    if seconds is None:
        tally.breaks(f"something is still at work: {server.status()['engine']['running']} running")
    status = server.status()["server"]
    finished = status["answers_finished"] - before["answers_finished"]
    abandoned = status["answers_abandoned"] - before["answers_abandoned"]
    ended, left = tally.counts["ended"], tally.total("left")
    if status["answers_open"]:
        tally.breaks(f"{status['answers_open']} answers are open")
    in_part = tally.counts["refused in part"]
    if not ended <= finished <= ended + left or finished + abandoned > ended + left + in_part:
        tally.breaks(f"the server finished {finished} and lost {abandoned}; clients got {ended} and left {left}")
    refused = tally.total("refused ") - in_part
    if tally.counts["sent"] != ended + left + refused:
        tally.breaks(f"of {tally.counts['sent']} requests {ended} ended, {left} were left, {refused} were refused")
    return {"finished": finished, "abandoned": abandoned, "idle_after_seconds": seconds}


def soak(options, group, server, tally):
    seconds = 50 if options.quick else 60 * options.minutes
    interval = 5 if options.quick else 10
    with open(os.path.join(HERE, "texts/prose.txt")) as file:
        prose = file.read()
    known = canaries(min(24, options.tokens))
    learn_alone(server, known)
    fill(server, prose)
    before = server.status()["server"]
    idlers, memory = Idlers(server, options.idle), Memory(group, server.process, interval)
    idlers.start()
    memory.start()
    began = time.monotonic()
    clients = [Client(number, options, server, tally, known, prose, began + seconds) for number in range(options.clients)]
    for client in clients:
        client.start()
    for number in range(1, int(seconds / interval) + 1):
        time.sleep(max(0, began + number * interval - time.monotonic()))
        if server.process.poll() is not None:
            tally.breaks(f"the server is gone, exit code {server.process.returncode}: {server.notes[-3:]}")
            return {}
        print(json.dumps(line_of(time.monotonic() - began, server, tally, memory, idlers)), flush=True)
    for client in clients:
        client.join(max(1, began + seconds + 310 - time.monotonic()))
        if client.is_alive():
            tally.breaks(f"{client.name} waits for ever: {client.doing}")
    memory.ended.set()
    idlers.close()
    slope, minutes = memory.slope(0.4 * seconds if options.quick else 120)
    if slope * minutes > GROWTH_MAX:
        tally.breaks(f"private memory grew by {mib(slope * minutes)} MiB in {minutes:.1f} minutes")
    accounts = settle_accounts(server, tally, before)
    replayed = replay(server, tally, 8 if options.quick else 40)
    return {**accounts, "replayed_alone": replayed, "slope_mib_per_minute": mib(slope), "measured_minutes": round(minutes, 1)}


def verdict(options, group, server, tally, budget, result):
    alive = server.process.poll() is None
    engine = server.status()["engine"] if alive else {"peak_bytes": 0, "running": 0, "waiting": 0}
    peak, kills = group.peak(), group.kills()
    code = server.stop()
    if kills or not alive or code not in (0, 130):
        tally.breaks(f"{kills} kills, exit code {code}: {server.notes[-3:]}")
    if engine["peak_bytes"] > budget:
        tally.breaks(f"the process held {mib(engine['peak_bytes'])} MiB of a budget of {mib(budget)}")
    if peak > budget + OVERHEAD:
        tally.breaks(f"the group held {mib(peak)} MiB of {mib(budget + OVERHEAD)}")
    # Whoever leaves must have left everywhere, or nothing was shown about it.
    for phase in ("left in queue", "left in prompt", "left in answer", "canaries", "ended"):
        if not tally.counts[phase]:
            tally.breaks(f"nothing was shown: no {phase}")
    print(json.dumps({"verdict": "broken" if tally.broken else "held", **result, **dict(sorted(tally.counts.items())), "kills": kills,
                      "budget_mib": mib(budget), "peak_of_process_mib": mib(engine["peak_bytes"]), "peak_of_group_mib": mib(peak),
                      "limit_mib": mib(budget + OVERHEAD), "broken": len(tally.broken)}))
    return 1 if tally.broken else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=int, help="bytes; a third of the model and 256 MiB by default")
    parser.add_argument("--program", default=os.path.join(HERE, "../target/release/coldpress"))
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of an answer")
    parser.add_argument("--serve", nargs="*", default=[], metavar="ARGUMENT", help="further arguments of the server, such as cold-fraction=0.75")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536, hard))
    budget = options.budget or os.path.getsize(options.model) // 3 + 256 * MIB
    group, tally = Group(budget + OVERHEAD), Tally()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.program, options.model, "--ctx", CONTEXT, "--kv-tokens", PARALLEL * CONTEXT, "--parallel", PARALLEL,
                        "--queue", QUEUE, "--budget", budget, "--kv-dir", folder, "--kv-dir-size", "256MiB", *(f"--{argument}" for argument in options.serve), before=group.enter)
        try:
            server.wait_until_ready()
            code = verdict(options, group, server, tally, budget, soak(options, group, server, tally))
        finally:
            server.stop()
            group.close()
    sys.exit(code)


if __name__ == "__main__":
    main()
