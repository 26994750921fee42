#!/usr/bin/env python3
"""Writes a copy of a GGUF file whose chat template knows thinking and tools, in the notation of Qwen3: the scripts need a model that has both.

usage: tools/clients/thinking_model.py MODEL.gguf OUT.gguf
The weights stay as they are: the model thinks because its prompt opens `<think>`. Thinking is off unless `enable_thinking` is true.
Owns the few lines of GGUF (version 3) that it takes to replace one text. Needs the standard library only.
"""
import struct
import sys

KEY = "tokenizer.chat_template"
TEMPLATE = r"""{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
    {{- '\n</tools>\n\nFor each call:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking %}
        {{- '<think>\n' }}
    {%- else %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""
# Bytes of a value by its type; 8 is a text, 9 a list.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, LIST = 8, 9


class Reader:
    """A place in the bytes of a file."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def skip(self, kind):
        if kind == TEXT:
            self.text()
        elif kind == LIST:
            inner, count = self.number("I"), self.number("Q")
            for _ in range(count if inner in (TEXT, LIST) else 0):
                self.skip(inner)
            self.at += SIZES.get(inner, 0) * count
        else:
            self.at += SIZES[kind]


def padded(length, alignment):
    return -(-length // alignment) * alignment


def with_template(data, template):
    """The file with this chat template."""
    reader = Reader(data)
    if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4)[0] != 3:
        sys.exit("thinking_model: not a GGUF file of version 3")
    reader.at = 8
    tensors, keys = reader.number("Q"), reader.number("Q")
    alignment, found = 32, None
    for _ in range(keys):
        name, kind = reader.text(), reader.number("I")
        begin = reader.at
        reader.skip(kind)
        if name == KEY and kind == TEXT:
            found = begin, reader.at
        elif name == "general.alignment":
            alignment = struct.unpack_from("<I", data, begin)[0]
    if not found:
        sys.exit(f"thinking_model: the file has no {KEY} to replace")
    for _ in range(tensors):
        reader.text()
        dimensions = reader.number("I")
        reader.at += 8 * dimensions + 4 + 8
    text = template.encode()
    head = data[:found[0]] + struct.pack("<Q", len(text)) + text + data[found[1]:reader.at]
    return head + bytes(padded(len(head), alignment) - len(head)) + data[padded(reader.at, alignment):]


def copy(model, out):
    """Writes the copy; gives its path."""
    with open(model, "rb") as file:
        data = file.read()
    with open(out, "wb") as file:
        file.write(with_template(data, TEMPLATE))
    return out


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    copy(*sys.argv[1:])
