"""Agents that speak chat completions: opencode, Qwen Code, Continue, pi, aider and OpenClaw. Each runs a task of three
model calls, resumes its session with one more, and begins another conversation; run.py looks at what the server
made of it. They are installed beside the others where AGENTS_MODULES, AGENTS_AIDER and AGENTS_OPENCLAW say (make agents-all)."""

import json
import os
import pathlib

OPENCLAW = pathlib.Path(os.environ.get("AGENTS_OPENCLAW", "tests/openclaw/node_modules")).resolve()


def task(tools, proxy, home, name, say, calls):
    """The three conversations of an agent: `say(words, resumed)` runs it, `calls` are those of the task and
    the one of the resumed session."""
    proxy.scripts = {"alpha": calls[:3], "beta": calls[3:]}
    proxy.again = lambda words: say(words, False)
    said = say("task alpha: list, write and read", False)
    tools.check(f"{name} ends its task", said.returncode == 0, said)
    written = home / "work/a.txt"
    good = written.exists() and written.read_text() == "one\ntwo\n"
    tools.check(f"{name} wrote the file that was asked for", good, said)
    first = len(proxy.asks())
    said = say("task beta: show it", True)
    tools.check(f"{name} resumes its session", said.returncode == 0 and len(proxy.asks()) > first, said)
    said = say("task gamma: what is new?", False)
    tools.check(f"{name} begins another conversation", said.returncode == 0, said)
    return name


def opencode(tools, proxy, home):
    model = {"name": tools.MODEL, "limit": {"context": 32768, "output": 512}, "tool_call": True}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"hone/{tools.MODEL}",
        "small_model": f"hone/{tools.MODEL}",
        "permission": {"*": "allow"},
        "provider": {
            "hone": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{proxy.url}/v1", "apiKey": "none"},
                "models": {tools.MODEL: model},
            }
        },
    }
    path = home / ".config/opencode/opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(config))
    program = next(tools.MODULES.glob("opencode-linux-x64/bin/opencode"))
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def say(words, resumed):
        return tools.run([program, "run", *(["--continue"] if resumed else []), words], home, **env)

    file = str(home / "work/a.txt")
    return task(tools, proxy, home, "opencode", say, [
        ("bash", {"command": "ls", "description": "List files"}),
        ("write", {"filePath": file, "content": "one\ntwo\n"}),
        ("read", {"filePath": file}),
        ("bash", {"command": "cat a.txt", "description": "Show the file"}),
    ])


def qwen(tools, proxy, home):
    env = {
        "OPENAI_BASE_URL": f"{proxy.url}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": tools.MODEL,
        "QWEN_TELEMETRY_ENABLED": "false",
    }
    how = ["--auth-type", "openai", "--approval-mode", "yolo", "--output-format", "json"]

    def say(words, resumed):
        again = ["--continue"] if resumed else []
        return tools.run([tools.MODULES / ".bin/qwen", *how, *again, "-p", words], home, **env)

    file = str(home / "work/a.txt")
    return task(tools, proxy, home, "Qwen Code", say, [
        ("run_shell_command", {"command": "ls", "is_background": False}),
        ("write_file", {"file_path": file, "content": "one\ntwo\n"}),
        ("read_file", {"file_path": file}),
        ("run_shell_command", {"command": "cat a.txt", "is_background": False}),
    ])


def pi(tools, proxy, home):
    model = {
        "id": tools.MODEL,
        "name": tools.MODEL,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": 32768,
        "maxTokens": 512,
    }
    provider = {"baseUrl": f"{proxy.url}/v1", "api": "openai-completions", "apiKey": "none", "models": [model]}
    path = home / ".pi/agent/models.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"providers": {"hone": provider}}))
    how = ["--provider", "hone", "--model", tools.MODEL, "--print", "--offline"]

    def say(words, resumed):
        again = ["--continue"] if resumed else []
        return tools.run([tools.MODULES / ".bin/pi", *how, *again, words], home)

    return task(tools, proxy, home, "pi", say, [
        ("bash", {"command": "ls"}),
        ("write", {"path": "a.txt", "content": "one\ntwo\n"}),
        ("read", {"path": "a.txt"}),
        ("bash", {"command": "cat a.txt"}),
    ])


