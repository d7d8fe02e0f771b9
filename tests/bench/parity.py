"""How far the log-probs of each weight format are from f32, and those of Hone from llama.cpp's, on real text.

    HONE=target/release/hone python3 tests/bench/parity.py target/models/smollm2.gguf [--tokens 2000] [--peer]

Reads the same text of so many tokens with every `model.weights` and prints, per token against f32: the mean
KL divergence, over the 20 likeliest tokens of f32 with all others as one (so a lower bound, and close: the
rest is rarely more than a few percent), the mean difference of the log-prob of the token that stands there,
and the share of places where another token is the likeliest. With --peer (Python packages of
tests/bench/parity_requirements.txt) llama.cpp reads the same file, and the first 256 places are compared.
Log-probs are in nats.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import server as program  # noqa: E402

FORMATS = ["f32", "bf16", "stored", "q8", "q4"]
ALTERNATIVES = 20
PEER_PLACES = 256
PATIENCE_S = 1_800
# Tokens of one request, after which the context begins anew.
CHUNK = 500


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        sys.exit(f"{url}: {error.code}: {error.read().decode()[:1000]}")


def text():
    """English prose that stays as it is: the decisions."""
    return "\n\n".join(path.read_text() for path in sorted((ROOT / "docs" / "adr").glob("0*.md")))


class Hone:
    """A server with one weight format."""

    def __init__(self, model, weights):
        self.folder = tempfile.TemporaryDirectory()
        env = os.environ | {
            "HONE__LOG__LEVEL": "error",
            "HONE__MODEL__WEIGHTS": weights,
            "HONE__JUDGE__READING__ENABLED": "false",
        }
        data = os.path.join(self.folder.name, "data")
        self.process, self.url = program.start(data, "--model", model, log=subprocess.DEVNULL, env=env)
        with urllib.request.urlopen(self.url + "/v1/models", timeout=60) as reply:
            self.model = json.load(reply)["data"][0]["id"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.folder.cleanup()

    def tokens(self, count):
        words = text()
        reply = post(self.url + "/tokenize", {"prompt": words[: count * 8], "add_special_tokens": False})
        return reply["tokens"][:count]

    def logprobs(self, tokens):
        """Per token but the first: {token: log-prob} of the likeliest ones and the one that stands there."""
        body = {"model": self.model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": ALTERNATIVES, "temperature": 0, "store": False}
        places = post(self.url + "/v1/completions", body)["choices"][0]["prompt_logprobs"]
        return [{int(token): one["logprob"] for token, one in place.items()} for place in places[1:]]


def likeliest(place):
    return max(place, key=place.get)


def divergence(reference, other):
    """KL(reference, other) in nats over the tokens that both tell, with all others as one."""
    known = [token for token in reference if token in other]
    sums = [sum(math.exp(place[token]) for token in known) for place in (reference, other)]
    rest = [max(1e-12, 1.0 - total) for total in sums]
    told = sum(math.exp(reference[token]) * (reference[token] - other[token]) for token in known)
    return max(0.0, told + rest[0] * math.log(rest[0] / rest[1]))


def compare(reference, other, tokens):
    """One row of the table; `tokens` are those that stand at the places."""
    pairs = list(zip(reference, other, tokens))
    both = [(a[token], b[token]) for a, b, token in pairs if token in a and token in b]
    return {
        "kl": statistics.fmean(divergence(a, b) for a, b, _ in pairs),
        "logprob_difference": statistics.fmean(abs(a - b) for a, b in both),
        "largest": max(abs(a - b) for a, b in both),
        "flips": sum(likeliest(a) != likeliest(b) for a, b, _ in pairs),
        "places": len(pairs),
    }


def row(name, seen):
    share = 100 * seen["flips"] / seen["places"]
    return (
        f"| {name} | {seen['kl']:.5f} | {seen['logprob_difference']:.4f} | {seen['largest']:.3f} "
        f"| {seen['flips']} of {seen['places']} ({share:.1f} %) |"
    )


class Peer:
    """llama.cpp on the same file, on the processor alone."""

    def __init__(self, model):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_gpu_layers = 0
        params.n_ctx = 2 * CHUNK + 64
        params.n_parallel = 1
        params.warmup = False
        params.verbosity = 0
        params.cpuparams.n_threads = os.cpu_count()
        self.server = xllamacpp.Server(params)
        self.url = self.server.listening_address

    def logprobs(self, tokens):
        """Of places 1 to the last; one request each, with all before it in the cache."""
        places = []
        for place in range(1, len(tokens)):
            body = {
                "prompt": tokens[:place],
                "n_predict": 1,
                "n_probs": ALTERNATIVES,
                "temperature": 1.0,
                "cache_prompt": True,
            }
            told = post(self.url + "/completion", body)["completion_probabilities"][0]
            places.append({one["id"]: one["logprob"] for one in told["top_logprobs"]})
        return places


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    options = parser.parse_args()
    tokens, reference, chunks = None, None, None
    seen = {}
    head = "| weights | KL per token | log-prob, mean | largest | likeliest token differs |\n|---|---|---|---|---|"
    for weights in options.formats:
        with Hone(options.model, weights) as hone:
            if tokens is None:
                tokens = hone.tokens(options.tokens)
                chunks = [tokens[at : at + CHUNK] for at in range(0, len(tokens), CHUNK)]
                print(f"{len(tokens)} tokens of docs/adr; Hone with f32 is the reference\n\n{head}", flush=True)
            found = [place for chunk in chunks for place in hone.logprobs(chunk)]
        if reference is None:
            reference = found
            continue
        stands = [token for chunk in chunks for token in chunk[1:]]
        seen[weights] = compare(reference, found, stands)
        print(row(weights, seen[weights]), flush=True)
    if options.peer:
        places = PEER_PLACES
        told = Peer(options.model).logprobs(chunks[0][: places + 1])
        seen["llama.cpp"] = compare(reference[:places], told, chunks[0][1:])
        print(row("llama.cpp, as stored", seen["llama.cpp"]))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
