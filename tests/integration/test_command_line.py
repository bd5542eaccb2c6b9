"""``speculant`` as used by people and scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from speculant_graph.cli.graphs import BuildSettings
from speculant_graph.cli.main import COMMANDS, main
from speculant_graph.settings import load_settings
from speculant_verifier.cli.generate import GenerateSettings
from speculant_verifier.demo.run import MODEL_FOLDER
from support.pages import ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_reader_that_leaves_is_no_error(elsewhere: Path) -> None:
    (elsewhere / "text.txt").write_text("one two three " * 9, encoding="utf-8")
    assert main(["build", "text.txt", "--tokenizer", str(MODEL_FOLDER), "-o", "g.pkl"]) == 0
    command = [sys.executable, "-m", "speculant_graph.cli.main", "inspect", "g.pkl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()  # long before it writes
    _, shown = process.communicate()
    assert (process.returncode, shown) == (0, "")


def test_ctrl_c_while_the_program_is_being_imported() -> None:
    result = python(
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'speculant_graph': os.kill(os.getpid(), signal.SIGINT)\n"
        "import speculant\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "sys.argv = ['speculant', 'build', '--help']\n"
        "sys.exit(speculant.main())"
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "speculant: interrupted\n")


def test_help_of_commands_needs_no_torch() -> None:
    result = python(
        "import sys\nfrom speculant_graph.cli.main import COMMANDS, main\n"
        "for command in COMMANDS:\n"
        "    try: main([command, '--help'])\n    except SystemExit as end: assert not end.code, (command, end.code)\n"
        "    heavy = {'torch', 'transformers', 'numpy', 'grpc', 'networkx'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)"
    )
    assert result.returncode == 0, result.stderr
    assert all(f"usage: speculant {command} " in result.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bulid"], "no command 'bulid'"),
        (["build", "nowhere.txt", "--tokenizer", str(MODEL_FOLDER)], "nowhere.txt does not exist"),
        (["build", "x", "--max-order", "11"], "build: graph.max_order: must be"),
        (["build", __file__, "--tokenizer", "."], "tokenizer.json; set graph.tokenizer_name to"),
        (["inspect", "no\x1b[31m\nwhere.pkl"], r"no\x1b[31m\nwhere.pkl"),
        (["generate", "x", "--graph", "nowhere.pkl", "--model", str(MODEL_FOLDER)], "nowhere.pkl can't be opened"),
        (["drafter", "--listen", "nonsense"], "server.listen: 'nonsense' is not an address; write host:port, [::1]"),
        (["build", "x", "--max-oder", "4"], "unknown arguments: --max-oder 4; is it --max-order? See speculant build"),
        (
            ["drafter", "--strategy", "nasd"],
            "drafter: draft.strategy: must be 'greedy', 'sampling', 'adaptive', 'tree' or",
        ),
        (["admin", "lsit"], "admin: action: must be 'list', 'reload' or"),
    ],
)
def test_user_errors_are_one_line(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (1, 2)
    shown = capfd.readouterr().err
    assert message in shown
    assert shown.startswith("speculant: ")
    assert len(shown.splitlines()) == 1, shown


def test_flags_beat_environment_beats_file_beats_defaults(elsewhere: Path, monkeypatch) -> None:
    def max_order(*flags: str) -> int:
        return load_settings(BuildSettings, "build", ["text.txt", *flags]).graph.max_order

    assert max_order() == 5
    (elsewhere / "speculant.toml").write_text("[graph]\nmax_order = 2\n[draft]\nk = 3\n", encoding="utf-8")
    assert max_order() == 2
    monkeypatch.setenv("SPECULANT_GRAPH__MAX_ORDER", "3")
    assert max_order() == 3
    assert max_order("--max-order", "4") == 4
    assert max_order("--graph.max-order=1") == 1


def test_a_missing_extra_names_the_command_to_type() -> None:
    result = python(
        "import sys\nsys.modules['torch'] = None\nimport speculant_graph\n"
        "try: speculant_graph.SpeculativeDecoder\n"
        "except ImportError as error: print(error)\n"
    )
    assert 'pip install "speculant-graph[verifier]"' in result.stdout, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--draft-model"]])
def test_demo(more: list[str]) -> None:
    """The complete demo, with short texts."""
    command = [sys.executable, "-m", "speculant_graph.cli.main", "demo", "--rounds", "1", "--json", *more]
    result = subprocess.run([*command, "--max-tokens", "32"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("demo:    graph of ")
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["identical"] is True
    assert ("draft model: " in result.stdout) == bool(more)
    assert report["mean_accepted_tokens"] > 1
    assert report["steps_without_drafter"] < 5, "one that a busy machine delays is none that fails"
    keys = {"identical", "speedup", "plain_tokens_per_s", "speculative_tokens_per_s", "mean_accepted_tokens",
            "acceptance_rate", "draft_us_p50", "draft_us_p99"}  # fmt: skip
    assert keys | {"prompts", "machine", "command"} <= report.keys()
    assert all(keys <= prompt.keys() for prompt in report["prompts"])


@pytest.mark.slow
def test_make_demo() -> None:
    """The README's first command, unchanged; skipped unless everything is installed."""
    if subprocess.run(["make", "--question", ".venv/.installed"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("there is no .venv here that is up to date; run make setup")
    result = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every text is identical to plain decoding\n" in result.stdout  # an outer make adds a line


@pytest.mark.parametrize(
    "text",
    [
        "x = [1, 2]",
        'say "hi"',
        "None",
    ],
)
def test_prompts_and_paths_are_taken_as_typed(text: str) -> None:
    settings = load_settings(GenerateSettings, "generate", ["--max-tokens", "3", text, "-k", "2"])
    assert settings.prompt == [text]
    assert load_settings(GenerateSettings, "generate", ["x", "--stop", text, "--stop", "b"]).generation.stop == (
        text,
        "b",
    )
    assert (settings.generation.max_tokens, settings.draft.k) == (3, 2)
    assert load_settings(BuildSettings, "build", [text, "x"]).corpus == [Path(text), Path("x")]


def test_secrets_are_never_shown(elsewhere: Path, capsys) -> None:
    (elsewhere / "speculant.toml").write_text('[graph]\nhf_token = ["hf_SECRET"]', encoding="utf-8")
    assert main(["build", "x"]) == 2
    assert "SECRET" not in capsys.readouterr().err
