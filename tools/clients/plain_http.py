"""What no client package does: malformed requests, limits, sockets that close at any moment, metrics, tokens, the plain paths."""
import json
import socket
import time

from prometheus_client.parser import text_string_to_metric_families

from material import LONG, prose

LIBRARY = "plain HTTP"
# Scripts that the reference tokenizers cut in different ways.
MIXED = "Hello, wörld! 你好，世界 — Привет <b>мир</b>  \t\n 123 4567 don't 🐋🦑 नमस्ते"


def run(checks, served):
    for part in (health, descriptions, metrics, tokens, malformed, refusals, keys, stream_headers, leaving_while_waiting, leaving_in_the_prompt, halves):
        part(checks, served.server, served)


def body_of(answer):
    return json.loads(answer[2])


def chat(served, text=LONG, **fields):
    return {"model": served.model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16, **fields}


def health(checks, server, _served):
    answer = server.get("/health", headers={"Authorization": ""})
    checks.equal((answer[0], body_of(answer)["status"]), (200, "ready"), "/health needs no key and says ready")
    page = server.get("/")
    checks.that(page[0] == 200 and "default-src 'none'" in page[1].get("content-security-policy", ""), "the page loads nothing from elsewhere", page[1])


def descriptions(checks, server, _served):
    paths = body_of(server.get("/openapi.json"))["paths"]
    wanted = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/v1/messages",
              "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/tags", "/api/show", "/health", "/metrics", "/v1/status", "/tokenize",
              "/detokenize"]
    missing = [path for path in wanted if path not in paths]
    checks.that(not missing, f"/openapi.json describes {len(paths)} paths", missing)
    status = server.status()
    checks.that(status["health"] == "ready" and status["engine"]["peak_bytes"] <= status["engine"]["budget_bytes"], "/v1/status: peak within the budget",
                status)


def families(server):
    text = server.get("/metrics")[2].decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def metrics(checks, server, served):
    before = families(server)
    server.post("/v1/chat/completions", chat(served))
    after = families(server)
    checks.that(len(after) > 15 and all(family.documentation for family in after.values()), f"/metrics parses: {len(after)} families", sorted(after))

    def value(found, name):
        return next(sample.value for sample in found[name].samples)

    checks.equal(value(after, "coldpress_answers") - value(before, "coldpress_answers"), 1, "an answer counts once")
    routes = {sample.labels["route"] for sample in after["coldpress_http_responses"].samples}
    checks.that("/v1/chat/completions" in routes, "responses are counted by route", routes)


def tokens(checks, server, _served):
    ids = body_of(server.post("/tokenize", {"content": MIXED, "parse_special": False}))["tokens"]
    text = body_of(server.post("/detokenize", {"tokens": ids}))["content"]
    checks.equal(text, MIXED, f"/tokenize and /detokenize give back a text of many scripts ({len(ids)} tokens)")
    pieces = body_of(server.post("/tokenize", {"content": MIXED, "parse_special": False, "with_pieces": True}))["tokens"]
    joined = b"".join(piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces)
    checks.equal(joined.decode(), MIXED, "pieces join to the text, byte for byte")
    checks.equal([piece["id"] for piece in pieces], ids, "with the same ids")
    answer = server.post("/detokenize", {"tokens": [-1]})
    checks.equal(answer[0], 400, "an id that is none is refused")


def malformed(checks, server, served):
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/tokenize", "/detokenize"):
        for body, what in ((b'{"model": ', "cut JSON"), (b"", "an empty body"), (b"[]", "a list"), (b"\xff\xfe", "no UTF-8"), (b"[" * 100_000, "depth")):
            answer = server.post(path, body)
            checks.that(answer[0] == 400 and b"error" in answer[2], f"{path}: {what} is 400", answer)
    deep = {"model": served.model, "messages": [], "response_format": None}
    node = {}
    for _ in range(120):
        node = {"properties": {"a": node}}
    deep["tools"] = [{"type": "function", "function": {"name": "f", "parameters": node}}]
    checks.equal(server.post("/v1/chat/completions", deep)[0], 400, "a nested schema is 400")


