"""A real drafter and verifier export every metric in the dashboard, the recording rules and the alerts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import grpc
import httpx2
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.rpc.v1 import drafter_pb2
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierServiceStub
from speculant_verifier.demo.corpus import standard_library_folder
from speculant_verifier.demo.run import MODEL_FOLDER
from support.processes import start_sidecar
from support.server import code_of, connected, step_of

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD, RULES = DEPLOY / "grafana" / "speculant.json", DEPLOY / "prometheus" / "rules.yml"
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every series."""


def rules():
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries():
    """Yield (location, query) of every query, with Grafana's variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = re.sub(r"\$__rate_interval", "5m", target["expr"])
            yield f"panel '{panel['title']}'", re.sub(r"\$\w+", ".*", expression)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            yield f"variable '{variable['name']}'", f"sum by ({label}) ({name})"
    for rule in rules():
        yield f"rule '{rule.get('record') or rule['alert']}'", rule["expr"]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}
QUERIES = [*queries()]


def nodes_of(tree, kind):
    found = []
    promql_parser.walk(tree, lambda node: (isinstance(node, kind) and found.append(node)) or True)
    return found


def problems(expression, samples):
    """Return the names, labels and label values in a query that no series has."""
    tree = promql_parser.parse(expression)
    selectors = nodes_of(tree, promql_parser.VectorSelector)
    selectors += [node.vector_selector for node in nodes_of(tree, promql_parser.MatrixSelector)]
    assert selectors, "it asks for nothing"
    aggregates = nodes_of(tree, promql_parser.AggregateExpr)
    grouped = {label for each in aggregates if each.modifier is not None for label in each.modifier.labels}
    found = []
    for selector in selectors:
        if selector.name in RECORDED or selector.name == "up":
            continue
        series = samples.get(selector.name)
        if series is None:
            found.append(f"no metric {selector.name}")
            continue
        matchers = [each for each in selector.matchers.matchers if each.name not in OF_PROMETHEUS]
        known = {label for each in series for label in each} | OF_PROMETHEUS
        asked = {each.name for each in matchers} | (grouped if len({each.name for each in selectors}) == 1 else set())
        found += [f"{selector.name} has no label {label}" for label in sorted(asked - known)]
        for each in matchers:
            if each.name == "code" or "Not" in str(each.op):  # codes are errors, which may not have occurred
                continue
            wanted = each.value if "Re" in str(each.op) else re.escape(each.value)
            if not any(re.fullmatch(wanted, labels.get(each.name, "")) for labels in series):
                found.append(f"no series of {selector.name} has such a {each.name}: {each.value}")
    return found


def refused_by(drafter_address):
    """Provoke every kind of refusal that a drafter counts."""
    with connected(drafter_address) as wire:
        opening = drafter_pb2.OpenSessionRequest(session_id=99, graph="none")
        assert code_of(wire.drafter.OpenSession, opening) is grpc.StatusCode.NOT_FOUND
        assert code_of(wire.drafter.Draft, step_of(1, [1], budget=1 << 20)) is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Return the metrics of a drafter and a verifier after a small load."""
    folder = tmp_path_factory.mktemp("m")
    text = sorted((standard_library_folder() / "json").glob("*.py"))
    GraphBuilder(tokenizer_name=str(MODEL_FOLDER), max_order=3).build(text, folder / "graph.pkl")
    sidecar = start_sidecar(folder / "graph.pkl", folder / "d.sock", metrics_listen="127.0.0.1:0")
    command = [
        sys.executable, "-m", "speculant_graph.cli.main", "verifier", "--model", str(MODEL_FOLDER), "--device", "cpu",
        "--listen", f"unix://{folder}/v.sock", "--http", "127.0.0.1:0", "--strategy", "tree", "--num-threads", "1",
        "--no-measure-costs", "--drafter", sidecar.address, "--client.deadline-ms", "5000", "--speculation", "on",
    ]  # fmt: skip
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as verifier:
            try:
                told = told_after_a_load(verifier, f"unix://{folder}/v.sock", sidecar)
            finally:
                verifier.terminate()
    finally:
        assert sidecar.stop() == 0
    found = {}
    for text in told:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


def told_after_a_load(verifier, address, sidecar):
    base = next(line for line in verifier.stderr if "verifier ready" in line).split()[-1]
    for seed in range(2):
        body = {"model": "model", "prompt": "def loads(s", "max_tokens": 40, "seed": seed}
        answer = httpx2.post(f"{base}/completions", json=body, timeout=60)
        assert answer.json()["speculant"]["accepted"] > 0
    assert httpx2.post(f"{base}/completions", json={"model": "another", "prompt": "x"}).status_code == 404
    with grpc.insecure_channel(address) as channel:
        request = pb.GenerateRequest(prompt="import", sampling=pb.SamplingOptions(max_tokens=5))
        assert list(VerifierServiceStub(channel).Generate(request))
    refused_by(sidecar.address)
    drafter_address = sidecar.log.partition("metrics on ")[2].split(";")[0].split()[0]
    addresses = base.removesuffix("/v1"), f"http://{drafter_address}"
    return [httpx2.get(f"{address}/metrics").text for address in addresses]


def test_there_is_a_query_for_all_that_users_expect():
    assert len(QUERIES) > 60
    assert len(RECORDED) == 5


@pytest.mark.parametrize(("location", "expression"), QUERIES)
def test_what_a_query_asks_for_is_there(samples, location, expression):
    assert problems(expression, samples) == [], location


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("rate(speculant_verifier_made_up_total[5m])", "no metric speculant_verifier_made_up_total"),
        ("sum by (le) (rate(speculant_verifier_queue_seconds_count[5m]))", "has no label le"),
        ('speculant_verifier_running_sequences{colour="red"}', "has no label colour"),
        ('rate(speculant_drafter_ended_sessions_total{reason=~"boredom|age"}[5m])', "has such a reason"),
    ],
)
def test_what_is_not_there_is_found(samples, expression, complaint):
    assert complaint in problems(expression, samples)[0]
