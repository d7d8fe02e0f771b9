"""The agents that people use, unchanged, against the real server: tasks of several model calls with
tools, and a session that is resumed.

    HONE=target/debug/hone python3 tests/agents/run.py [--model PATH] [claude|codex|opencode|openclaw|qwen|pi|continue|aider]...

The built-in model knows nothing of files and shells. So a proxy between agent and server has the server
demand the call that a task needs at each step, in the request's own words (tool_choice, and the tool's
schema with the arguments as constants; guided_choice, where the agent reads texts), and of a model of
one's own (--model) how a task ends. For such a model, the tools that are demanded stand last in the list, so
that the prompt before them stays computed when their schemas change. Everything else goes through as it is.
"""

import argparse
import http.client
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import jailed
import others
from server import start

MODULES = pathlib.Path(os.environ.get("AGENTS_MODULES", HERE / "node_modules")).resolve()
MODEL = "hone-starter"
# A real model computes the first 18,000 tokens of an agent for minutes on few cores.
IS_REAL = "--model" in sys.argv
PATIENCE_S = 1_800 if IS_REAL else 240
# Model calls of a task with three tools and of one that is resumed with one more.
TURNS = 6
# Model calls of a task of an agent that calls no tools, and that resumes nothing.
TURNS_OF_TEXT = 3
# The token <tool_call> of Qwen's tokenizer, and the first two of {"done": true}.
QWEN_BEGINS_CALL = "151657"
QWEN_ENDS = ["4913", "10438"]
# Most tokens of an answer that no call is demanded of.
ANSWER_TOKENS = 96

failed = 0


def check(name, good, seen=""):
    global failed
    failed += not good
    print(f"ok    {name}" if good else f"FAIL  {name}: {str(seen)[-1500:]!r}", flush=True)


class Server:
    def __init__(self, data, *options):
        # A real model may compute an agent's first prompt for longer than a completion may take otherwise.
        patient = os.environ | {"HONE__HTTP__COMPLETION_TIMEOUT_MS": str(PATIENCE_S * 1_000)}
        self.child, self.url = start(data, *options, env=patient)

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


def items_of(body):
    """The conversation of a request, whichever dialect it is in."""
    if "input" in body:
        return body["input"] if isinstance(body["input"], list) else []
    return body.get("messages", [])


def is_result(item):
    if item.get("type", "").endswith("_output") or item.get("role") == "tool":
        return True
    content = item.get("content")
    return isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)


def steps_done(body):
    """How many calls were answered since a person or a program last asked for something; without tools, how many
    texts were said."""
    done, has_tools = 0, bool(body.get("tools"))
    for item in reversed(items_of(body)):
        if is_result(item) if has_tools else is_file(item):
            done += 1
        elif item.get("role") == "user":
            text = json.dumps(item.get("content"))
            # What clients add in passing is no question.
            if "task " in text:
                break
    return done


def is_file(item):
    """Whether an agent without tools was given the file by this answer."""
    return item.get("role") == "assistant" and str(item.get("content")).startswith("a.txt\n```")


def is_housekeeping(body):
    """Whether an agent only notes what is worth remembering, with tools of its own, or names a commit."""
    instructions = json.dumps(body.get("messages", [])[:1])
    return "managed memory extraction" in instructions or "one-line Git commit messages" in instructions


def is_main(body):
    """Whether a request is part of a task."""
    is_text = "expert software developer" in json.dumps(body.get("messages", [])[:1])
    return bool(body.get("tools") or is_text) and not is_housekeeping(body)


def asked(body):
    return json.dumps([item for item in items_of(body) if item.get("role") == "user"])


def with_constants(arguments):
    constants = {name: {"const": value} for name, value in arguments.items()}
    return {
        "type": "object",
        "properties": constants,
        "required": list(arguments),
        "additionalProperties": False,
    }


def demand(path, body, name, arguments):
    """Has the server call a tool with just these arguments; false where the request offers no such tool."""
    schema = with_constants(arguments)
    for tool in body.get("tools") or []:
        # Some of them offer functions within a namespace.
        for inner in tool.get("tools", [tool]):
            function = inner.get("function", inner)
            if function.get("name") != name:
                continue
            field = "input_schema" if "messages" in path else "parameters"
            function[field] = schema
            function.pop("strict", None)
            shown = name if inner is tool else f"{tool['name']}__{name}"
            body["tool_choice"] = {
                "/v1/messages": {"type": "tool", "name": name},
                "/v1/responses": {"type": "function", "name": shown},
            }.get(path, {"type": "function", "function": {"name": shown}})
            return True
    return False