def cn(tools, proxy, home):
    config = home / "config.yaml"
    config.write_text(
        f"name: hone\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: {tools.MODEL}\n    provider: openai\n"
        f"    model: {tools.MODEL}\n    apiBase: {proxy.url}/v1\n    apiKey: none\n    roles: [chat]\n"
        "    capabilities: [tool_use]\n    defaultCompletionOptions:\n      contextLength: 32768\n      maxTokens: 512\n"
    )
    how = ["--config", config, "--auto", "-p"]
    env = {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_DISABLE_COMMIT_SIGNATURE": "1"}

    def say(words, resumed):
        again = ["--resume"] if resumed else []
        return tools.run([tools.MODULES / ".bin/cn", *how, *again, words], home, **env)

    file = str(home / "work/a.txt")
    return task(tools, proxy, home, "Continue", say, [
        ("Bash", {"command": "ls"}),
        ("Write", {"filepath": file, "content": "one\ntwo\n"}),
        ("Read", {"filepath": file}),
        ("Bash", {"command": "cat a.txt"}),
    ])


def aider(tools, proxy, home):
    """It calls no tools: an answer holds the whole file, and a test that fails is what comes next. A history
    that it restores is told anew and begins another session."""
    (home / "work/check.sh").write_text('test "$(wc -l < a.txt)" -ge 3 || { echo "a.txt has too few lines"; exit 1; }\n')
    (home / ".gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.com\n")
    files = ["a.txt\n```\n" + "".join(f"line {n}\n" for n in range(lines)) + "```\n" for lines in (1, 2, 3)]
    proxy.scripts = {"alpha": files, "beta": files[2:]}
    program = os.environ["AGENTS_AIDER"]
    how = ["--model", f"openai/{tools.MODEL}", "--no-check-update", "--yes-always", "--no-show-model-warnings",
           "--edit-format", "whole", "--auto-test", "--test-cmd", "sh check.sh"]
    env = {"OPENAI_API_BASE": f"{proxy.url}/v1", "OPENAI_API_KEY": "none"}

    def say(words, *more):
        return tools.run([program, *how, *more, "--message", words, "a.txt"], home, **env)

    said = say("task alpha: write three lines")
    written = home / "work/a.txt"
    good = written.exists() and written.read_text() == "line 0\nline 1\nline 2\n"
    tools.check("aider ends its task and wrote the file that was asked for", said.returncode == 0 and good, said)
    said = say("task beta: write it again", "--restore-chat-history")
    tools.check("aider restores its history", said.returncode == 0, said)
    said = say("task gamma: what is new?")
    tools.check("aider begins another conversation", said.returncode == 0, said)
    return "aider"


def openclaw(tools, proxy, home):
    """It has a Node of its own and is installed by make openclaw."""
    model = {"id": tools.MODEL, "name": "hone", "contextWindow": 32768, "maxTokens": 512,
             "compat": {"sendSessionAffinityHeaders": True}}
    provider = {"baseUrl": f"{proxy.url}/v1", "apiKey": "none", "api": "openai-completions", "models": [model]}
    defaults = {"model": {"primary": f"hone/{tools.MODEL}"}, "workspace": str(home / "work")}
    config = home / ".openclaw/openclaw.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"models": {"providers": {"hone": provider}}, "agents": {"defaults": defaults}}))
    program = [OPENCLAW / ".bin/node", OPENCLAW / "openclaw/openclaw.mjs", "agent", "--local"]
    sessions = []

    def say(words, resumed):
        if not resumed:
            sessions.append(f"talk-{len(sessions)}")
        return tools.run([*program, "--session-id", sessions[-1], "--message", words], home)

    return task(tools, proxy, home, "OpenClaw", say, [
        ("exec", {"command": "ls"}),
        ("write", {"path": "a.txt", "content": "one\ntwo\n"}),
        ("read", {"path": "a.txt"}),
        ("exec", {"command": "cat a.txt"}),
    ])


def delegates(name, delegate, count):
    """How an agent of that name has a sub-agent count lines."""

    def flow(tools, proxy):
        proxy.scripts = {"delta": [delegate], "epsilon": [count]}
        said = proxy.again("task delta: have it counted")
        tools.check(f"{name} delegates", said.returncode == 0, said)

    return flow


HELPER = {"description": "count lines", "prompt": "task epsilon: count"}
KIND = "sub" + "agent_type"
DELEGATED = {
    "opencode": delegates("opencode", ("task", HELPER | {KIND: "general"}),
                          ("bash", {"command": "wc -l a.txt", "description": "Count lines"})),
    "qwen": delegates("Qwen Code", ("agent", HELPER | {KIND: "general-purpose"}),
                      ("run_shell_command", {"command": "wc -l a.txt", "is_background": False})),
}
AGENTS = {"aider": aider, "opencode": opencode, "openclaw": openclaw, "qwen": qwen, "pi": pi, "continue": cn}
