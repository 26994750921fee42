#!/usr/bin/env python3
"""One measurement of ftllm (fastllm) in disk mode: experts stay in the model file and pass through a cache of bounded size.

usage: PYTHON tools/peer_ftllm.py MODEL.gguf --text FILE --prompt-tokens N --gen-tokens N --threads N --cache BYTES [--amx]
Prints a line of JSON after the prompt and after every generated token, each with the rates so far, so that a caller may end the run. PYTHON
is the one of target/peer-ftllm, which tools/compare_streaming.py makes. Settings are those of `ftllm serve --device cpu --moe_device disk`:
float32 activations, direct reads where the system has them. Tokens are ftllm's own of the same text; decoding is greedy and ignores the
end-of-text token, so that every run has the same length.
"""
import argparse
import ctypes
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--text", required=True)
parser.add_argument("--prompt-tokens", type=int, required=True)
parser.add_argument("--gen-tokens", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--cache", type=int, required=True)
parser.add_argument("--amx", action="store_true")
options = parser.parse_args()
os.environ.setdefault("FT_THREADS", str(options.threads))

from ftllm import llm

llm.set_cpu_threads(options.threads)
llm.set_device_map("cpu")
llm.set_device_map("disk", True)
llm.set_moe_cpu_cache(options.cache)
if options.amx:
    llm.set_enable_amx(True)
model = llm.model(options.model)
model.set_atype("float32")
model.set_save_history(False)
with open(options.text) as file:
    ids = model.encode(file.read())[:options.prompt_tokens]
assert len(ids) == options.prompt_tokens, "the text is too short"

native = llm.fastllm_lib
started = time.perf_counter()
handle = native.launch_response_llm_model(model.model, len(ids), (ctypes.c_int * len(ids))(*ids), options.gen_tokens + 1, options.gen_tokens + 1,
                                          False, 1.0, 1, 1.0, 1.0, False, 0, None)
prefill = first = None
for done in range(options.gen_tokens + 1):
    # The library's own waiting call spins; a sleep leaves the processors to its workers.
    while not native.can_fetch_response_llm_model(model.model, handle):
        time.sleep(0.0005)
    if native.fetch_response_llm_model(model.model, handle) < 0:
        raise SystemExit(f"ftllm ended after {done} tokens")
    now = time.perf_counter()
    if first is None:
        first, prefill = now, options.prompt_tokens / (now - started)
    print(json.dumps({"prefill": prefill, "decode": done / (now - first) if done else None, "generated": done,
                      "cache": llm.get_disk_moe_cache_stats()}), flush=True)
# Its worker threads may outlive the last token for minutes.
os._exit(0)
