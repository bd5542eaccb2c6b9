"""``speculant bench offload``: a model that memory does not hold, plainly, with drafts, and by accelerate's offloading.

Weights are random unless a model is named: what a pass takes does not depend on them. What is decoded are recorded
outputs, forced upon the model; their tokens are numbered anew, so that a small vocabulary suffices. Every way has a
process of its own, so that its memory can be told, and bounded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field
from pydantic_settings import CliVariadicArg

from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

_WAYS = "speculant_verifier.bench.offload_ways"


class BenchOffloadSettings(CommandSettings):
    """Decode recorded outputs with a model that a budget of memory does not hold, and with the same one in memory.

    Plainly and with trees of so many nodes, and plainly with accelerate's disk offloading under the same budget. The
    exit status is 1 if a logit differs.
    """

    replay: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines with the texts 'prompt' and 'output'. Each file is a workload."""
    tokenizer: str
    """Tokenizer of the recorded outputs: a folder."""
    model: Path | None = None
    """Folder of a checkpoint whose tokenizer that is; else one of random weights is made."""
    family: Literal["llama", "gpt-oss"] = "llama"
    """Of random weights."""
    size: ByteSize = ByteSize(3_000_000_000)
    """Of random weights, in bfloat16."""
    ram_budget: ByteSize = ByteSize(1_000_000_000)
    """Memory that the process may take."""
    nodes: list[int] = [16, 64, 256, 1024]  # noqa: RUF012 - every instance gets its own copy
    """Most nodes of trees."""
    limit: Annotated[int, Field(ge=1)] = 4
    """Outputs of each file."""
    max_tokens: Annotated[int, Field(ge=8)] = 200
    """Most tokens of each, at least 8."""
    cgroup: Path | None = None
    """Folder of a control group with a bound of memory, which the ways with a budget join."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if offloading changed a logit."""
    settings = load_settings(BenchOffloadSettings, "bench offload", arguments)
    from speculant_graph.bench.replay_progress import show_progress

    with show_progress() as progress, tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        figures: dict[str, Any] = {"budget_bytes": int(settings.ram_budget), "family": settings.family}
        wanted = settings.model_dump(mode="json", exclude={"json_output"}) | {"folder": folder}
        for way, words in (
            ("weights", "writing random weights"),
            ("streamed", "decoding with a part of the weights in memory: some minutes"),
            ("accelerate", "decoding with accelerate's offloading"),
            ("resident", "decoding with all weights in memory"),
        ):
            progress.begin(words)
            figures |= _run_way(way, wanted)
    for name in ("pass", "wide_pass"):
        bound_ms = max(figures[f"resident_{name}_ms"], figures[f"read_{name}_ms"])
        figures[f"{name}_over_bound"] = figures[f"stream_{name}_ms"] / bound_ms
    _print(figures, arguments, as_json=settings.json_output)
    return int(not figures["identical"])


def _run_way(way: str, wanted: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", _WAYS, way, json.dumps(wanted)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise ConfigError(f"{way}: {last.partition('ConfigError: ')[2] or last}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _pass(figures: dict[str, Any], name: str) -> str:
    numbers = ", ".join(f"{figures[f'{way}_{name}_ms']:.0f}" for way in ("stream", "resident", "read"))
    return f"{numbers}, ×{figures[f'{name}_over_bound']:.2f}"


def _print(figures: dict[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    from speculant_graph.bench.report import print_report

    rows = [
        *figures["plan"].items(),
        ("most memory without file pages", f"{figures['peak_bytes'] / 1e9:.2f} GB"),
        ("disk", f"{figures['bytes_per_s'] / 1e9:.2f} GB/s, of which decoding used {figures['bandwidth_share']:.0%}"),
        ("a pass, ms", "streamed, computing, reading, streamed over the larger of both"),
        *(
            (f"  {words}", _pass(figures, name))
            for name, words in (("pass", "one token"), ("wide_pass", "widest tree"))
        ),
        *(
            [("experts that a token chooses", f"{figures['pass_bytes'] / chosen:.2f} of their bytes are read for it")]
            if (chosen := figures["chosen_bytes"])
            else []
        ),
        ("a pass by accelerate's disk offloading, one token", f"{figures['accelerate_pass_ms']:.0f} ms"),
        ("most nodes", "tokens a pass, tokens/s, speed, waiting"),
    ]
    for each in figures["results"]:
        numbers = f"{each['tokens_per_pass']:.2f}, {each['tokens_per_s']:.2f}"
        shares = f"×{each['speedup']:.2f}, {each['stall_share']:.0%}"
        rows.append((f"{each['workload']}, {each['nodes'] or 'no drafts'}", f"{numbers}, {shares}"))
    rows.append(("logits identical to those in memory", "yes" if figures["identical"] else "NO"))
    print_report("offload", rows, figures, arguments, as_json=as_json)
