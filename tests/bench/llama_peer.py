"""The engine on one model, and llama.cpp on the same file, in turn.

    HONE_BENCH=target/release/hone-bench target/venv-llama/bin/python tests/bench/llama_peer.py --rounds 5

Builds llama.cpp for this processor from the source package of llama-cpp-python, writes random Qwen3
shapes as GGUF files that both sides read (the same bytes), and lets `llama-batched-bench` and
`hone-bench engine` run on each, one after the other, with the same prompts' length, the same steps
and as many threads. Prefill is one prompt of 512 tokens; decoding begins at a context of 32. A turn is the
tenth of twenty behind a system prompt of 2,048 tokens: Hone's time to its first token (`hone-bench
turns`, the median of turns 2 to 20), the peer's (`llama-bench`) for the 24 new tokens and the last one
of the answer before, with all others in its cache. Hone's
side is the whole engine: it plans, samples and hands out every token, where the peer's bench only
computes logits. Prints a table of medians and, with --json, one JSON object as the last line.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile

# hidden, layers, heads, kv heads, head size, feed-forward, words; decoding steps of a round.
SHAPES = {
    "30 M": ((512, 8, 8, 4, 64, 1536, 8192), 128),
    "0.6 B": ((1024, 28, 16, 8, 128, 3072, 151936), 16),
}
FORMATS = ["bf16", "q8"]
STREAMS = [1, 8, 32]
# Ratios to reach: decoding 1, 8 and 32 streams, prefill, and turns.
GOALS = {"30 M": [1.0, 1.3, 2.0, 1.0, 1.0], "0.6 B": [1.3, 2.0, 2.5, 2.0, 1.0]}
SOURCE = "llama-cpp-python==0.3.36"
CONTEXT, PROMPT, PREFILL = 4096, 32, 512
# Tokens that a turn adds, and those before them: 2,048, and ten times 24 asked and 32 answered.
ADDED, BEFORE = 25, 2048 + 10 * (24 + 32)
PEERS = ["llama-batched-bench", "llama-bench"]
PATIENCE_S = 1200
TARGET = pathlib.Path("target")


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=PATIENCE_S, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build_peer():
    """Where the peer's benches are, built once."""
    built = TARGET / "llama" / "bin"
    if all((built / name).exists() for name in PEERS):
        return built
    tools = pathlib.Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    source = TARGET / "llama-src"
    name, version = SOURCE.split("==")
    folder = source / f"{name.replace('-', '_')}-{version}"
    if not folder.exists():
        print("fetching llama.cpp", flush=True)
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
             "--no-binary", name, "--dest", source, SOURCE], env=env)
        with tarfile.open(f"{folder}.tar.gz") as packed:
            packed.extractall(source, filter="data")
        pathlib.Path(f"{folder}.tar.gz").unlink()
    print("building llama.cpp (some minutes)", flush=True)
    off = ["BUILD_SHARED_LIBS", "LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS",
           "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_APP"]
    # Where a processor has AMX, its products of eight bits in tiles end with a segmentation fault.
    tiles = pathlib.Path("/proc/cpuinfo")
    flags = "-mno-amx-int8" if tiles.exists() and "amx_int8" in tiles.read_text() else ""
    run(["cmake", "-G", "Ninja", "-S", folder / "vendor" / "llama.cpp", "-B", TARGET / "llama",
         "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *[f"-D{o}=OFF" for o in off],
         f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"], env=env)
    run(["cmake", "--build", TARGET / "llama", "--target", *PEERS], env=env)
    return built


def write_model(shape, form):
    """The GGUF file of a shape, written once; every form holds the same random numbers, rounded."""
    path = TARGET / "llama" / f"{shape.replace(' ', '').replace('.', '_')}-{form}.gguf"
    if path.exists():
        return path
    import gguf
    import numpy

    print(f"writing {path}", flush=True)
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab = SHAPES[shape][0]
    half = path.with_suffix(".part")
    writer = gguf.GGUFWriter(half, "qwen3")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    add_words(writer, vocab)
    random = numpy.random.default_rng(1)

    def matrix(name, out, inp, deviation):
        values = random.standard_normal((out, inp), dtype=numpy.float32) * deviation
        kind = gguf.GGMLQuantizationType[{"bf16": "BF16", "q8": "Q8_0"}[form]]
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)

    def ones(name, size):
        writer.add_tensor(f"{name}.weight", numpy.ones(size, dtype=numpy.float32))

    matrix("token_embd", vocab, hidden, 0.02)
    ones("output_norm", hidden)
    into = 1 / (2 * layers) ** 0.5
    q, kv = heads * head_dim, kv_heads * head_dim
    for layer in range(layers):
        at = f"blk.{layer}."
        ones(at + "attn_norm", hidden)
        ones(at + "ffn_norm", hidden)
        ones(at + "attn_q_norm", head_dim)
        ones(at + "attn_k_norm", head_dim)
        for name, out in ("attn_q", q), ("attn_k", kv), ("attn_v", kv), ("ffn_gate", ffn), ("ffn_up", ffn):
            matrix(at + name, out, hidden, hidden**-0.5)
        matrix(at + "attn_output", hidden, q, into * q**-0.5)
        matrix(at + "ffn_down", hidden, ffn, into * ffn**-0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half.rename(path)
    return path


def add_words(writer, vocab):
    """A byte-level vocabulary of the shape's size; the words beyond the bytes mean nothing."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + at) for at in range(len(hidden))]
    end = "<|im_end|>"
    fill = ["wo", *(f"word{at}" for at in range(vocab - len(letters) - 2))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, *fill, end])
    writer.add_token_types([1] * (vocab - 1) + [3])
    writer.add_token_merges(["w o"])
    writer.add_eos_token_id(vocab - 1)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def peer_round(programs, model, steps, threads):
    """Tokens per second: decoding 1, 8 and 32 streams, and prefill; and turns per second."""
    def bench(prompt, generated, streams):
        context = max(streams) * (prompt + generated)
        told = run([programs / PEERS[0], "-m", model, "-c", str(context), "-b", "2048", "-ub", "512",
                    "-t", str(threads), "-tb", str(threads), "-npp", str(prompt), "-ntg", str(generated),
                    "-npl", ",".join(map(str, streams)), "--output-format", "jsonl"])
        return [json.loads(line) for line in told.splitlines() if line.startswith("{")]

    decoded = [row["speed_tg"] for row in bench(PROMPT, steps, STREAMS)]
    told = run([programs / PEERS[1], "-m", model, "-t", str(threads), "-p", str(ADDED), "-n", "0",
                "-d", str(BEFORE), "-r", "5", "-o", "json"])
    turns = json.loads(told)[0]["avg_ts"] / ADDED
    return decoded + [max(row["speed_pp"] for row in bench(PREFILL, 1, [1, 1])), turns]


def our_bench(model, threads, *name):
    env = {**os.environ, "HONE__MODEL__PATH": str(model), "HONE__MODEL__THREADS": str(threads)}
    told = run([os.environ["HONE_BENCH"], *name, "--json"], env=env)
    return json.loads(told.splitlines()[-1])


def our_round(model, steps, threads):
    told = our_bench(model, threads, "engine", "--steps", str(steps))
    decoded = [row["tokens_per_s"] for row in told["decode"]]
    turns = 1000 / our_bench(model, threads, "turns")["first_token_ms"]
    return decoded + [told["prefill_tokens_per_s"], turns]


def our_prefill(model, steps, threads):
    """Tokens per second of a prompt."""
    return our_bench(model, threads, "engine", "--steps", str(steps))["prefill_tokens_per_s"]


def measure(options, program):
    cases = [(shape, form) for shape in options.shapes for form in options.formats]
    models = {case: write_model(*case) for case in cases}
    rounds = {case: [] for case in cases}
    for number in range(options.rounds):
        for case, model in models.items():
            steps = SHAPES[case[0]][1]
            theirs = peer_round(program, model, steps, options.threads)
            ours = our_round(model, steps, options.threads)
            rounds[case].append((ours, theirs))
            ratios = ", ".join(f"{a:.4g}/{b:.4g} = {a / b:.2f}" for a, b in zip(ours, theirs))
            print(f"round {number + 1}, {' '.join(case)}: {ratios}", flush=True)
    return rounds


def tell(rounds, options):
    print(f"{'model':12} {'measure':12} {'Hone':>9} {'llama.cpp':>10} {'ratio':>6} {'(rounds)':>12} {'goal':>5}")
    names = [f"decode {n}" for n in STREAMS] + [f"prefill {PREFILL}", "turns"]
    numbers = {}
    for (shape, form), pairs in rounds.items():
        for at, (name, goal) in enumerate(zip(names, GOALS[shape])):
            ratios = sorted(ours[at] / theirs[at] for ours, theirs in pairs)
            mine, other = (statistics.median(pair[side][at] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(ratios)
            numbers.setdefault(f"{shape} {form}", {})[name] = {
                "hone_per_s": round(mine, 1), "llama_cpp_per_s": round(other, 1),
                "ratio": round(ratio, 3), "ratios": [round(r, 3) for r in ratios], "goal": goal,
            }
            print(f"{shape + ' ' + form:12} {name:12} {mine:9.1f} {other:10.1f} {ratio:6.2f} "
                  f"{ratios[0]:5.2f}-{ratios[-1]:5.2f} {goal:6.1f}")
    if options.json:
        print(json.dumps({"rounds": options.rounds, "threads": options.threads, "models": numbers}))


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    options.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = options.parse_args()
    if "HONE_BENCH" not in os.environ:
        sys.exit("say where the program is: HONE_BENCH=target/release/hone-bench")
    tell(measure(options, build_peer()), options)


if __name__ == "__main__":
    main()
