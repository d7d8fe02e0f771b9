"""Records what real clients send to an OpenAI-compatible server, as tests/traces/*.json.

    python3 -m venv venv && venv/bin/pip install openai langchain langchain-openai litellm openai-agents
    npm install --prefix node openai ai @ai-sdk/openai-compatible zod
    npm install --prefix openclaw openclaw        # wants Node 24
    TRACE_MODULES=node TRACE_OPENCLAW=openclaw venv/bin/python tests/traces/record.py [CLIENT...]

A small server answers with scripted texts and tool calls and writes down every request: its headers
without secrets, its body, and what it answered. Every conversation talks to a path of its own, so the
trace knows which requests belong together although the requests do not say so. Of OpenClaw's long
system prompts a beginning and a hash are kept, of its tools the names.
"""

import asyncio
import hashlib
import http.server
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).parent
KEPT_HEADERS = ("session", "affinity", "request-id", "turn-type", "user-agent", "thread", "conversation")
SYSTEM = "You are a helpful assistant. It is 2026-11-21 09:15:00."


class Stub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log = []
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        label = self.path.split("/")[2]
        message = answer(body)
        kept = {
            name.lower(): value
            for name, value in self.headers.items()
            if any(part in name.lower() for part in KEPT_HEADERS)
        }
        with self.lock:
            self.log.append(
                {"conversation": label, "headers": kept, "body": body, "answer": message}
            )
        if body.get("stream"):
            self.stream(message)
        else:
            self.whole(message)

    def whole(self, message):
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        reply = {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        self.send(json.dumps(reply).encode(), "application/json")

    def stream(self, message):
        def chunk(delta, finish=None):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            return b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n"

        calls = [dict(call, index=at) for at, call in enumerate(message.get("tool_calls") or [])]
        out = chunk({"role": "assistant", "content": message["content"]})
        if calls:
            out += chunk({"tool_calls": calls})
        out += chunk({}, "tool_calls" if calls else "stop") + b"data: [DONE]\n\n"
        self.send(out, "text/event-stream")

    def send(self, data, kind):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def text_of(message):
    content = message.get("content") or ""
    if isinstance(content, list):
        content = " ".join(part.get("text", "") for part in content)
    return content


def answer(body):
    """Calls two tools at once for a question about weather, else says something that tells how
    far the conversation is."""
    messages = body["messages"]
    # Text that OpenClaw puts behind the last message, and takes away again.
    said = [m for m in messages if "_INTERNAL_CONTEXT>>>" not in text_of(m)]
    last = said[-1]
    tools = [tool["function"]["name"] for tool in body.get("tools") or []]
    asked = text_of(last).lower()
    if last["role"] == "user" and "weather" in asked and "get_weather" in tools:
        calls = [
            {
                "id": f"call_{city}_{len(messages)}", "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps({"days": 1.0, "city": city})},
            }
            for city in ("paris", "rome")
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    if last["role"] == "user" and "weather" in asked and "read" in tools:
        call = {"name": "read", "arguments": json.dumps({"limit": 9.0, "path": "weather.txt"})}
        calls = [{"id": f"call_read_{len(messages)}", "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    handoff = next((name for name in tools if name.startswith("transfer_to")), None)
    if last["role"] == "user" and "poem" in asked and handoff:
        call = {"id": "call_h", "type": "function", "function": {"name": handoff, "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if last["role"] == "user" and asked.startswith("hello"):
        return {"role": "assistant", "content": "Hello! How can I help?"}
    return {"role": "assistant", "content": f"Answer number {len(messages)} to: {text_of(last)[:60]}"}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "number"}},
            "required": ["city"],
        },
    },
}
QUESTIONS = ["Hello!", "What is the weather?", "And what should I wear, {}?", "Thank you."]


def openai_sdk(base):
    from openai import OpenAI

    for stream in (False, True):
        for label in ("a", "b"):
            label = f"openai-{'stream' if stream else 'whole'}-{label}"
            client = OpenAI(base_url=base(label), api_key="x", max_retries=0)
            messages = [{"role": "system", "content": SYSTEM}]

            def ask():
                reply = client.chat.completions.create(
                    model="m", messages=messages, tools=[WEATHER], stream=stream
                )
                if not stream:
                    return reply.choices[0].message.model_dump(exclude_none=True)
                text, calls = "", []
                for part in reply:
                    delta = part.choices[0].delta
                    text += delta.content or ""
                    calls += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or []]
                message = {"role": "assistant", "content": text or None}
                return message | ({"tool_calls": calls} if calls else {})

            for question in QUESTIONS:
                messages.append({"role": "user", "content": question.format(label)})
                message = ask()
                messages.append(message)
                while message.get("tool_calls"):
                    for call in message["tool_calls"]:
                        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})
                    message = ask()
                    messages.append(message)


