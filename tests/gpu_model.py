"""Writes a model folder of Qwen3's 0.6 B shape with random weights: what it says means nothing, and
costs what such a model costs. Needs nothing but Python.

    python3 tests/gpu_model.py target/gpu/model [--layers 28 --hidden 1024 ...]
"""

import argparse
import json
import os
import pathlib
import shutil

# Sign and seven bits of bf16 numbers below 1/32.
FREE, FIXED = 0x807F, 0x3C80
ONE = 0x3F80
PIECE = 1 << 20


def random_bf16(count):
    """The bytes of random numbers, piece by piece."""
    while count:
        now = min(count, PIECE)
        mask = int.from_bytes(FREE.to_bytes(2, "little") * now, "little")
        fixed = int.from_bytes(FIXED.to_bytes(2, "little") * now, "little")
        drawn = int.from_bytes(os.urandom(2 * now), "little")
        yield (drawn & mask | fixed).to_bytes(2 * now, "little")
        count -= now


def tensors(shape):
    """Names and sizes, in the order they are written."""
    hidden, ffn = shape.hidden, shape.ffn
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", [shape.vocab, hidden]
    yield "model.norm.weight", [hidden]
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [hidden]
        yield at + "post_attention_layernorm.weight", [hidden]
        yield at + "self_attn.q_norm.weight", [shape.head_dim]
        yield at + "self_attn.k_norm.weight", [shape.head_dim]
        for name, out in ("q", q), ("k", kv), ("v", kv):
            yield at + f"self_attn.{name}_proj.weight", [out, hidden]
        yield at + "self_attn.o_proj.weight", [hidden, q]
        yield at + "mlp.gate_proj.weight", [ffn, hidden]
        yield at + "mlp.up_proj.weight", [ffn, hidden]
        yield at + "mlp.down_proj.weight", [hidden, ffn]


def config(shape):
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "intermediate_size": shape.ffn, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
        "attention_bias": False, "torch_dtype": "bfloat16",
    }


def tokenizer(starter, vocab):
    """The starter's, with a word for every further id: each token that is drawn shows as text."""
    told = json.loads((starter / "tokenizer.json").read_text())
    words = told["model"]["vocab"]
    for number in range(len(words), vocab):
        # The letter stands for a space before the word.
        words[f"\u0120w{number}"] = number
    return told


def write(folder, shape):
    folder.mkdir(parents=True, exist_ok=True)
    starter = pathlib.Path(__file__).parent.parent / "loops/starter/model"
    for name in "generation_config.json", "tokenizer_config.json":
        shutil.copy(starter / name, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(starter, shape.vocab)))
    (folder / "config.json").write_text(json.dumps(config(shape), indent=1))
    header, at = {}, 0
    for name, size in tensors(shape):
        count = size[0] * (size[1] if len(size) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [at, at + 2 * count]}
        at += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    half = folder / "model.part"
    with open(half, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size in (tensor["shape"] for tensor in header.values()):
            if len(size) == 1:
                file.write(ONE.to_bytes(2, "little") * size[0])
                continue
            for piece in random_bf16(size[0] * size[1]):
                file.write(piece)
    half.rename(folder / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    for name, value in (("layers", 28), ("hidden", 1024), ("heads", 16), ("kv_heads", 8), ("head_dim", 128),
                        ("ffn", 3072), ("vocab", 151936)):
        parser.add_argument(f"--{name}", type=int, default=value)
    shape = parser.parse_args()
    if not (shape.folder / "model.safetensors").exists():
        write(shape.folder, shape)


main()
