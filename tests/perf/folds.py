"""Measures time, memory and disk of folding learned text into graphs, and its effect on another client.

    python tests/perf/folds.py [--tenants 10] [--tokens 5000000] [--corpus FILE ... --tokenizer FOLDER] [--steps 3000]
        [--own-core]

First a client sends steps of eight rows, alone and while another tenant's text arrives at the sidecar. Steps during a
fold are reported separately. With ``--own-core`` folds run on the last core, and everything else on the
others. Then a sidecar receives the text of several tenants over gRPC, tenant by tenant. More text arrives only when no
fold runs, so every fold takes half of the young text. The text is the corpus, by default Python's standard library, in
pieces of 600 tokens with a tenth of them replaced. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from locks import PAUSE_S, ROWS, SERVICE, TOKENS_PER_STEP, WARM_UP, K, late

from speculant_graph.bench.processes import await_health, free_port, running_module
from speculant_graph.bench.texts import drawn_texts, words_of_standard_library
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.learning.layers import find_layers, folder_of
from speculant_graph.draft.learning.learned_files import name_of
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import describe_machine
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.step_messages import OpenRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Fingerprint

TEXT_TOKENS, REPLACED, SERVED_TOKENS, CHARACTERS = 600, 0.1, 1_000_000, 200_000
YOUNG, IDLE_S, FEED_PAUSE_S, WATCH_S, SESSION = 262_144, 0.1, 0.004, 0.02, 77


class Sidecar:
    """A sidecar in a separate process."""

    def __init__(self, pid: int, address: str, metrics: str) -> None:
        """Set its process id and its addresses."""
        self.pid, self.address, self._metrics = pid, address, metrics

    def metric(self, name: str) -> float:
        """Return one of its metrics."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"speculant_drafter_{name} "))

    def folds(self) -> list[int]:
        """Return the process ids of running folds."""
        found: list[int] = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, path.read_text("ascii").split())
        return [pid for pid in found if b"fold_worker" in command_of(pid)]  # no fold before its exec


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def sidecar(graph: Path, folder: Path, *, folds: bool) -> Iterator[Sidecar]:
    address, metrics = f"unix://{folder}/drafter.sock", f"127.0.0.1:{free_port()}"
    arguments = ["drafter", f"--listen={address}", f"--graph={graph}", f"--metrics-listen={metrics}"]
    arguments += [f"--server.learned={folder}/learned", "--log-level=WARNING"]
    arguments += [f"--fold.young-tokens={YOUNG}"] if folds else ["--no-fold.enabled"]
    with running_module("speculant_graph.cli.main", arguments) as process:
        await_health(process, address)
        yield Sidecar(process.pid, address, metrics)


