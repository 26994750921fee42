"""Requests of all protocols for load tests, by sockets alone: bodies, what a reply says, and clients that behave badly.

Owns how a protocol is spoken, streamed and whole, and how a client leaves at a chosen moment; needs the standard library only. Read next:
../serve_soak.py and throughput.py.
"""
import http.client
import json
import socket
import threading

QUESTIONS = [
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did she sell?",
    'What does the noun "whale" mean?',
    "I want to find a restaurant in San Jose.",
    "A train goes 60 miles in an hour. How far does it go in 5 hours, and how long does it take for 420 miles?",
]
BEGINNINGS = ["The old house stood at the end of the lane, and", "def read_file(path):", "It was late in the year when", "She opened the door and saw"]

# Bounded, so that every answer to it ends.
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


def messages_of(text):
    return [{"role": "user", "content": text}]


class Protocol:
    """One protocol: its path, the body of a request, and the text of replies."""

    def __init__(self, path, body, whole, piece, ends):
        self.path, self.body, self.whole, self.piece, self.ends = path, body, whole, piece, ends


def sampled(fields, temperature, seed):
    return {**fields, "temperature": temperature, **({"seed": seed} if seed is not None else {})}


def chat_body(text, tokens, temperature, seed):
    return sampled({"model": "any", "messages": messages_of(text), "max_tokens": tokens}, temperature, seed)


def completion_body(text, tokens, temperature, seed):
    return sampled({"model": "any", "prompt": text, "max_tokens": tokens}, temperature, seed)


def response_body(text, tokens, temperature, seed):
    return sampled({"model": "any", "input": text, "max_output_tokens": tokens}, temperature, seed)


def message_body(text, tokens, temperature, _seed):
    return {"model": "any", "messages": messages_of(text), "max_tokens": tokens, "temperature": temperature}


def ollama_options(tokens, temperature, seed):
    return sampled({"num_predict": tokens, "top_k": 0, "top_p": 1.0}, temperature, seed)


def ollama_chat_body(text, tokens, temperature, seed):
    return {"model": "any", "messages": messages_of(text), "stream": False, "options": ollama_options(tokens, temperature, seed)}


def ollama_generate_body(text, tokens, temperature, seed):
    return {"model": "any", "prompt": text, "raw": True, "stream": False, "options": ollama_options(tokens, temperature, seed)}


