#!/usr/bin/env bash
# Sends what /openapi.json allows, and what it does not, to `coldpress serve`: no answer may be a 500 or contradict the description.
# usage: tools/check_openapi.sh MODEL.gguf [SECONDS]      default: 90 seconds; PROGRAM=FILE for another program than target/release/coldpress
# Installs schemathesis below target/openapi, once. Build first: cargo build --release
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 seconds=${2:-90}
program=${PROGRAM:-$here/../target/release/coldpress}
folder=$here/../target/openapi
requirements=$here/clients/openapi_requirements.txt
if ! cmp --silent "$requirements" "$folder/requirements.txt"; then
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    cp "$requirements" "$folder/requirements.txt"
fi

notes=$(mktemp)
"$program" serve "$model" --port 0 --ctx 2048 --kv-tokens 8192 --queue 256 2>"$notes" &
server=$!
stop() {
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    rm -f "$notes"
}
trap stop EXIT

url=
for _ in $(seq 600); do
    url=$(sed -n 's/.*listening at \(http:[^ ,]*\).*/\1/p' "$notes" | head -n 1)
    if [ -n "$url" ] && python3 -c "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/health')" "$url" 2>/dev/null; then
        break
    fi
    kill -0 "$server" || { cat "$notes"; exit 1; }
    sleep 0.1
done

checks=not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance
code=0
(cd "$folder" && PYTHONPATH=$here/clients SCHEMATHESIS_HOOKS=openapi_hooks timeout $((seconds + 120)) bin/schemathesis run "$url/openapi.json" \
    --checks "$checks" --phases examples,coverage,fuzzing --max-examples 30 --max-time "$seconds" --seed 1 --no-shrink --workers 2 \
    --request-timeout 60 --suppress-health-check all --continue-on-failure --no-color --warnings off) || code=$?
failed=$(python3 - "$url" <<'PYTHON'
import re, sys, urllib.request
text = urllib.request.urlopen(sys.argv[1] + "/metrics").read().decode()
pairs = re.findall(r'coldpress_http_responses_total\{.*status="(\d+)"\} (\d+)', text)
print(sum(int(count) for status, count in pairs if status == "500"), sum(int(count) for _, count in pairs))
PYTHON
)
echo "answers of 500 and answers in all, as the server counted them: $failed"
[ "${failed%% *}" = 0 ] && exit "$code"
exit 1
