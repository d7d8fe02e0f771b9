"""What a generator cannot guess is put into its cases: names of models, messages, ids that exist.

Every third case keeps what was generated, so that nonsense is sent as well.
"""

import json
import os
import random

import schemathesis

KNOWN = json.loads(os.environ["HONE_KNOWN"])
MESSAGES = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "user", "content": [{"type": "text", "text": "\u0000 and \U0001f980"}]}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Go on."},
    ],
]


def fill_body(body, path, chance):
    """Real values for some of the fields that only a reader of the manual knows."""
    if "model" in body:
        body["model"] = KNOWN["model"]
    if "messages" in body:
        body["messages"] = chance.choice(MESSAGES)
    if "input" in body and path != "/v1/embeddings":
        body["input"] = chance.choice(["Hello!", [{"role": "user", "content": "Hello!"}]])
    elif "input" in body or "prompt" in body:
        body["input" if "input" in body else "prompt"] = chance.choice(["Hi", [1, 2, 3], ["a", "b"]])
    if "turn_id" in body:
        body["turn_id"] = KNOWN["turn"]
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int) and body[name] > 0:
            body[name] = chance.randint(1, 64)
    if isinstance(body.get("n"), int) and body["n"] > 16:
        body["n"] = 2


def fill_path(parameters, path):
    if "{id}" not in path:
        return
    for part, name in {"turns": "turn", "sessions": "session", "models": "model", "keys": "key"}.items():
        if f"/{part}/" in path:
            parameters["id"] = KNOWN[name]


@schemathesis.hook
def before_call(context, case, **kwargs):
    chance = random.Random(repr((case.path, case.body, case.path_parameters)))
    if chance.random() < 1 / 3:
        return
    if isinstance(case.body, dict):
        fill_body(case.body, case.path, chance)
    # Revoking the one known key would leave nothing to look at.
    if isinstance(case.path_parameters, dict) and case.method != "DELETE":
        fill_path(case.path_parameters, case.path)
