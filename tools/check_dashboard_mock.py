"""A server that answers like coldpress without a model: the dashboard, a status that moves, and scripted chat streams.

Used by tools/check_dashboard.py, and by hand to look at the page while changing it:
usage: tools/check_dashboard_mock.py [--port 8123] [--status STATUS] [--layers 60] [--experts 512] | --policy
With --policy it prints the Content-Security-Policy that fits the page as it is, and ends.
"""
import argparse, base64, hashlib, json, math, pathlib, random, re, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = pathlib.Path(__file__).resolve().parent.parent / "crates/server/src/dashboard.html"
MIB = 1 << 20
KEY = "right-key"
CODE_ANSWER = """Here is a short program. It reads a file in blocks and **never** holds more than one of them.

```rust
use std::io::Read;

fn main() -> std::io::Result<()> {
    let mut block = vec![0_u8; 1 << 20];
    let mut file = std::fs::File::open("weights.gguf")?;
    while file.read(&mut block)? > 0 {
        println!("a block of a line that is rather long and has to scroll inside its own box, not in the page");
    }
    Ok(())
}
```

Call it with `cargo run --release`. <img src=x onerror="window.broken = true"> is text, and so is </script>.
"""
REASONING = "The user wants a program. <b>It should be short.</b> One buffer, one loop.\nNo allocation inside the loop."


