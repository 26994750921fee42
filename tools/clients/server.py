"""A running `coldpress serve`, for scripts: starts it, waits until it answers, asks its state, stops it.

Owns the process and nothing of the protocols; needs the standard library only. Read next: conversation.py, ../serve_soak.py.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.parse

LISTENING = re.compile(r"listening at (http://[^\s,]+)")
# Nothing of the user's machine may change what is tested, and no key may come from outside.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "COLDPRESS_API_KEY"},
    "COLDPRESS_PRESTACK_CACHE_DIR": "/nonexistent", "COLDPRESS_HOTLIST": "0", "COLDPRESS_PRESTACK": "0",
}


class Server:
    """One server; `key` is what clients must send, `before` runs in the new process before the program."""

    def __init__(self, program, model, *arguments, key=None, before=None):
        environment = {**ENVIRONMENT, **({"COLDPRESS_API_KEY": key} if key else {})}
        command = [program, "serve", model, "--port", "0", *map(str, arguments)]
        self.key, self.url, self.notes = key, None, []
        self.listening, self.ended = threading.Event(), threading.Event()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env=environment, preexec_fn=before)
        threading.Thread(target=self.read_notes, daemon=True).start()

    def read_notes(self):
        for line in self.process.stderr:
            self.notes.append(line.rstrip())
            found = LISTENING.search(line)
            if found and not self.url:
                self.url = found.group(1)
                self.listening.set()
        self.ended.set()
        self.listening.set()

    def wait_until_ready(self, seconds=180):
        """Returns when `/health` says 200; RuntimeError with the program's last words if it never does."""
        until = time.monotonic() + seconds
        self.listening.wait(seconds)
        while self.url and time.monotonic() < until and self.process.poll() is None:
            try:
                status, _, _ = self.get("/health")
                if status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.stop()
        raise RuntimeError("the server did not become ready:\n" + "\n".join(self.notes[-10:]))

    @property
    def address(self):
        """Host and port."""
        parts = urllib.parse.urlsplit(self.url)
        return parts.hostname, parts.port

    def headers(self):
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def request(self, method, path, body=None, headers=None, timeout=120):
        """Status, headers (names in lower case) and bytes of one request on a connection of its own."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body).encode()
            sent = {"Content-Type": "application/json", **self.headers(), **(headers or {})}
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body=body, **options)

    def status(self):
        """`/v1/status`."""
        return json.loads(self.get("/v1/status")[2])

    def busy(self):
        """Requests that compute or wait, as the engine counts them."""
        engine = self.status()["engine"]
        return engine["running"] + engine["waiting"]

    def wait_until_idle(self, seconds=60):
        """Seconds until nothing is computed and nothing waits; None if that did not happen in time."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.busy() == 0:
                return time.monotonic() - began
            time.sleep(0.002)
        return None

    def tokens(self, text):
        """Ids of a text, control tokens read as such."""
        return json.loads(self.post("/tokenize", {"content": text})[2])["tokens"]

    def end_tokens(self):
        """Ids that end an answer, among those that chat models use."""
        found = (self.tokens(text) for text in ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>"))
        return [ids[0] for ids in found if len(ids) == 1]

    def never_ending(self):
        """A `logit_bias` under which an answer ends by its limit only."""
        return {str(token): -100 for token in self.end_tokens()}

    def stop(self, seconds=30):
        """Interrupts the program as a user would. Gives its exit code; a program that does not end is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.notes.append("did not end when interrupted")
                self.process.kill()
        return self.process.wait()
