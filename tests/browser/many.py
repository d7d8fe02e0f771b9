"""Fills a ledger with a hundred thousand turns and a thousand versions, within seconds.

Takes one turn and one version that the server made and repeats them under ids, times, fates and
numbers of their own, through the schema's own constraints and triggers. The server must not run.
What a page of the console lists is there; verdicts and samples of the repeated turns are not.

    python3 many.py LEDGER TURNS VERSIONS
"""

import sqlite3
import sys
import time

STEP_MS = 5_000
TURNS_PER_SESSION = 5
REASONS = ["greedy", "no_next_state", "abstained", "held_out", "stale"]


def uuid7(number, ms):
    """An id of that time; different numbers give different ids."""
    return ms.to_bytes(6, "big") + bytes([0x70, 0, 0x80]) + number.to_bytes(7, "big")


def repeat(db, table, where, count, changes):
    """Inserts a row `count` times; `i` counts from 1, `changes` are expressions by column."""
    columns = [row[1] for row in db.execute(f"pragma table_info({table})")]
    values = ", ".join(changes.get(name, f"one.{name}") for name in columns)
    db.execute(
        f"""with recursive n (i) as (select 1 union all select i + 1 from n where i < {count})
            insert into {table} ({", ".join(columns)})
            select {values} from n, (select * from {table} where {where}) as one"""
    )


def versions(db, count, now):
    head, number = db.execute("select version, number from versions order by version desc limit 1").fetchone()
    more = count - head
    wave = "(0.1 * (i * 7919 % 13))"
    repeat(db, "versions", f"number = {number}", more, {
        "number": "null",
        "version": f"{head} + i",
        # Most continue the one before; some an older one, as after a rollback.
        "parent": f"{head} + i - 1 - (i % 17 = 0) * min(5, i)",
        "batch_id": f"uid(4000000 + i, {now})",
        "published_ms": f"{now} - ({more} - i) * 60000",
        "samples": "4 + i % 9",
        "report": f"json_set(one.report, '$.step.loss', 2.0 / (1 + i / 200.0) + {wave}, '$.step.kl_to_reference', i / 5000.0 + 0.01 * {wave}, '$.step.ess', 0.9 - 0.2 * {wave})",
        "note": "null",
        "tripped_ms": "null",
        "pruned_ms": "null",
    })


def turns(db, count, now, head):
    number, session = db.execute("select number, session_number from turns order by number limit 1").fetchone()
    first_session = db.execute("select max(number) from sessions").fetchone()[0]
    first_turn = db.execute("select max(number) from turns").fetchone()[0]
    at = f"({now} - ({count} - i) * {STEP_MS})"
    session_at = f"({now} - ({count} - (i - 1) * {TURNS_PER_SESSION} - 1) * {STEP_MS})"
    title = "cast('Question ' || i || ' about France' as blob)"
    repeat(db, "sessions", f"number = {session}", count // TURNS_PER_SESSION, {
        "number": f"{first_session} + i",
        "id": f"uid(i, {session_at})",
        "first_ms": session_at,
        "last_ms": session_at,
        "title": title,
        "title_folded": f"cast(lower({title}) as blob)",
    })
    reasons = "case i % 5 " + " ".join(f"when {at} then '{reason}'" for at, reason in enumerate(REASONS)) + " end"
    repeat(db, "turns", f"number = {number}", count, {
        "number": f"{first_turn} + i",
        "id": f"uid(1000000 + i, {at})",
        "request_id": f"uid(2000000 + i, {at})",
        "session_number": f"{first_session} + 1 + (i - 1) / {TURNS_PER_SESSION}",
        "parent_id": f"case when (i - 1) % {TURNS_PER_SESSION} = 0 then null else uid(999999 + i, {at} - {STEP_MS}) end",
        "version": f"i * {head} / {count}",
        "stage": "null",
        "reason": reasons,
        "trained_version": "null",
        "score": "case i % 5 when 0 then -1.0 when 1 then 1.0 when 3 then 0.5 end",
        "started_ms": at,
        "finished_ms": f"{at} + 50",
    })
    repeat(db, "turn_payloads", f"turn_number = {number}", count, {"turn_number": f"{first_turn} + i"})


def main(path, turns_wanted, versions_wanted):
    db = sqlite3.connect(path, isolation_level=None)
    db.create_function("uid", 2, uuid7, deterministic=True)
    db.execute("pragma foreign_keys = on")
    now = int(time.time() * 1000)
    db.execute("begin")
    versions(db, versions_wanted, now)
    turns(db, turns_wanted, now, versions_wanted)
    db.execute("commit")
    db.execute("pragma wal_checkpoint(truncate)")
    count = [db.execute(f"select count(*) from {table}").fetchone()[0] for table in ("turns", "versions", "sessions")]
    print("{} turns, {} versions, {} sessions".format(*count))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
