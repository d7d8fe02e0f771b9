"""OpenClaw itself against the real server: one script of two conversations at once, with the version
of today and with one of spring 2026, which speaks differently.

    HONE=target/debug/hone python3 tests/openclaw/run.py

Every message is a process of its own, as a chat channel would start it. Nothing is set up in OpenClaw
but the server's address; the version of today is also told to name its sessions.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from server import start

MODULES = HERE / "node_modules"
PATIENCE_S = 300
SCRIPT = (
    ("a", "What color is the sky?"),
    ("b", "What do cows eat?"),
    ("a", "Shorter, please."),
    ("b", "Thanks!"),
)
# What the last message of each conversation says about the answer before it.
SCORES = {"a": -1.0, "b": 1.0}

failed = 0


def check(name, good, seen=""):
    global failed
    failed += not good
    print(f"ok    {name}" if good else f"FAIL  {name}: {seen!r}", flush=True)


class Server:
    def __init__(self, data):
        self.child, self.url = start(data)

    def call(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            return None


def say(home, package, server, compat, session, text):
    """What the agent prints in answer to one message."""
    model = {"id": "hone-starter", "name": "hone", "contextWindow": 32768, "maxTokens": 256, "compat": compat}
    provider = {"baseUrl": server.url + "/v1", "apiKey": "none", "api": "openai-completions", "models": [model]}
    defaults = {"model": {"primary": "hone/hone-starter"}, "workspace": str(home / "work")}
    config = home / ".openclaw" / "openclaw.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"models": {"providers": {"hone": provider}}, "agents": {"defaults": defaults}}))
    command = [MODULES / ".bin" / "node", MODULES / package / "openclaw.mjs", "agent", "--local"]
    return subprocess.run(
        [*command, "--session-id", session, "--message", text],
        env=os.environ | {"HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def turns_of(server, wanted):
    """Turns, oldest first, as soon as they are as wanted."""
    for _ in range(200):
        turns = list(reversed(server.call("/admin/v1/turns")["data"]))
        if wanted(turns):
            break
        time.sleep(0.1)
    return turns


def converse(name, package, compat, server, home):
    for session, text in SCRIPT:
        said = say(home, package, server, compat, session, text)
        check(f"{name} gets an answer to {text!r}", said.returncode == 0 and said.stdout.strip(), said)


def bound(name, turns):
    """Two sessions of two turns, each in order, each judged by its own next message."""
    check(f"{name}: every message is one turn", len(turns) == len(SCRIPT), turns)
    sessions = [turn["session_id"] for turn in turns]
    apart = sessions[0] == sessions[2] and sessions[1] == sessions[3] and len(set(sessions)) == 2
    check(f"{name}: two conversations stay two", apart, sessions)
    kinds = {turn["kind"] for turn in turns}
    check(f"{name}: they are no housekeeping", kinds == {"main"}, kinds)
    for at, session in enumerate("ab"):
        score = turns[at]["score"]
        check(f"{name}: the next message of {session} judges its answer", score == SCORES[session], turns[at])


def judged(turns):
    return len(turns) == len(SCRIPT) and all(turn["score"] is not None for turn in turns[:2])


def today(server, home):
    name = "OpenClaw 2026.9.6"
    converse(name, "openclaw", {"sendSessionAffinityHeaders": True}, server, home)
    bound(name, turns_of(server, judged))
    keys = sorted(session["key"] for session in server.call("/v1/sessions")["data"])
    check(f"{name} names its sessions", keys == ["a:0", "b:0"], keys)


def spring(server, home):
    """It says store: false with every request, and nothing about sessions."""
    name = "OpenClaw 2026.3.13"
    # What no conversation below says: two that said the same are rightly told apart by none.
    said = say(home, "openclaw-2026-3", server, {}, "c", "What do birds do?")
    check(f"{name} gets an answer", said.returncode == 0 and said.stdout.strip(), said)
    # The answer is of the newest sample, which may be some seconds old.
    for _ in range(100):
        why = server.call("/admin/v1/why")["sentence"]
        if "store: false" in why:
            break
        time.sleep(0.1)
    check(f"{name} is not collected, and the reason is named", "store: false" in why, why)
    server.call("/v1/consent", {"learning": "full", "despite_store_false": True}, "PUT")
    converse(name, "openclaw-2026-3", {}, server, home)
    bound(f"{name} with consent", turns_of(server, judged))


def main():
    for scene in (today, spring):
        with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as home:
            home = pathlib.Path(home)
            (home / "work").mkdir()
            server = Server(data)
            try:
                scene(server, home)
            finally:
                code = server.stop()
            check("the server stops cleanly", code == 0, code)
    sys.exit(1 if failed else 0)


main()
