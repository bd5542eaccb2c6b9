"""Valid and invalid requests, generated from the OpenAPI document: no 5xx, and invalid ones are refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.config import GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from support.access import entry, policy
from support.http_api import MODEL, Api, serving

MOST_EXAMPLES = 60
"""Examples per endpoint; with the boundary cases, there are more than 1,000 requests."""
CHECKS = "not_a_server_error,negative_data_rejection"


def document(api: Api, path: Path) -> Path:
    """Write the document to a file, with limits for short responses and with the name of the only model."""
    found: dict[str, Any] = api.get("/openapi.json").json()
    for name in ("ChatRequest", "CompletionRequest", "MessagesRequest", "TokenCountRequest"):
        properties = found["components"]["schemas"][name]["properties"]
        properties["model"]["const"] = MODEL
        for field in ("max_tokens", "max_completion_tokens"):
            for shape in properties.get(field, {}).get("anyOf", ()):
                if shape.get("type") == "integer":
                    shape["maximum"] = 4
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


@pytest.mark.faults
def test_requests_from_the_document(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    access = policy(tmp_path / "access.toml", entry("ann", "key"))
    defaults = GenerationConfig(max_tokens=2)
    with serving(decoder, access, defaults) as api:
        num_passes = decoder.engine.totals.num_passes
        path = document(api, tmp_path / "openapi.json")
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", api.url),
            *("--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", str(MOST_EXAMPLES)),
            *("--header", "Authorization: Bearer key"),
            *("--request-timeout", "60", "--suppress-health-check", "all", "--workers", "1", "--no-color"),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1_000)
        api.wait_until_idle()
        assert api.get("/healthz").status_code == 200
    assert decoder.engine.totals.num_passes > num_passes + 50  # many requests were decoded
    summary = done.stdout[-6_000:]
    assert done.returncode == 0, summary + done.stderr[-2_000:]
    counts = re.search(r"(\d+) generated", done.stdout)
    assert counts is not None, summary
    assert int(counts[1]) >= 1_000
