"""Files for the code host: workflows call existing make targets, and issue forms ask for a diagnosis."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from support.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
VERBS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def _read(path: Any) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_verbs_that_exist(path: Any) -> None:
    for job in _read(path)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        named = [*matrix.get("verbs", []), *(each["verbs"] for each in matrix.get("include", []))]
        named += [
            line.removeprefix("make ") for step in job["steps"] for line in re.findall(r"^make .*", step.get("run", ""))
        ]
        assert {verb for each in named for verb in each.split()} - {"$VERBS"} <= VERBS
        assert "timeout-minutes" in job


def test_oldest_and_newest_python_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = [line.rsplit(" ", 1)[1] for line in project["classifiers"] if "Python :: 3." in line]
    tested = _read(ROOT / ".github/workflows/test.yml")["jobs"]["verbs"]["strategy"]["matrix"]["python"]
    assert tested == [known[0], known[-1]]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_a_diagnosis(path: Any) -> None:
    asked = [each for each in _read(path)["body"] if each.get("validations", {}).get("required")]
    assert any(each["attributes"]["label"] == "speculant doctor --json" for each in asked)


def test_hooks_run_what_the_project_installs() -> None:
    [repository] = _read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")
