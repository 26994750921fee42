#!/usr/bin/env bash
# Runs a model under a hard memory limit of a third of its size and checks that the budget held.
# usage: tools/under_a_memory_limit.sh MODEL.gguf MEMCG_RUN        (root; MEMCG_RUN limits a command's memory by a control group and
# prints {"peak", "oom_kills", ...} as the last line of standard error)
set -euo pipefail
model=$1 memcg_run=$2
program=$(dirname "$0")/../target/release/coldpress
limit=$(($(stat -c %s "$model") / 3))
report=$(mktemp) limits=$(mktemp)
trap 'rm -f "$report" "$limits"' EXIT
"$memcg_run" --cold "$model" "$limit" "$program" run "$model" --budget "$limit" --ctx 1024 --raw --ignore-eos --max-tokens 64 --json \
    -p "The old house stood at the end of the lane, and" >"$report" 2>"$limits" || { cat "$report" "$limits"; exit 1; }
python3 - "$report" <(tail -n 1 "$limits") "$limit" <<'PYTHON'
import json, sys
run, group, limit = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), int(sys.argv[3])
experts = run["experts"]
device = experts["device_bytes_read"] / experts["bytes_read"]
print(f"limit {limit}, peak of the group {group['peak']}, of the process {run['peak_bytes']['rss']}, kills {group['oom_kills']}, "
      f"{run['completion_tokens']} tokens, {run['decode_tokens_per_second']:.1f} tok/s, device / needed bytes {device:.4f}")
assert group["oom_kills"] == 0 and group["exit"] == 0
assert group["peak"] <= limit and run["peak_bytes"]["rss"] <= limit
assert run["completion_tokens"] == 64
assert experts["misses"] > 0 and experts["evictions"] > 0 and device <= 1.05
PYTHON
