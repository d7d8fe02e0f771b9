"""Prints the structure of the Rust code: lines, import cycles, forbidden arrows, long functions, tuple parameters.

    python3 tests/bench/house.py            # the tables, in seconds
    python3 tests/bench/house.py --times    # also a cold and three warm builds (minutes)
    python3 tests/bench/house.py --list     # every cycle and every function with a tuple parameter by name

Needs Python 3.11 and cargo. The parser knows as much Rust as these tables need: comments and strings are blanked,
`use` trees are expanded, and a name that a module re-exports is followed to the file that defines it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOPS = ["serve", "collect", "judge", "train", "rollout", "tools", "memory"]
SERVER = ["app", "api", "api-types", "accounts", "inference", "judges", "monitor", "net", "replies", "rollouts"]
# crate: the crates it must never use, in whatever kind of dependency that ships
NEVER = {
    "domain": ["*"],
    "runtime": ["domain", "nn", "ledger", "store"],
    "kernels": ["*"],
    "checkpoint": ["nn", "text", "cuda"],
    "text": ["nn", "kernels", "cuda"],
    "nn": ["cuda", "text"],
    "train": ["cuda"],
    "serve": ["cuda", "ledger", "store"],
    **{name: ["nn", "cuda"] for name in ["collect", "judge", "memory", "rollout"]},
    **{name: ["api", "app"] for name in ["accounts", "inference", "monitor", "net", "replies"]},
    "api": ["nn", "train", "app"],
}
# library: the only crates that may use it
ONLY = {
    "sqlx": ["ledger-queries", "ledger-sql"],
    "axum": ["api", "replies"],
    "minijinja": ["text"],
    "tokenizers": ["text", "starter"],
    "llguidance": ["text"],
    "safetensors": ["checkpoint", "starter"],
    "cudarc": ["app"],
    "candle-core": ["judges"],
}
BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|\bb?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"|\'(?:\\[^\']+|[^\\\'])\'', re.S
)


def is_test_file(path):
    name = path.name
    return (
        any(part.endswith("tests") or part in ("benches", "examples", "suite") for part in path.parts[:-1])
        or re.search(r"(^|(?<!self)_)tests?\.rs$|^testing\.rs$|^suite\.rs$", name) is not None
    )


def blank(text):
    """The text with comments, strings and characters as blanks; offsets and lines stay."""
    return BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def closing(text, start, pair="{}"):
    depth = 0
    for at in range(start, len(text)):
        if text[at] == pair[0]:
            depth += 1
        elif text[at] == pair[1]:
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def without_tests(text):
    """Blanks inline test modules; gives the text and how many lines they had."""
    lines = 0
    while found := re.search(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))? )?mod \w+ \{", text):
        end = closing(text, found.end() - 1) + 1
        lines += text.count("\n", found.start(), end) + 1
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end]) + text[end:]
    return text, lines


def expand(tree):
    """`a::{b, c::{d, e as f}}` as [(path, name it gets)]."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = tree.partition(" as ")
        parts = [p.strip() for p in path.split("::")]
        return [(parts, alias.strip() or parts[-1])]
    prefix = [p.strip() for p in head.split("::") if p.strip()]
    inner, depth, items, last = rest[: rest.rfind("}")], 0, [], 0
    for at, sign in enumerate(inner):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            items.append(inner[last:at])
            last = at + 1
    items.append(inner[last:])
    leaves = []
    for item in filter(str.strip, items):
        for path, name in expand(item):
            whole = prefix + path
            leaves.append((whole[:-1], whole[-2]) if whole[-1] == "self" else (whole, name))
    return leaves


class Module:
    def __init__(self, path, name, text):
        self.path, self.name = path, name
        self.tests = is_test_file(path)
        self.lines = text.count("\n")
        self.code, self.test_lines = without_tests(blank(text))
        self.uses = []
        for found in re.finditer(r"^[ \t]*(pub(?:\([^)]*\))? )?use ([^;]+);", self.code, re.M):
            self.uses += [(p, n, bool(found[1])) for p, n in expand(" ".join(found[2].split()))]
        self.rest = re.sub(r"^[ \t]*(?:pub(?:\([^)]*\))? )?use [^;]+;", "", self.code, flags=re.M)


