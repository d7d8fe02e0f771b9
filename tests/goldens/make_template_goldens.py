"""Makes the goldens of chat templates: what the transformers library's `apply_chat_template` renders.

    pip install jinja2
    python tests/goldens/make_template_goldens.py

The environment is built as that library builds it (its `utils/chat_template_utils.py`): a sandbox
without assignments to objects, blocks trimmed, `tojson` as plain `json.dumps`, undefined variables
that print nothing. The clock stands at 2023-11-14 22:13:20 UTC.

templates.json holds
    variables      what every expression sees
    expressions    [source, text], or [source, null] where Python ends in an error
    templates      name: source, in the manner of the families in use, in words of our own
    conversations  name: variables of a rendering
    renderings     [template, conversation, text], or [template, conversation, null, message] where
                   it is refused with `raise_exception(message)`, or an error (message null)

Rows on which this project differs on purpose (filters and calls whose cost cannot be limited), and
those whose text holds an address, are left out.
"""

import copy
import datetime
import json
import pathlib
import re

import jinja2
import jinja2.ext
import jinja2.sandbox
from template_expressions import EXPRESSIONS, VARIABLES
from template_families import CONVERSATIONS, TEMPLATES

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2023, 11, 14, 22, 13, 20)


class Refused(Exception):
    pass


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message):
        raise Refused(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(source, variables):
    """Text, and the message of a refusal."""
    try:
        return environment().from_string(source).render(**copy.deepcopy(variables)), None
    except Refused as refusal:
        return None, str(refusal)
    except Exception:  # any of Python's own errors, from any operation
        return None, None


def main():
    expressions = []
    for source in dict.fromkeys(EXPRESSIONS):
        text, _ = render(source, VARIABLES)
        if not re.search(r" at 0x|object at|<bound|<built|<function|<Macro|<jinja2|[0-9]j\)$", text or ""):
            expressions.append([source, text])
    renderings = []
    for template, source in TEMPLATES.items():
        for name, variables in CONVERSATIONS.items():
            base = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"}
            text, message = render(source, base | variables)
            renderings.append([template, name, text] + ([message] if text is None else []))
    goldens = {
        "variables": VARIABLES,
        "expressions": expressions,
        "templates": TEMPLATES,
        "conversations": CONVERSATIONS,
        "renderings": renderings,
    }
    rows = {
        key: "[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in value) + "\n]"
        if isinstance(value, list)
        else json.dumps(value, ensure_ascii=False)
        for key, value in goldens.items()
    }
    text = "{\n" + ",\n".join(f"{json.dumps(k)}: {v}" for k, v in rows.items()) + "\n}\n"
    (HERE / "templates.json").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
