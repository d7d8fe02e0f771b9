"""Agents in jails: unchanged programs that try a task, and reach nothing but the model."""

import pathlib
import tempfile
import time

CLAUDE = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 "
    '{program} -p "$HONE_INSTRUCTION" --allowedTools Bash,Read,Write'
)
CODEX = (
    "{program} exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "
    "-c model_provider=hone -c model=hone "
    "-c 'model_providers.hone={{name=\"Hone\",base_url=\"'$OPENAI_BASE_URL'\",wire_api=\"responses\"}}' "
    '"$HONE_INSTRUCTION"'
)
AGENTS = {
    "claude": ("Claude Code", CLAUDE, "@anthropic-ai/claude-code-linux-x64*/claude"),
    "codex": ("Codex", CODEX, ".bin/codex"),
}
# The built-in model calls no tools by itself, so nothing is written; the tests see what is there.
TASK = {
    "name": "hello",
    "instruction": "Write the word hello into the file out.txt.",
    "tests": {"test.sh": "ls -A; [ -e out.txt ]"},
    "solution": {"solve.sh": "echo hello > out.txt"},
    "held_out": False,
    "agent_seconds": 120,
}


def done(server, path, is_done):
    for _ in range(600):
        seen = server.call(path)
        if is_done(seen):
            return seen
        time.sleep(0.25)
    return seen


def tried(tools, agent, start):
    """An agent tries a task twice; `start` makes a server with a configuration."""
    name, command, program = AGENTS[agent]
    program = next(tools.MODULES.glob(program))
    with tempfile.TemporaryDirectory() as data:
        config = pathlib.Path(data, "hone.toml")
        config.write_text(f'[tools]\nmounts = ["{tools.MODULES}"]\n')
        server = start(data, "--config", str(config))
        try:
            tasks = server.call("/v1/task-sets", {"name": "tasks", "tasks": [TASK]})["id"]
            done(server, f"/v1/task-sets/{tasks}", lambda seen: "new" not in seen["states"])
            order = {"task_set": tasks, "command": command.format(program=program), "attempts": 2, "tokens_max": 64}
            order = server.call("/v1/rollouts", order)["id"]
            rollout = done(server, f"/v1/rollouts/{order}", lambda seen: seen["status"] == "done")
            episodes = server.call(f"/v1/rollouts/{order}/episodes")["data"]
            good = rollout["episodes"] == {"done": 2} and all(e["reward"] == 0 and e["result"]["steps"] for e in episodes)
            tools.check(f"{name} tries a task in a jail", good, (rollout, episodes))
            if not good:
                return
            shown = [server.call(f"/v1/sessions/{episode['session_id']}") for episode in episodes]
            whole = all(any(turn["kind"] == "main" for turn in session["turns"]) for session in shown)
            tools.check(f"{name}: what it asked there is a session", whole, shown)
            # Its own files are not in the work folder.
            left = [episode["result"]["test_output"] for episode in episodes]
            tools.check(f"{name} leaves nothing beside its work", left == ["", ""], left)
        finally:
            code = server.stop()
        tools.check("the server stops cleanly", code == 0, code)
