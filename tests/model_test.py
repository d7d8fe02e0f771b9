"""A short test with a real model: one person who only complains, at a server of the program named by HONE.

    HONE_BENCH=target/debug/hone-bench python3 tests/model_test.py target/models/smollm2.gguf [--must-publish]

Runs `hone-bench learn` over a few sessions and looks at its object: no request failed, everything was
measured, and another person's answers stayed the same, bit for bit. With --must-publish at least one
version must have been published from plain complaints.
"""

import argparse
import json
import os
import subprocess
import sys
import time

PREFERENCE = "bullets"
SESSIONS = 3
QUESTIONS = 4
# Longest pause between two sessions: enough to see that learning does not stand in the way, and enough
# for a version to be published.
PAUSE_MAX_S = 15
PUBLISHING_S = 45
PATIENCE_S = 600


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--must-publish", action="store_true")
    options = parser.parse_args()
    command = [os.environ["HONE_BENCH"], "learn", "--json", "--model", options.model]
    command += ["--preferences", PREFERENCE, "--arms", "learning", "--seeds", "1"]
    pause_max_s = PUBLISHING_S if options.must_publish else PAUSE_MAX_S
    command += ["--sessions", str(SESSIONS), "--questions", str(QUESTIONS), "--seconds", str(pause_max_s)]
    # Fitting the reading of replies takes minutes, which the bench would wait for; the rules understand enough here.
    env = os.environ | {"HONE__JUDGE__READING__ENABLED": "false"}
    began = time.monotonic()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, env=env)
    except subprocess.TimeoutExpired as expired:
        sys.exit(f"hone-bench learn took longer than {PATIENCE_S} s; it said:\n{expired.stdout or ''}")
    print(done.stdout[-4000:])
    if done.returncode != 0:
        sys.exit(f"hone-bench learn ended with status {done.returncode}")
    report = json.loads(done.stdout.splitlines()[-1])
    check(report["failed"] == 0, "no request fails")
    check(len(report["runs"]) == 1, "there is one run")
    run = report["runs"][0]
    check(len(run["as_wished"]) == SESSIONS, "every session was held")
    check(run["complaints"] > 0, "the person complained")
    check(run["other_unchanged"], "another person's answers stay the same, bit for bit")
    check(run["learned"]["facts"]["questions"] == QUESTIONS, "facts were asked before and after")
    check(run["learned"]["logprob_told_base"] is not None, "answers were scored under the told model")
    if options.must_publish:
        check(run["versions"] > 0, "a version is published from plain complaints")
    print(f"model test: passed in {time.monotonic() - began:.0f} s, {run['versions']} versions")


def check(holds, what):
    if not holds:
        sys.exit(f"model test: it does not hold that {what}")


if __name__ == "__main__":
    main()
