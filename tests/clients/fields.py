"""Every field that the installed official libraries can send is in the table of what becomes of it."""

import pathlib
import re
import typing

import anthropic.types
import anthropic.types.beta
import anthropic.types.message_create_params
import anthropic.types.beta.message_create_params
import openai.types.chat.completion_create_params
import openai.types.completion_create_params
import openai.types.responses.response_create_params

TABLES = pathlib.Path(__file__).resolve().parents[2] / "server/api/src/tests/fields.rs"
# What every request has, so it needs no row; `betas` is a header.
PLAIN = {"model", "messages", "input", "prompt", "betas"}


def documented(*types):
    return {name for kind in types for name in typing.get_type_hints(kind, include_extras=True)}


def tables():
    text = TABLES.read_text()
    found = re.findall(r'const (\w+): &str = r#"\n(.*?)"#;', text, re.S)
    return {name: {line.split(" | ")[0] for line in rows.splitlines()} for name, rows in found}


def check_fields(check):
    chat = openai.types.chat.completion_create_params
    responses = openai.types.responses.response_create_params
    text = openai.types.completion_create_params
    messages = anthropic.types.message_create_params
    beta = anthropic.types.beta.message_create_params
    known = tables()
    for name, fields in {
        "CHAT": documented(
            chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming
        ),
        "RESPONSES": documented(
            responses.ResponseCreateParamsNonStreaming, responses.ResponseCreateParamsStreaming
        ),
        "MESSAGES": documented(
            messages.MessageCreateParamsStreaming, beta.MessageCreateParamsStreaming
        ),
        "COMPLETIONS": documented(text.CompletionCreateParamsStreaming),
    }.items():
        plain = PLAIN - {"prompt"} if name == "RESPONSES" else PLAIN
        missing = sorted(fields - plain - known[name])
        check(f"the table of fields is whole: {name}, {len(fields)}", not missing, missing)