def output_text(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def text_blocks(message):
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


PROTOCOLS = {
    "chat": Protocol("/v1/chat/completions", chat_body, lambda reply: reply["choices"][0]["message"]["content"] or "",
                     lambda event: "".join(choice["delta"].get("content") or "" for choice in event.get("choices", [])),
                     lambda event: event == "[DONE]"),
    "completions": Protocol("/v1/completions", completion_body, lambda reply: reply["choices"][0]["text"],
                            lambda event: "".join(choice["text"] for choice in event.get("choices", [])), lambda event: event == "[DONE]"),
    "responses": Protocol("/v1/responses", response_body, output_text,
                          lambda event: event["delta"] if event.get("type") == "response.output_text.delta" else "",
                          lambda event: isinstance(event, dict) and event.get("type") in ("response.completed", "response.incomplete")),
    "messages": Protocol("/v1/messages", message_body, text_blocks,
                         lambda event: event["delta"].get("text", "") if event.get("type") == "content_block_delta" else "",
                         lambda event: isinstance(event, dict) and event.get("type") == "message_stop"),
    "ollama chat": Protocol("/api/chat", ollama_chat_body, lambda reply: reply["message"]["content"], lambda event: event["message"]["content"],
                            lambda event: isinstance(event, dict) and event.get("done")),
    "ollama generate": Protocol("/api/generate", ollama_generate_body, lambda reply: reply["response"], lambda event: event["response"],
                                lambda event: isinstance(event, dict) and event.get("done")),
}
# Those that continue a text as it is.
RAW = ("completions", "ollama generate")


# How far a request has come, in order.
PHASES = ("sent", "queue", "prompt", "answer")


class Reply:
    """What came of a request.

    `phase` is how far the server had come by its own words: sent, queue, prompt, answer. `complete` says that the protocol's own end came.
    """

    def __init__(self):
        self.status, self.text, self.phase, self.complete, self.error, self.reply = None, "", "sent", False, None, None


class Ask:
    """One request on a connection of its own. `leave` may be called from any thread, at any time."""

    def __init__(self, server, path, body, client="load", receive_buffer=None, timeout=300):
        self.connection = http.client.HTTPConnection(*server.address, timeout=timeout)
        self.left, self.leave_in, self.resets, self.response = False, None, False, None
        connected = socket.socket(socket.AF_INET6 if ":" in server.address[0] else socket.AF_INET)
        connected.settimeout(timeout)
        if receive_buffer:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connected.connect(server.address)
        self.connection.sock = self.socket = connected
        headers = {"Content-Type": "application/json", "x-coldpress-client": client, **server.headers()}
        self.sent = (path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)

    def leave(self, reset=False):
        """Closes the socket as a client that goes away, or that crashes."""
        self.left = True
        try:
            if reset:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        if self.response:
            self.response.close()
        self.connection.close()
        self.socket.close()

    def send(self):
        path, body, headers = self.sent
        self.connection.request("POST", path, body=body, headers=headers)

    def run(self, protocol, read=lambda response: response.readline()):
        """Sends, and reads to the end; gives a Reply, also when it was left or failed."""
        reply = Reply()
        try:
            self.send()
            self.response = self.connection.getresponse()
            reply.status = self.response.status
            if self.response.getheader("Content-Type", "").startswith("application/json"):
                content = json.loads(self.response.read())
                if reply.status == 200:
                    reply.text, reply.complete, reply.phase = protocol.whole(content), True, "answer"
                reply.reply = content
            else:
                self.read_events(protocol, reply, read)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            reply.error = f"{type(error).__name__}: {error}"
        finally:
            self.close()
        return reply

    def read_events(self, protocol, reply, read):
        while True:
            line = read(self.response)
            if not line:
                return
            if self.leave_in and PHASES.index(reply.phase) >= PHASES.index(self.leave_in):
                return self.leave(self.resets)
            line = line.strip()
            if line.startswith(b":"):
                word = line[1:].split(b" ")[1:2]
                reply.phase = {b"queued": "queue", b"started,": "prompt", b"prefill": "prompt"}.get(word[0] if word else b"", reply.phase)
                continue
            if line.startswith(b"data: "):
                line = line[6:]
            elif not line.startswith(b"{"):
                continue
            event = line.decode() if line == b"[DONE]" else json.loads(line)
            if protocol.ends(event):
                reply.complete = True
            if isinstance(event, dict):
                if event.get("error"):
                    reply.error = json.dumps(event)[:300]
                    continue
                piece = protocol.piece(event)
                if piece:
                    reply.phase = "answer"
                    reply.text += piece


def ask(server, name, body, **options):
    """One request by a protocol's name, read to its end."""
    return Ask(server, PROTOCOLS[name].path, body, **options).run(PROTOCOLS[name])


def ask_and_leave_in(server, name, body, phase, reset=False, **options):
    """One streamed request whose client leaves as soon as the server says that it is in `phase`, or past it."""
    request = Ask(server, PROTOCOLS[name].path, {**body, "stream": True}, **options)
    request.leave_in, request.resets = phase, reset
    return request.run(PROTOCOLS[name]), request.left


def ask_and_leave(server, name, body, seconds, reset=False, **options):
    """One request whose client leaves after some seconds, if it has not ended by then."""
    request = Ask(server, PROTOCOLS[name].path, body, **options)
    timer = threading.Timer(seconds, request.leave, [reset])
    timer.daemon = True
    timer.start()
    reply = request.run(PROTOCOLS[name])
    timer.cancel()
    return reply, request.left
