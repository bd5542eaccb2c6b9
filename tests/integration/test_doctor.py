"""``speculant doctor``: what it says of things that work, and of things that do not."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.cli.checks.finding import Finding, guarded
from speculant_graph.cli.checks.libraries import check_libraries
from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.version import VERSION
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from support.http_api import serving
from support.sidecar import Sidecar
from support.tiny_models import tiny_gpt_oss


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examined(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Return what it finds, by check."""
    capsys.readouterr()
    assert main(["doctor", *arguments, "--json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is (status == 0)
    assert (status == 0) is all(each["status"] != "fail" for each in report["checks"])
    assert all(each["remedy"] for each in report["checks"] if each["status"] in ("warn", "fail"))
    return {each["check"]: each for each in report["checks"]}


def test_what_is_not_named_is_skipped_and_said_so(capsys) -> None:
    found = examined(capsys)
    for check, flag in {
        "model": "--model", "graph": "--graph-path", "drafter": "--address", "verifier": "--verifier", "http": "--url"
    }.items():  # fmt: skip
        assert found[check]["status"] == "skip"
        assert flag in found[check]["detail"]
    assert found["speculant-graph"]["detail"] == VERSION
    for check in ("python", "libraries", "extras", "torch", "gpu", "settings"):
        assert found[check]["status"] == "ok", found[check]


def test_a_sidecar_is_measured_by_real_drafts(capsys, graph_path: Path, shared_sidecar: Sidecar) -> None:
    found = examined(capsys, "--graph-path", str(graph_path), "--verify", "--address", shared_sidecar.address)
    assert "all of it checked" in found["graph"]["detail"]
    assert found["drafter"]["detail"] == f"{shared_sidecar.address} serves"
    assert found["drafter graph"]["detail"].startswith(
        "the default: generation 1, orders 1-4, tokenizer tests/alphabet"
    )
    assert found["drafter graphs"]["status"] == "skip"
    assert found["drafter version"]["detail"] == f"{VERSION}, as here"
    assert "200 of up to 8 nodes (tree): p50 " in found["drafts"]["detail"]
    assert found["tokenizers"]["status"] == "ok"
    assert "the graph, the drafter at unix://" in found["tokenizers"]["detail"]
    assert "(mode 700, folder " in found["drafter socket"]["detail"]


def test_graphs_are_listed_at_the_admin_address(capsys, run_sidecar, tmp_path: Path) -> None:
    run_sidecar(admin_listen=f"unix://{tmp_path}/admin.sock")
    found = examined(capsys, "--admin-address", f"unix://{tmp_path}/admin.sock")
    assert "small: generation 1, " in found["drafter graphs"]["detail"]
    found = examined(capsys, "--admin-address", f"unix://{tmp_path}/drafter.sock", status=1)
    assert found["drafter graphs"]["status"] == "fail"


def test_a_drafter_that_serves_nothing_yet_is_no_failure(capsys, run_sidecar, tmp_path: Path) -> None:
    sidecar = run_sidecar(admin_listen=f"unix://{tmp_path}/admin.sock")
    assert main(["admin", "unload", "small", "--address", f"unix://{tmp_path}/admin.sock"]) == 0
    capsys.readouterr()
    drafter = examined(capsys, "--address", sidecar.address)["drafter"]
    assert drafter["status"] == "warn"
    assert "does not serve now" in drafter["detail"]
    assert "wait" in drafter["remedy"]


def test_tokenizers_that_differ_are_found(capsys, graph_path: Path, shared_sidecar: Sidecar) -> None:
    arguments = ["--model", str(MODEL_FOLDER), "--graph-path", str(graph_path), "--address", shared_sidecar.address]
    found = examined(capsys, *arguments, status=1)
    assert found["model"]["status"] == "ok"
    assert "5.7M parameters" in found["model size"]["detail"]
    assert found["tokenizers"]["status"] == "fail"
    assert "the graph has 'tests/alphabet'" in found["tokenizers"]["detail"]
    assert f"--tokenizer {MODEL_FOLDER}" in found["tokenizers"]["remedy"]


def test_a_model_that_is_named_is_loaded_with_verify(capsys) -> None:
    found = examined(capsys, "--model", str(MODEL_FOLDER), "--verify", "--num-threads", "1")
    assert "loaded on cpu" in found["model"]["detail"]


def test_what_is_broken_is_told_with_what_mends_it(capsys, elsewhere: Path) -> None:
    (elsewhere / "bad.pkl").write_bytes(b"no graph")
    (elsewhere / "no.sock").write_text("", encoding="utf-8")
    (elsewhere / "empty").mkdir()
    (elsewhere / "empty" / "config.json").write_text("{}", encoding="utf-8")
    found = examined(
        capsys, "--graph-path", "bad.pkl", "--address", f"unix://{elsewhere}/no.sock,unix://{elsewhere}/gone.sock",
        "--verifier", f"unix://{elsewhere}/gone.sock", "--url", "http://127.0.0.1:9/v1", "--model", "empty", status=1,
    )  # fmt: skip
    for check in ("graph", "drafter socket", "verifier socket", "http", "model"):
        assert found[check]["status"] == "fail", found[check]
    assert "does not exist" in found["verifier socket"]["detail"]
    assert found["tokenizers"]["status"] == "skip"
    assert "drafts" not in found
    assert examined(capsys, "--address", "nonsense", status=1)["drafter"]["status"] == "fail"


def test_an_address_where_nobody_answers(capsys, elsewhere: Path) -> None:
    path = elsewhere / "d.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))  # and never listens
        found = examined(capsys, "--address", f"unix://{path}", "--verifier", f"unix://{path}", status=1)
    assert found["drafter"]["status"] == "fail"
    assert found["verifier"]["status"] == "fail"


@pytest.mark.parametrize(
    ("content", "detail"),
    [("[draft]\nk = -1\n", "k of [draft] in 'speculant.toml': "), ("[server]\nlisten = 1\n", "listen of [server] in")],
)
def test_a_wrong_settings_file_is_a_finding(capsys, elsewhere: Path, content: str, detail: str) -> None:
    (elsewhere / "speculant.toml").write_text(content, encoding="utf-8")
    found = examined(capsys, status=1)
    assert found["settings"]["status"] == "fail"
    assert detail in found["settings"]["detail"]
    (elsewhere / "speculant.toml").write_text("[draft]\nk = 4\n", encoding="utf-8")
    assert found["model"]["status"] == "skip"
    assert examined(capsys)["settings"]["detail"].startswith("speculant.toml")


def test_a_wrong_flag_is_one_line(capfd) -> None:
    assert main(["doctor", "k of [draft] in 'speculant.toml': ", "many"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("index", ['{"weight_map": {"a', "{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_list_of_weights_is_a_finding(capsys, elsewhere: Path, index: str) -> None:
    shutil.copytree(MODEL_FOLDER, elsewhere / "model")
    (elsewhere / "model" / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    found = examined(capsys, "--model", "model", status=1)
    assert found["model"]["status"] == "fail"
    assert "model.safetensors.index.json is damaged" in found["model"]["detail"]
    assert found["http"]["status"] == "skip"


@pytest.mark.parametrize("error", [ValueError("a; b"), KeyError("a"), TypeError("a"), AttributeError("a")])
def test_what_nobody_foresaw_is_a_finding(error: Exception) -> None:
    def look() -> Iterator[Finding]:
        yield Finding("first", "ok", "")
        raise error

    first, last = guarded("second", "look there", look)
    assert (first.check, last.check, last.status, last.remedy) == ("first", "second", "fail", "look there")
    assert last.detail.startswith(type(error).__name__)


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999/v1", "ftp://127.0.0.1/v1", "nowhere"])
def test_an_address_that_is_none_is_a_finding(capsys, url: str) -> None:
    found = examined(capsys, "--url", url, status=1)["http"]
    assert (found["status"], found["remedy"]) == ("fail", "write --url http://127.0.0.1:8000/v1")


def test_a_key_does_not_travel_in_the_clear(capsys, monkeypatch) -> None:
    monkeypatch.setenv("SPECULANT_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as network:
        # As a proxy it would see every request that leaves this machine.
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{network.getsockname()[1]}")
        found = examined(capsys, "--url", "http://verifier.example/v1", status=1)["http"]
        network.setblocking(False)
        with pytest.raises(BlockingIOError):
            network.accept()
    assert "would travel unencrypted" in found["detail"]


def test_a_verifier_over_http(capsys, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers: this machine is reached past it
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    target = tiny_gpt_oss()
    with (
        SpeculativeDecoder(target=target, draft_config=DraftConfig(k=0)) as decoder,
        serving(decoder, model_id="mine", defaults=GenerationConfig()) as api,
    ):
        found = examined(capsys, "--url", f"{api.url}/v1")
        assert (found["http"]["status"], found["http models"]["detail"]) == ("ok", "mine")
        assert found["http version"]["detail"] == f"{VERSION}, as here"
        api.problem = "the server is loading its model"
        assert "loading its model" in examined(capsys, "--url", f"{api.url}/v1", status=1)["http"]["detail"]


def test_without_torch_checks_of_the_model_are_skipped_by_name(elsewhere: Path, graph_path: Path) -> None:
    code = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'rich', 'tokenizers', 'prompt_toolkit'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "from speculant_graph.cli.main import main\n"
        f"sys.exit(main(['doctor', '--graph-path', {str(graph_path)!r}, *sys.argv[1:]]))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skip  torch" in result.stdout
    assert "ok    graph" in result.stdout
    named = subprocess.run([sys.executable, "-c", code, "--model", "x"], capture_output=True, text=True, check=False)
    assert named.returncode == 1
    assert '-> pip install "speculant-graph[verifier]"' in named.stdout


def test_libraries_that_are_too_old_are_named(monkeypatch) -> None:
    from speculant_graph.cli.checks import libraries

    true_version = libraries.version
    old = {"numpy": "1.26.4", "torch": "2.1.0+cpu"}
    monkeypatch.setattr(libraries, "version", lambda name: old.get(name) or true_version(name))
    found = {each.check: each for each in check_libraries()}
    assert (found["libraries"].status, found["libraries"].detail) == ("fail", "numpy is 1.26.4, needs >=2.0")
    assert found["extra [verifier]"].status == "warn"
    assert "torch is 2.1.0+cpu, needs >=2.9" in found["extra [verifier]"].detail
    assert "[verifier]" in found["extra [verifier]"].remedy


def test_the_table_is_aligned_and_coloured_by_choice(capsys) -> None:
    assert main(["doctor", "--color", "never"]) == 0
    plain = capsys.readouterr().out
    rows = [line for line in plain.splitlines() if line[:2] in ("ok", "wa", "sk")]
    assert len(rows) > 10
    assert all(line[4:6] == "  " and line[24] != " " for line in rows)
    assert "\x1b" not in plain
    assert main(["doctor", "--color", "always"]) == 0
    assert "\x1b[32mok" in capsys.readouterr().out