def refusals(checks, server, served):
    answer = server.get("/nowhere")
    checks.that(answer[0] == 404 and "/openapi.json" in body_of(answer)["error"]["message"], "an unknown path is 404 with the way out", answer)
    answer = server.get("/v1/chat/completions")
    checks.that(answer[0] == 405 and "POST" in answer[1].get("allow", ""), "a wrong method is 405 with the right one", answer)
    size = 65 << 20
    began = time.monotonic()
    answer = server.post("/v1/chat/completions", b'{"messages": "' + b"x" * size + b'"}')
    checks.equal(answer[0], 413, f"a body of 65 MiB is 413, after {time.monotonic() - began:.1f} s")
    checks.equal(body_of(answer)["error"]["code"], "request_too_large", "with its code")
    answer = server.post("/v1/chat/completions", chat(served), headers={"Origin": "https://elsewhere.example"})
    checks.equal(answer[0], 403, "a web page from elsewhere is refused")
    answer = server.post("/v1/chat/completions", chat(served, metadata={"a": "b"}))
    checks.equal((answer[0], answer[1].get("x-coldpress-ignored")), (200, "metadata"), "a field without effect is told in a header")


def keys(checks, server, served):
    for headers, status in (({"Authorization": ""}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "", "x-api-key": served.key}, 200)):
        answer = server.get("/v1/models", headers=headers)
        checks.equal(answer[0], status, f"with the headers {sorted(headers)} the key is {'right' if status == 200 else 'wrong'}")


class Stream:
    """A streamed request on a socket that can be closed in any way."""

    def __init__(self, server, path, body):
        self.socket = socket.create_connection(server.address, timeout=60)
        body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {server.key}\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def read(self, count=4096):
        return self.socket.recv(count)

    def close(self):
        self.socket.close()


def endless(server, served, text, **fields):
    return chat(served, text, stream=True, max_tokens=1000, logit_bias=server.never_ending(), **fields)


def stream_headers(checks, server, served):
    began = time.monotonic()
    stream = Stream(server, "/v1/chat/completions", endless(server, served, prose(4000)[11:]))
    head = stream.read()
    took = time.monotonic() - began
    checks.that(b"200 OK" in head and b"text/event-stream" in head, "headers of a stream come at once", head)
    checks.figure(f"headers {1000 * took:.0f} ms after the request, before the prompt was computed")
    stream.close()
    checks.that(server.wait_until_idle(10) is not None, "and closing it there ends the work", server.status())


def leaving_while_waiting(checks, server, served):
    """Five requests where four are computed at once: the fifth waits, and leaves."""
    streams = [Stream(server, "/v1/chat/completions", endless(server, served, f"{number}: {LONG}")) for number in range(4)]
    for stream in streams:
        stream.read()
    waiting = Stream(server, "/v1/chat/completions", endless(server, served, LONG))
    waiting.read()
    until = time.monotonic() + 5
    while server.status()["engine"]["waiting"] != 1 and time.monotonic() < until:
        time.sleep(0.005)
    checks.equal(server.status()["engine"]["waiting"], 1, "with four at work the fifth request waits")
    waiting.close()
    began = time.monotonic()
    while server.status()["engine"]["waiting"] and time.monotonic() - began < 5:
        time.sleep(0.002)
    seconds = time.monotonic() - began
    checks.that(seconds < 1, "it leaves the queue when its socket closes", seconds)
    checks.figure(f"out of the queue after {1000 * seconds:.1f} ms")
    for stream in streams:
        stream.close()
    seconds = server.wait_until_idle(10)
    checks.that(seconds is not None and seconds < 2, "four at once leave too", seconds)
    checks.figure(f"four slots free after {1000 * seconds:.1f} ms")


def leaving_in_the_prompt(checks, server, served):
    for number in range(3):
        # Nothing of it is known yet, so all of it must be computed.
        text = f"{time.monotonic_ns()} " + prose(4 * served.context)[100 * number:][: 3 * served.context]
        stream = Stream(server, "/v1/chat/completions", endless(server, served, text))
        until = time.monotonic() + 5
        while not server.busy() and time.monotonic() < until:
            pass
        stream.close()
        seconds = server.wait_until_idle(30)
        checks.that(seconds is not None and seconds < 2, f"leaving in the prompt frees the slot ({number + 1})", seconds)
        checks.figure(f"free {1000 * seconds:.1f} ms after the socket was closed in the prompt")


def halves(checks, server, served):
    """A client that shuts down its sending half, one that sends half a body, one that resets."""
    stream = Stream(server, "/v1/chat/completions", endless(server, served, LONG))
    stream.read()
    stream.socket.shutdown(socket.SHUT_WR)
    while stream.read():
        pass
    checks.that(server.wait_until_idle(20) is not None, "a socket that is half closed leaves nothing behind", server.status())
    half = socket.create_connection(server.address)
    half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{\"mess")
    half.close()
    stream = Stream(server, "/v1/chat/completions", endless(server, served, LONG))
    stream.read()
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    stream.close()
    checks.that(server.wait_until_idle(10) is not None, "a socket that is reset leaves nothing behind", server.status())
    checks.equal(server.post("/v1/chat/completions", chat(served))[0], 200, "and the server answers")
