#!/usr/bin/env python3
"""Convert tiny checkpoints with mlx-lm and write its logits beside them, as fixtures of the tests.

Usage: tools/make_mlx_folders.py ORACLE OUT [FAMILY ...]

ORACLE holds tiny checkpoints of transformers (FAMILY/config.json, config.published.json, model.safetensors, ref.json). OUT/FAMILY
gets config.json and model.safetensors as `mlx_lm.convert` writes them, logits.npy (float32 [tokens, vocabulary]) and ref.json.
mlx-lm computes in float32 from the codes: all floating-point parameters are raised before the pass.
Needs mlx (on Linux mlx[cpu]), mlx-lm and safetensors; written against mlx 0.32.4 and mlx-lm 0.32.2.

mlx-lm reads the configurations that the models are published with, not those that transformers 5 writes: what differs is in FAMILIES.
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.convert import convert
from mlx_lm.utils import load_model
from safetensors.numpy import load_file

TOKENS = 16


def affine(bits):
    return {"q_group_size": 32, "q_bits": bits, "q_mode": "affine"}


# How it is quantised, and what its configuration says beside what the oracle's does.
FAMILIES = {
    "deepseek_v3": (affine(3), {}),
    "ernie4_5_moe": ({"q_group_size": 32, "q_bits": 8, "q_mode": "mxfp8"}, {}),
    "gpt_oss_mxfp4": (affine(4), {}),
    "granitemoehybrid": (affine(3), {"layer_types": ["mamba", "attention"], "position_embedding_type": "nope",
                                     "time_step_limit": [0.0, 1e30]}),
    "kimi_linear": (affine(3), {}),
    "lfm2_moe": (affine(5), {}),
    "llama4_text": (affine(2), {"rope_scaling": None}),
    "longcat_flash": (affine(2), {"attention_method": "MLA", "zero_expert_type": "identity", "mla_scale_q_lora": True,
                                  "mla_scale_kv_lora": True}),
    "qwen3_5_moe_text": ({"q_group_size": 16, "q_bits": 4, "q_mode": "nvfp4"}, {"full_attention_interval": 2}),
    "qwen3_next": (affine(6), {"partial_rotary_factor": 0.25, "full_attention_interval": 2}),
}


def configuration(source, family):
    published = source / "config.published.json"
    config = json.load(open(published if published.exists() else source / "config.json"))
    theta = (config.get("rope_parameters") or {}).get("rope_theta")
    if theta is not None:
        config.setdefault("rope_theta", theta)
    config.update(FAMILIES[family][1])
    # mlx-lm always rounds the bounds of YaRN's ramp.
    if family == "gpt_oss_mxfp4":
        config["rope_scaling"].pop("truncate", None)
    if family in ("llama4_text", "qwen3_5_moe_text"):
        config = {"model_type": family.removesuffix("_text"), "text_config": config, "vocab_size": config["vocab_size"]}
    return config


def weights(source, family):
    """The tensors as they are published, and None where the file of the oracle has them so."""
    tensors = {name: mx.array(value) for name, value in load_file(source / "model.safetensors").items() if value.size} \
        if family in ("longcat_flash", "llama4_text", "qwen3_5_moe_text") else None
    if family == "longcat_flash":
        # Experts without weights have a gate and an up matrix in the oracle.
        return {name: value for name, value in tensors.items() if not any(f"experts.{e}." in name for e in range(8, 12))}
    if family == "llama4_text":
        return {f"language_model.{name}": value for name, value in tensors.items()}
    if family == "qwen3_5_moe_text":
        for layer in range(2):
            experts = f"model.layers.{layer}.mlp.experts"
            stack = {part: mx.stack([tensors.pop(f"{experts}.{e}.{part}_proj.weight") for e in range(8)])
                     for part in ("gate", "up", "down")}
            tensors[f"{experts}.gate_up_proj"] = mx.concatenate([stack["gate"], stack["up"]], axis=1)
            tensors[f"{experts}.down_proj"] = stack["down"]
        return {name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: value
                for name, value in tensors.items()}
    return None


def make(oracle, out, family):
    source, folder = oracle / family, out / family
    with tempfile.TemporaryDirectory() as temporary:
        given = Path(temporary) / "source"
        given.mkdir()
        json.dump(configuration(source, family), open(given / "config.json", "w"))
        tensors = weights(source, family)
        if tensors is None:
            shutil.copy(source / "model.safetensors", given)
        else:
            mx.save_safetensors(str(given / "model.safetensors"), tensors, metadata={"format": "pt"})
        for name in os.listdir(oracle / "tokenizer"):
            shutil.copy(oracle / "tokenizer" / name, given)
        shutil.rmtree(folder, ignore_errors=True)
        convert(str(given), str(folder), quantize=True, dtype="bfloat16", **FAMILIES[family][0])
    for name in os.listdir(folder):
        if name not in ("config.json", "model.safetensors"):
            os.remove(folder / name)
    model = load_model(folder)[0]
    model.set_dtype(mx.float32)
    ids = json.load(open(source / "ref.json"))["input_ids"][:TOKENS]
    logits = np.array(model(mx.array([ids]))[0]).astype(np.float32)
    np.save(folder / "logits.npy", logits)
    continuation = [int(logits[-1].argmax())]
    json.dump({"input_ids": ids, "greedy_continuation": continuation}, open(folder / "ref.json", "w"))
    print(family, sum(os.path.getsize(folder / name) for name in os.listdir(folder)), "bytes", flush=True)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    mx.set_default_device(mx.cpu)
    oracle, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for family in sys.argv[3:] or FAMILIES:
        make(oracle, out, family)


if __name__ == "__main__":
    main()
