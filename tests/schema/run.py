"""Holds the server to its own document: schemathesis makes requests from /openapi.json, and no answer
may be a server error, have a status that is not documented, or a body of another shape.

    python tests/schema/run.py --cases 5000

Starts the binary named by HONE with the instant engine on a free port, and ends it by its process id.
The number of cases is a floor: the run fails if it made fewer.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from server import start

# Checks that hold whatever is sent.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
    "unsupported_method",
]
# A stream without end; a switch that turns every later completion into a 503; loops that stay paused.
LEFT_OUT = r"^/admin/v1/(events|drain|loops/.*)$"
WHOLE = 80  # cases per operation of a whole run


def ask(base, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply)


def known(base):
    """Things that exist, for the cases that need some."""
    model = ask(base, "/v1/models")["data"][0]["id"]
    chat = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    note = ask(base, "/v1/chat/completions", chat)["hone"]
    key = ask(base, "/v1/keys", {"name": "kept"})
    return {
        "model": model,
        "turn": note["turn_id"],
        "session": note["session_id"],
        "key": key["id"],
    }, key["key"]


def run(base, folder, per_operation, seed):
    names, key = known(base)
    report = os.path.join(folder, "report.json")
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", base + "/openapi.json",
        "--phases", "examples,coverage,fuzzing", "--max-examples", str(per_operation),
        "--checks", ",".join(CHECKS), "--continue-on-failure", "--no-shrink", "--no-color",
        "--suppress-health-check", "all", "--warnings", "off", "--generation-database", "none",
        "--exclude-path-regex", LEFT_OUT, "--seed", str(seed), "--request-timeout", "30",
        "--report", "json", "--report-json-path", report,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "HONE_KNOWN": json.dumps(names),
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE),
    }
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    cases = re.search(r"(\d+) generated", done.stdout)
    return done, int(cases.group(1)) if cases else 0


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--cases", type=int, default=5000, help="fewest cases that count as a run")
    options.add_argument("--per-operation", type=int, default=WHOLE, help="most cases per operation")
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data")
        os.mkdir(data)
        with open(os.path.join(folder, "log"), "w") as log:
            # The run makes a key, and goes on as whoever is at this machine.
            env = {**os.environ, "HONE__PEOPLE__TRUST_LOOPBACK": "true"}
            server, base = start(data, "--engine", "null", log=log, env=env)
        try:
            done, cases = run(base, folder, options.per_operation, options.seed)
            alive = server.poll() is None
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(timeout=60)
        if done.returncode or not alive or code or cases < options.cases:
            print(done.stdout[done.stdout.find("= FAILURES =") :], done.stderr, sep="\n")
            print(f"FAIL  {cases} cases of {options.cases}, status {done.returncode}, server {code}")
            sys.exit(1)
    print(f"ok    {cases} cases as the document says, {time.monotonic() - began:.0f} s")


main()
