"""What guides show and no reader's folder can run, and their tables."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
from pydantic import ByteSize, TypeAdapter

from speculant_graph.config import ServiceConfig
from speculant_verifier.demo.corpus import PROMPTS
from support.configs import KINDS
from support.pages import ROOT, all_blocks, blocks, read_page, rows, section
from support.terminal_pictures import read_picture

OPERATING = read_page("docs/operating.md")


def test_the_installation_of_gpt_oss_names_what_is_there():
    """It would fetch torch: what can be wrong of it is looked at."""
    [install] = [block for block in blocks(read_page("docs/gpt-oss.md"), "bash") if "venv" in block]
    create, activate, pip = map(shlex.split, install.splitlines())
    assert create == ["python3", "-m", "venv", ".venv"]
    assert activate == [".", ".venv/bin/activate"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pip[:3] == ["pip", "install", "-c"]
    assert (ROOT / pip[3]).is_file()
    assert set(re.findall(r"\w+", pip[4])) <= set(project["optional-dependencies"])


def recipe(verb):
    """Return what a verb of the Makefile runs where nothing is installed yet."""
    command = ["make", "--no-print-directory", "--dry-run", "--what-if=pyproject.toml", verb]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", "").splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_verbs_of_make_do_what_pages_say():
    """They would install everything: what they run is compared with what this project's own runs are."""
    install = recipe("setup")
    assert any("pip install" in line and "-e" in line for line in install)
    [demo] = [block for block in all_blocks(read_page("README.md")) if block.first_line.startswith("make demo")]
    assert re.findall(r"^make ([a-z-]+)", demo.body, re.MULTILINE) == ["demo", "test"]
    assert [line for line in recipe("demo") if line not in install] == [".venv/bin/speculant demo"]
    assert f"decodes {['no', 'one', 'two', 'three', 'four', 'five', 'six'][len(PROMPTS)]} prompts" in demo.body
    [habits] = all_blocks(read_page("CONTRIBUTING.md"))
    assert re.findall(r"^make ([a-z -]+?) +#", habits.body, re.MULTILINE) == ["setup", "check test"]
    everything = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert {"check", "test"} <= set(re.findall(r"^make ([a-z-]+)$", everything, re.MULTILINE))
    for verb in ("check", "test"):
        assert set(install) <= set(recipe(verb)), "they install first"


def test_the_demos_figures_are_those_of_its_picture():
    picture = read_picture(ROOT / "docs" / "demo.svg")
    printed = picture[next(at for at, line in enumerate(picture) if line.startswith("prompt tokens")) :]
    [table] = [block for block in all_blocks(read_page("docs/experiments.md")) if "spec./s" in block.first_line]
    assert [line.split() for line in table.body.splitlines()] == [line.split() for line in printed if line]
    [speedup] = re.findall(r"^all .* ×([\d.]+) ", "\n".join(printed), re.MULTILINE)
    assert f"(the picture's) | ×2.82 (×{speedup}) | `make demo` |" in read_page("README.md")


def test_the_settings_for_a_network_are_settings():
    [content] = blocks(read_page("docs/security.md"), "toml")
    for name, values in tomllib.loads(content).items():
        KINDS[name].model_validate(values)


def test_the_tables_of_the_verifiers_settings_are_complete():
    table = rows(section(OPERATING, "The verifier's settings"))
    named = set(re.findall(r"`service\.(\w+)`", " ".join(row[0] for row in table)))
    assert named == set(ServiceConfig.model_fields)
    limits = [row for row in table if len(row) == 3 and row[0].startswith("`service.")]
    assert len(limits) == 1
    for name, default, _ in limits:
        value = getattr(ServiceConfig(), name.strip("`").removeprefix("service."))
        assert TypeAdapter(ByteSize).validate_python(default) == value, name
    assert f"{ServiceConfig().grace_s:g} s" in next(row[1] for row in table if "grace_s" in row[0])
