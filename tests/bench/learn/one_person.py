"""One person, one complaint after the other, at a server of the program named by HONE with a real model.

    HONE=target/release/hone python3 tests/bench/learn/one_person.py MODEL "please be much briefer with me" [COMPLAINTS]

Prints, before and after each complaint, how long the answers to eight questions are that the person never
complained about, how long it took from the complaint to the first token by weights that learned from it, and
where that time went. It looks at lengths only, so it says something of wishes for shorter or longer answers.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import server as program  # noqa: E402

COMPLAINED = ["Why do leaves turn red in autumn?", "What is a mortgage?", "What is jazz?", "How do I tie a tie?"]
HELD_OUT = [
    "What is photosynthesis?",
    "Why is the sky blue?",
    "How does a car engine work?",
    "What is a good breakfast?",
    "How do I learn to swim?",
    "What is a volcano?",
    "How do plants grow?",
    "What does a teacher do?",
]
PATIENCE_S = 1_800


class Server:
    def __init__(self, model, folder):
        # Nobody reads what it says after its start.
        env = os.environ | {"HONE__LOG__LEVEL": "error"}
        self.process, self.url = program.start(os.path.join(folder, "data"), "--model", model, log=subprocess.DEVNULL, env=env)
        self.model = self.get("/v1/models")["data"][0]["id"]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return json.load(reply)

    def post(self, path, body):
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def ask(self, question, seed, **more):
        body = {"model": self.model, "user": "anna", "seed": seed, "temperature": 0.7, "max_tokens": 200}
        messages = [{"role": "user", "content": question}]
        return self.post("/v1/chat/completions", {**body, "messages": messages, **more})


def held_out(server):
    replies = [server.ask(question, seed, store=False) for seed, question in enumerate(HELD_OUT)]
    words = [len(reply["choices"][0]["message"]["content"].split()) for reply in replies]
    print(f"held-out answers: median {statistics.median(words):.0f} words, {sorted(words)}", flush=True)


def complain(server, number, words):
    before = server.get("/v1/versions?user=anna")["current"]
    turn = server.ask(COMPLAINED[number % len(COMPLAINED)], number)["hone"]["turn_id"]
    began = time.monotonic()
    server.post("/v1/feedback", {"turn_id": turn, "score": -1, "comment": words})
    while time.monotonic() - began < PATIENCE_S:
        time.sleep(0.5)
        if server.get("/v1/versions?user=anna")["current"] > before:
            while server.ask("Hi", 1, store=False, max_tokens=1)["hone"]["policy_version"] <= before:
                time.sleep(0.2)
            print(f"complaint {number + 1}: served after {time.monotonic() - began:.1f} s", flush=True)
            return report(server)
        fate = server.get(f"/v1/turns/{turn}")["fate"]
        if fate["state"] == "settled":
            refusals = server.get("/admin/v1/refusals?limit=1")["data"]
            reasons = "; ".join(refusals[0]["reasons"]) if refusals else "no reason is recorded"
            seconds = time.monotonic() - began
            return print(f"complaint {number + 1}: {fate['explanation']} after {seconds:.1f} s: {reasons}", flush=True)
    sys.exit(f"nothing came of complaint {number + 1} within {PATIENCE_S} s")


def report(server):
    version = server.get("/v1/versions?user=anna&limit=1")["data"][0]
    step, gate = version["report"]["step"], version["gate"]["measured"]
    parts = ", ".join(f"{name} {step[name + '_ms'] / 1e3:.0f} s" for name in ["answers", "scores", "steps", "gate"])
    print(f"  {parts}; {step['steps']:.0f} steps on {step['answers_kept']:.0f} of {step['answers_sampled']:.0f} answers")
    print(f"  generic answers lose {gate['generic_loss']:+.3f} nats per token; meter {gate['wish']}", flush=True)


def main():
    model, words = sys.argv[1:3]
    complaints = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    with tempfile.TemporaryDirectory() as folder:
        server = Server(model, folder)
        try:
            held_out(server)
            for number in range(complaints):
                complain(server, number, words)
                held_out(server)
        finally:
            server.process.terminate()
            server.process.wait(timeout=60)


if __name__ == "__main__":
    main()
