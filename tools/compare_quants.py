#!/usr/bin/env python3
"""Quantise a small GGUF to other types and compare coldpress on it with coldpress on the same values as F32.

usage: tools/compare_quants.py COLDPRESS MODEL.gguf [--types q2_k,iq2_xxs,...] [--tokens 96] [--folder FOLDER] [--ids 1,2,3]
needs: pip install numpy gguf==0.19.0 libgguf==0.2.2

All matrices of two dimensions and more that have whole blocks of a type get it (others, of Q8_0 and Q4_0 width, IQ4_NL); norms and
routers stay. Every type is quantised by ggml's own code (libgguf; a flat importance matrix where one is asked for), read back by
gguf.quants, and written a second time as F32. What then differs between the two runs is that coldpress rounds activations to eight bits
for quantised weights: one line per type tells the largest difference of logits, the divergence of the next-token distributions
in nats, how often the most likely token is the same, and the perplexity of both runs. The text is given as --ids, or made up from
ids that the model finds likely. Files go to --folder, else to a temporary one.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import libgguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFReader, GGUFValueType, GGUFWriter, quants

ALL = "q2_k q3_k iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_nl iq4_xs tq1_0 tq2_0 nvfp4 q4_k"
NOT_QUANTISED = ("gate_inp", "norm")

parser = argparse.ArgumentParser()
parser.add_argument("coldpress")
parser.add_argument("model")
parser.add_argument("--types", default=ALL.replace(" ", ","))
parser.add_argument("--tokens", type=int, default=96)
parser.add_argument("--folder")
parser.add_argument("--ids", help="token ids with commas between")
options = parser.parse_args()
reader = GGUFReader(options.model)


def values(tensor) -> np.ndarray:
    shape = [int(dimension) for dimension in reversed(tensor.shape)]
    if tensor.tensor_type in (Type.F32, Type.F16):
        return np.asarray(tensor.data, dtype=np.float32).reshape(shape)
    return quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)


def quantised(weights: np.ndarray, kind: Type) -> np.ndarray:
    rows = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
    if kind == Type.NVFP4:
        return quants.quantize(rows, kind)
    try:
        data = libgguf.quantize_rows(rows, kind)
    except Exception:  # the type asks for an importance matrix
        data = libgguf.quantize_rows(rows, kind, imatrix=np.ones(rows.shape[1], dtype=np.float32))
    return np.frombuffer(np.asarray(data).tobytes(), dtype=np.uint8).reshape(len(rows), -1)


def write(path: Path, kind: Type | None, widened: bool, made: dict[str, np.ndarray]) -> None:
    """Writes the model; `made` keeps the quantised tensors of a type for its second file."""
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(str(path), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        weights = values(tensor)
        if kind is None or weights.ndim < 2 or any(part in tensor.name for part in NOT_QUANTISED):
            writer.add_tensor(tensor.name, weights)
            continue
        used = kind if weights.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0 else Type.IQ4_NL
        if tensor.name not in made:
            made[tensor.name] = quantised(weights, used)
        data = made[tensor.name]
        if widened:
            writer.add_tensor(tensor.name, quants.dequantize(data, used).astype(np.float32).reshape(weights.shape))
        else:
            writer.add_tensor(tensor.name, data.reshape(*weights.shape[:-1], -1), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path: Path, ids: list[int]) -> np.ndarray:
    out = path.with_suffix(".npy")
    command = [options.coldpress, "logits", str(path), "--ids", ",".join(map(str, ids)), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return np.load(out).astype(np.float64)


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def text_of(path: Path, vocabulary: int) -> list[int]:
    """Random ids, half of them replaced by what the model finds most likely at their places."""
    ids = np.random.default_rng(1).integers(0, vocabulary, options.tokens)
    for _ in range(4):
        likely = logits(path, ids.tolist()).argmax(axis=1)
        places = np.arange(1, len(ids), 2)
        ids[places] = likely[places - 1]
    return ids.tolist()


def perplexity(probabilities: np.ndarray, ids: list[int]) -> float:
    return float(np.exp(-probabilities[np.arange(len(ids) - 1), ids[1:]].mean()))


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        write(folder / "f32.gguf", None, False, {})
        vocabulary = logits(folder / "f32.gguf", [1]).shape[1]
        ids = [int(one) for one in options.ids.split(",")] if options.ids else text_of(folder / "f32.gguf", vocabulary)
        print(f"{len(ids)} tokens; F32 perplexity {perplexity(log_softmax(logits(folder / 'f32.gguf', ids)), ids):.3f}")
        print("| type | largest difference | divergence | same token | perplexity, F32 values | perplexity |\n|---|---|---|---|---|---|")
        for name in options.types.split(","):
            kind = Type[name.upper()]
            made: dict[str, np.ndarray] = {}
            for widened in (True, False):
                write(folder / f"{name}-{widened}.gguf", kind, widened, made)
            expected, found = (logits(folder / f"{name}-{widened}.gguf", ids) for widened in (True, False))
            ours, theirs = log_softmax(found), log_softmax(expected)
            divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1).mean()
            same = (found.argmax(axis=1) == expected.argmax(axis=1)).mean()
            print(
                f"| {kind.name} | {np.abs(found - expected).max():.3f} | {divergence:.2e} | {same:.1%} | "
                f"{perplexity(theirs, ids):.3f} | {perplexity(ours, ids):.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