def memory_of(pid: int) -> dict[str, float]:
    """Return a process's resident megabytes: anonymous memory, mapped files, and the peak."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
    names = {"anonymous_mb": "RssAnon", "files_mb": "RssFile", "most_mb": "VmHWM"}
    return {ours: round(int(lines[name].split()[0]) / 1e3, 1) for ours, name in names.items()}


def pieces(corpus: np.ndarray[Any, Any], num_tokens: int, seed: int) -> Iterator[list[int]]:
    """Yield varied pieces of a corpus, with ``num_tokens`` tokens in total."""
    random = np.random.default_rng(seed)
    for _ in range(-(-num_tokens // TEXT_TOKENS)):
        start = int(random.integers(corpus.size - TEXT_TOKENS))
        piece = corpus[start : start + TEXT_TOKENS].copy()
        where = random.random(TEXT_TOKENS) < REPLACED
        piece[where] = corpus[random.integers(corpus.size, size=int(where.sum()))]
        yield piece.tolist()


def teach(address: str, tenant: str, texts: Iterator[list[int]]) -> Iterator[int]:
    """Let a sidecar learn texts, one session each; yield the number of learned tokens after each."""
    with connect_channel(address) as channel:
        names = ("OpenSession", "Draft", "CloseSession")
        call: Any = {name: channel.unary_unary(SERVICE + name, None, None) for name in names}
        opening = convert.encode_open_request(OpenRequest(SESSION, tenant=tenant, learn=True)).SerializeToString()
        for text in texts:
            call["OpenSession"](opening)
            for start, stop in ((0, 1), (1, len(text))):
                # All tokens up to the first step with a node budget belong to the prompt.
                request = convert.request_writer()
                request.add(text[start:stop], SESSION, start, 1 - min(start, 1))
                call["Draft"](request.payload())
            call["CloseSession"](pb.CloseSessionRequest(session_id=SESSION, tenant=tenant).SerializeToString())
            yield len(text) - 1


def measure_folds(graph: Path, corpus: np.ndarray[Any, Any], num_tenants: int, num_tokens: int) -> dict[str, object]:
    """Measure folds of several tenants' text, tenant by tenant."""
    with tempfile.TemporaryDirectory() as temporary, sidecar(graph, Path(temporary), folds=True) as served:
        before, most_of_folds, started_s = memory_of(served.pid), 0.0, time.perf_counter()
        for tenant in range(num_tenants):
            unfolded = 0
            for taken in teach(served.address, f"tenant-{tenant}", pieces(corpus, num_tokens, tenant)):
                unfolded += taken
                if unfolded < YOUNG // 2:
                    continue
                unfolded = 0
                time.sleep(IDLE_S)
                while running := served.folds():
                    with suppress(OSError, KeyError):  # the process has just ended
                        most_of_folds = max(most_of_folds, memory_of(running[0])["most_mb"])
                    time.sleep(IDLE_S / 2)
        after, wall_s = memory_of(served.pid), time.perf_counter() - started_s
        learned = Path(temporary) / "learned" / graph.stem
        files = [find_layers(folder_of(learned, name_of(f"tenant-{number}"))).layers for number in range(num_tenants)]
        folded = sum(layer.num_tokens for layers in files for layer in layers)
        folds, seconds = served.metric("folds_total"), served.metric("fold_seconds_total")
        return {
            "tenants": num_tenants,
            "tokens_each": num_tokens,
            "folded_tokens": folded,
            "folds": int(folds),
            "failed_folds": int(served.metric("failed_folds_total")),
            "seconds_a_fold": round(seconds / max(1, folds), 3),
            "seconds_a_million_tokens": round(seconds / max(1, folded) * 1e6, 2),
            "bytes_a_token": round(sum(layer.num_bytes for layers in files for layer in layers) / max(1, folded), 1),
            "files_of_tenants": [[layer.num_tokens for layer in layers] for layers in files],
            "sidecar_before": before,
            "sidecar_after": after,
            "sidecar_more_mb": round(sum(after[name] - before[name] for name in ("anonymous_mb", "files_mb")), 1),
            "fold_process_most_mb": most_of_folds,
            "wall_s": round(wall_s, 1),
        }


def timed_steps(address: str, texts: list[list[int]], num_steps: int) -> list[tuple[float, float]]:
    """Return the start time of each step of a batch, and its milliseconds; steps are a few milliseconds apart."""
    times = []
    with connect_channel(address) as channel:
        call: Any = {name: channel.unary_unary(SERVICE + name, None, None) for name in ("OpenSession", "Draft")}
        ids = range(1_000, 1_000 + len(texts))
        for number in ids:
            call["OpenSession"](convert.encode_open_request(OpenRequest(number)).SerializeToString())
        start = 0
        for step in range(num_steps):
            stop = 200 + TOKENS_PER_STEP * step
            request = convert.request_writer()
            for text, number in zip(texts, ids, strict=True):
                request.add(text[start:stop], number, start, K)
            payload = request.payload()
            start, start_s = stop, time.perf_counter()
            call["Draft"](payload)
            times.append((start_s, 1e3 * (time.perf_counter() - start_s)))
            time.sleep(PAUSE_S)
        for number in ids:
            channel.unary_unary(SERVICE + "CloseSession", None, None)(
                pb.CloseSessionRequest(session_id=number).SerializeToString()
            )
    return times[WARM_UP:]


