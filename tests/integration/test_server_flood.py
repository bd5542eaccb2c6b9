"""A sidecar under floods: mutated messages, broken and slow connections, and sessions that are never closed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import SequenceStep
from support.http_api import wait_until
from support.mutants import Mutants, framed
from support.processes import Sidecar, launch, wait_until_ready
from support.server import OK, SERVICE, Wire, connected, graph_file, serving, step_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

ADMIN = "speculant_graph.rpc.v1.DrafterAdminService"
TEXT = [random.Random(2).randrange(50) for _ in range(3_000)]
REFUSALS = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
}
PYTHON_TEXT = re.compile(r"Traceback|\.py\b|site-packages|object at 0x|\b[A-Za-z]+(Error|Exception)\b|<class|\bNone\b")


def resident_bytes_of(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


class Process:
    """The operating system's figures on a sidecar."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self._folder = Path(f"/proc/{sidecar.process.pid}")

    @property
    def resident_bytes(self) -> int:
        """Resident memory."""
        return resident_bytes_of(self.sidecar.process.pid)

    @property
    def num_descriptors(self) -> int:
        """Number of open files and sockets."""
        return len(list((self._folder / "fd").iterdir()))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    sidecar = launch(
        graph_file(tmp_path / "graph.pkl", TEXT),
        tmp_path / "drafter.sock",
        {"strategy": "tree"},
        admin_listen=f"unix://{tmp_path}/admin.sock",
        limits={"max_sessions": 300, "busy_s": 0.0, "idle_timeout_s": 3.0},
        max_session_memory=20_000_000,
    )
    try:
        wait_until_ready(sidecar)
        yield Process(sidecar)
        assert sidecar.stop() == 0
    finally:
        sidecar.process.kill()
        sidecar.wait()


@contextlib.contextmanager
def drafting_meanwhile(address: str) -> Iterator[list[tuple[int, ...]]]:
    """Let a client draft in a thread during the block; yield the growing list of drafts."""
    drafted: list[tuple[int, ...]] = []
    is_over = threading.Event()

    def run() -> None:
        config = ClientConfig(address=address, deadline_ms=10_000.0)
        with DrafterClient(config, tokenizer=None, draft=DraftConfig(strategy="greedy"), strict=True) as client:
            while not is_over.wait(0.005):
                drafted.append(client.draft([SequenceStep(1 << 40, TEXT[:100], 8)])[0].token_ids)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield drafted
        finally:
            is_over.set()
        running.result()


def sent(channel: grpc.Channel, path: str, payloads: list[bytes], seen: Counter[str]) -> None:
    """Send messages to a unary method, 16 at a time, and check the results."""
    call = channel.unary_unary(path)
    for start in range(0, len(payloads), 16):
        for future in [call.future(payload, timeout=60.0) for payload in payloads[start : start + 16]]:
            code = future.code()
            note(path, code.name, "" if code is grpc.StatusCode.OK else future.details(), seen)


def streamed(channel: grpc.Channel, payloads: list[bytes], seen: Counter[str]) -> None:
    """Send steps on streams, which end at an unparsable message."""
    call = channel.stream_stream(f"/{SERVICE}/StreamDraft")
    for start in range(0, len(payloads), 20):
        answers = call(iter(payloads[start : start + 20]), timeout=60.0)
        with contextlib.suppress(grpc.RpcError):
            for answer in answers:
                error = pb.StreamDraftResponse.FromString(answer).error
                code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
                note("StreamDraft", code.name, error.message, seen)
        note("StreamDraft", answers.code().name, answers.details() or "", seen)


def note(method: str, code: str, details: str, seen: Counter[str]) -> None:
    seen[code] += 1
    assert code == "OK" or code in REFUSALS, (method, code, details)
    assert not PYTHON_TEXT.search(details), (method, details)
    assert "\n" not in details


