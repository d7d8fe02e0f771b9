"""A prompt of 512 tokens computed by Hone, and by PyTorch with transformers, in turn.

    HONE_BENCH=target/release/hone-bench target/venv-torch/bin/python tests/bench/prefill_peer.py --rounds 5

Both have random Qwen3 shapes in bf16 and as many threads. PyTorch gets what helps it: fused attention,
no cache of keys and values, and logits of the last token only. Hone's side is the whole engine. Each
side's best of a round counts. Prints a table of medians and, last, one JSON object.
"""

import argparse
import json
import os
import statistics
import sys
import time

import llama_peer
from llama_peer import PREFILL, SHAPES

# The ratio to reach, where there is one.
GOALS = {"30 M": None, "0.6 B": 0.7}


def peer(shape):
    """Computes a prompt once; returns tokens per second."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, layers, heads, kv_heads, head_dim, ffn, vocab = SHAPES[shape][0]
    torch.manual_seed(1)
    config = Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, intermediate_size=ffn, vocab_size=vocab,
        max_position_embeddings=llama_peer.CONTEXT, tie_word_embeddings=True,
        attn_implementation="sdpa", use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    prompt = torch.tensor([[(i * 31 + i // 7) % vocab for i in range(PREFILL)]])

    def compute():
        began = time.perf_counter()
        with torch.inference_mode():
            model(input_ids=prompt, use_cache=False, logits_to_keep=1)
        return PREFILL / (time.perf_counter() - began)

    return compute


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=8, help="of PyTorch's part of a round")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options = options.parse_args()
    if "HONE_BENCH" not in os.environ:
        sys.exit("say where the program is: HONE_BENCH=target/release/hone-bench")
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    (llama_peer.TARGET / "llama").mkdir(parents=True, exist_ok=True)
    models = {shape: llama_peer.write_model(shape, "bf16") for shape in options.shapes}
    peers = {shape: peer(shape) for shape in options.shapes}
    rounds = {shape: [] for shape in options.shapes}
    for number in range(options.rounds):
        for shape, model in models.items():
            compute = peers[shape]
            compute()
            theirs, began = [], time.perf_counter()
            while not theirs or time.perf_counter() - began < options.seconds:
                theirs.append(compute())
            ours = llama_peer.our_prefill(model, SHAPES[shape][1], options.threads)
            rounds[shape].append((ours, max(theirs)))
            print(f"round {number + 1}, {shape}: {ours:.0f}/{max(theirs):.0f} = {ours / max(theirs):.2f}", flush=True)
    tell(rounds, options)


def tell(rounds, options):
    print(f"{'model':12} {'Hone':>9} {'PyTorch':>9} {'ratio':>6} {'(rounds)':>12} {'goal':>5}")
    numbers = {}
    for shape, pairs in rounds.items():
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        mine, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        ratio, goal = statistics.median(ratios), GOALS[shape]
        numbers[shape] = {
            "hone_tokens_per_s": round(mine, 1), "pytorch_tokens_per_s": round(other, 1),
            "ratio": round(ratio, 3), "ratios": [round(r, 3) for r in ratios], "goal": goal,
        }
        print(f"{shape + ' bf16':12} {mine:9.1f} {other:9.1f} {ratio:6.2f} {ratios[0]:5.2f}-{ratios[-1]:5.2f} "
              f"{goal or '-':>5}")
    print(json.dumps({"rounds": options.rounds, "threads": options.threads, "models": numbers}))


main()
