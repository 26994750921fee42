#!/usr/bin/env python3
"""Compare the ids of our tokenizers with those of the reference libraries, text by text.

usage: check_tokenizers.py ENCODER FOLDER [FOLDER ...]     ENCODER: target/release/examples/encode_texts
       FOLDER=NAME names the split patterns of a tiktoken file (qwen2)

A folder holds tokenizer.json (reference: PyPI tokenizers), tekken.json (mistral-common) or tiktoken.model (tiktoken), with
tokenizer_config.json beside it if there is one. The texts are those of tools/texts, lines in many scripts, random characters of
every part of Unicode, runs of spaces and line breaks, and the tokenizer's own special tokens in the middle of text.

needs: pip install tokenizers tiktoken mistral-common
"""
import base64
import glob
import json
import os
import random
import subprocess
import sys
import unicodedata

LINES = [
    "", " ", "  ", "\n", "\t\t x", "a", "Hello, world!", "I'm, you'RE, we'll; DON'T 'S 's'", "naïve café résumé — “quotes” … ½ ² ①Ⅷ",
    "e\u0301a\u0308o\u0302 \u1e9b\u0323 ﬁ Å \u212b \u1100\u1161\u11a8 \u0958", "中文测试，你好世界。 漢字かな交じり文 カタカナ ﾊﾝｶｸ 한국어 조선말", "Русский текст и українська", "Ελληνικά άέή", "עברית שלום",
    "العربية مرحبا ـية", "हिन्दी नमस्ते", "ไทย ภาษา", "ქართული Հայերեն አማርኛ", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ☠", "1 12 123 1234 12345 1,234.56 ١٢٣ ५६ ０１２３", "x=3;y+=x**2 // c\n\tif (a&&b){return;}\r\n",
    "   leading", "trailing   ", "a  b   c    d", "a\n\n\nb\r\n\r\nc \n d\t\n\te  \n", "\u3000\u3000全角\u00a0nbsp\u2003em\u200bzw\ufeffbom", "\x00\x01\x1f\x7f\x80\x9f\xad", "Dž ǅ ŉ ſ K ß ẞ İ ı",
    "▁▁ literal ▁mark", "<0x41> <0xE4>", "http://example.org/a?b=c&d=%20#e", "ABCdefGHIjkl MixedCaseWords snake_case kebab-case", "A" * 300, " " * 130 + "x", "\n" * 40, "ab" * 500, "=" * 90 + "-" * 70,
]


def corpus(special):
    texts = list(LINES)
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "texts")
    for path in sorted(glob.glob(os.path.join(folder, "*.txt"))):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        texts += [text[:20000], *text[:6000].split("\n\n")]
    dice = random.Random(7)
    blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x52F), (0x530, 0x8FF), (0x900, 0xDFF), (0xE00, 0x10FF), (0x1100, 0x1FFF), (0x2000, 0x2BFF),
              (0x3000, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xD7A3), (0xF900, 0xFFFD), (0x10000, 0x1F9FF)]
    for _ in range(600):
        low, high = dice.choice(blocks)
        letters = (chr(dice.randint(low, high)) if dice.random() < 0.75 else dice.choice(" \n\t aeS'1.,-") for _ in range(dice.randint(1, 40)))
        texts.append("".join(letter for letter in letters if unicodedata.category(letter) != "Cs"))
    for _ in range(300):
        texts.append("".join(dice.choice(["  ", " ", "\n", "\r\n", "\t", "word", "Word", "12345", "'s", "!?", "中", "é", "e\u0301", *special[:40]]) for _ in range(dice.randint(1, 14))))
    for token in special[:200]:
        texts += [token, f"a {token} b", f"{token}{token}x\n{token}"]
    return texts


class HuggingFace:
    def __init__(self, folder):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.special = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self.adds_bos, self.bos = None, None
        config = os.path.join(folder, "tokenizer_config.json")
        if os.path.exists(config):
            with open(config, encoding="utf-8") as file:
                config = json.load(file)
            token = config.get("bos_token") or ""
            self.bos = self.tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token)
            self.adds_bos = config.get("add_bos_token") if self.bos is not None else None
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def __call__(self, text):
        plain, prompt = self.tokenizer.encode(text, add_special_tokens=False).ids, self.tokenizer.encode(text).ids
        # The configuration decides where it says so, as in transformers; and a start token is there once, also if the text brings it.
        if self.adds_bos and (plain or [None])[0] != self.bos:
            prompt = [self.bos, *plain]
        elif self.adds_bos is False or plain[:1] == prompt[:1]:
            prompt = plain
        return plain, prompt


class Tekken:
    special = []

    def __init__(self, folder):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        self.tokenizer = Tekkenizer.from_file(os.path.join(folder, "tekken.json"))

    def __call__(self, text):
        return self.tokenizer.encode(text, bos=False, eos=False), self.tokenizer.encode(text, bos=True, eos=False)


class Tiktoken:
    PATTERNS = {"qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}
    special = []

    def __init__(self, folder, name):
        import tiktoken
        with open(os.path.join(folder, "tiktoken.model"), "rb") as file:
            ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}
        self.encoding = tiktoken.Encoding("checked", pat_str=self.PATTERNS[name], mergeable_ranks=ranks, special_tokens={})

    def __call__(self, text):
        ids = self.encoding.encode(text, disallowed_special=())
        return ids, None


def main(encoder, folders):
    failed = False
    for folder in folders:
        folder, _, name = folder.partition("=")
        if os.path.exists(os.path.join(folder, "tokenizer.json")):
            reference = HuggingFace(folder)
        elif os.path.exists(os.path.join(folder, "tekken.json")):
            reference = Tekken(folder)
        else:
            reference = Tiktoken(folder, name)
        texts = corpus(reference.special)
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        run = subprocess.run([encoder, folder, *([name] if name else [])], input=lines, capture_output=True, text=True, encoding="utf-8")
        if run.returncode:
            print(f"{folder}: refused: {run.stderr.strip()}")
            failed = True
            continue
        equal, prompts, ids, shown = 0, 0, 0, 0
        for text, line in zip(texts, run.stdout.splitlines()):
            ours = json.loads(line)
            plain, prompt = reference(text)
            ids += len(plain)
            equal += ours["plain"] == plain
            prompts += prompt is None or ours["prompt"] == prompt
            if ours["plain"] != plain and shown < 5:
                at = next((i for i, (a, b) in enumerate(zip(ours["plain"], plain)) if a != b), min(len(plain), len(ours["plain"])))
                print(f"    {text[:80]!r}: at {at}: ours {ours['plain'][at:at + 8]}, reference {plain[at:at + 8]}")
                shown += 1
        failed |= equal != len(texts)
        print(f"{os.path.basename(folder.rstrip('/')):24} {len(texts)} texts, {ids} ids: {equal} equal; as prompts {prompts} equal")
    return failed


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
