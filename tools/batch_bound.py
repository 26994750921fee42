#!/usr/bin/env python3
"""How much less of the experts several streams could read as one batch than one after another, whatever the cache does.

usage: tools/batch_bound.py TRACE... [--slots N]...
Each trace is what one stream chose (`coldpress trace MODEL -p TEXT --gen-tokens N --out TRACE`); its decode passes are used. Per number of
slots of a layer it prints the reads per token and layer of the optimal cache (Belady's, which knows the future) and of a plain least-recently-
used one: for the streams one after another, and together, where a pass reads what any of them chose once. The last column is how many times
faster a batch could be at most where reading is all that counts: optimal together against least-recently-used alone.
"""
import argparse
import collections
import json
import struct


def decode_passes(path):
    """Chosen experts `[token][layer]` of all passes with one row, and the numbers of experts."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"CPTRACE\0", path
    version, layers, top_k, width, passes = struct.unpack_from("<IIIIQ", data, 8)
    assert version == 1, version
    at = 8 + 24 + 32 + 4
    counts = struct.unpack_from(f"<{layers}I", data, at)
    at += 4 * layers
    found = []
    for _ in range(passes):
        rows, = struct.unpack_from("<I", data, at)
        at += 4
        length = rows * top_k
        choices = struct.unpack_from(f"<{layers * length}{'B' if width == 1 else 'H'}", data, at)
        at += layers * length * width
        if rows == 1:
            found.append([choices[layer * top_k:(layer + 1) * top_k] for layer in range(layers)])
    return found, counts


def optimal(requests, slots):
    """Reads of the cache that gives way to what is used last of all, which may be the newcomer."""
    after, last = [0] * len(requests), {}
    for index in range(len(requests) - 1, -1, -1):
        after[index] = last.get(requests[index], len(requests))
        last[requests[index]] = index
    held, reads = {}, 0
    for index, expert in enumerate(requests):
        reads += expert not in held
        held[expert] = after[index]
        if len(held) > slots:
            del held[max(held, key=held.get)]
    return reads


def least_recent(requests, slots):
    held, reads = collections.OrderedDict(), 0
    for expert in requests:
        reads += expert not in held
        held[expert] = True
        held.move_to_end(expert)
        if len(held) > slots:
            held.popitem(last=False)
    return reads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+")
    parser.add_argument("--slots", type=int, action="append")
    options = parser.parse_args()
    read = [decode_passes(path) for path in options.trace]
    counts = read[0][1]
    assert all(found == counts for _, found in read), "traces of one model"
    length = min(len(tokens) for tokens, _ in read)
    streams = [tokens[:length] for tokens, _ in read]
    layers, tokens = range(len(counts)), length * len(streams)
    union = sum(len({expert for stream in streams for expert in stream[at][layer]}) for at in range(length) for layer in layers)
    print(json.dumps({"streams": len(streams), "tokens": tokens, "experts": max(counts), "union_of_a_pass": round(union / length / len(counts), 1)}))
    for slots in options.slots or [max(counts) // 3, max(counts) // 2, 3 * max(counts) // 4]:
        row = {"slots": slots}
        alone = [[expert for stream in streams for token in stream for expert in token[layer]] for layer in layers]
        together = [[expert for at in range(length) for expert in sorted({expert for stream in streams for expert in stream[at][layer]})]
                    for layer in layers]
        for name, cache in (("optimal", optimal), ("least_recent", least_recent)):
            for kind, requests in (("alone", alone), ("together", together)):
                reads = sum(cache(one, slots) for one in requests)
                row[f"{name}_{kind}"] = round(reads / tokens / len(counts), 3)
        row["times_at_most"] = round(row["least_recent_alone"] / row["optimal_together"], 2)
        print(json.dumps(row))


if __name__ == "__main__":
    main()
