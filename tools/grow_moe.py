#!/usr/bin/env python3
"""Grow a small trained Mixture-of-Experts GGUF to the size of a large one that computes the same function.

usage: tools/grow_moe.py SMALL.gguf LARGE.gguf [--width 8] [--neurons 8] [--type q4_0|q8_0|q4_k_m] [--context N]
needs: pip install numpy gguf==0.19.0, and for q4_k_m libgguf==0.2.2

Speed depends on sizes and on routing, and routing of random weights is nothing like that of trained ones. Here every routing decision and
every token stays that of the small model: the hidden dimension is repeated --width times (what reads it is divided by that number, RMSNorm
does not notice), the inner dimension of each expert --neurons times. q4_k_m has the parts of the usual mixed files: Q6_K for values, the
output head and the down projections of every second layer, Q4_K for the rest.

--context states another context length than the small model's. Nothing is trained for the positions beyond the old one, so the text gets
worse there; that is for measuring the speed of longer prompts only.

Tensors are made and written one at a time, so memory is bounded by the largest one: about its size plus a few hundred MB.
Of a model with 12 layers of 64 experts of 256 x 96 (routing-q8_0.gguf), --neurons 16 makes 4 GB of q4_0 or 8 GB of q8_0, --neurons 8 makes
4 GB of q8_0, --neurons 32 makes 8 GB of q4_0.
"""
import argparse
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFReader, GGUFValueType, GGUFWriter, quants

parser = argparse.ArgumentParser()
parser.add_argument("small")
parser.add_argument("large")
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--neurons", type=int, default=8)
parser.add_argument("--type", default="q4_0", choices=["q4_0", "q8_0", "q4_k_m"])
parser.add_argument("--context", type=int)
options = parser.parse_args()
if options.context is not None and options.context < 1:
    sys.exit("--context must be at least one token")
for factor in (options.width, options.neurons):
    if factor < 1 or factor & (factor - 1):
        sys.exit("--width and --neurons must be powers of two, so that dividing by them is exact")
reader = GGUFReader(options.small)
architecture = reader.fields["general.architecture"].contents()

# Tensor name without its layer: factor of the output rows, factor of the input columns.
WIDTH, NEURONS = options.width, options.neurons
GROWTH = {
    "token_embd.weight": (1, WIDTH), "output.weight": (1, WIDTH),
    "attn_q.weight": (1, WIDTH), "attn_k.weight": (1, WIDTH), "attn_v.weight": (1, WIDTH), "attn_output.weight": (WIDTH, 1),
    "ffn_gate_inp.weight": (1, WIDTH),
    "ffn_gate_exps.weight": (NEURONS, WIDTH), "ffn_up_exps.weight": (NEURONS, WIDTH), "ffn_down_exps.weight": (WIDTH, NEURONS),
}
VECTORS = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")


def wanted_type(name):
    if name.endswith("ffn_gate_inp.weight"):
        return Type.F32
    if options.type != "q4_k_m":
        return Type[options.type.upper()]
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    six_bits = name == "output.weight" or "attn_v" in name or ("ffn_down" in name and layer % 2 == 0)
    return Type.Q6_K if six_bits else Type.Q4_K


def quantize(values, kind, name):
    block = GGML_QUANT_SIZES[kind][0]
    if values.shape[-1] % block:
        sys.exit(f"{name}: rows of {values.shape[-1]} numbers are no whole number of {kind.name} blocks of {block}; raise --width or --neurons")
    if kind == Type.F32:
        return values.astype(np.float32)
    try:
        return quants.quantize(values, kind)
    except NotImplementedError:
        import libgguf
        rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]), np.float32)
        packed = np.asarray(libgguf.quantize_rows(rows, libgguf.GGMLQuantizationType[kind.name])).view(np.uint8)
        return packed.reshape(*values.shape[:-1], -1)


def plan(tensor, name):
    """Shape of the small tensor (rows before columns), type of the grown one, factor of its rows and of its columns."""
    shape = [int(size) for size in reversed(tensor.shape)]
    if name.endswith(VECTORS):
        return shape, Type.F32, 1, WIDTH
    if len(shape) == 1:
        return shape, Type.F32, 1, 1
    rows, columns = GROWTH[name.split(".", 2)[2] if name.startswith("blk.") else name]
    return shape, wanted_type(name), rows, columns


def grown(tensor, name):
    shape, kind, rows, columns = plan(tensor, name)
    values = quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    if len(shape) == 1:
        return np.tile(values, columns).astype(np.float32)
    # An embedding row is written to the hidden state, everything else reads its columns and has to be divided.
    divisor = 1 if name.startswith("token_embd") else columns
    wide = np.tile(values / divisor, (1,) * (len(shape) - 1) + (columns,))
    return np.tile(quantize(wide, kind, name), (1,) * (len(shape) - 2) + (rows, 1))


def grown_shape(tensor, name):
    """Shape of what `grown` gives (quantised rows in bytes) and its type."""
    shape, kind, rows, columns = plan(tensor, name)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    last = shape[-1] * columns
    if kind != Type.F32:
        last = last // block * block_bytes
    return ([*shape[:-2], shape[-2] * rows, last] if len(shape) > 1 else [last]), kind


writer = GGUFWriter(options.large, architecture, use_temp_file=False)
scaled_keys = {f"{architecture}.embedding_length": WIDTH, f"{architecture}.feed_forward_length": WIDTH,
               f"{architecture}.expert_feed_forward_length": NEURONS}
for key, field in reader.fields.items():
    if not key.startswith("GGUF.") and key != "general.architecture":
        value = field.contents()
        value = value * scaled_keys[key] if key in scaled_keys else value
        if key == f"{architecture}.context_length" and options.context:
            value = options.context
        writer.add_key_value(key, value, field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None)
work = [(tensor, tensor.name) for tensor in reader.tensors]
if not any(name == "output.weight" for _, name in work):  # a tied head reads what the embedding writes: it needs the division
    work.insert(1, (work[[name for _, name in work].index("token_embd.weight")][0], "output.weight"))
for tensor, name in work:  # sizes first: the header comes before the data
    shape, kind = grown_shape(tensor, name)
    dtype = np.dtype(np.float32 if kind == Type.F32 else np.uint8)
    writer.add_tensor_info(name, shape, dtype, int(np.prod(shape)) * dtype.itemsize, raw_dtype=None if kind == Type.F32 else kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_ti_data_to_file()
for tensor, name in work:
    data = grown(tensor, name)
    assert list(data.shape) == grown_shape(tensor, name)[0], name
    writer.write_tensor_data(np.ascontiguousarray(data))
writer.close()
with open(options.large, "r+b") as file:  # a block device, which can hold the file for another read-ahead, has whole sectors
    size = file.seek(0, 2)
    file.truncate(-(-size // 4096) * 4096)
