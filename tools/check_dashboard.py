#!/usr/bin/env python3
"""Looks at crates/server/src/dashboard.html in headless Chromium, against a server that only pretends (check_dashboard_mock.py).

usage: tools/check_dashboard.py [--chromium PROGRAM] [--shots FOLDER] [--real MODEL.gguf [--program FILE]] [CHECK ...]
Needs the PyPI package playwright and a Chromium: its own (`playwright install chromium`), one of the system, or the one in the npm
package @sparticuz/chromium. Prints one line per check and ends with 1 if one failed. Without names all checks run.
With --real the page is also looked at as `coldpress serve` gives it: an answer streams, and the figures and the map are the server's own.
"""
import argparse, contextlib, json, pathlib, random, sys, time, traceback
from playwright.sync_api import sync_playwright
from check_dashboard_mock import CODE_ANSWER, KEY, REASONING, serve

CHECKS = []
# Five minutes in which something was computed, then not, then again.
PAST = """() => { const now = performance.now(), wave = (second, length) => Math.sin(second / length) + 0.4 * Math.sin(second / 3.1);
  history = Array.from({ length: 299 }, (_, index) => { const second = 300 - index, idle = second > 120 && second < 170;
    return { at: now - 1e3 * second, decode: idle ? 0 : 12.5 + 1.6 * wave(second, 17), prefill: idle ? 0 : 740 + 90 * wave(second, 23), disk: idle ? 0 : 640 + 120 * wave(second, 11),
      hits: idle ? null : 89 + 3 * wave(second, 29), uses: idle ? 0 : 100, found: idle ? 0 : 89 }; }); }"""
# Contrast of all visible text against the first background below it that is not transparent (WCAG 2.2, 1.4.3).
CONTRAST = """() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const bad = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement, box = element.getBoundingClientRect();
    if (!node.data.trim() || !box.width || element.closest('script, style, noscript, .unseen, .skip, option') || !element.checkVisibility()) continue;
    let under = element, background = [0, 0, 0, 0], opacity = 1;
    for (let up = element; up; up = up.parentElement) opacity *= Number(getComputedStyle(up).opacity);
    while (under && background[3] === 0) { background = parse(getComputedStyle(under).backgroundColor); background[3] ??= 1; under = under.parentElement; }
    const style = getComputedStyle(element), ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const mixed = ink.slice(0, 3).map((c, at) => c * opacity + background[at] * (1 - opacity));
    const [high, low] = [light(mixed), light(background)].sort((a, b) => b - a), contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) bad.push([contrast.toFixed(2), node.data.trim().slice(0, 40)]);
  }
  return bad;
}"""

# Cells of the map whose middle does not have the colour of their counts.
WRONG_CELLS = """() => {
  drawMap();
  const canvas = document.getElementById('heat'), { width, height, ratio } = map.cell, { uses, hits, widest, rows } = map.shown, what = chosen('what');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, wrong = [];
  let most = 0, drawn = 0;
  const value = (index) => (what === 'misses' ? uses[index] - hits[index] : uses[index]);
  for (let index = 0; index < rows * widest; index += 1) most = Math.max(most, value(index));
  for (let index = 0; index < rows * widest; index += 1) {
    const x = Math.floor(ratio * (MAP.left + (index % widest + 0.5) * width)), y = Math.floor(ratio * (MAP.top + (Math.floor(index / widest) + 0.4) * height));
    const at = 4 * (y * canvas.width + x), [red, , blue, alpha] = data.subarray(at, at + 4), wanted = value(index) > 0 ? 255 * (0.14 + 0.86 * Math.sqrt(value(index) / most)) : 15;
    const missed = 1 - hits[index] / uses[index], isWrongColour = what === 'both' && value(index) > 0 && (missed < 0.2 ? red >= blue : missed > 0.8 ? blue >= red : false);
    if (Math.abs(alpha - wanted) > 3 || isWrongColour) wrong.push([index, alpha, wanted, red, blue, missed]);
    drawn += value(index) > 0;
  }
  if (chosen('when') === 'all' && drawn < 0.2 * rows * widest) wrong.push(`only ${drawn} are in use`);
  return wrong.slice(0, 5);
}"""


