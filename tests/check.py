"""Formatting, lints, and the tests of what changed and of what depends on it.

    python3 tests/check.py [BASE]

BASE is a commit; what differs from it is what changed, uncommitted files included. Without it: the last commit that is
on main as well. Everything is built with the one set of features that `make lint` and `make unit` use. The tests of the
whole system depend on every crate and take many minutes: where none of their own files changed, only those run that read
the sources, the manifests and what is deployed. `make test` runs them all.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTED = ["--workspace", "--locked", "--features", "hone/candle"]
# Files outside of a package, and the package whose tests read them.
READ_BY = {"configs": "hone", "migrations": "hone-ledger-sql", "docs": "hone-tests", "deploy": "hone-tests", "web": "hone-api"}
# The tests of the whole system, and those of them that take seconds.
SYSTEM, QUICK = "hone-tests", ["arrows", "deploy", "tidy"]
PATIENCE_S = 3600


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def changed_files(base):
    differ = output("git", "diff", "--name-only", base)
    new = output("git", "ls-files", "--others", "--exclude-standard")
    return [line for line in (differ + new).splitlines() if line]


def package_of(file, folders):
    """The innermost package that a file lies in, or one that reads it."""
    inside = [name for name, folder in folders.items() if (ROOT / file).is_relative_to(folder)]
    if inside:
        return max(inside, key=lambda name: len(folders[name].parts))
    return READ_BY.get(Path(file).parts[0])


def affected(files, packages):
    folders = {p["name"]: Path(p["manifest_path"]).parent for p in packages}
    if any(file in ("Cargo.toml", "Cargo.lock", "clippy.toml") or file.startswith("tests/support/") for file in files):
        return set(folders)
    found = {name for file in files if (name := package_of(file, folders))}
    while True:
        more = {p["name"] for p in packages if any(d["name"] in found for d in p["dependencies"])} - found
        if not more:
            return found
        found |= more


def test_programs(names):
    """Builds every test program, and gives those of these packages with the folder that they run in."""
    built = output("cargo", "test", *TESTED, "--no-run", "--message-format=json-render-diagnostics")
    for line in built.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            name = next((name for name, its in names.items() if its == folder), None)
            if name:
                yield name, message["executable"], folder


def step(title, command, cwd=ROOT):
    began = time.monotonic()
    # As cargo would run it.
    env = {**os.environ, "CARGO_MANIFEST_DIR": str(cwd)}
    done = subprocess.run(command, cwd=cwd, env=env, timeout=PATIENCE_S)
    print(f"{title}: {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        sys.exit(f"{title} failed")


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else output("git", "merge-base", "HEAD", "main").strip()
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"))
    packages = metadata["packages"]
    files = changed_files(base)
    names = affected(files, packages)
    is_system_changed = any(file.startswith(("tests/it/", "tests/support/", "tests/Cargo.toml")) for file in files)
    print("changed, or depends on what changed: " + (", ".join(sorted(names)) or "nothing"), flush=True)
    step("format", ["cargo", "fmt", "--all", "--check"])
    if not names:
        return
    step("lints", ["cargo", "clippy", *TESTED, "--all-targets", "--", "-D", "warnings"])
    folders = {p["name"]: Path(p["manifest_path"]).parent for p in packages if p["name"] in names}
    for name, program, folder in sorted(set(test_programs(folders))):
        quick = QUICK if name == SYSTEM and not is_system_changed else []
        step(f"tests of {name}{' that are quick' if quick else ''}", [program, "--quiet", *quick], cwd=folder)


if __name__ == "__main__":
    main()
