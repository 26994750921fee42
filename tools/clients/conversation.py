"""Scripted conversations of the client packages with a server; started by run.sh, which installs them.

Owns the order of the scripts and the server they talk to. Each script is a file of its own: openai_chat.py, openai_others.py,
anthropic_messages.py, ollama_chat.py, plain_http.py, reuse.py, and the same libraries in JavaScript (*.mjs).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import anthropic_messages
import ollama_chat
import openai_chat
import openai_others
import plain_http
import reuse
import thinking_model
from checks import Broken, Checks
from server import Server

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = "a-key-of-the-scripts"
CONTEXT, PARALLEL = 2048, 4
SCRIPT_SECONDS_MAX = 300
PYTHON = {"openai_chat": openai_chat, "openai_others": openai_others, "anthropic_messages": anthropic_messages, "ollama_chat": ollama_chat,
          "plain_http": plain_http}
JAVASCRIPT = ["openai", "anthropic", "ollama"]


class Served:
    """The server and what its model can do; shared by the scripts, which also leave their answers here to be compared."""

    def __init__(self, server):
        self.server, self.url, self.key = server, server.url, KEY
        models = server_json(server, "/v1/models")["data"]
        self.model, self.context = models[0]["id"], models[0]["context_length"]
        shown = server_json(server, "/api/show", {"model": self.model})
        self.capabilities = shown["capabilities"]
        # Answers to the same question at temperature 0, by protocol.
        self.answers = {}

    @property
    def thinks(self):
        return "thinking" in self.capabilities


def server_json(server, path, body=None):
    return json.loads((server.post(path, body) if body else server.get(path))[2])


def arguments_of(folder):
    return ["--ctx", CONTEXT, "--kv-tokens", PARALLEL * CONTEXT, "--parallel", PARALLEL, "--kv-dir", folder, "--kv-dir-size", "1GiB"]


def javascript(options, served, name):
    """Runs one script of Node, which prints its own checks; gives the numbers of those that passed and were skipped."""
    environment = {**os.environ, "COLDPRESS_URL": served.url, "COLDPRESS_KEY": served.key, "COLDPRESS_MODEL": served.model,
                   "COLDPRESS_THINKS": "1" if served.thinks else ""}
    counts = {"ok": 0, "SKIPPED": 0}
    with subprocess.Popen(["node", os.path.join(options.javascript, f"{name}.mjs")], env=environment, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(SCRIPT_SECONDS_MAX, process.kill)
        timer.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            word = line.split(" ", 1)[0]
            counts[word] = counts.get(word, 0) + 1
        timer.cancel()
    if process.returncode:
        raise Broken(f"the script of {name} in JavaScript ended with {process.returncode}")
    return counts["ok"], counts["SKIPPED"]


def run_script(served, name, script):
    """One script of Python; gives its number of checks."""
    checks = Checks(script.LIBRARY)
    try:
        script.run(checks, served)
    except Broken:
        raise
    except Exception:
        checks.fail(f"unexpected after {checks.passed} checks:\n{traceback.format_exc()}")
    return checks


def converse(options, folder):
    wanted = options.only or [*PYTHON, "reuse", *(f"{name}.mjs" for name in JAVASCRIPT)]
    passed = skipped = 0
    os.mkdir(os.path.join(folder, "kv"))
    server = Server(options.program, options.model, *arguments_of(os.path.join(folder, "kv")), *options.serve, key=KEY)
    try:
        served = Served(server.wait_until_ready())
        print(f"{served.model} at {served.url}: {served.context} tokens of context, capabilities {', '.join(served.capabilities)}")
        for name, script in PYTHON.items():
            if name in wanted:
                checks = run_script(served, name, script)
                passed, skipped = passed + checks.passed, skipped + checks.skipped
        for name in JAVASCRIPT:
            if f"{name}.mjs" in wanted:
                ok, left_out = javascript(options, served, name)
                passed, skipped = passed + ok, skipped + left_out
        if "reuse" in wanted:
            checks = Checks(reuse.LIBRARY)

            def restart():
                code = server.stop()
                checks.that(code in (0, 130), "the server ends when it is interrupted", f"exit code {code}\n" + "\n".join(server.notes[-5:]))
                again = Server(options.program, options.model, *arguments_of(os.path.join(folder, "kv")), *options.serve, key=KEY)
                return Served(again.wait_until_ready())

            served = reuse.run(checks, served, restart)
            server = served.server
            passed, skipped = passed + checks.passed, skipped + checks.skipped
        idle = server.wait_until_idle()
        if idle is None:
            raise Broken(f"something is still computed: {server.status()}")
        return passed, skipped
    except Broken:
        print("\n".join(server.notes[-10:]))
        raise
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--program", default=os.path.join(HERE, "../../target/release/coldpress"))
    parser.add_argument("--javascript", default=HERE)
    parser.add_argument("--thinking", action="store_true", help="with a chat template that knows thinking and tools")
    parser.add_argument("--only", nargs="*", help="scripts by name, such as openai_chat or openai.mjs")
    parser.add_argument("--serve", nargs="*", default=[], help="further arguments of the server")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            if options.thinking:
                options.model = thinking_model.copy(options.model, os.path.join(folder, "thinking.gguf"))
            passed, skipped = converse(options, folder)
    except (Broken, RuntimeError) as error:
        print(error)
        sys.exit(1)
    print(f"{passed} checks passed, {skipped} skipped, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
