"""What a large ledger costs: a start with 15,000 waiting turns, and pages at 150,000 judged ones.

    HONE=target/release/hone python3 tests/bench/large_ledger.py

Some real turns are asked for and judged by feedback, one session each; the ledger of the stopped server then
gets copies of their rows, with ids of their own, until there are as many as wanted.
"""

import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import server as program  # noqa: E402

SEEDS = 50
WAITING, JUDGED = 15_000, 150_000
STARTS, CALLS = 5, 20
# Each table, its columns that name rows of another one by number, and those with ids of their own.
TABLES = [
    ("sessions", [], ["id"]),
    ("turns", ["session_number"], ["id", "request_id"]),
    ("turn_payloads", ["turn_number"], []),
    ("transitions", ["turn_number"], ["id"]),
    ("verdicts", ["transition_number"], ["id"]),
]


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def start(data):
    """A server that serves and records only, how long it took to listen, and its memory in MB."""
    began = time.monotonic()
    process, url = program.start(
        data, "--loops", "serve,collect,judge", log=open(os.devnull, "w"), env=os.environ | {"HONE__LOG__LEVEL": "error"}
    )
    took = time.monotonic() - began
    with open(f"/proc/{process.pid}/status") as status:
        sizes = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Vm")}
    return process, url, took, int(sizes["VmHWM"]) / 1024


def stop(process):
    process.terminate()
    process.wait(timeout=60)


def seeds(data, judged):
    """A ledger with some real turns of one person, judged or waiting for what comes next."""
    process, url, _, _ = start(data)
    try:
        ask_and_judge(url, judged)
    finally:
        stop(process)


def ask_and_judge(url, judged):
    for n in range(SEEDS):
        message = {"role": "user", "content": f"What is the capital of France? Number {n} of {SEEDS}."}
        body = {"model": "hone-starter", "messages": [message], "max_tokens": 24, "session_id": f"session {n}"}
        turn = call(f"{url}/v1/chat/completions", body)["hone"]["turn_id"]
        if judged:
            call(f"{url}/v1/feedback", {"turn_id": turn, "score": 1 if n % 3 else -1})
    deadline = time.monotonic() + 60
    while judged and time.monotonic() < deadline:
        if call(f"{url}/v1/improvement")["turns_base"] >= SEEDS:
            break
        time.sleep(0.2)


def grow(data, wanted):
    """Copies of every row until there are so many turns; numbers move by a multiple of the first ones."""
    ledger = sqlite3.connect(os.path.join(data, "ledger.db"))
    (first,) = ledger.execute("select count(*) from turns").fetchone()
    step = max(ledger.execute(f"select coalesce(max(number), 0) from {name}").fetchone()[0] for name, _, _ in TABLES if name != "turn_payloads")
    for name, numbers, ids in TABLES:
        ledger.execute(f"create temp table seeds_{name} as select * from {name}")
        columns = [row[1] for row in ledger.execute(f"pragma table_info({name})")]

        def value(column):
            if column == "number" or column in numbers:
                return f"{column} + ?1"
            return "randomblob(16)" if column in ids else column

        values = ", ".join(value(column) for column in columns)
        into = f"insert into {name} ({', '.join(columns)}) select {values} from seeds_{name}"
        for copy in range(1, (wanted + first - 1) // first):
            ledger.execute(into, (copy * step,))
    ledger.commit()
    (turns,) = ledger.execute("select count(*) from turns").fetchone()
    ledger.close()
    return turns


def starts(data):
    found = []
    for _ in range(STARTS):
        process, _, took, memory = start(data)
        stop(process)
        found.append((took, memory))
    return [statistics.median(values) for values in zip(*found)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        waiting, judged = os.path.join(folder, "waiting"), os.path.join(folder, "judged")
        seeds(waiting, False)
        empty_s, empty_mb = starts(os.path.join(folder, "empty"))
        turns = grow(waiting, WAITING)
        took_s, memory_mb = starts(waiting)
        print(
            f"start: empty {empty_s:.2f} s, {empty_mb:.0f} MB; {turns} waiting turns {took_s:.2f} s, {memory_mb:.0f} MB "
            f"({memory_mb - empty_mb:+.0f} MB)"
        )
        seeds(judged, True)
        turns = grow(judged, JUDGED)
        process, url, took_s, memory_mb = start(judged)
        print(f"{turns} judged turns: start {took_s:.2f} s, {memory_mb:.0f} MB")
        for path in ["/v1/learned", "/v1/improvement"]:
            times = []
            for _ in range(CALLS):
                began = time.monotonic()
                call(url + path)
                times.append((time.monotonic() - began) * 1_000)
            print(f"{path}: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms of {CALLS}")
        stop(process)


if __name__ == "__main__":
    main()