def watch_folds(
    served: Sidecar, is_over: threading.Event, seen: list[tuple[float, bool]], cores: set[int] | None
) -> None:
    """Record at short intervals whether a fold runs, and move folds to their cores."""
    while not is_over.wait(WATCH_S):
        folds = served.folds()
        seen.append((time.perf_counter(), bool(folds)))
        for pid in folds if cores else ():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(pid, cores or ())


def measure_steps(
    graph: Path, corpus: np.ndarray[Any, Any], num_steps: int, deadline_ms: float, *, own_core: bool
) -> dict[str, object]:
    """Measure another client's steps alone, and while text arrives, during folds and between them."""
    cores = sorted(os.sched_getaffinity(0))
    if own_core:
        os.sched_setaffinity(0, cores[:-1])  # also for the sidecar, which this process starts
    texts = drawn_texts(NgramGraph.load(graph), ROWS, max(200 + TOKENS_PER_STEP * num_steps, 2_000))
    with tempfile.TemporaryDirectory() as temporary, sidecar(graph, Path(temporary), folds=True) as served:
        alone = [each for _, each in timed_steps(served.address, texts, num_steps)]
        is_over, num_taught, seen = threading.Event(), [0], list[tuple[float, bool]]()

        def feed() -> None:
            for taken in teach(served.address, "tenant", pieces(corpus, 1 << 40, 0)):
                num_taught[0] += taken
                if is_over.wait(FEED_PAUSE_S):
                    return

        threads = [
            threading.Thread(target=feed),
            threading.Thread(target=watch_folds, args=(served, is_over, seen, {cores[-1]} if own_core else None)),
        ]
        for thread in threads:
            thread.start()
        while num_taught[0] < YOUNG:
            time.sleep(IDLE_S)
        before, started_s = num_taught[0], time.perf_counter()
        times = timed_steps(served.address, texts, num_steps)
        rate = (num_taught[0] - before) / (time.perf_counter() - started_s)
        is_over.set()
        for thread in threads:
            thread.join()
        os.sched_setaffinity(0, cores)
        moments = np.array([moment for moment, _ in seen])
        parts: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
        for start_s, each in times:
            parts[seen[int(np.searchsorted(moments, start_s)) - 1][1]].append(each)
        return {
            "alone": late(alone, deadline_ms),
            "between_folds": late(parts[False], deadline_ms) | {"steps": len(parts[False]) - 1},
            "during_folds": late(parts[True], deadline_ms) | {"steps": len(parts[True]) - 1},
            "tokens_a_second": round(rate),
            "folds": int(served.metric("folds_total")),
        }


def read_corpus(paths: list[Path], tokenizer: Path | None) -> tuple[np.ndarray[Any, Any], Fingerprint]:
    """Return the tokens of some files, or of Python's standard library."""
    if not paths or tokenizer is None:
        ids, fingerprint = words_of_standard_library()
        return np.array(ids, np.int64), fingerprint
    loaded = CorpusTokenizer.load(tokenizer)
    found: list[int] = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        parts = [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]
        for each in loaded.encode_batch(parts):
            found += each
    return np.array(found, np.int64), loaded.fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--corpus", type=Path, nargs="*", default=[])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--deadline-ms", type=float, default=20.0)
    parser.add_argument("--own-core", action="store_true")
    arguments = parser.parse_args()
    corpus, fingerprint = read_corpus(arguments.corpus, arguments.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.pkl"
        build_from_token_ids(corpus[:SERVED_TOKENS].tolist(), fingerprint).save(path)
        report: dict[str, object] = {"corpus_tokens": corpus.size, "k": K}
        if arguments.steps:
            report["steps"] = measure_steps(
                path, corpus, arguments.steps, arguments.deadline_ms, own_core=arguments.own_core
            )
        if arguments.tenants:
            report["folds"] = measure_folds(path, corpus, arguments.tenants, arguments.tokens)
        report["machine"] = describe_machine()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