def langchain_agent(base):
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def get_weather(city: str, days: float = 1) -> str:
        """Weather of a city."""
        return f"sunny in {city}"

    for label in ("langchain-a", "langchain-b"):
        model = ChatOpenAI(model="m", base_url=base(label), api_key="x", max_retries=0)
        agent = create_agent(model, [get_weather], system_prompt=SYSTEM)
        messages = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question.format(label)})
            messages = agent.invoke({"messages": messages})["messages"]


def litellm_client(base):
    import litellm

    for label in ("litellm-a", "litellm-b"):
        messages = [{"role": "system", "content": SYSTEM}]
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question.format(label)})
            while True:
                reply = litellm.completion(
                    model="openai/m", messages=messages, api_base=base(label), api_key="x",
                    tools=[WEATHER], max_retries=0,
                )
                message = reply.choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})


def openai_agents(base):
    from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool
    from agents import set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    def get_weather(city: str, days: float) -> str:
        """Weather of a city."""
        return f"sunny in {city}"

    async def talk(label):
        client = AsyncOpenAI(base_url=base(label), api_key="x", max_retries=0)
        model = OpenAIChatCompletionsModel(model="m", openai_client=client)
        poet = Agent(name="poet", instructions="You write poems.", model=model)
        agent = Agent(
            name="helper", instructions=SYSTEM, model=model, tools=[get_weather], handoffs=[poet]
        )
        session = SQLiteSession(label)
        for question in [*QUESTIONS, "Now a poem, please."]:
            await Runner.run(agent, question.format(label), session=session)

    async def both():
        await asyncio.gather(talk("agents-a"), talk("agents-b"))

    asyncio.run(both())


def openclaw(base):
    """Both conversations by one installation, in turns; each run is a process of its own."""
    modules = pathlib.Path(os.environ.get("TRACE_OPENCLAW", "openclaw")).resolve() / "node_modules"
    with tempfile.TemporaryDirectory() as home:
        work = pathlib.Path(home) / "work"
        work.mkdir()
        (work / "weather.txt").write_text("sunny\n")
        for question in QUESTIONS:
            for label in ("openclaw-a", "openclaw-b"):
                model = {"id": "m", "name": "m", "contextWindow": 131072, "maxTokens": 1024}
                provider = {
                    "baseUrl": base(label), "apiKey": "x", "api": "openai-completions", "models": [model],
                }
                defaults = {"model": {"primary": "stub/m"}, "workspace": str(work)}
                config = pathlib.Path(home) / ".openclaw" / "openclaw.json"
                config.parent.mkdir(exist_ok=True)
                config.write_text(
                    json.dumps(
                        {"models": {"providers": {"stub": provider}}, "agents": {"defaults": defaults}}
                    )
                )
                subprocess.run(
                    [
                        "node", modules / "openclaw" / "openclaw.mjs", "agent", "--local",
                        "--session-id", label, "--message", question.format(label),
                    ],
                    check=True, env=os.environ | {"HOME": home}, timeout=300, stdout=subprocess.DEVNULL,
                )
    for request in Stub.log:
        body = request["body"]
        body["tools"] = [{"function": {"name": tool["function"]["name"]}} for tool in body.get("tools") or []]
        for message in body["messages"]:
            if message["role"] == "system":
                text = text_of(message)
                digest = hashlib.sha256(text.encode()).hexdigest()
                message["content"] = f"{text[:200]} [{len(text)} characters, sha256 {digest}]"


def node(client, package):
    """A client of clients.mjs."""
    modules = pathlib.Path(os.environ.get("TRACE_MODULES", "node")).resolve()

    def run(base):
        root = base("x").removesuffix("/x/v1")
        script = HERE / "clients.mjs"
        env = os.environ | {"TRACE_MODULES": str(modules)}
        subprocess.run(["node", script, client, root], check=True, env=env)

    found = modules / "node_modules" / package / "package.json"
    run.version = json.loads(found.read_text())["version"] if found.exists() else None
    return run


CLIENTS = {
    "openai": openai_sdk,
    "langchain-openai": langchain_agent,
    "litellm": litellm_client,
    "openai-agents": openai_agents,
    "openai-js": node("openai-js", "openai"),
    "ai-sdk": node("ai-sdk", "ai"),
    "openclaw": openclaw,
}


def version(name):
    if name == "openclaw":
        folder = pathlib.Path(os.environ.get("TRACE_OPENCLAW", "openclaw")) / "node_modules" / name
        return json.loads((folder / "package.json").read_text())["version"]
    return getattr(CLIENTS[name], "version", None) or importlib.metadata.version(name)


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    for name in sys.argv[1:] or CLIENTS:
        Stub.log.clear()
        CLIENTS[name](lambda label: f"http://127.0.0.1:{port}/c/{label}/v1")
        trace = {
            "client": name,
            "version": version(name),
            "requests": list(Stub.log),
        }
        (HERE / f"{name}.json").write_text(json.dumps(trace, indent=1, sort_keys=True) + "\n")
        print(f"{name} {trace['version']}: {len(trace['requests'])} requests")


main()