class Crate:
    def __init__(self, package):
        self.name = package["name"].removeprefix("hone-") if package["name"] != "hone" else "app"
        self.root = Path(package["manifest_path"]).parent
        self.modules = {}
        for path in sorted(self.root.rglob("*.rs")):
            inside = path.relative_to(self.root)
            if any(part in ("target", "node_modules", "fuzz") for part in inside.parts) or self.belongs_elsewhere(path):
                continue
            parts = list(inside.with_suffix("").parts)
            parts = parts[1:] if parts[0] == "src" else parts
            if parts[-1] in ("lib", "mod") or (parts == ["main"] and not (self.root / "src/lib.rs").exists()):
                parts.pop()
            self.modules[tuple(parts)] = Module(path, tuple(parts), path.read_text())

    def belongs_elsewhere(self, path):
        return any(
            (folder / "Cargo.toml").exists() for folder in path.parents if folder != self.root and self.root in folder.parents
        )

    def resolve(self, path, at, depth=0):
        """The module that defines the end of a path."""
        here = list(at)
        while path and path[0] in ("crate", "self", "super"):
            if path[0] == "crate":
                here = []
            elif path[0] == "super":
                here = here[:-1]
            path = path[1:]
        for index, part in enumerate(path):
            if tuple(here + [part]) in self.modules:
                here.append(part)
                continue
            module = self.modules.get(tuple(here))
            if module and depth < 8:
                for target, name, public in module.uses:
                    if public and (name == part or name == "*") and self.is_local(target, tuple(here)):
                        whole = target[:-1] if name == "*" else target
                        return self.resolve(whole + (path[index:] if name == "*" else path[index + 1 :]), tuple(here), depth + 1)
            break
        return tuple(here)

    def is_local(self, path, at):
        return path[0] in ("crate", "self", "super") or (*at, path[0]) in self.modules

    def edges(self):
        arrows = defaultdict(set)
        for at, module in self.modules.items():
            if module.tests:
                continue
            paths = []
            for path, name, public in module.uses:
                if not public or re.search(rf"\b{re.escape(name)}\b", module.rest):
                    paths.append(path)
            paths += [m.group().split("::") for m in re.finditer(r"\b(?:crate|super|self)(?:::\w+)+|\b[a-z]\w*(?:::\w+)+", module.rest)]
            for path in paths:
                if path and self.is_local(path, at):
                    target = self.resolve(path, at)
                    if target in self.modules and target != at and not self.modules[target].tests:
                        arrows[at].add(target)
        return arrows

    def uses_of_others(self):
        found = defaultdict(set)
        for module in self.modules.values():
            if not module.tests:
                for name in re.findall(r"\bhone_(\w+)\b", module.code):
                    found[name.replace("_", "-")].add(module.path)
        return found


def cycles(arrows):
    """Strongly connected components with more than one member (Tarjan, without recursion)."""
    index, low, on, stack, found, count = {}, {}, set(), [], [], 0
    for root in list(arrows):
        if root in index:
            continue
        work = [(root, iter(sorted(arrows[root])))]
        index[root] = low[root] = count
        count += 1
        stack.append(root)
        on.add(root)
        while work:
            node, rest = work[-1]
            for next_node in rest:
                if next_node not in index:
                    index[next_node] = low[next_node] = count
                    count += 1
                    stack.append(next_node)
                    on.add(next_node)
                    work.append((next_node, iter(sorted(arrows.get(next_node, ())))))
                    break
                if next_node in on:
                    low[node] = min(low[node], index[next_node])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = []
                    while True:
                        members.append(stack.pop())
                        on.discard(members[-1])
                        if members[-1] == node:
                            break
                    if len(members) > 1:
                        found.append(sorted(members))
    return sorted(found, key=len, reverse=True)


def functions(crate):
    """(lines, name, place, whether a parameter is a tuple) of every function outside tests."""
    for module in crate.modules.values():
        if module.tests:
            continue
        for found in re.finditer(r"\bfn (\w+)", module.code):
            text = module.code
            at = text.find("(", found.end())
            if text[found.end() : found.end() + 1] == "<":
                at = text.find("(", closing(text.replace("->", "  "), found.end(), "<>"))
            end = closing(text, at, "()")
            params, depth, last = [], 0, at + 1
            for place in range(at + 1, end + 1):
                depth += (text[place] in "([{<") - (text[place] in ")]}>" and text[place - 1] != "-")
                if place == end or (text[place] == "," and depth == 0):
                    params.append(text[last:place].strip())
                    last = place + 1
            body = re.search(r"[;{]", text[end:])
            if body is None or body.group() == ";":
                continue
            stop = closing(text, end + body.start())
            line = text.count("\n", 0, found.start()) + 1
            lines = text.count("\n", found.start(), stop) + 1
            yield lines, found[1], f"{module.path.relative_to(ROOT)}:{line}", any(p.startswith("(") for p in params)


