"""Finds functions that tests name, and makes an exercise of each: its body is gone, or one thing in it is wrong.

Reads {"mode", "files", "tests"} from its input, both by path, and prints a list of {"path", "function", "text", "tests"}. It
parses text and runs none of it.
"""

import ast
import hashlib
import json
import sys

TESTS_MAX = 4
SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//", ast.And: "or", ast.Or: "and",
}
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in", ast.NotIn: "not in",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and", ast.Or: "or",
}


def parse(text):
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def names(tree):
    """What a test file names, and the parts of what it imports."""
    used, imported = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Import):
            imported.update(part for name in node.names for part in name.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            imported.update((node.module or "").split("."))
            imported.update(name.name for name in node.names)
            used.update(name.name for name in node.names)
    return used, imported


def functions(tree):
    """Functions of a module and of its classes."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in inner:
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and not one.name.startswith("_"):
                yield one


def own_body(function):
    """The body without its docstring."""
    body = function.body
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if is_text else body


def without_body(text, function):
    body = own_body(function)
    lines = text.split("\n")
    if not body or body[-1].end_lineno - body[0].lineno < 1 or body[0].lineno <= function.lineno:
        return []
    start = min([body[0].lineno] + [d.lineno for d in getattr(body[0], "decorator_list", [])])
    head = lines[start - 1][: body[0].col_offset]
    if head.strip():
        return []
    return ["\n".join(lines[: start - 1] + [head + "raise NotImplementedError"] + lines[body[-1].end_lineno :])]


def places(function):
    """Operators and constants of a function: from where to where, what stands there, and what is put there."""
    for statement in own_body(function):
        for node in ast.walk(statement):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
                yield node.left, node.comparators[0], SIGNS[type(node.ops[0])], SWAPS[type(node.ops[0])]
            elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
                yield node.left, node.right, SIGNS[type(node.op)], SWAPS[type(node.op)]
            elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
                yield node.values[0], node.values[1], SIGNS[type(node.op)], SWAPS[type(node.op)]
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                yield node, None, str(node.value), str(node.value + 1)
            elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
                yield node.value, None, None, "None"


def offset(starts, line, column):
    return starts[line - 1] + column


def mutations(text, function):
    data = text.encode()
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = []
    for left, right, old, new in places(function):
        if right is None:
            begin, end = offset(starts, left.lineno, left.col_offset), offset(starts, left.end_lineno, left.end_col_offset)
        else:
            begin, end = offset(starts, left.end_lineno, left.end_col_offset), offset(starts, right.lineno, right.col_offset)
        between = data[begin:end].decode()
        if old is not None and between.strip() != old:
            continue
        put = new if right is None else between.replace(old, new)
        changed = (data[:begin] + put.encode() + data[end:]).decode()
        if changed != text and parse(changed):
            found.append(changed)
    # A few of each function, and always the same ones.
    return sorted(found, key=lambda changed: hashlib.sha256(changed.encode()).digest())[:2]


def exercises(asked):
    make = {"functions": without_body, "mutations": mutations}[asked["mode"]]
    trees = {path: parse(text) for path, text in asked["tests"].items()}
    tests = {path: names(tree) for path, tree in trees.items() if tree}
    found = []
    for path, text in asked["files"].items():
        tree = parse(text) if "\r" not in text and "\f" not in text else None
        if tree is None:
            continue
        parts = path[: -len(".py")].split("/")
        module = parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
        top = next((part for part in parts if part not in ("src", "lib")), module)
        for function in functions(tree):
            using = [
                test for test, (used, imported) in tests.items()
                if function.name in used and (module in imported or top in imported)
            ]
            # A test file named after the module comes first.
            using.sort(key=lambda test: (module not in test, test))
            for changed in make(text, function) if using else []:
                found.append({"path": path, "function": function.name, "text": changed, "tests": using[:TESTS_MAX]})
    return sorted(found, key=lambda one: hashlib.sha256(f"{one['path']} {one['function']}".encode()).digest())


if __name__ == "__main__":
    # Trees of expressions without end.
    sys.setrecursionlimit(10_000)
    json.dump(exercises(json.load(sys.stdin)), sys.stdout)
