#!/usr/bin/env python3
"""Writes atif.schema.json beside this file: the JSON schema of an ATIF trajectory, made from Harbor's own model.

    python3.12 -m venv /tmp/formats && /tmp/formats/bin/pip install -r tests/formats/requirements.txt
    /tmp/formats/bin/python tests/formats/make_schema.py
"""

import json
import pathlib

from harbor.models.trajectories import Trajectory

out = pathlib.Path(__file__).with_name("atif.schema.json")
schema = Trajectory.model_json_schema()


def bare(value):
    """Without descriptions and titles, which say nothing that is checked."""
    if isinstance(value, dict):
        # `properties` holds names of fields, which may be called the same.
        return {
            key: {name: bare(one) for name, one in inner.items()} if key in ("properties", "$defs") else bare(inner)
            for key, inner in value.items()
            if key not in ("description", "title")
        }
    if isinstance(value, list):
        return [bare(one) for one in value]
    return value


out.write_text(json.dumps(bare(schema), indent=1, sort_keys=True) + "\n")
print(f"{out}: {out.stat().st_size} bytes")
