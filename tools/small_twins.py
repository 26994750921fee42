#!/usr/bin/env python3
"""Small mixtures for the tests of the repository, cut out of larger tiny ones, with what llama.cpp computes for them.

usage: small_twins.py FOLDER OUT_FOLDER

Cuts FOLDER/deepseek2.gguf (latent attention, groups of experts, a dense layer first) to two heads, narrower networks and 64 tokens, and
FOLDER/gpt-oss-mxfp4.gguf (sinks, windows, MXFP4 experts with biases) to four experts and 64 tokens. A part of random weights is as
random as the whole. Writes small_NAME.gguf and small_NAME.json to OUT_FOLDER: a prompt, the log probabilities of all tokens after each
of the positions `after`, and a greedy continuation with its gaps, as llama_cpp_ids.py finds them. needs: pip install gguf xllamacpp numpy
"""
import json
import os
import subprocess
import sys

import gguf
import numpy as np

TOKENS = 64
PROMPT = [int(x) for x in np.random.default_rng(7).integers(3, TOKENS - 1, 40)]
AFTER = [2, 9, 17, 33, 40]


def cut_deepseek(name, values):
    """Two of four heads, dense width 32, expert width 16."""
    part = name.split(".", 2)[-1]
    heads = {"attn_q_b.weight": lambda v: v[:80], "attn_k_b.weight": lambda v: v[:2], "attn_v_b.weight": lambda v: v[:2],
             "attn_output.weight": lambda v: v[:, :32]}
    widths = {"ffn_gate.weight": lambda v: v[:32], "ffn_up.weight": lambda v: v[:32], "ffn_down.weight": lambda v: v[:, :32],
              "ffn_gate_exps.weight": lambda v: v[:, :16], "ffn_up_exps.weight": lambda v: v[:, :16],
              "ffn_down_exps.weight": lambda v: v[:, :, :16], "ffn_gate_shexp.weight": lambda v: v[:16],
              "ffn_up_shexp.weight": lambda v: v[:16], "ffn_down_shexp.weight": lambda v: v[:, :16]}
    return {**heads, **widths}.get(part, lambda v: v)(values)


def cut_gpt_oss(name, values):
    """Four of eight experts."""
    return values[:4] if "_exps." in name or "ffn_gate_inp" in name else values


MODELS = {
    "deepseek2": (cut_deepseek, {"attention.head_count": 2, "feed_forward_length": 32, "expert_feed_forward_length": 16}),
    "gpt-oss-mxfp4": (cut_gpt_oss, {"expert_count": 4}),
}


def write(source, target, cut, changed):
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    changed = {f"{architecture}.{key}": value for key, value in {**changed, "vocab_size": TOKENS}.items()}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "tokenizer.chat_template"):
            continue
        value, kind = field.contents(), field.types[0]
        if key == "tokenizer.ggml.tokens":
            # One merge is the least that both engines take for a tokenizer of byte pairs.
            value = value[:TOKENS - 2] + [value[0] + value[1]] + value[-1:]
            first, second = value[:2]
        elif key == "tokenizer.ggml.token_type":
            value = value[:TOKENS - 1] + value[-1:]
        elif key == "tokenizer.ggml.merges":
            value = [f"{first} {second}"]
        elif key.endswith("_token_id"):
            value = TOKENS - 1
        value = changed.get(key, value)
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        values = cut(tensor.name, tensor.data)
        if tensor.name in ("output.weight", "token_embd.weight"):
            values = values[:TOKENS]
        raw = tensor.tensor_type if tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4 else None
        writer.add_tensor(tensor.name, np.ascontiguousarray(values), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


ASK = r"""
import json, sys, numpy as np, xllamacpp as x
model, reference = sys.argv[1], json.loads(sys.argv[2])
p = x.CommonParams()
p.model.path = model
p.n_ctx, p.n_parallel, p.warmup, p.cache_prompt, p.verbosity = 512, 1, False, False, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
for name, value in reference["yarn"].items():
    setattr(p, "yarn_" + name, value)
server = x.Server(p)
def ask(ids):
    answer = server.handle_completions({"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 64, "cache_prompt": False,
                                        "stream": False, "logit_bias": [[32, 1000.0]]})
    answer = answer if isinstance(answer, dict) else json.loads(answer)
    found = {t["id"]: t["logprob"] for t in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    return [round(found[token], 6) for token in range(64)]
ids, gaps, prompt = [], [], reference["input_ids"]
for _ in range(16):
    logprobs = np.array(ask(prompt + ids))
    best = np.sort(logprobs)[::-1]
    ids.append(int(logprobs.argmax()))
    gaps.append(round(float(best[0] - best[1]), 4))
print("FOUND", json.dumps({"after": {str(k): ask(prompt[:k]) for k in reference["after"]}, "ids": ids, "gap": gaps}))
"""


def main():
    folder, out = sys.argv[1:3]
    for name, (cut, changed) in MODELS.items():
        target = os.path.join(out, f"small_{name}.gguf")
        write(os.path.join(folder, name + ".gguf"), target, cut, changed)
        yarn = json.load(open(os.path.join(folder, name + ".json"))).get("yarn", {})
        reference = {"input_ids": PROMPT, "after": AFTER, "yarn": yarn}
        run = subprocess.run([sys.executable, "-c", ASK, target, json.dumps(reference)], capture_output=True, text=True,
                             errors="replace", timeout=300)
        found = [line[6:] for line in run.stdout.splitlines() if line.startswith("FOUND ")]
        if not found:
            raise SystemExit(f"{name}: {(run.stderr + run.stdout)[-800:]}")
        with open(os.path.join(out, f"small_{name}.json"), "w") as file:
            json.dump({"input_ids": PROMPT, **json.loads(found[0])}, file)
            file.write("\n")
        print(name, os.path.getsize(target), "bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
