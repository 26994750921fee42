#!/usr/bin/env python3
"""Greedy continuations by llama.cpp (PyPI package xllamacpp), as a reference for tests.

usage: llama_reference.py OUT.json MODEL.gguf TOKENS PROMPT [PROMPT ...]     a prompt that starts with "chat:" goes through the chat template
Writes a list of {prompt, ids, text, gap}: gap is the difference of the natural logarithms of the probabilities of
the best and the second-best token at each step. A small gap is a near-tie, where two engines may part.
needs: pip install xllamacpp
"""
import json, sys
import xllamacpp

out, model, tokens, prompts = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
p = xllamacpp.CommonParams()
p.model.path = model
p.n_ctx, p.n_parallel, p.warmup, p.n_predict = 1024, 1, False, tokens
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 2
p.no_extra_bufts = True
server = xllamacpp.Server(p)
found = []
for prompt in prompts:
    if prompt.startswith("chat:"):
        answer = server.handle_chat_completions({"messages": [{"role": "user", "content": prompt[5:]}], "temperature": 0, "max_tokens": tokens, "logprobs": True,
                       "top_logprobs": 2, "cache_prompt": False})
        choice = answer["choices"][0]
        steps = choice["logprobs"]["content"]
        ids = [s["id"] for s in steps]
        text = choice["message"]["content"]
    else:
        answer = server.handle_completions({"prompt": prompt, "temperature": 0, "n_predict": tokens, "max_tokens": tokens, "n_probs": 2,
                                            "logprobs": 2, "cache_prompt": False, "return_tokens": True})
        if "choices" in answer:
            choice = answer["choices"][0]
            steps = choice["logprobs"]["content"]
            text = choice["text"]
        else:
            steps = answer["completion_probabilities"]
            text = answer["content"]
        ids = [s["id"] for s in steps]
    gap = [s["top_logprobs"][0]["logprob"] - s["top_logprobs"][1]["logprob"] for s in steps]
    found.append({"prompt": prompt, "ids": ids, "text": text, "gap": [round(g, 4) for g in gap]})
json.dump(found, open(out, "w"), indent=1, ensure_ascii=False)
print(f"{out}: {len(found)} continuations", file=sys.stderr)
