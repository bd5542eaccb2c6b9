"""Everything that pages name exists: links and anchors, files, settings, flags, commands, metrics, modules, verbs."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from speculant_drafter.metrics import ServerMetrics
from speculant_graph.cli.bench import BENCHES
from speculant_graph.cli.main import COMMANDS, main
from speculant_graph.config import ServiceConfig
from speculant_graph.settings import SECTIONS
from speculant_verifier.service.metrics import render_metrics
from speculant_verifier.service.requests import Load
from support.configs import KINDS
from support.http_api import tiny_decoder
from support.pages import ROOT, blocks, code_spans, pages, read_page, without_blocks

FILES = r"(?:py|pkl|nx|pem|key|md|proto|toml)"
FOREIGN_FLAGS = {"--help", "--version", "--upgrade", "--no-sandbox", "--headless", "--screenshot", "--schema",
                 "--unix-socket", "--protocol", "--group", "--profile", "--tokenizer", "--speculative-num-draft-tokens",
                 "--speculative-ngram-max-bfs-breadth", "--spec-draft-n-max", "--additional-config",
                 "--gpu-memory-utilization"}  # fmt: skip
"""Flags of other programs, and flags of every command."""
EVERYWHERE = sorted({*pages(), "ARCHITECTURE.md", "CHANGELOG.md"})


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, in the form of code hosts."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(read_page(name))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        place = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert place.exists(), f"{name}: {target}"
        assert not anchor or anchor in anchors(place), f"{name}: {target}; it may be: {sorted(anchors(place))}"


def without_what_went(name: str) -> str:
    """Return a page's text; the changelog's without its lists of removed features."""
    return re.sub(r"^#### Removed\n.*?(?=^##|\Z)", "", read_page(name), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_settings_that_are_named_exist(name):
    assert set(KINDS) == set(SECTIONS)
    text = without_what_went(name)
    named = re.findall(rf"`(?:--)?({'|'.join(KINDS)})\.(?!{FILES}\b)([a-z_-]+)", text)
    named += re.findall(r"SPECULANT_([A-Z]+)__([A-Z_]+)", text)
    for kind, setting in named:
        known = KINDS[kind.lower()].model_fields
        assert setting.lower().replace("-", "_") in known, f"{name}: {kind}.{setting}"


@cache
def flags() -> frozenset[str]:
    """Return the flags of all commands and benches."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for name in COMMANDS.keys() - {"bench"}:
            main([name, "--help"])
        for name in BENCHES:
            main(["bench", name, "--help"])
        main(["config", "show", "--help"])
    found = re.findall(r"(--[a-z][a-z0-9.-]*)", printed.getvalue())
    # A switch with a '--no-…' form also has its positive form, which takes 'true' and 'false'.
    return frozenset(found) | {flag.replace("--no-", "--", 1) for flag in found}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_flags_that_are_named_exist(name):
    named = {
        flag
        for span in code_spans(without_what_went(name))
        if span.startswith(("--", "speculant ")) or span.split(" ")[0] in COMMANDS
        for flag in re.findall(r"(?<!\S)(--[a-z][a-z0-9.-]*)(?![\w.*-])", span)
    }
    assert not named - flags() - FOREIGN_FLAGS, name


@pytest.mark.parametrize("name", EVERYWHERE)
def test_commands_that_are_named_exist(name):
    spans = [span.split() for span in code_spans(without_what_went(name)) if span.startswith("speculant ")]
    for _, command, *rest in spans:
        assert command in {*COMMANDS, "COMMAND", "--help", "--version"}, f"{name}: {command}"
        if command == "bench" and rest:
            assert rest[0] in {*BENCHES, "BENCH", "…"}, f"{name}: bench {rest[0]}"
    verbs = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for span in code_spans(without_what_went(name)):
        if span.startswith("make "):
            assert set(re.findall(r"\b[a-z-]+\b", span.removeprefix("make "))) <= verbs, f"{name}: {span}"


@cache
def known_metrics() -> set[str]:
    """Return the metrics of an idle drafter and an idle verifier."""
    with tiny_decoder() as decoder:
        load = Load(ServiceConfig(), decoder.verifier_config.max_batch_size)
        rendered = (generate_latest(ServerMetrics().registry) + render_metrics(decoder, load, {})).decode()
    return set(re.findall(r"^(?:# HELP )?(\w+)", rendered, re.MULTILINE))


@pytest.mark.parametrize("name", EVERYWHERE)
def test_metrics_that_are_named_exist(name):
    for metric in re.findall(r"\bspeculant_(?:drafter|verifier)_[a-z_]+\b", read_page(name)):
        is_module = f"{metric}.py" in read_page(name)
        assert is_module or metric in known_metrics(), f"{name}: {metric}"


def test_every_setting_is_documented():
    text = "".join(map(read_page, pages()))
    names = {f"{kind}.{name}" for kind in KINDS for name in KINDS[kind].model_fields}
    missing = {name for name in names if not re.search(rf"\b{name.partition('.')[2].replace('_', '[_-]')}\b", text)}
    assert not missing


def test_every_metric_is_documented():
    pages = read_page("docs/sidecar.md") + read_page("docs/operating.md")
    named = set(re.findall(r"`(speculant_(?:drafter|verifier)_\w+)`", pages))
    families = {re.sub(r"_(?:bucket|count|sum)$", "", metric) for metric in known_metrics()}
    assert named == {metric for metric in families if metric.startswith("speculant_")}


@cache
def tracked() -> tuple[str, ...]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return tuple(name for name in listing.stdout.splitlines() if (ROOT / name).exists())


@pytest.mark.parametrize("name", EVERYWHERE)
def test_sources_that_are_named_exist(name):
    for span in code_spans(read_page(name)):
        if re.fullmatch(r"…?[\w./-]+\.(py|proto)", span):
            path = span.removeprefix("…").lstrip("/")
            assert any(f"/{each}".endswith(f"/{path}") for each in tracked()), f"{name}: {span}"


@pytest.mark.parametrize("name", EVERYWHERE)
def test_names_of_the_library_that_are_named_exist(name):
    for span in code_spans(read_page(name)):
        found = re.match(r"(speculant_(?:graph|drafter|verifier)(?:\.\w+)+)(?:\(.*\))?$", span)
        if found is None or ".rpc.v1" in span:
            continue
        *parts, last = found[1].split(".")
        try:
            importlib.import_module(found[1])
        except ModuleNotFoundError:
            place = ".".join(parts)
            try:
                owner = importlib.import_module(place)
            except ModuleNotFoundError:
                owner = getattr(importlib.import_module(".".join(parts[:-1])), parts[-1])
            assert hasattr(owner, last), f"{name}: {span}"


def test_the_settings_for_a_network_are_settings():
    [content] = blocks(read_page("docs/security.md"), "toml")
    for name, values in tomllib.loads(content).items():
        KINDS[name].model_validate(values)
