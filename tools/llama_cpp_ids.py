#!/usr/bin/env python3
"""Greedy continuations of token ids by llama.cpp (PyPI package xllamacpp), for the tiny models of every family.

usage: llama_cpp_ids.py OUT.json FOLDER [TOKENS]

For each FOLDER/NAME.gguf with a FOLDER/NAME.json that holds `input_ids` (and `yarn`, factors that llama.cpp does not read from the
files of some families) it writes the tokens that llama.cpp finds most likely one after the other, whatever they mean, and their gap: the
difference of the natural logarithms of the probabilities of the best and the second-best token. `fewer` holds the same for a copy of the file
whose `expert_used_count` is one less, where a token uses more than one. A model that llama.cpp does not load is listed with what it said.
Every model runs in a process of its own, because some end it. One token is asked for at a time, with the earlier ones as prompt,
so that nothing is taken for the end of the text. needs: pip install xllamacpp
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import xllamacpp


def continue_ids(model, reference, tokens):
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.n_ctx, p.n_parallel, p.warmup, p.cache_prompt, p.verbosity = 512, 1, False, False, 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for name, value in reference.get("yarn", {}).items():
        setattr(p, "yarn_" + name, value)
    server = xllamacpp.Server(p)
    ids, gaps = [], []
    for _ in range(tokens):
        # The bias makes the answer a letter, because an incomplete character would come without probabilities; those that are
        # told are the ones before the bias.
        answer = server.handle_completions({"prompt": reference["input_ids"] + ids, "max_tokens": 1, "temperature": 0, "logprobs": 4,
                                            "cache_prompt": False, "stream": False, "logit_bias": [[68, 1000.0]]})
        answer = answer if isinstance(answer, dict) else json.loads(answer)
        if "choices" not in answer:
            raise SystemExit(str(answer)[:300])
        best = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        best = sorted(((b["logprob"], b["id"]) for b in best), reverse=True)
        ids.append(best[0][1])
        gaps.append(round(best[0][0] - best[1][0], 4))
    return {"ids": ids, "gap": gaps}


def with_fewer_experts(path, folder):
    """A copy whose tokens use one expert less; None where they use only one."""
    data = bytearray(open(path, "rb").read())
    key = data.find(b".expert_used_count")
    at = key + len(b".expert_used_count")
    kind, count = (int.from_bytes(data[at + i:at + i + 4], "little") for i in (0, 4))
    if key < 0 or kind != 4 or count < 2:
        return None
    data[at + 4:at + 8] = (count - 1).to_bytes(4, "little")
    copy = os.path.join(folder, "fewer.gguf")
    open(copy, "wb").write(data)
    return copy


def in_a_process(model, reference, tokens):
    run = subprocess.run([sys.executable, __file__, "--one", model, reference, str(tokens)], capture_output=True, text=True,
                         errors="replace", timeout=300)
    found = re.findall(r"^FOUND (.*)$", run.stdout, re.M)
    if found:
        return json.loads(found[-1])
    lines = [line.strip() for line in (run.stderr + run.stdout).splitlines() if re.search("error|assert|unknown", line, re.I)]
    return {"refused": (lines or ["it ended without a word"])[-1][-200:]}


def main():
    if sys.argv[1] == "--one":
        print("FOUND", json.dumps(continue_ids(sys.argv[2], json.load(open(sys.argv[3])), int(sys.argv[4]))))
        return
    out, folder = sys.argv[1], sys.argv[2]
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    models = {}
    for name in sorted(f[:-5] for f in os.listdir(folder) if f.endswith(".gguf")):
        path, reference = (os.path.join(folder, name + end) for end in (".gguf", ".json"))
        models[name] = in_a_process(path, reference, tokens)
        with tempfile.TemporaryDirectory() as temporary:
            fewer = with_fewer_experts(path, temporary)
            if fewer and "ids" in models[name]:
                models[name]["fewer"] = in_a_process(fewer, reference, tokens)
        print(name, models[name], file=sys.stderr, flush=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in models.items())
    version = subprocess.run([sys.executable, "-m", "pip", "show", "xllamacpp"], capture_output=True, text=True).stdout
    version = (re.findall(r"^Version: (.*)$", version, re.M) or ["unknown"])[0]
    open(out, "w").write(f'{{"xllamacpp": "{version}", "models": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
