#!/usr/bin/env python3
"""Make a large BF16 checkpoint (a Hugging Face folder of Qwen3-MoE) out of a small trained GGUF, to measure `coldpress pack --experts`.

usage: tools/make_bf16_folder.py SMALL.gguf FOLDER [--width 4] [--neurons 8] [--layers 14]
needs: pip install numpy gguf==0.19.0

Weights are the trained ones, repeated: the hidden dimension --width times (what reads it is divided by that), the units of each expert
--neurons times, layers from the first on again. The values of the weights are those of a trained model, which is what a quantiser sees;
with more layers than the small model has, the text is nonsense. Written tensor by tensor; no tokenizer is written.
From a model of 12 layers of 64 experts, hidden size 256 and expert size 96 the defaults make 4.3 GB.
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFReader, quants

parser = argparse.ArgumentParser()
parser.add_argument("small")
parser.add_argument("folder", type=Path)
parser.add_argument("--width", type=int, default=4)
parser.add_argument("--neurons", type=int, default=8)
parser.add_argument("--layers", type=int, default=14)
options = parser.parse_args()
reader = GGUFReader(options.small)
tensors = {tensor.name: tensor for tensor in reader.tensors}
key = lambda name: reader.fields[f"qwen3moe.{name}"].contents()
width, neurons, experts = options.width, options.neurons, key("expert_count")


def load(name: str) -> np.ndarray:
    tensor = tensors[name]
    shape = [int(dimension) for dimension in reversed(tensor.shape)]
    if tensor.tensor_type in (Type.F32, Type.F16):
        return np.asarray(tensor.data, dtype=np.float32).reshape(shape)
    return quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)


reads = lambda matrix: np.tile(matrix / width, (1, width))
writes = lambda matrix: np.tile(matrix, (width, 1))


def plan():
    """Names and what makes each tensor, in the order of the file."""
    yield "model.embed_tokens.weight", lambda: np.tile(load("token_embd.weight"), (1, width))
    for layer in range(options.layers):
        source, target = f"blk.{layer % key('block_count')}.", f"model.layers.{layer}."
        yield target + "input_layernorm.weight", lambda s=source: np.tile(load(s + "attn_norm.weight"), width)
        yield target + "post_attention_layernorm.weight", lambda s=source: np.tile(load(s + "ffn_norm.weight"), width)
        for name in "qkv":
            yield f"{target}self_attn.{name}_proj.weight", lambda s=source, n=name: reads(load(f"{s}attn_{n}.weight"))
        for name in "qk":
            yield f"{target}self_attn.{name}_norm.weight", lambda s=source, n=name: load(f"{s}attn_{n}_norm.weight")
        yield target + "self_attn.o_proj.weight", lambda s=source: writes(load(s + "attn_output.weight"))
        yield target + "mlp.gate.weight", lambda s=source: reads(load(s + "ffn_gate_inp.weight"))
        for expert in range(experts):
            place = f"{target}mlp.experts.{expert}."
            for name in ("gate", "up"):
                yield f"{place}{name}_proj.weight", lambda s=source, n=name, e=expert: np.tile(
                    reads(load(f"{s}ffn_{n}_exps.weight")[e]), (neurons, 1))
            yield place + "down_proj.weight", lambda s=source, e=expert: np.tile(
                writes(load(s + "ffn_down_exps.weight")[e]) / neurons, (1, neurons))
    yield "model.norm.weight", lambda: np.tile(load("output_norm.weight"), width)
    if "output.weight" in tensors:
        yield "lm_head.weight", lambda: reads(load("output.weight"))


def bf16(values: np.ndarray) -> bytes:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


options.folder.mkdir(parents=True, exist_ok=True)
load = __import__("functools").lru_cache(maxsize=4)(load)
header, end, shapes = {}, 0, {}
for name, make in plan():
    role = (name.split(".", 3)[-1] if ".experts." not in name else name.rsplit(".", 2)[-2]) if "layers" in name else name
    shape = shapes.setdefault(role, None) or make().shape
    shapes[role] = shape
    size = 2 * int(np.prod(shape))
    header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
    end += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(options.folder / "model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for name, make in plan():
        file.write(bf16(make()))
hidden, heads = key("embedding_length") * width, key("attention.head_count")
config = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": hidden,
    "num_hidden_layers": options.layers, "num_attention_heads": heads, "num_key_value_heads": key("attention.head_count_kv"),
    "head_dim": key("attention.key_length"), "num_experts": experts, "num_experts_per_tok": key("expert_used_count"),
    "moe_intermediate_size": key("expert_feed_forward_length") * neurons, "intermediate_size": hidden, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True, "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
    "rope_theta": key("rope.freq_base"), "max_position_embeddings": key("context_length"), "attention_bias": False,
    "tie_word_embeddings": "output.weight" not in tensors, "vocab_size": int(tensors["token_embd.weight"].shape[1]),
    "torch_dtype": "bfloat16",
}
(options.folder / "config.json").write_text(json.dumps(config, indent=1))
print(f"{options.folder}: {end / 1e9:.2f} GB")
