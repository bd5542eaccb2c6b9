"""What guides show and no reader's folder can run, and their tables."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
from pydantic import ByteSize, TypeAdapter

from speculant_graph.config import ServiceConfig
from support.pages import ROOT, all_blocks, blocks, read_page, rows, section
from support.verifier_metrics import verifier_metrics

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


def test_the_settings_for_a_network_are_settings():
    from documents.test_names import KINDS

    [content] = blocks(read_page("docs/security.md"), "toml")
    for name, values in tomllib.loads(content).items():
        KINDS[name].model_validate(values)


def test_the_table_of_the_verifiers_metrics_is_complete():
    rendered = re.findall(r"^# HELP (speculant_verifier_\w+)", verifier_metrics(), re.MULTILINE)
    first_cells = " ".join(row[0] for row in rows(section(OPERATING, "What to watch")))
    assert sorted(re.findall(r"`(speculant_verifier_\w+)`", first_cells)) == sorted(rendered)


def test_the_tables_of_the_verifiers_settings_are_complete():
    table = rows(section(OPERATING, "The verifier's settings"))
    named = set(re.findall(r"`service\.(\w+)`", " ".join(row[0] for row in table)))
    assert named == set(ServiceConfig.model_fields)
    limits = [row for row in table if len(row) == 3 and row[0].startswith("`service.")]
    assert len(limits) == 5
    for name, default, _ in limits:
        value = getattr(ServiceConfig(), name.strip("`").removeprefix("service."))
        assert TypeAdapter(ByteSize).validate_python(default) == value, name
    assert f"{ServiceConfig().grace_s:g} s" in next(row[1] for row in table if "grace_s" in row[0])


@pytest.mark.parametrize("page", ["docs/operating.md", "docs/security.md", "docs/tuning.md", "docs/corpus.md"])
def test_guides_are_short(page):
    text = read_page(page)
    assert len(text.splitlines()) <= 230
    assert all(block.body.strip() for block in all_blocks(text))
