"""The same load at this server and at LiteLLM's proxy, which answers from memory, without a model.

    HONE_BENCH=target/release/hone-bench target/venv-litellm/bin/python tests/bench/litellm.py --seconds 10

Prints what `hone-bench overhead` measures and how many times the proxy's throughput it is; fails
below --least. The proxy is run as its makers start it, with one worker, and ended by its process id.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

CONFIG = """
model_list:
  - model_name: mock
    litellm_params:
      model: openai/mock
      api_key: none
      mock_response: "The capital of France is Paris."
litellm_settings:
  telemetry: false
"""
PATIENCE_S = 180


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(folder):
    config = pathlib.Path(folder) / "config.yaml"
    config.write_text(CONFIG)
    port = free_port()
    program = pathlib.Path(sys.executable).parent / "litellm"
    proxy = subprocess.Popen(
        [program, "--config", config, "--host", "127.0.0.1", "--port", str(port)],
        stdout=open(pathlib.Path(folder) / "log", "w"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        start_new_session=True,
    )
    url, began = f"http://127.0.0.1:{port}", time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        try:
            with urllib.request.urlopen(url + "/v1/models", timeout=5):
                return proxy, url
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        if proxy.poll() is not None:
            break
    sys.exit("LiteLLM's proxy did not start:\n" + (pathlib.Path(folder) / "log").read_text()[-2000:])


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--seconds", type=float, default=10)
    options.add_argument("--least", type=float, default=20, help="fewest times its throughput")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        proxy, url = start(folder)
        try:
            command = [os.environ["HONE_BENCH"], "overhead", "--json", "--against", url]
            done = subprocess.run(
                [*command, "--seconds", str(options.seconds)], stdout=subprocess.PIPE, text=True
            )
        finally:
            proxy.send_signal(signal.SIGTERM)
            proxy.wait(timeout=30)
    print(done.stdout)
    if done.returncode:
        sys.exit(done.returncode)
    ratio = json.loads(done.stdout.splitlines()[-1])["ratio"]
    if ratio < options.least:
        sys.exit(f"{ratio} times LiteLLM's throughput is less than {options.least}")


main()
