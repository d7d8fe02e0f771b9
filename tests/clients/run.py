"""Real clients against the real server on loopback: openai-python, openai-node, the Anthropic SDK,
LangChain, LiteLLM, the MCP SDK and curl.

Starts the binary named by HONE with the built-in model on a free port, runs one scripted
conversation per client, and ends the server by its process id.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import openai

import dialects
import fields
import mcp_tools

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from server import start

passed = failed = 0


def check(name, good, seen=""):
    global passed, failed
    if good:
        passed += 1
        print(f"ok    {name}")
    else:
        failed += 1
        print(f"FAIL  {name}: {seen!r}")


def python_client(base):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    models = [m.id for m in client.models.list()]
    check("python lists models", len(models) >= 1, models)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    plain = client.chat.completions.create(model=models[0], messages=messages, seed=7)
    text = plain.choices[0].message.content
    check("python chats", bool(text), plain)
    check("python sees usage", plain.usage.completion_tokens > 0, plain.usage)
    check("the turn is collected", plain.hone["collected"] is True, plain.hone)
    stream = client.chat.completions.create(
        model=models[0],
        messages=messages,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces, usage, finish = [], None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    check("a seed gives the same text streamed", "".join(pieces) == text, pieces)
    check("the stream ends properly", finish == "stop" and usage is not None, (finish, usage))
    several = client.chat.completions.create(
        model=models[0], messages=messages, n=3, logprobs=True, top_logprobs=2
    )
    check("n gives several choices", len(several.choices) == 3, several)
    check("logprobs are there", len(several.choices[0].logprobs.content) > 0, several)
    legacy = client.completions.create(model=models[0], prompt="Hello", max_tokens=5)
    check("legacy completions", legacy.usage.completion_tokens <= 5, legacy)
    for name, kwargs in {
        "an unknown model": {"model": "nobody", "messages": messages},
        "empty messages": {"model": models[0], "messages": []},
        "a wrong role": {"model": models[0], "messages": [{"role": "king", "content": "x"}]},
    }.items():
        try:
            client.chat.completions.create(**kwargs)
            check(f"{name} is refused", False)
        except openai.APIStatusError as error:
            check(f"{name} is refused", 400 <= error.status_code < 500, error)
    return models[0]


def feedback_and_turn(base, model):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    turn = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me a tip."}]
    ).hone["turn_id"]
    client.post("/feedback", cast_to=object, body={"turn_id": turn, "score": 1})
    for _ in range(100):
        view = client.get(f"/turns/{turn}", cast_to=object)
        if view.get("verdict"):
            break
        time.sleep(0.05)
    check("feedback becomes a verdict", (view.get("verdict") or {}).get("score") == 1.0, view)


def other_clients(base, model):
    node = subprocess.run(
        ["node", os.path.join(HERE, "client.mjs"), base + "/v1", model],
        capture_output=True,
        text=True,
        timeout=120,
    )
    check("node client", node.returncode == 0, node.stdout + node.stderr)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]})
    curl = subprocess.run(
        ["curl", "-sS", base + "/v1/chat/completions", "-H", "content-type: application/json", "-d", body],
        capture_output=True,
        text=True,
        timeout=60,
    )
    check("curl", curl.returncode == 0 and "choices" in json.loads(curl.stdout), curl.stdout)


def main():
    with tempfile.TemporaryDirectory() as data:
        server, base = start(data)
        try:
            model = python_client(base)
            feedback_and_turn(base, model)
            other_clients(base, model)
            fields.check_fields(check)
            dialects.openai_tools(base, model, check)
            dialects.history_written_anew(base, model, check)
            dialects.openai_responses(base, model, check)
            dialects.anthropic_messages(base, model, check)
            dialects.langchain(base, model, check)
            dialects.litellm_client(base, model, check)
            mcp_tools.mcp_client(base, check)
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                code = server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                code = "killed"
        check("the server ends well", code == 0, code)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
