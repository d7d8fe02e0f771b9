#!/usr/bin/env python3
"""Reads episodes with the programs whose formats they are in: lines of JSON, as `hone export trajectories` writes them.

    check.py atif FILE | openenv FILE | verifiers FILE
"""

import json
import sys


def atif(episode):
    from harbor.models.trajectories import Trajectory

    trajectory = Trajectory.model_validate(episode)
    again = trajectory.to_json_dict()
    assert [step["step_id"] for step in again["steps"]] == list(range(1, len(again["steps"]) + 1))
    return f"{len(trajectory.steps)} steps"


def openenv(episode):
    from openenv.core.harness.rollout import TraceEntry

    known = set(TraceEntry.__annotations__)
    for entry in episode:
        unknown = set(entry) - known
        assert not unknown, f"no fields of a TraceEntry: {unknown}"
        prompt, completion = entry["prompt_token_ids"], entry["completion_token_ids"]
        assert len(entry["loss_mask"]) == len(prompt) + len(completion)
        assert not any(entry["loss_mask"][: len(prompt)])
        if "per_token_logps" in entry:
            assert len(entry["per_token_logps"]) == len(completion)
        else:
            assert not any(entry["loss_mask"])
    return f"{len(episode)} calls"


def verifiers(episode):
    from verifiers.v1.episode import WireEpisode

    read = WireEpisode.model_validate(episode)
    [trace] = read.traces
    for branch in trace.branches:
        assert len(branch.token_ids) == len(branch.sampled_mask) == len(branch.logprobs)
    sampled = [node for node in trace.nodes if node.sampled]
    assert len(sampled) == len(trace.calls)
    for node, call in zip(sampled, trace.calls):
        assert trace.nodes[call.node] is node
        assert len(node.logprobs) == sum(node.mask)
    return f"{len(trace.nodes)} nodes, {len(trace.branches)} branches, reward {trace.reward}"


def main():
    kind, path = sys.argv[1:]
    with open(path) as lines:
        episodes = [json.loads(line) for line in lines if line.strip()]
    assert episodes, f"{path} is empty"
    for episode in episodes:
        print(kind, {"atif": atif, "openenv": openenv, "verifiers": verifiers}[kind](episode))


main()
