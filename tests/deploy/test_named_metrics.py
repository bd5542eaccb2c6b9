"""Every metric that the dashboard, the recording rules and the alerts name is told by a real drafter and verifier."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grpc
import httpx2
import pytest

from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.rpc.v1 import drafter_pb2
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierServiceStub
from speculant_verifier.demo.corpus import standard_library_folder
from speculant_verifier.demo.run import MODEL_FOLDER
from support import promql
from support.promql import Query
from support.server import code_of, connected, step_of
from support.sidecar import start_sidecar

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD, RULES = DEPLOY / "grafana" / "speculant.json", DEPLOY / "prometheus" / "rules.yml"
RECORDED = {rule["record"] for rule in promql.rules_of(RULES) if "record" in rule}
QUERIES = [*promql.queries_of_dashboard(DASHBOARD), *promql.queries_of_rules(RULES)]


def refused_by(drafter_address):
    """Be refused by a drafter in all ways that it counts."""
    with connected(drafter_address) as wire:
        opening = drafter_pb2.OpenSessionRequest(session_id=99, graph="none")
        assert code_of(wire.drafter.OpenSession, opening) is grpc.StatusCode.NOT_FOUND
        assert code_of(wire.drafter.Draft, step_of(1, [1], budget=1 << 20)) is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """What a drafter and a verifier tell after a small load."""
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
    return promql.samples_of(*told)


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


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.location} {query.expression}")
def test_what_a_query_asks_for_is_there(samples, query):
    assert promql.problems(query, samples, RECORDED) == []


@pytest.mark.parametrize(
    ("expression", "legend", "complaint"),
    [
        ("rate(speculant_verifier_made_up_total[5m])", "", "no metric speculant_verifier_made_up_total"),
        ("speculant_verifier_queue_seconds", "", "no metric speculant_verifier_queue_seconds"),
        ("sum by (le) (rate(speculant_verifier_queue_seconds_count[5m]))", "", "has no label le"),
        ('speculant_verifier_running_sequences{colour="red"}', "", "has no label colour"),
        ('rate(speculant_drafter_ended_sessions_total{reason=~"boredom|age"}[5m])', "", "has such a reason"),
        ("sum by (reason) (speculant_verifier_sequences_total)", "{{code}}", "the legend names code"),
        ("deriv(speculant_verifier_running_sequences[5m]) > 0 and on (instance) nothing > 1", "", "no metric nothing"),
    ],
)
def test_what_is_not_there_is_found(samples, expression, legend, complaint):
    [*_, last] = promql.problems(Query("control", expression, legend), samples, RECORDED)
    assert complaint in last


def test_every_metric_of_ours_is_documented(samples):
    pages = DEPLOY.parent / "docs" / "sidecar.md", DEPLOY.parent / "docs" / "operating.md"
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    told = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in samples}
    ours = {name for name in told if name.startswith("speculant_")}
    named = set(re.findall(r"`(speculant_(?:drafter|verifier)_\w+)`", text))
    assert ours == named
