"""Runs test files of a repository in the current folder, and ends with 0 only if every test in them was seen to pass.

Tests run in a child process, which loads the test framework before anything of the current folder can be found: neither
files that stand before modules of Python nor settings and plugins of the folder change how tests are run. The child reports
by a pipe which tests passed. The parent loads nothing of the folder, and knows from the text of the test files which tests
there are, so that a process that ends early, or that leaves tests out, passes nothing. A skipped test did not pass, unless
the text of its file skips it always.
"""

import ast
import configparser
import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import unittest
import unittest.async_case
import unittest.mock

try:
    import tomllib
except ImportError:
    import json as tomllib  # Before Python 3.11 no settings are read: TOML is no JSON.

PLAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plan.json")
FRAMEWORKS = ("builtins", "unittest", "pytest", "_pytest", "pluggy")


def names(path):
    """The names of the tests in a file: those to be run, and those that it always skips."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)

    def is_skipped(node):
        words = (ast.unparse(word).split("(")[0] for word in node.decorator_list)
        return any(word in ("skip", "unittest.skip", "pytest.mark.skip", "mark.skip") for word in words)

    bodies = [(tree.body, False)]
    bodies += [(node.body, is_skipped(node)) for node in tree.body if isinstance(node, ast.ClassDef)]
    wanted, skipped = set(), set()
    for body, is_over in bodies:
        for node in body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not node.name.startswith("test"):
                continue
            is_fixture = any("fixture" in ast.unparse(word) for word in node.decorator_list)
            if is_over or is_skipped(node):
                skipped.add(node.name)
            elif not is_fixture:
                wanted.add(node.name)
    return wanted, skipped - wanted


def snapshot():
    """The functions and classes of the frameworks, which what is tested has to leave alone."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in FRAMEWORKS:
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[name, key, ""] = value
            if isinstance(value, type):
                inner = list(vars(value).items())
                kinds = (staticmethod, classmethod, property)
                found.update({(name, key, k): v for k, v in inner if callable(v) or isinstance(v, kinds)})
    return found


def open_folder():
    """Lets modules of the folder be found: after those of Python, before those that are installed."""
    here = os.getcwd()
    place = next((at for at, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
    folders = [here] + [path for path in (os.path.join(here, "src"), os.path.join(here, "lib")) if os.path.isdir(path)]
    sys.path[place:place] = folders
    install()


def literal(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def of_setup(path):
    """What a call of `setup` in a file says by itself; the file is not run."""
    with open(path, "rb") as file:
        calls = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.Call)]
    said = {}
    for call in calls:
        if ast.unparse(call.func).split(".")[-1] == "setup":
            said.update({word.arg: word.value for word in call.keywords})
    points = said.get("entry_points")
    pairs = zip(points.keys, points.values) if isinstance(points, ast.Dict) else ()
    groups = {literal(key): [literal(one) for one in getattr(value, "elts", ())] for key, value in pairs}
    return literal(said["name"]), literal(said.get("version")), groups


def of_settings(path):
    settings = configparser.ConfigParser(interpolation=None)
    with open(path) as file:
        settings.read_file(file)
    points = settings["options.entry_points"] if settings.has_section("options.entry_points") else {}
    groups = {key: value.splitlines() for key, value in points.items()}
    return settings["metadata"]["name"], settings["metadata"].get("version"), groups


def of_project(path):
    with open(path, "rb") as file:
        project = tomllib.load(file)["project"]
    points = dict(project.get("entry-points", {}), console_scripts=project.get("scripts", {}))
    groups = {group: [f"{key} = {value}" for key, value in entries.items()] for group, entries in points.items()}
    return project["name"], project.get("version"), groups


def install():
    """Lets the project be found among those that are installed, by what its own files say of it."""
    for of, path in ((of_project, "pyproject.toml"), (of_settings, "setup.cfg"), (of_setup, "setup.py")):
        try:
            name, version, groups = of(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError, configparser.Error):
            continue
        if not isinstance(name, str):
            continue
        is_number = isinstance(version, str) and re.fullmatch(r"[0-9][0-9A-Za-z.+!]*", version)
        version, folder = version if is_number else "0", tempfile.mkdtemp()
        info = os.path.join(folder, re.sub(r"[^A-Za-z0-9.]+", "_", name) + "-" + version + ".dist-info")
        os.mkdir(info)
        with open(os.path.join(info, "METADATA"), "w") as file:
            file.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        with open(os.path.join(info, "entry_points.txt"), "w") as file:
            for group, entries in groups.items():
                file.write(f"[{group}]\n" + "".join(f"{one.strip()}\n" for one in entries if one))
        sys.path.append(folder)
        return


def load(path):
    """A test file as a module, by its path and so without a look at what else has its name."""
    folder, file = os.path.split(os.path.abspath(path))
    parts, here = [file[: -len(".py")]], os.getcwd()
    while folder.startswith(here + os.sep) and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    if folder != here and folder not in sys.path:
        sys.path.append(folder)
    for depth in range(1, len(parts) + 1):
        name, at = ".".join(parts[:depth]), os.path.join(folder, *parts[:depth])
        is_last = depth == len(parts)
        if name in sys.modules and getattr(sys.modules[name], "__file__", "").startswith(at):
            continue
        if is_last:
            spec = importlib.util.spec_from_file_location(name, at + ".py")
        else:
            start = os.path.join(at, "__init__.py")
            spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[at])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], module)
    return sys.modules[".".join(parts)]


