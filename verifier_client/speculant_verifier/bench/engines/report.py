"""How ``speculant bench engines`` looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant_graph.bench.report import print_report


def print_engines(results: Sequence[dict[str, Any]], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print a line for each engine, batch size and way of drafting, with both rounds in it."""
    rows: list[tuple[str, str]] = [("", "tokens a pass; tokens/s (against none), round after round; propose p50, p99")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        if "skipped" in result:
            rows.append((f"{result['engine']} {result.get('method', '')}".strip(), result["skipped"]))
        else:
            groups.setdefault((result["engine"], result["batch"], result["method"]), []).append(result)
    for (engine, batch, method), rounds in groups.items():
        figures = "; ".join(
            f"{of['tokens_per_pass']:.2f}, {of['tokens_per_s']:.0f} (×{of['speedup']:.2f})" for of in rounds
        )
        last = rounds[-1]
        if last["propose_us_p50"] is not None:
            figures += f"; {last['propose_us_p50']:.0f}, {last['propose_us_p99']:.0f} µs"
        if not all(of["identical"] for of in rounds):
            figures += "; TOKENS DIFFER"
        rows.append((f"{engine}, batch {batch}: {method}", figures))
    print_report("engines", rows, {"results": list(results)}, arguments, as_json=as_json)
