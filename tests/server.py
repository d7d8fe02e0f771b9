"""Starts the binary named by HONE on a free port, for the scripts beside this file."""

import os
import re
import subprocess
import sys
import time

# A model of a few hundred MB is read and hashed first.
PATIENCE_S = 300


def start(data, *options, log=subprocess.STDOUT, env=None):
    """The server's process and its address; the caller ends it by its process id."""
    server = subprocess.Popen(
        [os.environ["HONE"], "serve", "--bind", "127.0.0.1:0", "--data", data, *options],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=env,
    )
    deadline = time.monotonic() + PATIENCE_S
    seen = []
    for line in server.stdout:
        seen.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return server, found.group(0)
        if time.monotonic() > deadline:
            break
    status = server.poll()
    server.kill()
    sys.exit(f"the server (status {status}) did not say where it listens:\n" + "".join(seen))