def demand_end(path, body):
    """Has the server end a task with a small object."""
    form = {"type": "json_schema", "name": "end", "strict": True, "schema": with_constants({"done": True})}
    if path == "/v1/responses":
        body["text"] = {"format": form}
    elif path == "/v1/messages":
        body["output_config"] = {"format": {"type": "json_schema", "schema": form["schema"]}}
    else:
        named = {name: form[name] for name in ("name", "strict", "schema")}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    # The form allows calls beside it, which a real model also spells without their token.
    body["logit_bias"] = {QWEN_BEGINS_CALL: -100} | {token: 100 for token in QWEN_ENDS}


class Proxy:
    """Between an agent and the server: notes every request, and demands the calls of a script."""

    def __init__(self, server):
        self.seen, self.scripts, self.lock = [], {}, threading.Lock()
        proxy, target = self, urllib.parse.urlsplit(server.url)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def forward(self):
                size = int(self.headers.get("content-length") or 0)
                sent = self.rfile.read(size)
                path = self.path.split("?")[0]
                sent, note = proxy.scripted(path, sent)
                note["headers"] = dict(self.headers)
                connection = http.client.HTTPConnection(target.hostname, target.port, timeout=PATIENCE_S)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
                connection.request(self.command, self.path, sent, headers)
                reply = connection.getresponse()
                note["status"] = reply.status
                note["turn"] = reply.getheader("x-hone-turn-id")
                self.send_response(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                got = b""
                try:
                    while piece := reply.read1(65536):
                        got += piece
                        self.wfile.write(piece)
                        self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    note["left"] = True
                note["reply"] = got.decode(errors="replace")
                self.close_connection = True

            do_GET = do_POST = do_DELETE = do_HEAD = forward

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def scripted(self, path, sent):
        note = {"path": path, "at": time.time()}
        with self.lock:
            self.seen.append(note)
        if path not in ("/v1/messages", "/v1/responses", "/v1/chat/completions") or not sent:
            return sent, note
        body = json.loads(sent)
        note["body"] = json.loads(sent)
        if path == "/v1/chat/completions" and body.get("stream"):
            # Some do not ask what was computed, which is looked at below.
            body.setdefault("stream_options", {"include_usage": True})
        if IS_REAL and body.get("tools"):
            body["tools"].sort(key=self.is_demanded)
        words, done = asked(body), steps_done(body)
        for task, steps in self.scripts.items():
            # The newest question of a resumed session is the one that counts.
            if f"task {task}" in words and task == max(self.scripts, key=lambda t: words.rfind(f"task {t}")):
                if is_housekeeping(body) or done >= len(steps):
                    break
                step = steps[done]
                if callable(step):
                    step = step(body)
                if isinstance(step, str):
                    body["guided_choice"] = [step]
                elif not demand(path, body, *step):
                    break
                note["demanded"] = step
                return json.dumps(body).encode(), note
        if IS_REAL and body.get("tools"):
            # It would go on calling: what ends the task is demanded as well.
            demand_end(path, body)
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body[limit] = min(body.get(limit) or ANSWER_TOKENS, ANSWER_TOKENS)
        # The likeliest answer of the built-in model comes to an end; a drawn one may not within the limit.
        body["temperature"] = 0
        return json.dumps(body).encode(), note

    def is_demanded(self, tool):
        """Whether a step of a task demands this tool, or one within it."""
        steps = [step for steps in self.scripts.values() for step in steps]
        names = {step[0] for step in steps if isinstance(step, tuple)}
        offered = {inner.get("function", inner).get("name") for inner in tool.get("tools", [tool])}
        return bool(names & offered)

    def asks(self):
        return [note for note in self.seen if "body" in note]

    def stop(self):
        self.http.shutdown()


def run(command, home, **env):
    """An agent's process, without a terminal and without anything of this machine's own settings."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [str(part) for part in command],
        env=keep | {"HOME": str(home)} | env,
        cwd=home / "work",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def claude(proxy, home):
    """Claude Code: three calls, then the session is resumed with one more."""
    name = "Claude Code"
    proxy.scripts = {
        "alpha": [
            ("Bash", {"command": "ls", "description": "List files"}),
            ("Write", {"file_path": str(home / "work/a.txt"), "content": "one\ntwo\n"}),
            ("Read", {"file_path": str(home / "work/a.txt")}),
        ],
        "beta": [("Bash", {"command": "cat a.txt", "description": "Show the file"})],
    }
    env = {
        "ANTHROPIC_BASE_URL": proxy.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "API_TIMEOUT_MS": str(PATIENCE_S * 1_000),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512",
    }
    program = next(MODULES.glob("@anthropic-ai/claude-code-linux-x64*/claude"))
    how = ["--output-format", "json", "--allowedTools", "Agent,Bash,Read,Write"]
    proxy.again = lambda words, *more: run([program, "-p", words, *more, *how], home, **env)
    said = run([program, "-p", "task alpha: list, write and read", *how], home, **env)
    check(f"{name} ends its task", said.returncode == 0, said)
    told = json.loads(said.stdout) if said.returncode == 0 else {}
    check(f"{name} has no error", not told.get("is_error"), told)
    written = home / "work/a.txt"
    check(f"{name} wrote the file that was asked for", written.exists() and written.read_text() == "one\ntwo\n")
    first = len(proxy.asks())
    again = ["--resume", told.get("session_id", "")]
    said = run([program, "-p", "task beta: show it", *again, *how], home, **env)
    check(f"{name} resumes its session", said.returncode == 0 and len(proxy.asks()) > first, said)
    said = run([program, "-p", "task gamma: what is new?", *how], home, **env)
    check(f"{name} begins another conversation", said.returncode == 0, said)
    return name


def codex(proxy, home):
    """Codex: three calls, then the session is resumed with one more."""
    name = "Codex"
    shell = lambda command: ("exec_command", {"cmd": command})
    proxy.scripts = {
        "alpha": [shell("ls"), shell("printf 'one\\ntwo\\n' > a.txt"), shell("cat a.txt")],
        "beta": [shell("wc -l a.txt")],
    }
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        f'model = "{MODEL}"\nmodel_provider = "hone"\n\n'
        f'[model_providers.hone]\nname = "Hone"\nbase_url = "{proxy.url}/v1"\nwire_api = "responses"\n'
    )
    program = [MODULES / ".bin" / "codex", "exec"]
    proxy.again = lambda words, *more: run([*program, *more, *how, words], home)
    how = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
    said = run([*program, *how, "task alpha: list, write and read"], home)
    check(f"{name} ends its task", said.returncode == 0, said)
    written = home / "work/a.txt"
    check(f"{name} wrote the file that was asked for", written.exists() and written.read_text() == "one\ntwo\n", said)
    first = len(proxy.asks())
    said = run([*program, "resume", "--last", *how, "task beta: count"], home)
    check(f"{name} resumes its session", said.returncode == 0 and len(proxy.asks()) > first, said)
    said = run([*program, *how, "task gamma: what is new?"], home)
    # A real model calls on and on by itself, until the limit of its answer ends what nobody demanded.
    is_cut = IS_REAL and "reason: max_output_tokens" in said.stdout
    check(f"{name} begins another conversation", said.returncode == 0 or is_cut, said)
    return name


def told(name, server, proxy):
    """Every request is answered, every main turn follows the one before it, and nothing is praised."""
    refused = [(note["path"], note.get("status"), note.get("reply", "")[:400]) for note in proxy.seen
               if note["path"].startswith("/v1/") and not note.get("left")
               and not 200 <= note.get("status", 0) < 300]
    check(f"{name}: every request is 2xx", not refused, refused)
    wanted = [note for note in proxy.asks() if is_main(note["body"])]
    # A session of one that calls no tools is its task.
    turns_of_session = TURNS if wanted and wanted[0]["body"].get("tools") else TURNS_OF_TEXT
    check(f"{name}: a task has three model calls and more", len(wanted) >= turns_of_session, len(wanted))
    for _ in range(100):
        turns = list(reversed(server.call("/admin/v1/turns?limit=100")["data"]))
        main = [turn for turn in turns if turn["kind"] == "main"]
        if len(main) >= len(wanted):
            break
        time.sleep(0.1)
    side = len(proxy.asks()) - len(wanted)
    check(f"{name}: tasks are main turns and all else is housekeeping", len(main) == len(wanted) and len(turns) == len(main) + side, turns)
    talk, other = main[:turns_of_session], main[turns_of_session:]
    sessions = {turn["session_id"] for turn in talk}
    check(f"{name}: a resumed session is one session", len(sessions) == 1, talk)
    check(f"{name}: another conversation is another one", not sessions & {turn["session_id"] for turn in other}, main)
    parents = [server.call(f"/v1/turns/{turn['id']}")["parent_id"] for turn in main]
    truth = [None] + [turn["id"] for turn in talk[:-1]]
    if turns_of_session == TURNS:
        truth += [None] + [turn["id"] for turn in other[:-1]]
    else:
        # A history that is restored branches off somewhere; the last conversation has none.
        branch = parents[len(talk) : len(talk) + 1]
        truth += branch if set(branch) <= {None, *truth, talk[-1]["id"]} else [None]
        truth += [None] * (len(other) - 1)
    check(f"{name}: every turn continues the one before it", parents == truth, (parents, truth))
    called = [turn for turn, note in zip(main, wanted) if "demanded" in note]
    praised = [turn for turn in called if turn.get("score") not in (None, 0.0)]
    check(f"{name}: unremarkable results are no praise", not praised, praised)
    # Some go on by themselves behind the answer, to note what is worth remembering.
    newest = next(note for note in wanted if "task gamma" in asked(note["body"]))
    cached, prompt = usage_of(newest["reply"])
    # Files of one that calls no tools stand before the person's words, and instructions behind them.
    least = 0.95 if turns_of_session == TURNS else 0.5
    check(f"{name}: the next conversation's prompt comes from the cache", cached >= least * prompt, (cached, prompt))


def usage_of(reply):
    """Prompt tokens that were not computed again, and all of them."""
    found = (0, 1)
    for line in reply.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        usage = (event.get("message") or event.get("response") or event).get("usage") or {}
        if "cache_read_input_tokens" in usage:
            found = usage["cache_read_input_tokens"], usage["cache_read_input_tokens"] + usage["input_tokens"]
        elif "input_tokens_details" in usage:
            found = usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
        elif "prompt_tokens_details" in usage:
            found = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
    return found


def delegated_by_claude(proxy):
    """Claude Code has a sub-agent do something, retells the conversation shortly, and goes on with that."""
    helper = {"description": "Count lines", "prompt": "task epsilon: count"}
    proxy.scripts = {
        "delta": [("Agent", helper)],
        "epsilon": [("Bash", {"command": "wc -l a.txt", "description": "Count lines"})],
        "eta": [("Bash", {"command": "ls", "description": "List files"})],
        "zeta": [],
    }
    said = proxy.again("task delta: have it counted")
    check("Claude Code delegates", said.returncode == 0, said)
    # With all its tools the request to retell would not fit into the built-in model's context.
    few = ["--tools", "Bash"]
    said = proxy.again("task eta: what is there?", *few)
    session = ["--resume", json.loads(said.stdout).get("session_id", ""), *few] if said.returncode == 0 else []
    said = proxy.again("/compact", *session)
    check("Claude Code retells its conversation", said.returncode == 0, said)
    said = proxy.again("task zeta: go on", *session)
    check("Claude Code goes on behind it", said.returncode == 0, said)


def delegated_by_codex(proxy):
    """Codex has a sub-agent do something and waits for it; then a conversation that is long for it is retold."""
    outputs = lambda body: [item for item in body["input"] if item.get("type") == "function_call_output"]
    spawned = lambda body: json.loads(outputs(body)[-1]["output"])["agent_id"]
    proxy.scripts = {
        "delta": [
            ("spawn_agent", {"message": "task epsilon: count"}),
            lambda body: ("wait_agent", {"targets": [spawned(body)], "timeout_ms": 60_000}),
        ],
        "epsilon": [("exec_command", {"cmd": "wc -l a.txt"})],
        "zeta": [],
    }
    first = len(proxy.seen)
    said = proxy.again("task delta: have it counted")
    check("Codex delegates", said.returncode == 0, said)
    session = next(json.loads(line)["thread_id"] for line in said.stdout.splitlines() if "thread_id" in line)
    # A little more than the conversation began with.
    begun = next(usage_of(note["reply"])[1] for note in proxy.seen[first:] if "body" in note)
    limit = f"model_auto_compact_token_limit={begun + 100}"
    said = proxy.again("task zeta: go on", "resume", session, "-c", limit)
    check("Codex retells its conversation and goes on", said.returncode == 0, said)


def answered(name, flow, server, proxy):
    """The words and turns of a flow's requests, all of which are answered."""
    first = len(proxy.seen)
    flow(proxy)
    asks = [note for note in proxy.seen[first:] if "body" in note]
    refused = [(note["path"], note["status"], note["reply"][:400]) for note in asks
               if not note.get("left") and not 200 <= note["status"] < 300]
    check(f"{name}: every request of a sub-agent and a retold conversation is 2xx", not refused, refused)
    return [(asked(note["body"]), server.call(f"/v1/turns/{note['turn']}")) for note in asks if note.get("turn")]


def helped(name, turns):
    """A sub-agent's turns are a session of their own."""
    of = lambda task: [turn for words, turn in turns if f"task {task}" in words and turn["kind"] == "main"]
    own, parents = ({turn["session_id"] for turn in of(task)} for task in ("epsilon", "delta"))
    check(f"{name}: a sub-agent has one session of its own", len(own) == 1 and not own & parents, (own, parents))
    edges = [turn["metadata"].get("parent_session") for turn in of("epsilon")]
    # Qwen Code says nothing of it.
    named = len(set(edges)) == 1 and (all(edges) or name == "Qwen Code")
    check(f"{name}: it names the session that it comes from", named, edges)
    links = [turn["parent_id"] for turn in of("epsilon")]
    truth = [None] + [turn["id"] for turn in of("epsilon")[:-1]]
    check(f"{name}: its turns continue one another", links == truth, (links, truth))


def delegated(name, flow, server, proxy):
    """A sub-agent's turns are a session of their own; what retells a conversation is no turn to learn from."""
    turns = answered(name, flow, server, proxy)
    retold = [turn for words, turn in turns if any(part in words for part in RETELLS)]
    check(f"{name}: what retells a conversation is housekeeping", retold and all(turn["kind"] == "side" for turn in retold), retold)
    others = [(words, turn) for words, turn in turns if turn not in retold]
    check(f"{name}: all else is main turns", all(turn["kind"] == "main" for _, turn in others), others)
    helped(name, others)
    of = lambda task: [turn for words, turn in others if f"task {task}" in words]
    # Claude Code keeps its last answer behind what it retold, Codex does not.
    before = [None] + [turn["id"] for turn in of("eta")]
    last = of("zeta")[-1:]
    check(f"{name}: what follows goes on from an answer that is kept, or begins anew", last and last[0]["parent_id"] in before, last)
    replies = [item["text"] for _, turn in others for item in turn["next_state"] if item["kind"] != "tool_result"]
    wrong = [text for text in replies if any(part in text for part in (*RETELLS, "/compact", "being continued"))]
    check(f"{name}: nothing of it is taken for an answer to a turn", not wrong, wrong)


# What the requests to retell a conversation have in them.
RETELLS = ("CONTEXT CHECKPOINT COMPACTION", "Your task is to create a detailed summary")

AGENTS = {"claude": claude, "codex": codex}
DELEGATED = {"claude": delegated_by_claude, "codex": delegated_by_codex}
TOOLS = types.SimpleNamespace(check=check, run=run, MODEL=MODEL, MODULES=MODULES)


def of(agent):
    """How an agent of this name runs."""
    if agent in AGENTS:
        return AGENTS[agent]
    return lambda proxy, home: others.AGENTS[agent](TOOLS, proxy, home)



def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--model", help="a model folder or GGUF file, instead of the built-in model")
    arguments.add_argument("agents", nargs="*", default=list(AGENTS))
    arguments = arguments.parse_args()
    global MODEL
    options = ["--model", arguments.model] if arguments.model else []
    for agent in arguments.agents:
        with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as home:
            home = pathlib.Path(home)
            (home / "work").mkdir()
            server = Server(data, *options)
            MODEL = TOOLS.MODEL = server.call("/v1/models")["data"][0]["id"]
            proxy = Proxy(server)
            # Codex says store: false every time; who runs this lets it be learned from all the same.
            server.call("/v1/consent", {"learning": "full", "despite_store_false": True}, "PUT")
            try:
                name = of(agent)(proxy, home)
                told(name, server, proxy)
                if agent in DELEGATED:
                    delegated(name, DELEGATED[agent], server, proxy)
                elif agent in others.DELEGATED:
                    delegate = lambda proxy: others.DELEGATED[agent](TOOLS, proxy)
                    helped(name, answered(name, delegate, server, proxy))
            finally:
                if os.environ.get("AGENTS_LOG"):
                    pathlib.Path(os.environ["AGENTS_LOG"] + agent).write_text(json.dumps(proxy.seen))
                proxy.stop()
                code = server.stop()
            check("the server stops cleanly", code == 0, code)
        if agent in jailed.AGENTS and not arguments.model:
            jailed.tried(TOOLS, agent, Server)
    sys.exit(1 if failed else 0)


main()
