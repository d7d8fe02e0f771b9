"""The Model Context Protocol's own client against `/mcp`, in both generations of the protocol."""

import asyncio

from mcp import Client, MCPError

# What every server of the newer generation is asked first, and a version that begins with a handshake.
MODES = ["auto", "legacy"]


async def use(base, mode, check):
    async with Client(base + "/mcp", mode=mode) as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        check(f"mcp {mode} lists tools ({client.protocol_version})", tools == ["feedback", "memory_forget", "memory_note", "memory_search", "skill_load", "skill_search"], tools)
        text = f"Remember that my {mode} boat is called Rosalind."
        noted = (await client.call_tool("memory_note", {"text": text})).structured_content
        check(f"mcp {mode} notes a memory", noted["text"] == text, noted)
        found = await client.call_tool("memory_search", {"query": f"the {mode} boat", "limit": 1})
        found = found.structured_content["memories"]
        check(f"mcp {mode} finds it", [one["id"] for one in found] == [noted["id"]], found)
        secret = await client.call_tool("memory_note", {"text": "Remember my card 4111 1111 1111 1111."})
        check(f"mcp {mode} keeps no secret", secret.is_error and "card" in secret.content[0].text, secret)
        gone = await client.call_tool("memory_forget", {"id": noted["id"]})
        check(f"mcp {mode} forgets it", gone.structured_content["forgotten"] == 1, gone)
        found = (await client.call_tool("memory_search", {"query": "boat"})).structured_content
        check(f"mcp {mode} finds it no more", found["memories"] == [], found)
        try:
            unknown = await client.call_tool("no_such_tool", {})
            check(f"mcp {mode} refuses an unknown tool", False, unknown)
        except MCPError as error:
            check(f"mcp {mode} refuses an unknown tool", "memory_search" in str(error), error)


def mcp_client(base, check):
    for mode in MODES:
        asyncio.run(use(base, mode, check))
