"""Who runs which block of the pages. What is not named here is run by ``test_follow.py``.

A page's blocks of ``bash`` and ``python`` are run in order, those with a file name behind the language are saved as
that file. All other blocks need a line here, or ``test_blocks.py`` fails.
"""

from __future__ import annotations

ELSEWHERE = {
    ("docs/verifier.md", "bash"): "tests/integration/test_verifier_docs.py::test_commands",
    ("docs/verifier.md", "python"): "tests/integration/test_verifier_docs.py::test_programs",
    ("docs/verifier.md", "jsonl"): "tests/integration/test_verifier_docs.py::test_commands",
    ("docs/verifier.md", "toml"): "tests/integration/test_verifier_docs.py::test_the_settings_file",
    ("docs/draft-model.md", "bash"): "tests/integration/test_draft_model_docs.py::test_the_page_can_be_followed",
    ("docs/draft-model.md", "python"): "tests/integration/test_draft_model_docs.py::test_the_page_can_be_followed",
    ("docs/http.md", "bash"): "tests/integration/http/test_http_docs.py::test_commands",
    ("docs/http.md", "python"): "tests/integration/http/test_http_docs.py::test_programs",
    ("docs/http.md", "json"): "tests/integration/http/test_http_docs.py::test_commands",
    ("docs/explorer.md", "bash"): "tests/integration/test_explorer_docs.py::test_the_commands_work",
    ("docs/terminal.md", "bash"): "tests/integration/test_terminal_docs.py::test_commands",
    ("docs/clients.md", "console"): "tests/integration/test_docs.py::test_the_exchange_by_hand_is_what_the_page_shows",
}
"""(page, language) -> the test that runs all blocks of that language on that page, in a manner of its own."""

ELSEWHERE_BY_LINE = {
    ("docs/sidecar.md", "[[clients]]"): "tests/integration/test_docs.py::test_the_access_file_is_one",
    (
        "docs/engines.md",
        "from llama_cpp import Llama",
    ): "tests/engines/test_llama_page.py::test_the_program_of_the_page",
    (
        "docs/engines.md",
        "from tensorrt_llm import LLM",
    ): "tests/documents/test_engines_page.py::test_the_drafter_for_tensorrt_llm_drafts",
    ("docs/security.md", "[server]"): "tests/documents/test_guides.py::test_the_settings_for_a_network_are_settings",
}
"""(page, first line of the block) -> the test that runs that block, or reads it as the program would."""

NOT_RUN = {
    ("docs/engines.md", "vllm serve MODEL \\"):
        "tests/documents/test_engines_page.py::test_the_command_for_vllm_names_what_is_there",
    ("docs/engines.md", "SPECULANT_CLIENT__ADDRESS=unix:///run/speculant/drafter.sock sglang serve MODEL \\"):
        "tests/documents/test_engines_page.py::test_the_command_for_sglang_sets_what_is_there",
    ("README.md", "make demo     # creates .venv, installs, decodes six prompts plainly and with drafts"):
        "tests/documents/test_guides.py::test_verbs_of_make_do_what_pages_say",
    ("CONTRIBUTING.md", "make setup          # .venv with everything"):
        "tests/documents/test_guides.py::test_verbs_of_make_do_what_pages_say",
    ("docs/gpt-oss.md", "python3 -m venv .venv"):
        "tests/documents/test_guides.py::test_the_installation_of_gpt_oss_names_what_is_there",
    ("deploy/README.md", "docker build -f deploy/drafter.Dockerfile -t speculant-drafter ."):
        "tests/deploy/test_files.py::test_commands_of_the_readme_name_what_is_there",
    ("deploy/README.md", "docker compose up --build                                                  # the demo"):
        "tests/deploy/test_files.py::test_commands_of_the_readme_name_what_is_there",
    ("deploy/README.md", "kubectl apply -k deploy/kubernetes"):
        "tests/deploy/test_files.py::test_commands_of_the_readme_name_what_is_there",
    ("deploy/README.md", "cp deploy/systemd/*.service /etc/systemd/system/"):
        "tests/deploy/test_files.py::test_commands_of_the_readme_name_what_is_there",
}  # fmt: skip
"""(page, first line) of blocks that no test runs, as they install everything, or want containers, a cluster or root ->
the test that looks whether what they name is there. ``test_command_line.py::test_make_demo`` runs ``make demo``, where
all is installed."""

OUTPUT = {
    ("docs/engines.md", "llama-server -m model.gguf --spec-type ngram-cache --lookup-cache-dynamic lookup.bin"),
    ("docs/experiments.md", "prompt tokens plain/s spec./s faster per step accepted RPC p50     p99 same"),
    ("docs/clients.md", "client (beside the model)                                   sidecar"),
    ("docs/clients.md", "context_lengths  6                              2           draft_lengths  3            2"),
    ("docs/clients.md", "draft_tokens    14  316  267  288  344   16                      last token sent"),
    ("docs/clients.md", "message DraftRequest {"),
    ("docs/clients.md", '{"status": "SERVING"}'),
    ("docs/sidecar.md", "[server]"),
    ("docs/sidecar.md", "19:29:25.138 DEBUG   order-17 Draft: INVALID_ARGUMENT: a session is twice in one step; "
     "send one sequence for each"),
}  # fmt: skip
"""(page, first line) of blocks that show what was printed, or draw something; their fences name no language."""

SLOW = {
    "README.md",
    "docs/corpus.md",
    "docs/graphs.md",
    "docs/python.md",
    "docs/clients.md",
    "docs/drafting.md",
    "docs/gpt-oss.md",
    "docs/offloading.md",
    "docs/operating.md",
    "docs/sidecar.md",
    "docs/sizing.md",
    "docs/transformers.md",
    "docs/tuning.md",
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
    "docs/drafting.md": [r"tree +16 "],
    "docs/graphs.md": [r"orders 1-5", r"(?i)parties"],
    "docs/gpt-oss.md": [
        r"(?m)^ok$",
        r'"role": ?"assistant"',
        r"tokens a step",
        r"speculant_verifier_passes_total [1-9]",
    ],
    "docs/engines.md": [r"lookup.bin: [1-9]\d* contexts", r"\(\d+, .*\)"],
    "docs/offloading.md": [r"read in a pass over many tokens: [\d.]+ GB", r"M parameters"],
    "docs/operating.md": [r'"completion_tokens": ?20', r'"object": ?"list"', r"invalid_api_key"],
    "docs/python.md": [r"drafted tokens accepted", r"DrafterStatistics\("],
    "docs/sidecar.md": [r"max_session_memory = 77000000", r"(?m)^[0-9a-f]{64}  -$", r'"generation": 2'],
    "docs/sizing.md": [
        r"bytes a token|bytes per",
        r"2000 tokens: 45056 bytes",
        r"RPC|echo",
        r"\d+ tokens: [1-9]\d* bytes",
    ],
    "docs/transformers.md": [r"(?m)^1 .+", r"\[\(\d+, \d+\)"],
    "docs/tuning.md": [r"tree +32 ", r"×1\.00", r"bench generate"],
}
"""What a page's blocks print, as patterns, each found once or more."""