def check(function):
    CHECKS.append(function)
    return function


class Visit:
    """A page with its server; everything that it complains about or asks elsewhere for is kept."""
    def __init__(self, browser, shots, width=1440, height=900, scheme="light", **sizes):
        self.server, self.shots = serve(**sizes), shots
        self.mock, self.origin = self.server.mock, f"http://127.0.0.1:{self.server.server_port}"
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        self.page = self.context.new_page()
        self.complaints, self.foreign = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: None if request.url.startswith((self.origin + "/", "data:")) else self.foreign.append(request.url))

    def open(self, status="moe"):
        self.mock.status = status
        self.page.goto(self.origin + "/")
        self.until("() => document.getElementById('state').textContent !== 'connecting'")
        return self

    def until(self, condition, seconds=10):
        self.page.wait_for_function(condition, timeout=1000 * seconds, polling=50)

    def text(self, selector):
        return self.page.inner_text(selector)

    def ask(self, question):
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")

    def answered(self):
        self.until("() => !document.getElementById('send').hidden")

    def shot(self, name, whole=True):
        if self.shots:
            self.page.screenshot(path=self.shots / f"{name}.png", full_page=whole)

    def close(self, allowed=()):
        self.context.close()
        self.server.shutdown()
        rest = [line for line in self.complaints if not any(word in line for word in allowed)]
        assert not rest, f"the browser complains: {rest}"
        assert not self.foreign, f"requests elsewhere: {self.foreign}"


@contextlib.contextmanager
def visit(browser, shots, allowed=(), **options):
    seen = Visit(browser, shots, **options)
    try:
        yield seen
    except BaseException:
        seen.shot("failed")
        seen.context.close()
        seen.server.shutdown()
        raise
    seen.close(allowed)


def same(found, wanted):
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"


