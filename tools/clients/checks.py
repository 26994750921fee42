"""One line per check, and all about the exchange when a check fails.

Owns counting, the record of the last request and its reply, and the sentence of a failure. Read next: conversation.py.
"""
import json

SHOWN = 6000


class Broken(Exception):
    """A check that failed; its text says what was asked and what came."""


def shown(value):
    """A request, a reply or a list of events as text, cut where it is long."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, (list, tuple)):
        value = "\n".join(shown(part) for part in value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … ({len(text)} characters)"


class Checks:
    """The checks of one client library."""

    def __init__(self, library):
        self.library, self.passed, self.skipped = library, 0, 0
        self.request = self.response = None

    def watch(self, http):
        """Keeps the last request and response of an httpx client, of either version."""
        send = http.send

        def watched(request, **options):
            self.request, self.response = request, None
            self.response = send(request, **options)
            return self.response

        http.send = watched

    def exchange(self):
        """The last request and its reply as text."""
        parts = []
        if self.request is not None:
            try:
                body = self.request.content
            except Exception:
                body = "(a stream)"
            parts.append(f"request: {self.request.method} {self.request.url}\n{shown(body)}")
        if self.response is not None:
            try:
                body = self.response.text
            except Exception:
                body = "(a stream)"
            parts.append(f"reply: {self.response.status_code} {dict(self.response.headers)}\n{shown(body)}")
        return "\n".join(parts)

    def fail(self, what, reply=None):
        parts = [f"BROKEN {self.library}: {what}"]
        if reply is not None:
            parts.append(f"got: {shown(reply)}")
        parts.append(self.exchange())
        raise Broken("\n".join(part for part in parts if part))

    def that(self, holds, what, reply=None):
        """Notes a check; `reply` is shown when it fails."""
        if not holds:
            self.fail(what, reply)
        self.passed += 1
        print(f"ok       {self.library}: {what}", flush=True)

    def equal(self, found, wanted, what):
        """Notes that two values are the same."""
        self.that(found == wanted, what, f"{found!r}, not {wanted!r}")

    def skip(self, what, why):
        self.skipped += 1
        print(f"SKIPPED  {self.library}: {what}: {why}", flush=True)

    def figure(self, what):
        """Prints a measurement."""
        print(f"         {self.library}: {what}", flush=True)

    def raises(self, kind, call, what, *parts, status=None):
        """Notes that `call` raises this exception, with this status and all these words in its text."""
        try:
            reply = call()
        except kind as error:
            text = str(error)
            found = getattr(error, "status_code", None)
            missing = [part for part in parts if str(part) not in text]
            if missing or (status and found != status):
                self.fail(f"{what}: without {missing} or status {status}", f"{found} {text}")
            self.that(True, what)
            return error
        self.fail(f"{what}: no {kind}", reply)