def content_security_policy(page):
    """The strictest policy that the page is made for: one hash for its style, one for its script."""
    def digest(tag):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S).group(1)
        return "'sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() + "'"
    return (f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'")


def packed(experts):
    """A layer as the server packs it: uses and misses of each expert, LEB128 in base64."""
    out = bytearray()
    for expert in experts:
        for value in (expert["uses"], expert["uses"] - expert["hits"]):
            while value > 127:
                out.append(value & 127 | 128)
                value >>= 7
            out.append(value)
    return base64.b64encode(out).decode()


class Mock:
    """What the server pretends, and what it has seen."""
    def __init__(self, layers=60, experts=512):
        self.layers, self.experts = layers, experts
        self.status, self.chat, self.needs_key = "moe", "answer", False
        self.bodies, self.status_requests, self.keys, self.broken = [], 0, [], []
        self.begin = time.monotonic()
        shares = random.Random(7)
        self.popular = [[shares.random() ** 6 for _ in range(experts)] for _ in range(layers)]
        self.resident = [[shares.random() < 0.25 + 0.75 * share for share in layer] for layer in self.popular]

    def telemetry(self, seconds):
        def expert(layer, number):
            uses = int(self.popular[layer][number] * 40 * (20 + seconds))
            return {"uses": uses, "hits": int(uses * (0.97 if self.resident[layer][number] else 0.25 + 0.3 * layer / self.layers))}
        layers = [packed(expert(layer, number) for number in range(self.experts)) for layer in range(self.layers)]
        return {"layers": layers, "passes": [{"pass": 1, "rows": 1, "uses": 480, "hits": 401}], "bytes": 8 * self.layers * self.experts}

    def running(self, seconds):
        step = seconds % 20
        rows = [{"id": 11, "prompt_tokens": 2210, "cached_tokens": 2048, "prefilled_tokens": 2210, "completion_tokens": int(40 + seconds * 12), "running_ms": int(9000 + seconds * 1000)},
                {"id": 14, "prompt_tokens": 16384, "cached_tokens": 1024, "prefilled_tokens": int(1024 + step * 760), "completion_tokens": 0, "running_ms": int(step * 1000)}]
        return rows[: 1 + (step < 15)]

    def full(self):
        seconds = time.monotonic() - self.begin
        wave = math.sin(seconds / 4)
        used_for = [["fixed", 96 * MIB], ["dense", 1480 * MIB], ["kv_cache", 768 * MIB], ["scratch", 212 * MIB], ["read_ring", 128 * MIB], ["expert_slots", int((2560 + 90 * wave) * MIB)]]
        used = sum(held for _, held in used_for)
        events = [{"at_ms": 61_250, "cause": "limit_lowered", "from": 3400 * MIB, "to": 2100 * MIB}, {"at_ms": 95_900, "cause": "calm", "from": 2100 * MIB, "to": 2560 * MIB},
                  {"at_ms": 8_130_000, "cause": "machine_short", "from": 2560 * MIB, "to": 2400 * MIB}, {"at_ms": 8_141_500, "cause": "calm", "from": 2400 * MIB, "to": 2560 * MIB}]
        runtime = {
            "computing": True, "released": None, "budget_asked": 6144 * MIB,
            "ledger": {"budget": 6144 * MIB, "used": used, "peak": 5630 * MIB, "used_for": used_for},
            "experts": {"slot_bytes": used_for[5][1], "slots": 1304, "resident": 1297, "resident_bytes": 2541 * MIB,
                        "hits": int(183_000 + 410 * seconds), "misses": int(21_000 + 38 * seconds - 80 * math.cos(seconds / 4)), "bytes_read": int(31e9 + 620e6 * (seconds + 0.6 * wave))},
            "slots_target": 2660 * MIB,
            "memory": {"process": {"rss": 5204 * MIB, "anon": 5022 * MIB, "file": 182 * MIB, "shared": 0, "swapped": 0, "peak_rss": 5688 * MIB},
                       "cgroup_current": 7900 * MIB, "cgroup_peak": 8192 * MIB},
            "pressure": {"events": events, "counts": [1, 0, 1, 0, 0, 0, 2]},
        }
        totals = {"requests": 128, "finished": 119, "cancelled": 5, "failed": 1, "refused": 2, "prompt_tokens": 412_553, "cached_tokens": 371_200, "prefill_tokens": 41_353,
                  "completion_tokens": int(58_014 + 12 * seconds), "passes": int(60_210 + 13 * seconds), "preemptions": 3}
        return {
            "model": "Qwen3-Next-80B-A3B-Instruct-Q4_K_M", "version": "0.6.0", "state": "ready", "runtime": runtime, "waiting": 3, "waiting_max": 64,
            "running": self.running(seconds), "running_max": 4, "totals": totals,
            "prefix": {"pages": 512, "free_pages": 190, "cached_pages": 246, "page_bytes": 1536 * 1024, "snapshot_bytes": 1820 * MIB},
            "requests": {"held": 190_000, "most": 64 * MIB}, "telemetry": self.telemetry(seconds),
            "prefill_tokens_per_second": 740 + 60 * wave, "decode_tokens_per_second": 12.4 + 1.5 * wave,
        }

    def body_of_status(self):
        status = self.full()
        if self.status in ("dense", "no_telemetry", "unlimited", "idle"):
            status["telemetry"] = None
        if self.status == "dense":
            status["runtime"]["experts"] = None
        if self.status == "unlimited":
            status["runtime"]["ledger"]["budget"] = status["runtime"]["budget_asked"] = 2 ** 64 - 1
        if self.status == "idle":
            status.update(running=[], waiting=0)
            status["runtime"].update(computing=False, released="experts")
        if self.status == "nested":
            model, version = status.pop("model"), status.pop("version")
            return {"health": status.pop("state"), "version": version, "uptime_seconds": 12.5, "context": 32768, "engine": {"running": 2, "waiting": 3, "detail": status},
                    "model": {"name": model, "family": "qwen3next", "quantization": "Q4_K_M"}}
        if self.status == "loading":
            return {"model": status["model"], "version": "0.6.0", "state": "loading"}
        if self.status == "failed":
            return {"model": status["model"], "version": "0.6.0", "state": "failed", "reason": "the probe token is not finite"}
        if self.status == "empty":
            return {}
        if self.status == "weird":
            runtime = {"ledger": {"budget": "6 GiB", "used": 3, "used_for": {"dense": 1}}, "experts": {"hits": "many"},
                       "pressure": {"events": 5, "counts": None}, "memory": 1}
            return {"model": 7, "state": ["ready"], "runtime": runtime,
                    "running": [None, 3, {"id": "x"}], "telemetry": {"layers": [5, None, "no base64 at all", [None]]}, "totals": [], "prefix": "no", "waiting": None}
        return status


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, code, body, kind="application/json", headers=()):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(code)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuses(self):
        mock = self.server.mock
        mock.keys.append(self.headers.get("Authorization"))
        if not mock.needs_key or self.headers.get("Authorization") == "Bearer " + KEY:
            return False
        self.reply(401, json.dumps({"error": {"message": "no valid key", "type": "invalid_request_error", "code": "invalid_api_key"}}), headers=[("WWW-Authenticate", "Bearer")])
        return True

    def do_GET(self):
        mock = self.server.mock
        if self.path == "/":
            page = PAGE.read_text()
            return self.reply(200, page, "text/html; charset=utf-8", [("Content-Security-Policy", content_security_policy(page))])
        if self.path not in ("/v1/status", "/v1/status?experts=1"):
            return self.reply(404, "{}")
        mock.status_requests += 1
        if self.refuses():
            return
        if mock.status == "500":
            return self.reply(500, json.dumps({"error": {"message": "the status is broken"}}))
        if mock.status == "html":
            return self.reply(200, "<p>not JSON")
        status = mock.body_of_status()
        told = status.get("engine", {}).get("detail", status)
        if "experts=1" not in self.path and isinstance(told.get("telemetry"), dict):
            told["telemetry"] = {"bytes": 1}
        self.reply(200, json.dumps(status))

    def do_POST(self):
        mock = self.server.mock
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refuses():
            return
        mock.bodies.append(body)
        if mock.chat == "full":
            return self.reply(429, json.dumps({"error": {"message": "64 requests wait; the limit is 64", "type": "rate_limit_error"}}))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for piece in self.stream(mock.chat):
                self.wfile.write(piece)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            mock.broken.append(time.monotonic())

    def stream(self, kind):
        def chunk(delta=None, reason=None, **more):
            choices = [] if delta is None and reason is None else [{"index": 0, "delta": delta or {}, "finish_reason": reason}]
            return ("data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": choices, **more}) + "\n\n").encode()
        yield chunk({"role": "assistant", "content": ""})
        yield b": keep-alive\n\n"
        for done in range(0, 1312, 164):
            yield chunk(coldpress={"prefill": {"done": done, "total": 1311}})
            time.sleep(0.04)
        if kind == "breaks":
            yield chunk({"content": "Half an answer"})
            return
        if kind == "error":
            yield chunk({"content": "Half"})
            yield b'data: {"error": {"message": "the disk refused a read of expert 3"}}\n\n'
            return
        if kind == "endless":
            for number in range(100_000):
                yield chunk({"content": f"word {number} "})
                time.sleep(0.02)
        for start in range(0, len(REASONING), 7):
            yield chunk({"reasoning_content": REASONING[start:start + 7]})
            time.sleep(0.02)
        data = b"".join(chunk({"content": CODE_ANSWER[start:start + 5]}) for start in range(0, len(CODE_ANSWER), 5))
        # Cut anywhere, as a network does.
        for start in range(0, len(data), 501):
            yield data[start:start + 501]
            time.sleep(0.004)
        yield chunk({}, "stop")
        yield chunk(usage={"prompt_tokens": 1311, "completion_tokens": 214, "total_tokens": 1525, "prompt_tokens_details": {"cached_tokens": 1024},
                           "coldpress": {"bytes_read": 2_400_000_000, "hit_rate": 0.9, "decode_ms": 16_900.0, "prefill_ms": 410.0}})
        yield b"data: [DONE]\n\n"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        """Browsers leave when a page closes."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, address)


def serve(port=0, **sizes):
    """Starts the server; returns it with its `mock`."""
    server = Server(("127.0.0.1", port), Handler)
    server.mock = Mock(**sizes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--status", default="moe")
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--experts", type=int, default=512)
    parser.add_argument("--policy", action="store_true")
    options = parser.parse_args()
    if options.policy:
        print(content_security_policy(PAGE.read_text()))
        sys.exit()
    running = serve(options.port, layers=options.layers, experts=options.experts)
    running.mock.status = options.status
    print(f"http://127.0.0.1:{options.port}/")
    threading.Event().wait()