def metadata():
    out = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    return [p for p in json.loads(out.stdout)["packages"] if Path(p["manifest_path"]).is_relative_to(ROOT)]


def forbidden(crates, packages):
    """Arrows that the design forbids, and where each comes from."""
    bad = []
    for package, crate in zip(packages, crates):
        if (ROOT / "tests") in [crate.root, *crate.root.parents]:
            continue
        named = {d["name"]: "manifest" for d in package["dependencies"] if d["kind"] != "dev"}
        ours = {n.removeprefix("hone-") if n != "hone" else "app": w for n, w in named.items() if n.startswith("hone")}
        for name, paths in crate.uses_of_others().items():
            ours.setdefault(name, sorted(paths)[0].relative_to(ROOT))
        inside_loops = (ROOT / "loops") in crate.root.parents
        for other, where in sorted(ours.items()):
            never = NEVER.get(crate.name, [])
            if (
                other in never
                or "*" in never
                or (other in SERVER and inside_loops)
                or (crate.name in LOOPS and other in LOOPS)
                or (other == "app")
            ) and other != crate.name:
                bad.append((crate.name, other, where))
        for library, allowed in ONLY.items():
            if library in named and crate.name not in allowed:
                bad.append((crate.name, library, "manifest"))
    return bad


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in row) + " |")
    print()


def build_times(packages):
    features = ["--features", "hone/candle"]

    def build(extra, target):
        begun = time.monotonic()
        env = {**os.environ, "CARGO_TARGET_DIR": str(target)}
        subprocess.run(["cargo", "build", "--locked", *features, *extra], cwd=ROOT, env=env, check=True, stderr=subprocess.DEVNULL)
        return f"{time.monotonic() - begun:.0f} s"

    rows = []
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as target:
        rows.append(("cold: `hone`, debug", build(["-p", "hone"], target)))
        names = {p["name"]: Path(p["manifest_path"]).parent for p in packages}
        for name in ["hone-kernels", "hone-nn", "hone-text", "hone-ledger-queries", "hone-domain", "hone"]:
            if name in names:
                os.utime(names[name] / "src/lib.rs")
                rows.append((f"warm: `hone` after a change in {name}", build(["-p", "hone"], target)))
    table(["build", "took"], rows)


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--times", action="store_true", help="measure a cold and warm builds")
    asked.add_argument("--check", action="store_true", help="fail where files import one another in a circle or an arrow is forbidden")
    asked.add_argument("--list", action="store_true", help="name every cycle and every tuple parameter")
    asked = asked.parse_args()
    packages = sorted(metadata(), key=lambda p: p["manifest_path"])
    crates = [Crate(package) for package in packages]

    rows, all_cycles, all_functions = [], [], []
    for crate in crates:
        found = [[str(crate.modules[m].path.relative_to(ROOT)) for m in c] for c in cycles(crate.edges())]
        all_cycles += found
        all_functions += list(functions(crate))
        whole = sum(m.lines for m in crate.modules.values())
        tests = sum(m.lines if m.tests else m.test_lines for m in crate.modules.values())
        rows.append((crate.name, whole, 0 if (ROOT / "tests") in [crate.root, *crate.root.parents] else whole - tests, len(found), max(map(len, found), default=0)))
    rows.sort(key=lambda row: -row[2])
    rows.append(("sum", *(sum(r[i] for r in rows) for i in (1, 2, 3)), max(r[4] for r in rows)))
    table(["crate", "lines", "without tests", "import cycles", "largest, in files"], rows)
    if asked.list:
        for cycle in all_cycles:
            print(f"- {len(cycle)}: " + ", ".join(cycle))
        print()

    bad = forbidden(crates, packages)
    table(["forbidden arrow", "to", "seen in"], bad or [("none", "", "")])
    table(["longest functions, in lines", "name", "place"], [f[:3] for f in sorted(all_functions, reverse=True)[:10]])
    tuples = [f for f in all_functions if f[3]]
    print(f"Functions outside tests: {len(all_functions):,}, with a tuple in their parameters: {len(tuples):,}\n")
    if asked.list:
        for _, name, place, _ in tuples:
            print(f"- {name} ({place})")
    if asked.times:
        build_times(packages)
    if asked.check and (all_cycles or bad):
        for cycle in all_cycles:
            print("these import one another in a circle: " + ", ".join(cycle), file=sys.stderr)
        for name, to, where in bad:
            print(f"{name} must not know {to} (seen in {where})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
