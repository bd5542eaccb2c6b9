"""The test that runs each block of the pages. ``test_follow.py`` runs all blocks not listed here.

It runs a page's ``bash`` and ``python`` blocks in order. A block with a file name after the language is saved as that
file, and a block without a language shows printed output. All other blocks need an entry here.
"""

from __future__ import annotations

ELSEWHERE = {
    ("docs/clients.md", "console"): "tests/integration/test_docs.py",
    ("docs/sidecar.md", "toml"): "tests/integration/test_docs.py",
    ("docs/engines.md", "from llama_cpp import Llama"): "tests/engines/test_llama_page.py",
    ("docs/engines.md", "from tensorrt_llm import LLM"): "tests/documents/test_engines_page.py",
    ("docs/security.md", "toml"): "tests/documents/test_names.py",
}
"""(page, language or first line of the block) -> the test file that runs the block, or parses it like the program."""

NOT_RUN = {
    ("docs/engines.md", "vllm serve MODEL \\"),
    ("docs/engines.md", "SPECULANT_CLIENT__ADDRESS=unix:///run/speculant/drafter.sock sglang serve MODEL \\"),
    ("docs/gpt-oss.md", "python3 -m venv .venv"),
    ("docs/corpus.md", "speculant build /shared/text --ray head:6379 --tokenizer my-model -o graph.pkl"),
    ("docs/corpus.md", "speculant drafter --graph s3://bucket/graph.pkl --admin-listen 127.0.0.1:50052"),
    ("docs/offloading.md", "python tests/perf/packed.py FOLDER --budget 6GB --nodes 0 16 64 --passes 4"),
}
"""(page, first line) of bash blocks that would install or start missing programs, or take half an hour."""

SLOW = {
    "README.md",
    "docs/corpus.md",
    "docs/graphs.md",
    "docs/python.md",
    "docs/clients.md",
    "docs/draft-model.md",
    "docs/drafting.md",
    "docs/explorer.md",
    "docs/fleet.md",
    "docs/gpt-oss.md",
    "docs/http.md",
    "docs/offloading.md",
    "docs/operating.md",
    "docs/sidecar.md",
    "docs/sizing.md",
    "docs/terminal.md",
    "docs/transformers.md",
    "docs/tuning.md",
    "docs/verifier.md",
}
"""Pages that start models or take longer than ten seconds."""

EXPECTED: dict[str, list[str]] = {
    "README.md": [
        r'"completion_tokens": ?40',
        r"it drafts 8 tokens",
        r"ok +drafter +unix://",
        r"drafted tokens accepted",
    ],
    "docs/clients.md": [
        r'"status": ?"SERVING"',
        r'"corpusTokens"',
        r"28 tokens in \d+ steps",
        r"20 tokens in \d+ steps",
    ],
    "docs/corpus.md": [
        r"tree +16 ",
        r"3 conversations, [1-9]\d+ tokens",
        r"orders 1-5",
        r"\"generation\": 2",
        r"(?i)parties",
    ],
    "docs/draft-model.md": [r"gate, \d+ requests of \d+ documents", r"adapter adapter, sha256", r"(?m)^better: "],
    "docs/drafting.md": [r"tree +16 "],
    "docs/graphs.md": [r"orders 1-5", r"(?i)parties"],
    "docs/explorer.md": [r'"strategy": ?"tree"', r'"text": ?"The parties"'],
    "docs/fleet.md": [r"(?m)^127\.0\.0\.1:\d+: SERVING$", r"\{'127\.0\.0\.1:\d+': [0-4],"],
    "docs/http.md": [
        r'"completion_tokens": ?20',
        r"(?m)^data: \[DONE\]$",
        r"20 tokens in \d+ steps",
        r"max_tokens - ",
        r'"code": ?"unsupported_parameter"',
    ],
    "docs/gpt-oss.md": [
        r"(?m)^ok$",
        r'"role": ?"assistant"',
        r"tokens a step",
        r"speculant_verifier_passes_total [1-9]",
    ],
    "docs/engines.md": [r"lookup.bin: [1-9]\d* contexts", r"\[\[.*\]"],
    "docs/offloading.md": [r"read in a pass over many tokens: [\d.]+ [MG]B", r"M parameters"],
    "docs/operating.md": [r'"completion_tokens": ?20', r'"object": ?"list"', r"invalid_api_key"],
    "docs/python.md": [r"drafted tokens accepted", r"DrafterStatistics\("],
    "docs/sidecar.md": [r"max_session_memory = 77000000", r"(?m)^[0-9a-f]{64}  -$", r'"generation": 2'],
    "docs/sizing.md": [
        r"bytes a token|bytes per",
        r"2000 tokens: 45056 bytes",
        r"RPC|echo",
        r"\d+ tokens: [1-9]\d* bytes",
    ],
    "docs/terminal.md": [r'"token_ids"', r"ok +graph", r"ok +drafter", r'"healthy": ?true'],
    "docs/transformers.md": [r"(?m)^1 .+", r"\[\(\d+, \d+\)"],
    "docs/verifier.md": [
        r"--- prompt 1, sample",
        r'"logprobs"',
        r"passes, [1-9]\d* tokens without one",
        r"error - the prompt is empty",
        r"drafted .* and the target wrote",
    ],
    "docs/tuning.md": [r"tree +32 ", r"relative", r"bench generate"],
}
"""Page -> patterns of its blocks' output; each must match at least once."""