def test_mutated_messages_are_answered_or_refused(process: Process, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    def flood(wire: Wire, seed: int, amount: int) -> None:
        mutants = Mutants(seed)
        for _ in range(10):
            openings = [mutants.opening() for _ in range(amount // 10)]
            sent(wire.channel, f"/{SERVICE}/OpenSession", openings, seen)
            sent(wire.channel, f"/{SERVICE}/Draft", [mutants.step() for _ in range(amount // 2)], seen)
            steps = [
                mutants.bytes(pb.StreamDraftRequest(step_id=number).SerializeToString() + b"\x12" + framed(step))
                for number, step in enumerate(mutants.step() for _ in range(amount // 4))
            ]
            streamed(wire.channel, steps, seen)
            closings = [mutants.named(pb.CloseSessionRequest) for _ in range(amount // 20)]
            sent(wire.channel, f"/{SERVICE}/CloseSession", closings, seen)

    def settle(admin: Wire) -> None:
        """Wait until all opened sessions have ended."""
        graphs = lambda: admin.admin.ListGraphs(pb.ListGraphsRequest()).graphs  # noqa: E731
        wait_until(lambda: graphs()[0].open_sessions == 0)
        time.sleep(1.0)

    with connected(process.sidecar.address) as wire, connected(f"unix://{tmp_path}/admin.sock") as admin:
        flood(wire, 1, 600)
        settle(admin)
        before_bytes, before_descriptors = process.resident_bytes, process.num_descriptors
        with drafting_meanwhile(process.sidecar.address) as drafted:
            flood(wire, 2, 1_000)
        assert len(drafted) > 20
        assert len(set(drafted)) == 1, "another client's drafts stay as they were"
        settle(admin)
        assert process.resident_bytes < 1.1 * before_bytes
        assert process.num_descriptors <= before_descriptors
        mutants = Mutants(3)
        for name in ("ListGraphs", "ReloadGraph"):
            payloads = [mutants.named(getattr(pb, f"{name}Request")) for _ in range(200)]
            sent(admin.channel, f"/{ADMIN}/{name}", payloads, seen)
        assert list(wire.drafter.Draft(step_of(0, TEXT[:3])).sequence_statuses) == [OK]
        assert wire.health() == 1
    assert sum(seen.values()) > 10_000
    assert min(seen["OK"], seen["INVALID_ARGUMENT"]) > 1_000
    assert "Traceback" not in process.sidecar.log


def test_sessions_that_nobody_closes_stay_within_their_memory(tmp_path: Path) -> None:
    """10,000 sessions; the ones idle longest are evicted."""
    limit = 20_000_000
    graph = graph_file(tmp_path / "graph.pkl", TEXT)
    with serving(graph, tmp_path, max_session_memory=limit, max_sessions=700, busy_s=0.0) as server:
        kept: list[int] = []
        resident_bytes = []
        in_use, length = server.open(), 0
        for turn in range(10):
            requests = []
            for _ in range(1_000):
                session_id = server.open()
                kept.append(session_id)
                requests.append(
                    pb.StreamDraftRequest(step_id=session_id, draft=step_of(session_id, TEXT[: turn % 5 * 600 + 20]))
                )
                if len(requests) == 10:
                    for answer in server.drafter.StreamDraft(iter(requests)):
                        assert list(answer.draft.sequence_statuses) == [OK]
                    requests = []
                    answer = server.drafter.Draft(step_of(in_use, TEXT[length : length + 2], length))
                    assert list(answer.sequence_statuses) == [OK], "a session in use is kept"
                    length += 2
            told = server.metrics()
            assert 0 < told["session_bytes"] <= limit
            assert told['open_sessions{graph="graph"}'] <= 700
            resident_bytes.append(resident_bytes_of(os.getpid()))
        assert resident_bytes[-1] < resident_bytes[4] + limit // 2, "the second half takes no more than the first"
        assert told["opened_sessions_total"] == 10_001
        ended = told['ended_sessions_total{reason="memory"}'] + told['ended_sessions_total{reason="limit"}']
        assert ended == 10_001 - told['open_sessions{graph="graph"}']
        # Sessions idle longest were evicted first, so the latest are still open.
        alive = [server.open(session_id) and session_id for session_id in kept[-5:]]
        statuses = [server.drafter.Draft(step_of(each, [], 2_420)).sequence_statuses[0] for each in alive]
        assert statuses == [OK] * 5


def test_what_sessions_hold_is_what_is_told(tmp_path: Path) -> None:
    """The reported memory includes the distributions of the latest drafts and the rows of feedback."""
    generator = random.Random(1)
    tokens = [generator.randrange(300) for _ in range(100_000)]
    graph = graph_file(tmp_path / "graph.pkl", tokens, 300, max_order=2)
    with serving(graph, tmp_path) as server:

        def open_and_draft(number: int) -> None:
            for _ in range(number):
                answer = server.drafter.Draft(step_of(server.open(), [1], 0, 400, pb.STRATEGY_SAMPLING))
            assert len(answer.candidate_tokens) > 80_000

        def tell_rows(number: int) -> None:
            session_id = server.open()
            answer = server.drafter.Draft(step_of(session_id, [1], 0, 500, pb.STRATEGY_TREE))
            for _ in range(number):
                size = answer.draft_lengths[0] + 1
                request = step_of(session_id, [], 1, 500, pb.STRATEGY_TREE)
                request.feedback_draft_ids.append(answer.draft_id)
                request.feedback_row_counts.append(size)
                request.feedback_nodes.extend(range(size))
                request.feedback_width = 64
                request.feedback_tokens.extend([5] * (size * 64))
                answer = server.drafter.Draft(request)

        open_and_draft(20)
        tell_rows(5)
        before = resident_bytes_of(os.getpid()) - server.metrics()["session_bytes"]
        open_and_draft(200)
        tell_rows(1_000)
        assert resident_bytes_of(os.getpid()) - server.metrics()["session_bytes"] < before + 15_000_000