@check
def a_conversation_streams_and_its_history_is_sent(browser, shots):
    with visit(browser, shots) as seen:
        seen.open()
        page = seen.page
        page.click("#settings summary")
        page.fill("#system", "Be short.")
        page.fill("#temperature", "0.5")
        page.fill("#max-tokens", "300")
        seen.ask("Write a program.")
        seen.until("() => document.querySelector('.turn .progress:not([hidden])')")
        seen.answered()
        same(page.evaluate("() => document.querySelector('.reasoning').open"), False)
        same(page.text_content(".reasoning div"), REASONING)
        same(page.locator(".answer .block pre code").count(), 1)
        code = page.text_content(".answer .block pre code")
        assert code == CODE_ANSWER.split("```rust\n")[1].split("```")[0], code
        assert '<img src=x onerror="window.broken = true"> is text, and so is </script>.' in seen.text(".answer")
        same(page.evaluate("() => [window.broken ?? null, document.querySelectorAll('.log img, .log script, .log b').length]"), [None, 0])
        same(page.locator(".answer strong").all_inner_texts(), ["never"])
        note = seen.text(".answer .note")
        for part in ("214 tokens", "12.6 tok/s", "prompt 1,311, 1,024 of it cached", "2.2 GiB read"):
            assert part in note, f"{part} is not in {note}"
        seen.ask("And shorter?")
        seen.answered()
        first, second = seen.mock.bodies
        same([first[name] for name in ("model", "stream", "temperature", "max_tokens")], ["Qwen3-Next-80B-A3B-Instruct-Q4_K_M", True, 0.5, 300])
        same(first["messages"], [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Write a program."}])
        same(second["messages"], first["messages"] + [{"role": "assistant", "content": CODE_ANSWER}, {"role": "user", "content": "And shorter?"}])
        page.click("#new")
        same(page.locator(".turn").count(), 0)
        page.fill("#temperature", "9")
        seen.ask("Out of range")
        page.wait_for_timeout(200)
        same(len(seen.mock.bodies), 2)
        page.fill("#temperature", "")
        page.fill("#max-tokens", "")
        page.fill("#system", " ")
        seen.ask("New")
        seen.answered()
        same(seen.mock.bodies[2]["messages"], [{"role": "user", "content": "New"}])
        assert not {"temperature", "max_tokens"} & seen.mock.bodies[2].keys()


@check
def stop_ends_the_request_and_keeps_what_was_said(browser, shots):
    with visit(browser, shots) as seen:
        seen.mock.chat = "endless"
        seen.open()
        for how in ("Escape", "button", "new"):
            before = len(seen.mock.broken)
            seen.ask("Go on for ever")
            seen.until("() => document.querySelector('.turn:last-of-type').textContent.includes('word 9')")
            stopped = time.monotonic()
            if how == "Escape":
                seen.page.keyboard.press("Escape")
            elif how == "button":
                seen.page.focus("#stop")
                seen.page.keyboard.press("Enter")
            else:
                seen.page.click("#new")
            while len(seen.mock.broken) == before and time.monotonic() < stopped + 5:
                time.sleep(0.01)
            assert len(seen.mock.broken) == before + 1, f"the server does not see the stop by {how}"
            seen.answered()
            same(seen.page.evaluate("() => document.activeElement.id"), "question")
            if how != "new":
                assert "stopped" in seen.text(".turn:last-of-type .note")
        seen.mock.chat = "answer"
        seen.ask("First of a new one")
        seen.answered()
        same(len(seen.mock.bodies[-1]["messages"]), 1)
        same(len(seen.mock.bodies[1]["messages"]), 3)
        assert seen.mock.bodies[1]["messages"][1]["content"].startswith("word 0 word 1 ")


@check
def errors_of_the_server_are_shown_and_spoil_no_history(browser, shots):
    with visit(browser, shots, allowed=["429"]) as seen:
        seen.open()
        seen.mock.chat = "full"
        seen.ask("Refused")
        seen.answered()
        same(seen.text(".turn:last-of-type .error"), "64 requests wait; the limit is 64")
        same(seen.page.input_value("#question"), "Refused")
        for kind, message in (("error", "the disk refused a read of expert 3"), ("breaks", "The connection ended before the answer did.")):
            seen.mock.chat = kind
            seen.ask("Half")
            seen.answered()
            same(seen.text(".turn:last-of-type .error"), message)
        seen.shot("chat-errors", whole=False)
        same([message["content"] for message in seen.mock.bodies[-1]["messages"]], ["Half", "Half", "Half"])


@check
def everything_works_from_the_keyboard(browser, shots):
    with visit(browser, shots) as seen:
        seen.open()
        keyboard, page = seen.page.keyboard, seen.page
        focus = lambda: page.evaluate("() => document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        keyboard.press("Tab")
        same(focus(), "skip")
        assert page.evaluate("() => document.activeElement.getBoundingClientRect().top") >= 0
        keyboard.press("Enter")
        same(focus(), "question")
        keyboard.type("one")
        keyboard.press("Shift+Enter")
        keyboard.type("two")
        same(page.input_value("#question"), "one\ntwo")
        keyboard.press("Enter")
        seen.answered()
        same(seen.mock.bodies[0]["messages"], [{"role": "user", "content": "one\ntwo"}])
        same(focus(), "question")
        path = []
        while True:
            keyboard.press("Tab")
            if focus() == "BODY":
                break
            outline = page.evaluate("() => { const style = getComputedStyle(document.activeElement); return [style.outlineStyle, parseFloat(style.outlineWidth)]; }")
            assert outline[0] != "none" and outline[1] >= 2, f"{focus()} has no visible focus: {outline}"
            path.append(focus())
        same([path[:2], path[-3:]], [["send", "SUMMARY"], ["INPUT", "INPUT", "heat"]])
        page.focus("#heat")
        for press in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown"):
            keyboard.press(press)
        tip = seen.text("#tip")
        assert tip.startswith("layer 2, expert 1: "), tip
        same(page.text_content("#aloud p:last-child"), tip)
        keyboard.press("End")
        assert seen.text("#tip").startswith("layer 2, expert 511: ")
        seen.shot("keyboard", whole=False)
        keyboard.press("Tab")
        assert page.is_hidden("#tip")
        keyboard.press("Shift+Tab")
        page.focus("#log")
        same(page.locator(".answer pre").get_attribute("tabindex"), "0")


@check
def what_a_status_lacks_is_a_dash_and_nothing_breaks(browser, shots):
    for status in ("empty", "weird", "loading", "failed", "idle", "unlimited"):
        with visit(browser, shots) as seen:
            seen.open(status)
            seen.page.wait_for_timeout(2300)
            assert seen.mock.status_requests >= 2, f"{status}: no further request"
            assert "no answer" not in seen.text("#state") and "no figures" not in seen.text("#state"), seen.text("#state")
            text = seen.text("main")
            for word in ("NaN", "undefined", "Infinity", "[object", "null"):
                assert word not in text, f"{status}: {word} on the page"
            seen.shot(f"status-{status}")
            if status == "empty":
                same([seen.text("#decode .value b"), seen.text("#memory-sum"), seen.text("#kv-sum")], ["–", "–", "–"])
            if status == "failed":
                same(seen.text("#state"), "failed: the probe token is not finite")
            if status == "idle":
                same([seen.text("#state"), seen.text("#decode .value b")], ["ready, idle, gave back experts", "0.00"])
            if status == "unlimited":
                assert seen.text("#memory-sum").endswith("of no limit")
            seen.ask("Still there?")
            seen.answered()
            assert "short program" in seen.text(".answer")


@check
def a_broken_status_is_named_and_recovers(browser, shots):
    with visit(browser, shots, allowed=["500"]) as seen:
        seen.open()
        before = seen.text("#memory-sum")
        for status, wanted in (("500", "no figures: the status is broken"), ("html", "no figures: the status is not JSON")):
            seen.mock.status = status
            seen.until(f"() => document.getElementById('state').textContent === {json.dumps(wanted)}")
            assert seen.text("#memory-sum") != "–" and before != "–"
        seen.shot("status-broken", whole=False)
        seen.mock.status = "moe"
        seen.until("() => document.getElementById('state').textContent === 'ready, computing'", 15)
        seen.server.shutdown()
        seen.server.server_close()


@check
def a_key_is_asked_for_once_and_kept_in_the_tab_only(browser, shots):
    with visit(browser, shots, allowed=["401"]) as seen:
        seen.mock.needs_key = True
        page = seen.page
        page.goto(seen.origin + "/")
        page.wait_for_selector("#key-dialog[open]")
        same(page.evaluate("() => document.activeElement.id"), "key")
        seen.shot("key", whole=False)
        page.wait_for_timeout(1500)
        same(seen.mock.status_requests, 1)
        page.keyboard.type("wrong key")
        page.keyboard.press("Enter")
        assert "without spaces" in seen.text("#key-error")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        seen.until("() => document.getElementById('key-why').textContent.startsWith('The server refuses this key')")
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        seen.until("() => document.getElementById('state').textContent === 'ready, computing'")
        same(page.evaluate("() => [sessionStorage.length, localStorage.length, document.cookie, sessionStorage.getItem('coldpress-api-key')]"), [1, 0, "", KEY])
        seen.ask("With a key")
        seen.answered()
        same(len(seen.mock.bodies), 1)
        page.reload()
        seen.until("() => document.getElementById('state').textContent === 'ready, computing'")
        assert page.is_hidden("#key-dialog")
        assert KEY not in seen.page.content()
    with visit(browser, shots, allowed=["401"]) as seen:
        seen.mock.needs_key = True
        page = seen.page
        page.goto(seen.origin + "/")
        page.wait_for_selector("#key-dialog[open]")
        page.keyboard.press("Escape")
        seen.until("() => document.getElementById('state').textContent.startsWith('locked')")
        page.wait_for_timeout(2500)
        same(seen.mock.status_requests, 1)
        assert page.is_hidden("#key-dialog")
        seen.ask("A question asks again")
        page.wait_for_selector("#key-dialog[open]")
        page.click("#key-cancel")
        seen.answered()
        same(seen.text(".error:not(:empty)"), "The server wants an API key.")
        page.click("#give-key")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        seen.until("() => document.getElementById('state').textContent === 'ready, computing'")


@check
def the_map_shows_every_expert(browser, shots):
    for layers, experts in ((60, 512), (16, 8), (1, 128)):
        # The check itself reads the canvas back.
        with visit(browser, shots, allowed=["willReadFrequently"], layers=layers, experts=experts) as seen:
            seen.open()
            page = seen.page
            same(page.evaluate(WRONG_CELLS), [])
            page.locator("#heat").scroll_into_view_if_needed()
            box = page.locator("#heat").bounding_box()
            cell = page.evaluate("() => map.cell")
            row, column = layers - 1, experts // 2
            page.mouse.move(box["x"] + 50 + (column + 0.5) * cell["width"], box["y"] + 7 + (row + 0.5) * cell["height"])
            tip = seen.text("#tip")
            assert tip.startswith(f"layer {row}, expert {column}: "), tip
            counted = page.evaluate(f"() => [map.shown.uses[{row * experts + column}], map.shown.hits[{row * experts + column}]]")
            assert f"{int(counted[0]):,} uses" in tip or counted[0] == 0, (tip, counted)
            seen.shot(f"map-{layers}x{experts}")
            whole = page.evaluate("() => [...document.querySelectorAll('.tip')].every((tip) => tip.getBoundingClientRect().right <= innerWidth)")
            assert whole, "the tooltip leaves the window"
            for choice in ("uses", "misses", "recent"):
                page.check(f"input[value={choice}]")
                page.wait_for_timeout(3500)
                same(page.evaluate(WRONG_CELLS), [])
            box = page.locator("#map").bounding_box()
            assert box["width"] <= 1440
    with visit(browser, shots, layers=60, experts=512) as seen:
        seen.open()
        took = seen.page.evaluate("""() => {
          const layers = Array.from({ length: 60 }, () => btoa(String.fromCharCode(137, 19, 4).repeat(512))), begin = performance.now();
          for (let round = 0; round < 10; round += 1) { remember(countsOf({ layers }, round * 1e3)); drawMap(); }
          return (performance.now() - begin) / 10; }""")
        print(f"    a map of 60 x 512 takes {took:.1f} ms")
        assert took < 250, f"{took} ms a map"


@check
def dense_models_and_silent_servers_have_a_sentence_instead_of_a_map(browser, shots):
    for status, sentence in (("dense", "This model has no routed experts."), ("no_telemetry", "The server does not count uses of single experts: telemetry is off.")):
        with visit(browser, shots) as seen:
            seen.open(status)
            assert seen.page.is_hidden("#map")
            same(seen.text("#no-map"), sentence)
            same(seen.page.is_hidden("#disk"), status == "dense")
            seen.shot(f"status-{status}")


@check
def figures_are_those_of_the_status(browser, shots):
    with visit(browser, shots) as seen:
        seen.open("nested")
        same([seen.text("#model"), seen.text("#state")], ["Qwen3-Next-80B-A3B-Instruct-Q4_K_M", "ready, computing"])
        same(seen.text("#version"), "qwen3next, Q4_K_M, context 32,768 · coldpress 0.6.0")
        same([seen.text("#queue"), seen.page.is_visible("#map")], ["running 2 of 4 · waiting 3 of 64", True])
    with visit(browser, shots) as seen:
        seen.open()
        seen.page.wait_for_timeout(3500)
        assert seen.text("#memory-sum").endswith("of 6.0 GiB")
        rows = seen.page.locator("#memory tr").all_inner_texts()
        same([row.split("\t")[0] for row in rows], ["fixed", "dense weights", "KV cache", "scratch", "read ring", "expert slots", "free", "peak"])
        same(rows[1].split("\t")[1:], ["1.4 GiB", "24.1 %"])
        same(seen.page.locator("#kv tr").all_inner_texts(), ["in use, not cached\t76\t14.8 %", "in the prefix cache\t246\t48.0 %", "free\t190\t37.1 %"])
        rate = float(seen.text("#disk .value b").replace(",", ""))
        assert 400 < rate < 850, f"the disk reads at {rate} MB/s"
        assert seen.page.locator("#pressure li").first.inner_text().startswith("2:15:41")
        assert "running 2 of 4 · waiting 3 of 64" == seen.text("#queue")
        sizes = "() => [0, 1023, 1024, 1023.94 * 1024, 1023.96 * 1024, 5 * 2 ** 30, 2 ** 64 - 1, null, 'x'].map(bytes)"
        same(seen.page.evaluate(sizes), ["0 B", "1023 B", "1.0 KiB", "1023.9 KiB", "1.0 MiB", "5.0 GiB", "no limit", "–", "–"])
        # Three seconds without news, then what a pass of four seconds has read: 1 GB/s, not 4 GB/s in one second.
        spread = """() => { history = []; Object.assign(counters, { since: null, read: null, found: null, missed: null, rate: null });
          const status = (read, hits) => ({ running: [1], runtime: { computing: true, experts: { bytes_read: read, hits, misses: 10 } } });
          [[0, 5], [0, 5], [0, 5], [0, 5], [4e9, 35]].forEach(([read, hits], second) => addSample(status(read, hits), 1e3 * second));
          return history.map((sample) => sample.disk); }"""
        same(seen.page.evaluate(spread), [None, 1000, 1000, 1000, 1000])


@check
def streams_and_texts_do_not_depend_on_cuts(browser, shots):
    with visit(browser, shots) as seen:
        seen.open()
        draw = random.Random(5)
        text = CODE_ANSWER + "\n\n~~~\na ``` b\n~~~\n# Head\n``code ` in`` and **a** b ** c ** `x\n````md\n```\nx\n```\n````\nend **open\n  indented\n\n\n*"
        cuts = [sorted(draw.sample(range(1, len(text)), draw.randrange(1, 60))) for _ in range(60)] + [list(range(1, len(text)))]
        render = """([text, cuts]) => { const root = document.createElement('div'), prose = new Prose(root); let from = 0;
          for (const to of [...cuts, text.length]) { prose.push(text.slice(from, to)); from = to; } prose.finish(); return [root.innerHTML, root.textContent]; }"""
        whole = seen.page.evaluate(render, [text, []])
        for cut in cuts:
            same(seen.page.evaluate(render, [text, cut])[0], whole[0])
        for part in ("a ``` b\n", "code ` in", "```\nx\n```\n", "end **open\n  indented"):
            assert part in whole[1], part
        stream = ": note\r\n\r\ndata: one\r\ndata: two\r\n\r\ndata:three\n\nevent: x\ndata: four\n\n\n\ndata: open"
        parse = """([text, cuts]) => { const lines = new EventLines(), seen = []; let from = 0;
          for (const to of [...cuts, text.length]) { lines.push(text.slice(from, to), (data) => seen.push(data), (note) => seen.push('#' + note)); from = to; } return seen; }"""
        for cut in [[], list(range(1, len(stream)))] + [[at] for at in range(1, len(stream))]:
            same(seen.page.evaluate(parse, [stream, cut]), ["#note", "one\ntwo", "three", "four"])


@check
def numbers_change_without_moving_anything(browser, shots):
    for width in (360, 1440):
        with visit(browser, shots, width=width) as seen:
            seen.open()
            seen.page.wait_for_timeout(1500)
            seen.page.evaluate("""() => { window.moved = [];
              const name = (source) => source.node?.id || source.node?.className || String(source.node?.nodeName);
              const note = (entry) => moved.push([entry.value, entry.sources.map(name)]);
              new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type: 'layout-shift' }); }""")
            for top in (0, 900, 1800):
                seen.page.mouse.wheel(0, top)
                seen.page.wait_for_timeout(3200)
            moved = seen.page.evaluate("() => moved")
            assert sum(value for value, _ in moved) < 0.001, f"{width} px: {moved}"


@check
def a_hidden_tab_asks_for_nothing(browser, shots):
    with visit(browser, shots) as seen:
        seen.open()
        hide = "(is) => { Object.defineProperty(document, 'hidden', { value: is, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }"
        seen.page.evaluate(hide, True)
        seen.page.wait_for_timeout(1200)
        before = seen.mock.status_requests
        seen.page.wait_for_timeout(2500)
        same(seen.mock.status_requests, before)
        seen.page.evaluate(hide, False)
        seen.page.wait_for_timeout(500)
        same(seen.mock.status_requests, before + 1)


@check
def every_width_and_scheme_is_readable(browser, shots):
    for scheme in ("light", "dark"):
        for width, height in ((360, 740), (768, 1024), (1080, 800), (1440, 900), (1600, 1000)):
            with visit(browser, shots, width=width, height=height, scheme=scheme) as seen:
                seen.open()
                seen.page.click("#settings summary")
                seen.ask("Write a program that reads a file in blocks.")
                seen.answered()
                seen.page.evaluate(PAST)
                seen.page.wait_for_timeout(1200)
                seen.page.locator("#question").blur()
                sizes = seen.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
                assert sizes[0] <= sizes[1], f"{width} px: the page is {sizes[0]} px wide"
                wide = seen.page.evaluate("""() => [...document.querySelectorAll('.panel, .log')]
                  .filter((panel) => panel.scrollWidth > panel.clientWidth + 1).map((panel) => panel.id || panel.className)""")
                assert not wide, f"{width} px: {wide} are wider than their place"
                faint = seen.page.evaluate(CONTRAST)
                assert not faint, f"{scheme} {width} px: too faint {faint[:5]}"
                seen.page.evaluate("() => document.querySelector('.reasoning').open = true")
                seen.shot(f"{scheme}-{width}")
                log = seen.page.evaluate("() => document.getElementById('log').clientHeight")
                assert log >= 140, f"{width} px: the conversation has {log} px"


@check
def nothing_moves_for_those_who_asked_for_it(browser, shots):
    with visit(browser, shots) as seen:
        times = "() => [...document.querySelectorAll('.bar i, .progress i')].map((part) => getComputedStyle(part).transitionDuration)"
        seen.open()
        assert "0.3s" in seen.page.evaluate(times)
        seen.page.emulate_media(reduced_motion="reduce")
        same(set(seen.page.evaluate(times)), {"0s"})


def the_real_server(browser, shots, model, program):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "clients"))
    from server import Server
    real = Server(program, model, "--cold-fraction", "0.75", "--ctx", "1024").wait_until_ready()
    try:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page, complaints = context.new_page(), []
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") and "willReadFrequently" not in message.text else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(real.url + "/")
        page.fill("#question", "I want to find a restaurant in San Jose.")
        page.press("#question", "Enter")
        page.wait_for_function("() => [...document.querySelectorAll('.reply, .assistant, article, li')].some((part) => part.textContent.length > 20)", timeout=20000)
        page.wait_for_function("() => !document.getElementById('send').hidden", timeout=60000)
        # The counts come every few seconds, and those after the answer are the last ones.
        counted = lambda: (lambda engine: engine["expert_hits"] + engine["expert_misses"])(real.status()["engine"])
        until = time.monotonic() + 15
        while time.monotonic() < until and page.evaluate("() => map.now?.sum ?? 0") != counted():
            page.wait_for_timeout(200)
        same(page.evaluate("() => map.now.sum"), counted())
        same([page.is_visible("#map"), page.evaluate("() => [map.now.rows > 0, map.now.widest > 0]")], [True, [True, True]])
        same(page.evaluate(WRONG_CELLS), [])
        shown = page.evaluate("() => document.getElementById('state').textContent")
        assert shown.startswith("ready"), shown
        size = len(real.get("/v1/status")[2])
        assert size < 8192, f"a status of {size} bytes"
        if shots:
            page.screenshot(path=shots / "real.png", full_page=True)
        assert not complaints, f"the browser complains: {complaints}"
        context.close()
    finally:
        real.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help="names of checks, or parts of them")
    parser.add_argument("--chromium", help="the browser; without it playwright's own")
    parser.add_argument("--real", metavar="MODEL", help="a model for the real server")
    parser.add_argument("--program", default=str(pathlib.Path(__file__).resolve().parent.parent / "target/release/coldpress"))
    parser.add_argument("--shots", type=pathlib.Path, help="folder for screenshots")
    options = parser.parse_args()
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
    failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        checks = list(CHECKS)
        if options.real:
            def the_page_of_the_real_server(browser, shots):
                the_real_server(browser, shots, options.real, options.program)
            checks.append(the_page_of_the_real_server)
        for function in checks:
            name = function.__name__.replace("_", " ")
            if options.checks and not any(part in function.__name__ for part in options.checks):
                continue
            try:
                function(browser, options.shots)
                print(f"ok      {name}", flush=True)
            except Exception as error:
                failed += 1
                place = traceback.extract_tb(error.__traceback__)[1].lineno
                print(f"FAILED  {name} (line {place}): {error}", flush=True)
        browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
