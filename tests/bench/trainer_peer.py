"""A training step by Hone, and the same one by PyTorch with transformers and PEFT, in turn.

    HONE_BENCH=target/release/hone-bench target/venv-torch/bin/python tests/bench/trainer_peer.py --rounds 5

Both train a rank-8 adapter on every projection of the same Qwen3 shapes, on one row of the same
session of 20 turns with loss on every completion, by the same objective, with the same number of
threads. PyTorch gets what helps it: fused attention, a fused optimizer, and logits of the loss tokens
only. Memory is the peak while training above what the process took before it built the model, so
the interpreter and the libraries do not count. Prints a table and, last, one JSON object.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

# As in tests/bench/src/trainer.rs: hidden, layers, heads, kv heads, head size, feed-forward, words.
SHAPES = {
    "3 M": (192, 6, 6, 2, 32, 512, 2048),
    "30 M": (512, 8, 8, 4, 64, 1536, 8192),
}
CASES = {
    "3 M": ("3 M", "float32"),
    "3 M, bf16": ("3 M", "bfloat16"),
    "30 M": ("30 M", "float32"),
    "30 M, bf16": ("30 M", "bfloat16"),
}
TURNS, ASKED, ANSWERED = 20, 24, 32
PATIENCE_S = 600


class Peer:
    """A model with its adapter, and the session to learn from."""

    def __init__(self, shape, dtype):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import Qwen3Config, Qwen3ForCausalLM

        hidden, layers, heads, kv_heads, head_dim, ffn, vocab = SHAPES[shape]
        torch.manual_seed(1)
        self.before_kib = memory_kib("VmRSS:")
        model = Qwen3ForCausalLM(
            Qwen3Config(
                hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, head_dim=head_dim, intermediate_size=ffn,
                vocab_size=vocab, max_position_embeddings=4096, tie_word_embeddings=True,
                attn_implementation="sdpa", use_cache=False,
            )
        ).to(getattr(torch, dtype))
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=names)
        self.model = get_peft_model(model, lora)
        self.model.train()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
        self.trained = trained
        length = TURNS * (ASKED + ANSWERED)
        tokens = [(i * 31 + i // 7) % vocab for i in range(length)]
        turn = ASKED + ANSWERED
        places = [t * turn + ASKED + i for t in range(TURNS) for i in range(ANSWERED)]
        self.input = torch.tensor([tokens[:-1]])
        self.predicts = torch.tensor(places) - 1
        self.wanted = torch.tensor([tokens[p] for p in places])
        self.advantage = torch.tensor([1.0 if p // turn % 2 == 0 else -1.0 for p in places])
        self.tokens = length - 1

    def step(self):
        import torch

        causal = self.model.base_model.model
        hidden = causal.model(input_ids=self.input, use_cache=False).last_hidden_state[0]
        logits = causal.lm_head(hidden[self.predicts]).float()
        current = logits.log_softmax(-1).gather(1, self.wanted[:, None])[:, 0]
        # Decoupled PPO in its first update, where the proximal policy is the current one.
        proximal = current.detach()
        ratio = (current - proximal).exp()
        correction = (proximal + 7.0).exp().clamp(max=5.0)
        clipped = ratio.clamp(0.8, 1.28)
        gain = torch.minimum(ratio * self.advantage, clipped * self.advantage)
        loss = -(correction * gain).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def steps(self, seconds):
        """Seconds of each step, after a first one."""
        self.step()
        times, began = [], time.perf_counter()
        while not times or time.perf_counter() - began < seconds:
            one = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - one)
        return times


def memory_kib(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    sys.exit(f"/proc/self/status has no {key}")


def peer_memory(case, threads):
    """Peak bytes of a process that trains this case only."""
    command = [sys.executable, __file__, "--memory-of", case, "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
    return int(done.stdout.split()[-1])


def tell_memory(case):
    import peft  # noqa: F401  Counted among the libraries, not the training.
    import torch
    import transformers  # noqa: F401

    # The thread pool and the first matrix product are the library's as well.
    torch.ones(64, 64).requires_grad_().matmul(torch.ones(64, 64)).sum().backward()
    peer = Peer(*CASES[case])
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        peer.step()
    print((memory_kib("VmHWM:") - peer.before_kib) * 1024)


def hone(seconds, threads):
    command = [os.environ["HONE_BENCH"], "trainer", "--json", "--seconds", str(seconds)]
    env = {**os.environ, "HONE__MODEL__THREADS": str(threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, timeout=PATIENCE_S)
    if done.returncode:
        sys.exit(f"hone-bench trainer failed:\n{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=20, help="of Hone's part of a round")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--memory-of", choices=CASES, help=argparse.SUPPRESS)
    options = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    if options.memory_of:
        return tell_memory(options.memory_of)
    peers = {case: Peer(*of) for case, of in CASES.items()}
    theirs, ours, memory, factors = ({case: [] for case in CASES} for _ in range(4))
    for number in range(options.rounds):
        told = hone(options.seconds, options.threads)
        for case, peer in peers.items():
            ours[case].append(told[case]["tokens_per_second"])
            memory[case].append(told[case]["memory_bytes"])
            if told[case]["factor"]:
                factors[case].append(told[case]["factor"])
            median = statistics.median(peer.steps(options.seconds / 8))
            theirs[case].append(peer.tokens / median)
        ratios = ", ".join(f"{case}: {ours[case][-1] / theirs[case][-1]:.2f}" for case in CASES)
        print(f"round {number + 1}: {ratios}", flush=True)
    print_table(options, theirs, ours, memory, factors)


def print_table(options, theirs, ours, memory, factors):
    print(f"{'shape':12} {'Hone':>9} {'PyTorch':>9} {'ratio':>6} {'(rounds)':>13} "
          f"{'Hone MiB':>9} {'PyTorch MiB':>11} {'share':>6} {'by turn':>8}")
    numbers = {}
    for case in CASES:
        ratios = sorted(a / b for a, b in zip(ours[case], theirs[case]))
        mine, other = statistics.median(ours[case]), statistics.median(theirs[case])
        held, theirs_held = max(memory[case]), peer_memory(case, options.threads)
        factor = statistics.median(factors[case]) if factors[case] else None
        numbers[case] = {
            "hone_tokens_per_s": round(mine), "pytorch_tokens_per_s": round(other),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(r, 3) for r in ratios],
            "hone_memory_bytes": held, "pytorch_memory_bytes": theirs_held,
            "memory_share": round(held / theirs_held, 3), "by_turn_factor": factor,
        }
        print(f"{case:12} {mine:9.0f} {other:9.0f} {statistics.median(ratios):6.2f} "
              f"{ratios[0]:6.2f}-{ratios[-1]:5.2f} {held / 2**20:9.0f} {theirs_held / 2**20:11.0f} "
              f"{held / theirs_held:6.2f} {factor and f'{factor:.1f}' or '-':>8}")
    print(json.dumps({"rounds": options.rounds, "threads": options.threads, "shapes": numbers}))


main()
