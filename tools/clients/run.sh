#!/usr/bin/env bash
# Runs the official client packages of OpenAI, Anthropic and Ollama, for Python and for JavaScript, against `coldpress serve`.
# usage: tools/clients/run.sh --install | MODEL.gguf [--thinking] [--program FILE] [--only NAME]...
# Prints one line per check; the first failure ends it. --thinking gives the model a chat template with thinking and tools (thinking_model.py).
# Installs the packages at pinned versions below target/clients, once. Build first: cargo build --release
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$here/../../target/clients

# Installs again only when the versions changed.
fresh() { [ -e "$2" ] && cmp --silent "$1" "$2"; }

mkdir -p "$folder"
if ! fresh "$here/requirements.txt" "$folder/python/requirements.txt"; then
    rm -rf "$folder/python"
    python3 -m venv "$folder/python"
    "$folder/python/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$folder/python/requirements.txt"
fi
if ! fresh "$here/package.json" "$folder/node_modules/package.json"; then
    cp "$here/package.json" "$folder/package.json"
    rm -f "$folder/package-lock.json"
    npm install --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts
    cp "$here/package.json" "$folder/node_modules/package.json"
fi
[ "${1-}" != --install ] || exit 0
# Node looks for packages beside the script.
mkdir -p "$folder/javascript"
cp "$here"/*.mjs "$folder/javascript/"
exec "$folder/python/bin/python" "$here/conversation.py" "$@" --javascript "$folder/javascript"