class Result(unittest.TextTestResult):
    """Notes which tests passed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed, self.loading = [], None

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test.id())

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.passed.append(test.id())


def by_unittest(files):
    open_folder()
    suite = unittest.TestSuite()
    for path in files:
        suite.addTest(unittest.defaultTestLoader.loadTestsFromModule(load(path)))
    result = unittest.TextTestRunner(resultclass=Result, verbosity=1).run(suite)
    bad = [test.id() for test, _ in result.failures + result.errors]
    bad += [test.id() for test in result.unexpectedSuccesses]
    return result.passed, [test.id() for test, _ in result.skipped], bad


class Plugin:
    """Notes which tests passed, and opens the folder once plugins that are installed are loaded."""

    def __init__(self, pytest):
        self.passed, self.skipped, self.bad = [], [], []
        first = pytest.hookimpl(tryfirst=True)
        self.pytest_load_initial_conftests = first(lambda early_config: open_folder())

    def pytest_runtest_logreport(self, report):
        is_expected = hasattr(report, "wasxfail") and "xfail" in report.keywords
        if report.failed:
            self.bad.append(report.nodeid)
        elif report.skipped and not is_expected:
            self.skipped.append(report.nodeid)
        elif report.when == "call":
            self.passed.append(report.nodeid)


def by_pytest(pytest, files, settings):
    plugin = Plugin(pytest)
    arguments = ["-q", "-x", "--rootdir", os.getcwd(), "-c", settings or os.devnull]
    arguments += ["-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=append", "--", *files]
    code = pytest.main(arguments, plugins=[plugin])
    return plugin.passed, plugin.skipped, plugin.bad + ([] if code == 0 else [f"pytest ended with {int(code)}"])


def child(report):
    plan = json.loads(sys.stdin.readline())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.set_inheritable(report, False)
    nonce, write, leave = plan["nonce"], os.write, os._exit
    try:
        import pytest
    except ImportError:
        pytest = None
    before = snapshot()
    if pytest:
        passed, skipped, bad = by_pytest(pytest, plan["files"], plan["settings"])
    else:
        passed, skipped, bad = by_unittest(plan["files"])
    after = snapshot()
    bad += [" ".join(key) + " was changed" for key, value in before.items() if after.get(key) is not value]
    sys.stdout.flush()
    sys.stderr.flush()
    said = {"nonce": nonce, "passed": passed, "skipped": skipped, "bad": bad}
    data = json.dumps(said).encode()
    while data:
        data = data[write(report, data) :]
    leave(0)


def short(name):
    """The name of a test's function in a report."""
    return name.split("[")[0].split(" ")[0].replace("::", ".").split(".")[-1]


def parent():
    with open(PLAN, "rb") as file:
        plan = json.load(file)
    plan["nonce"] = secrets.token_hex(16)
    listen, report = os.pipe()
    command = [sys.executable, "-I", "-B", "-X", "pycache_prefix=/nonexistent", __file__, str(report)]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC"}
    running = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[report])
    os.close(report)
    running.stdin.write(json.dumps(plan).encode() + b"\n")
    running.stdin.close()
    with os.fdopen(listen, "rb") as file:
        said = file.read()
    code = running.wait()
    try:
        said = json.loads(said)
    except ValueError:
        said = {}
    if code != 0 or said.get("nonce") != plan["nonce"]:
        return f"the tests did not run to their end (status {code})"
    texts = [names(path) for path in plan["files"]]
    may_skip = set().union(*(skipped for _, skipped in texts))
    passed = {short(name) for name in said["passed"]}
    bad = said["bad"] + [name for name in said["skipped"] if short(name) not in may_skip]
    wanted = zip(plan["files"], texts)
    bad += sorted(f"{path}: {name}" for path, (all, _) in wanted for name in all - passed)
    if bad:
        return "not passed: " + ", ".join(bad[:20])
    if not passed:
        return "there was no test to run"
    print(f"{len(said['passed'])} tests passed")
    return None


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(int(sys.argv[1]))
    why = parent()
    if why:
        print(why)
    sys.exit(1 if why else 0)
