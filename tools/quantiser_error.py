#!/usr/bin/env python3
"""Compare the errors of coldpress's quantisers with those of llama.cpp and libgguf on trained weights, as a table for docs/formats.md.

usage: tools/quantiser_error.py QUANTIZE_VALUES MODEL.gguf... [--types Q4_K,Q4_0,...] [--values 2000000]
needs: pip install numpy gguf==0.19.0 libgguf==0.2.2 llama-cpp-python==0.3.36
       cargo build --release -p coldpress-kernels --example quantize_values      (gives target/release/examples/quantize_values)

Models: those of tools/get_smollm2.sh and tools/get_gemma3.sh, and any other GGUF file. Matrices are read by gguf.quants, and quantised
by coldpress, by ggml_quantize_chunk of llama.cpp's library and by libgguf, without importance matrices. gguf.quants turns all three
back to numbers, and the root of the mean squared difference is compared. Published files hold values that lie on the grid of their own
blocks, which would favour whoever finds that grid again; so each matrix is also taken transposed (marked ^T), its blocks across rows.
"""
import argparse
import ctypes
import subprocess
import sys
from pathlib import Path

import libgguf
import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFReader, quants

KINDS = {
    "token_embd": "embedding", "attn_q.": "attention q", "attn_k.": "attention k", "attn_v.": "attention v", "attn_output": "attention out",
    "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down",
}

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("models", nargs="+")
parser.add_argument("--types", default="Q4_K,Q5_K,Q6_K,Q4_0,Q5_0,Q8_0,MXFP4")
parser.add_argument("--values", type=int, default=2_000_000, help="values of each kind of matrix of each model")
options = parser.parse_args()

folder = Path(llama_cpp.__file__).parent / "lib"
base = ctypes.CDLL(str(next(folder.glob("libggml-base.so"))))
base.ggml_quantize_chunk.restype = ctypes.c_size_t
base.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + 3 * [ctypes.c_int64] + [ctypes.c_void_p]


def read(model: str) -> dict[str, list[np.ndarray]]:
    """Rows of 256 values by kind of matrix."""
    found: dict[str, list[np.ndarray]] = {}
    for tensor in GGUFReader(model).tensors:
        kind = next((kind for part, kind in KINDS.items() if part in tensor.name and "inp" not in tensor.name), None)
        if kind is None or tensor.tensor_type == Type.F32:
            continue
        shape = [int(dimension) for dimension in reversed(tensor.shape)]
        room = options.values - sum(rows.size for rows in found.get(kind, []))
        if room <= 0:
            continue
        matrix = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(-1, shape[-1])
        matrix = matrix[: max(256, room // shape[-1] // 256 * 256)]
        for name, matrix in ((kind, matrix), (kind + " ^T", matrix.T)):
            columns = matrix.shape[1] // 256 * 256
            if columns:
                found.setdefault(name, []).append(np.ascontiguousarray(matrix[:, :columns]).reshape(-1, 256))
    return found


def by_coldpress(rows: np.ndarray, kind: Type, *way: str) -> tuple[bytes, float]:
    run = subprocess.run([options.program, kind.name, *way], input=rows.tobytes(), capture_output=True, check=True)
    return run.stdout, float(run.stderr)


def by_llama_cpp(rows: np.ndarray, kind: Type) -> bytes:
    block, size = GGML_QUANT_SIZES[kind]
    out = ctypes.create_string_buffer(rows.size // block * size)
    base.ggml_quantize_chunk(kind.value, rows.ctypes.data, out, 0, len(rows), rows.shape[1], None)
    return out.raw


def squared_error(rows: np.ndarray, kind: Type, data: bytes) -> float:
    block, size = GGML_QUANT_SIZES[kind]
    blocks = np.frombuffer(data, dtype=np.uint8).reshape(len(rows), rows.shape[1] // block * size)
    return float(np.square(quants.dequantize(blocks, kind).astype(np.float64) - rows).sum())


weights: dict[str, list[np.ndarray]] = {}
for model in options.models:
    for kind, parts in read(model).items():
        weights.setdefault(kind, []).append(np.concatenate(parts))
print("| type | matrices | values | coldpress | llama.cpp | ratio | worst model | libgguf | ratio | MB/s |")
print("|---|---|---|---|---|---|---|---|---|---|")
worse = []
for kind in (Type[name] for name in options.types.split(",")):
    for name, models in sorted(weights.items()):
        sums, ratios, bytes_in, seconds = np.zeros(3), [], 0, 0.0
        for rows in models:
            ours, took = by_coldpress(rows, kind)
            theirs = np.frombuffer(np.asarray(libgguf.quantize_rows(rows, kind)).tobytes(), dtype=np.uint8).tobytes()
            errors = [squared_error(rows, kind, data) for data in (ours, by_llama_cpp(rows, kind), theirs)]
            ratios.append((errors[0] / errors[1]) ** 0.5 if errors[1] else float(errors[0] > 0) * 9 + (errors[0] == 0))
            sums += errors
            bytes_in, seconds = bytes_in + rows.nbytes, seconds + took
        count = sum(rows.size for rows in models)
        ours, llama, lib = (sums / count) ** 0.5
        ratio = lambda other: f"{ours / other:.4f}" if other else "1" if ours == 0 else "worse"
        print(f"| {kind.name} | {name} | {count} | {ours:.4e} | {llama:.4e} | {ratio(llama)} | {max(ratios):.4f} | {lib:.4e} | {ratio(lib)} | "
              f"{bytes_in / 1e6 / seconds:.0f} |", flush=True)
        if max(ratios) > 1 or ours > lib:
            worse.append(f"{kind.name} {name}")
print(f"\nworse than another quantiser: {', '.join(worse) or 'none'}", file=sys.stderr)
sys.exit(1 if worse else 0)
