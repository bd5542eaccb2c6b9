"""``speculant doctor``: its findings on working and on broken installations."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from speculant_graph.cli.doctor import _compare
from speculant_graph.cli.main import main
from speculant_graph.types import Fingerprint
from speculant_graph.version import VERSION
from speculant_verifier.demo.run import MODEL_FOLDER
from support.packed_checkpoint import full_config, tiny_config, write_packed
from support.processes import Sidecar
from support.tiny_models import byte_tokenizer

INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str) -> Any:
    return json.loads(Path(name).read_text(encoding="utf-8"))


def examined(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Return the findings, by check."""
    capsys.readouterr()
    assert main(["doctor", *arguments, "--json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is (status == 0)
    assert (status == 0) is all(each["status"] != "fail" for each in report["checks"])
    for each in report["checks"]:
        assert each["status"] in ("ok", "skip") or each["fix"] or re.search(r"; |must ", each["detail"]), each
    return {each["check"]: each for each in report["checks"]}


def test_what_is_not_named_is_skipped_and_named(capsys) -> None:
    found = examined(capsys)
    for check, flag in {"model": "--model", "graph": "--graph", "drafter": "--drafter"}.items():
        assert found[check]["status"] == "skip"
        assert flag in found[check]["detail"]
    assert VERSION in found["versions"]["detail"]
    assert {found[check]["status"] for check in ("versions", "gpu", "settings")} == {"ok"}


def test_a_sidecar_is_measured_by_real_drafts(capsys, graph_path: Path, shared_sidecar: Sidecar) -> None:
    found = examined(capsys, "--graph-path", str(graph_path), "--verify", "--address", shared_sidecar.address)
    assert "all of it checked" in found["graph"]["detail"]
    drafter = f"{shared_sidecar.address} serves its default graph: generation 1, orders 1-4, tokenizer tests/alphabet"
    assert found["drafter"]["detail"] == f"{drafter}; version {VERSION}"
    assert "200 of up to 8 nodes (tree): p50 " in found["drafts"]["detail"]
    assert found["tokenizers"]["status"] == "ok"
    assert "the graph, the drafter at unix://" in found["tokenizers"]["detail"]


def test_tokenizers_that_differ_are_found(capsys, graph_path: Path, shared_sidecar: Sidecar) -> None:
    arguments = ["--model", str(MODEL_FOLDER), "--graph-path", str(graph_path), "--address", shared_sidecar.address]
    found = examined(capsys, *arguments, status=1)
    assert found["model"]["status"] == "ok"
    assert "5.7M parameters" in found["model size"]["detail"]
    assert found["tokenizers"]["status"] == "fail"
    assert "the graph has 'tests/alphabet'" in found["tokenizers"]["detail"]
    assert f"--tokenizer {MODEL_FOLDER}" in found["tokenizers"]["fix"]


def test_a_fix_names_the_graph_with_the_rare_tokenizer() -> None:
    right, other = Fingerprint("right", "a" * 64, 9), Fingerprint("other", "b" * 64, 9)
    fix = _compare({"the graph": right, "the drafter at one": other, "the drafter at two": right}).fix
    assert fix.endswith("--tokenizer right: the graph of the drafter at one")
    assert _compare({"the model": other, "the graph": right, "the drafter": right}).fix.endswith(
        "--tokenizer other: the graph, the graph of the drafter"
    )


def test_what_is_broken_is_found_with_its_fix(capsys, elsewhere: Path) -> None:
    (elsewhere / "bad.pkl").write_bytes(b"no graph")
    (elsewhere / "empty").mkdir()
    (elsewhere / "empty" / "config.json").write_text("{}", encoding="utf-8")
    gone = f"unix://{elsewhere}/gone.sock"
    found = examined(capsys, "--graph-path", "bad.pkl", "--address", gone, "--model", "empty", status=1)
    assert {found[check]["status"] for check in ("graph", "drafter", "model")} == {"fail"}
    assert "No such file" in found["drafter"]["detail"]
    assert found["tokenizers"]["status"] == "skip"
    assert "drafts" not in found
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(elsewhere / "d.sock"))  # but never listens
        assert examined(capsys, "--address", f"unix://{elsewhere}/d.sock", status=1)["drafter"]["status"] == "fail"


def test_a_packed_model_is_sized_by_its_description_alone(capsys, elsewhere: Path, monkeypatch) -> None:
    """The released model's shapes, without weights and tokenizer."""
    described = json.loads(full_config().to_json_string(use_diff=False)) | {"architectures": ["GptOssForCausalLM"]}
    described |= {"dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}
    (elsewhere / "config.json").write_text(json.dumps(described), encoding="utf-8")
    arguments = ["--model", ".", "--dtype", "bfloat16", "--memory-budget", "9GB"]  # includes earlier tests' memory
    found = examined(capsys, *arguments, status=1)
    assert found["model"]["status"] == "fail"
    size = found["model size"]
    assert size["status"] == "warn"
    for part in ("41.83 GB as bfloat16", "13.76 GB with its experts in MXFP4", "of 768 experts", "in memory: 3.60 GB"):
        assert part in size["detail"]
    small = examined(capsys, *arguments[:-1], "3GB", status=1)["model size"]
    assert (small["status"], "41.83 GB" in small["detail"]) == ("fail", True)
    monkeypatch.setattr("speculant_verifier.cli.doctor_checks.available_bytes", lambda: 8_000_000_000)
    for budget, status in (("9GB", "warn"), ("9000GB", "fail")):
        above = examined(capsys, *arguments[:-1], budget, status=1)["model size"]
        assert (above["status"], "--memory-budget" in above["fix"]) == (status, True)


@pytest.mark.parametrize("fault", ["no index", "no scales", "another shape", "gptq"])
def test_weights_that_can_not_be_loaded_are_found_without_loading_them(capsys, elsewhere: Path, fault: str) -> None:
    write_packed(elsewhere, tiny_config())
    byte_tokenizer().save_pretrained(elsewhere)
    assert examined(capsys, "--model", ".")["model"]["status"] == "ok"
    shard, index, described = elsewhere / "model-00002-of-00005.safetensors", *map(read, (INDEX, "config.json"))
    weights, name = load_file(shard), "model.layers.1.mlp.experts.down_proj_scales"
    if fault == "no index":
        (elsewhere / INDEX).unlink()
    elif fault == "gptq":
        described["quantization_config"] = {"quant_method": "gptq", "bits": 4}
        (elsewhere / "config.json").write_text(json.dumps(described), encoding="utf-8")
    else:
        weights[name] = weights[name][1:].contiguous()
        if fault == "no scales":
            del weights[name], index["weight_map"][name]
        save_file(weights, shard, metadata={"format": "pt"})
        (elsewhere / INDEX).write_text(json.dumps(index), encoding="utf-8")
    found = examined(capsys, "--model", ".", status=1)["model"]
    assert found["status"] == "fail"
    assert {"no index": INDEX, "gptq": "optimum"}.get(fault, name) in found["detail"]


def test_settings_of_every_section_are_checked(capsys, elsewhere: Path) -> None:
    (elsewhere / "speculant.toml").write_text("[server]\nlisten = 1\n", encoding="utf-8")
    settings = examined(capsys, status=1)["settings"]
    assert "server.listen: must be text" in settings["detail"]
    (elsewhere / "speculant.toml").write_text("[server]\nmax_session_memory = 4000000\n", encoding="utf-8")
    assert examined(capsys)["settings"]["detail"].startswith("speculant.toml")


def test_without_torch_the_model_is_skipped(graph_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['torch', 'transformers', 'rich', 'tokenizers', 'prompt_toolkit'])\n"
        "from speculant_graph.cli.main import main\n"
        f"sys.exit(main(['doctor', '--graph-path', {str(graph_path)!r}, *sys.argv[1:]]))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skip  model" in result.stdout
    assert "ok    graph" in result.stdout
    named = subprocess.run([sys.executable, "-c", code, "--model", "x"], capture_output=True, text=True, check=False)
    assert named.returncode == 1
    assert '-> pip install "speculant-graph[verifier]"' in named.stdout
