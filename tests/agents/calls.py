"""How many of the calls that a real model writes arrive as calls, and how many arrive that it did not write.

    HONE=target/debug/hone python3 tests/agents/calls.py MODEL [TASKS]

Every task needs one call of one of three offered tools, and every question needs none. A call counts as
written where the raw text names the right tool in something that looks like a call.
"""

import json
import pathlib
import re
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server import start

CITIES = ["Rome", "Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Riga", "Turin", "Perth", "Delhi"]
NAMES = ["Ann", "Bob", "Eve", "Max", "Ida", "Leo", "Mia", "Tom", "Zoe", "Kim"]


def tool(name, about, **properties):
    parameters = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = [
    tool("get_weather", "Tells the weather of a city.", city="string"),
    tool("send_mail", "Sends a mail to a person.", to="string", text="string"),
    tool("read_file", "Reads a file.", path="string"),
]
TASKS = (
    [("get_weather", f"What is the weather in {city} right now?") for city in CITIES]
    + [("get_weather", f"Look up whether it rains in {city}.") for city in CITIES]
    + [("get_weather", f"I travel to {city}. Check the weather there for me.") for city in CITIES]
    + [("send_mail", f"Send a mail to {name} that says I am late.") for name in NAMES]
    + [("send_mail", f"Mail {name}: the meeting is at noon.") for name in NAMES]
    + [("send_mail", f"Please tell {name} by mail that lunch is ready.") for name in NAMES]
    + [("read_file", f"Read the file {name.lower()}.txt.") for name in NAMES]
    + [("read_file", f"Show me what is in notes/{name.lower()}.md.") for name in NAMES]
    + [("read_file", f"Open {city.lower()}.csv and read it.") for city in CITIES]
    + [("read_file", f"I need the contents of /etc/{city.lower()}.conf.") for city in CITIES]
)
QUESTIONS = (
    [f"In which country is {city}? Answer in one sentence." for city in CITIES]
    + [f"Write a short rhyme with the name {name}." for name in NAMES]
    + [f"How many letters has the word {city}?" for city in CITIES]
    + [f"Say hello to {name}." for name in NAMES]
    + [f"What is {at} plus {at + 3}?" for at in range(10)]
    + [f"Give a JSON object with the keys name and age for {name}, aged 30." for name in NAMES]
    + [f"Explain in one sentence what a file named {name.lower()}.txt may be." for name in NAMES]
    + [f"Translate '{word}' to French." for word in ("cat", "dog", "sun", "sea", "tree", "bread", "milk", "house", "road", "night")]
    + [f"Name a color and an animal that begin with {chr(97 + at)}." for at in range(10)]
    + [f"Is {at} a prime number?" for at in range(10, 20)]
)


def is_written(raw):
    """Whether a completion holds a call of an offered tool with arguments."""
    names = "|".join(tool["function"]["name"] for tool in TOOLS)
    return bool(re.search(r'"name"\s*:\s*"(%s)"\s*,\s*"(arguments|parameters)"\s*:\s*\{' % names, raw))


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    step = max(1, 100 // count)
    with tempfile.TemporaryDirectory() as data:
        child, url = start(data, "--model", sys.argv[1])
        try:
            name = json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]

            def ask(text):
                body = {"model": name, "messages": [{"role": "user", "content": text}], "tools": TOOLS,
                        "temperature": 0, "max_tokens": 96, "turn_type": "side"}
                request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
                reply = json.load(urllib.request.urlopen(request, timeout=120))
                turn = json.load(urllib.request.urlopen(url + "/v1/turns/" + reply["hone"]["turn_id"]))
                return reply["choices"][0]["message"], turn["completion"]

            written = arrived = false = told_right = unasked = 0
            for wanted, text in TASKS[::step]:
                message, raw = ask(text)
                calls = [call["function"]["name"] for call in message.get("tool_calls") or []]
                looks = is_written(raw)
                written += bool(looks)
                arrived += bool(calls)
                told_right += calls[:1] == [wanted]
                if looks and not calls:
                    print("missed:", json.dumps(message.get("content"))[:300], flush=True)
            for text in QUESTIONS[::step]:
                message, raw = ask(text)
                unasked += is_written(raw)
                if message.get("tool_calls") and not is_written(raw):
                    false += 1
                    print("not written:", text, raw[:300], flush=True)
            print(f"{len(TASKS[::step])} tasks: {written} calls written, {arrived} arrived, {told_right} of the right tool; "
                  f"{len(QUESTIONS[::step])} questions: the model wrote {unasked} calls, {false} arrived that it did not write")
        finally:
            child.terminate()
            child.wait(timeout=120)


main()
