"""A mixed load for a while: memory stays flat, no file descriptor leaks, nothing fails that should not.

    python tests/soak/run.py --seconds 3600
    python tests/soak/run.py --seconds 3600 --engine builtin

Starts the binary named by HONE with the instant engine, or with the built-in model, which learns meanwhile, on a
free port, and ends it by its process id.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import aiohttp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from server import start

CLIENTS = 8
# What the process may grow by from one half of the measured time to the other.
GROWTH_KIB = 8 * 1024
GROWTH_SHARE = 0.10
# Caches and pools fill in this share of the time, and by so many requests to each engine, for which a
# slow machine gets more time, at most so much; nothing of that is measured.
WARM_SHARE = 0.3
WARM_REQUESTS = {"null": 70_000, "builtin": 20_000}
WARM_PATIENCE_S = 300
FILES_MORE = 4
# Small memories, so that they are full before anything is measured.
SMALL = {
    "HONE__LOG__LEVEL": "warn",
    "HONE__HTTP__SESSIONS_MAX": "200",
    "HONE__HTTP__TRANSCRIPT_BYTES_MAX": str(4 << 20),
    "HONE__HTTP__REPLAYS_MAX": "16",
    "HONE__COLLECT__OPEN_MAX": "1000",
    "HONE__SERVE__KV_CACHE_BYTES_MAX": str(16 << 20),
    "HONE__SERVE__ADAPTER_BYTES_MAX": str(16 << 20),
}


class Load:
    """One client after the other's example: talks, streams, leaves early, errs, judges, looks."""

    def __init__(self, base, model, number):
        self.base, self.model, self.chance = base, model, random.Random(number)
        self.turns, self.messages = [], []
        self.done, self.wrong = 0, []

    async def expect(self, session, method, path, statuses, body=None):
        async with session.request(method, self.base + path, json=body) as reply:
            text = await reply.read()
            if reply.status not in statuses:
                self.wrong.append(f"{method} {path}: {reply.status} {text[:200]!r}")
                return None
            return json.loads(text) if text.startswith(b"{") else None

    def body(self, **more):
        if len(self.messages) > 12:
            self.messages = []
        self.messages.append({"role": "user", "content": f"Number {self.chance.random()}?"})
        return {"model": self.model, "messages": self.messages, "max_tokens": 64, **more}

    async def talk(self, session):
        body = self.body(user=f"u{self.chance.randrange(20)}")
        reply = await self.expect(session, "POST", "/v1/chat/completions", {200}, body)
        if reply:
            self.messages.append(reply["choices"][0]["message"])
            self.turns = [*self.turns[-20:], reply["hone"]["turn_id"]]

    async def stream(self, session, leave=False):
        url = self.base + "/v1/chat/completions"
        async with session.post(url, json=self.body(stream=True)) as reply:
            if leave:
                reply.close()
                return
            text = await reply.read()
            if reply.status != 200 or not text.endswith(b"data: [DONE]\n\n"):
                self.wrong.append(f"a stream ended with {text[-200:]!r}")

    async def err(self, session):
        wrong = self.chance.choice([{"model": "nobody"}, {"messages": []}, {"temperature": "hot"}])
        path = self.chance.choice(["/v1/chat/completions", "/v1/responses", "/v1/messages"])
        await self.expect(session, "POST", path, {400, 404}, {**self.body(), **wrong, "input": 5})

    async def judge(self, session):
        if self.turns:
            body = {"turn_id": self.chance.choice(self.turns), "score": 1}
            await self.expect(session, "POST", "/v1/feedback", {200}, body)

    async def look(self, session):
        places = ["/v1/turns?limit=5", "/v1/sessions", "/v1/versions", "/metrics", "/admin/v1/status"]
        await self.expect(session, "GET", self.chance.choice(places), {200})

    async def run(self, until):
        acts = [self.talk] * 6 + [self.stream] * 4 + [self.err, self.judge, self.look]
        while time.monotonic() < until:
            # A new set of connections now and then, as new clients bring.
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
                for _ in range(200):
                    if time.monotonic() >= until:
                        break
                    if self.chance.random() < 0.05:
                        await self.stream(session, leave=True)
                    else:
                        await self.chance.choice(acts)(session)
                    self.done += 1


def memory_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


async def watch(pid, until, samples):
    while time.monotonic() < until:
        samples.append((memory_kib(pid), len(os.listdir(f"/proc/{pid}/fd"))))
        await asyncio.sleep(0.5)


async def soak(server, base, seconds, warm_requests):
    async with aiohttp.ClientSession() as session:
        async with session.get(base + "/v1/models") as reply:
            model = (await reply.json())["data"][0]["id"]
    files_before = len(os.listdir(f"/proc/{server.pid}/fd"))
    loads = [Load(base, model, number) for number in range(CLIENTS)]
    began = time.monotonic()
    warm, patience = began + seconds * WARM_SHARE, began + WARM_PATIENCE_S
    while time.monotonic() < warm or (
        sum(load.done for load in loads) < warm_requests and time.monotonic() < patience
    ):
        until = time.monotonic() + min(5, seconds)
        await asyncio.gather(*(load.run(until) for load in loads))
    until, samples = time.monotonic() + seconds * (1 - WARM_SHARE), []
    watching = watch(server.pid, until, samples)
    await asyncio.gather(watching, *(load.run(until) for load in loads))
    await asyncio.sleep(2)
    files_after = len(os.listdir(f"/proc/{server.pid}/fd"))
    return loads, samples, (files_before, files_after)


def verdict(loads, samples, files):
    measured = [memory for memory, _ in samples]
    half = len(measured) // 2
    before, after = statistics.median(measured[:half]), statistics.median(measured[half:])
    faults = [fault for load in loads for fault in load.wrong]
    if after - before > max(GROWTH_KIB, before * GROWTH_SHARE):
        faults.append("memory grows")
    if files[1] > files[0] + FILES_MORE:
        faults.append("file descriptors leak")
    done = sum(load.done for load in loads)
    print(
        f"{done} requests; memory {before / 1024:.1f} MiB, then {after / 1024:.1f} MiB; "
        f"files open {files[0]} before, {max(n for _, n in samples)} at most, {files[1]} after"
    )
    return faults


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--engine", choices=WARM_REQUESTS, default="null")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log_path = os.path.join(folder, "log")
        with open(log_path, "w") as log:
            data, env = os.path.join(folder, "data"), {**os.environ, **SMALL}
            server, base = start(data, "--engine", options.engine, log=log, env=env)
            try:
                found = asyncio.run(soak(server, base, options.seconds, WARM_REQUESTS[options.engine]))
            finally:
                server.send_signal(signal.SIGTERM)
                code = server.wait(timeout=60)
        faults = verdict(*found)
        with open(log_path) as log:
            faults += [line for line in log if " ERROR " in line or "panicked" in line]
    if code:
        faults.append(f"the server ended with {code}")
    for fault in faults[:20]:
        print("FAIL ", fault)
    print("ok" if not faults else f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
