"""Addresses of workers, and a supervisor with real processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_drafter.worker_config import worker_address, worker_config, worker_configs
from speculant_drafter.workers import Backoff
from speculant_graph.config import ServerConfig
from speculant_graph.errors import ConfigError
from support.workers import PROGRAM, environment, is_running

PATIENCE_S = 30.0


@pytest.mark.parametrize(
    ("address", "index", "count", "expected"),
    [
        ("", 1, 3, ""),
        ("unix:///run/d.sock", 0, 1, "unix:///run/d.sock"),
        ("unix:///run/d.sock", 0, 2, "unix:///run/d-0.sock"),
        ("unix:///run/d.sock", 11, 12, "unix:///run/d-11.sock"),
        ("unix:///run/g.2/drafter", 1, 2, "unix:///run/g.2/drafter-1"),
        ("unix:///run/a.b.sock", 1, 2, "unix:///run/a.b-1.sock"),
        ("localhost:5000", 0, 2, "localhost:5000"),
        ("localhost:5000", 3, 4, "localhost:5003"),
        ("[::1]:5000", 1, 2, "[::1]:5001"),
        ("localhost:0", 1, 2, "localhost:0"),
        ("unix:///run/d.sock, localhost:5000", 1, 2, "unix:///run/d-1.sock,localhost:5001"),
        ("not an address", 0, 1, "not an address"),  # whoever binds it complains
    ],
)
def test_addresses(address: str, index: int, count: int, expected: str) -> None:
    assert worker_address(address, index, count) == expected


@pytest.mark.parametrize("address", ["x", "unix://", "unix:///", "http://host:1", "host:", "host:²", "host:65535", ","])
def test_what_has_no_numbers_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        worker_address(address, 1, 2)


@given(st.integers(1, 20), st.integers(1, 65_000))
def test_workers_never_share_addresses_or_folders(count: int, port: int) -> None:
    config = ServerConfig(
        listen=f"unix:///run/d.sock,localhost:{port}",
        learned=Path("learned"),
        workers=count,
        metrics_listen="localhost:0",
    )
    configs = worker_configs(config)
    assert len(configs) == count
    own = [{*one.listen.split(","), str(one.learned)} for one in configs]
    assert all(not first & second for first, second in itertools.combinations(own, 2))
    assert all(one.workers == 1 for one in configs)
    if count == 1:
        assert configs == [config]
    else:
        assert configs[-1].learned == Path("learned") / f"worker-{count - 1}"


def test_addresses_that_would_meet_are_refused() -> None:
    config = ServerConfig(listen="localhost:5000", admin_listen="localhost:5001", workers=2)
    with pytest.raises(ConfigError, match=r"workers 0 and 1 would both have the address localhost:5001; .*2 apart"):
        worker_configs(config)
    assert worker_config(ServerConfig(workers=2), 0).learned is None


def test_back_off_doubles_and_forgets_after_a_sound_life() -> None:
    backoff = Backoff()
    waits = [backoff.next_delay_s(0.0) for _ in range(8)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert backoff.next_delay_s(59.0) == pytest.approx(5.0)
    assert backoff.next_delay_s(61.0) == pytest.approx(0.1)
    assert backoff.next_delay_s(0.0) == pytest.approx(0.2)


class Supervised:
    """A supervisor in a process of its own, with two workers."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def wait(self) -> tuple[int, str, str]:
        """Wait for its end; return exit status, standard output and error."""
        output, log = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output, log

    def life(self, index: int, number: int) -> tuple[int, str]:
        """Wait for a life of a worker; return its process and address."""
        path = self.folder / f"worker-{index}" / f"life-{number}"
        self.until(path.exists)
        pid, _, address = path.read_text(encoding="utf-8").partition(" ")
        return int(pid), address

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def have_stopped(self) -> list[bool]:
        return [(self.folder / f"worker-{index}" / "stopped").exists() for index in range(2)]


@contextlib.contextmanager
def supervised(folder: Path, target: str = "serve") -> Iterator[Supervised]:
    config = ServerConfig(listen="unix:///run/d.sock", learned=folder, workers=2)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, target, config.model_dump_json()],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that Ctrl-C can be sent to all of it, and nothing else
    )
    try:
        yield Supervised(process, folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.faults
def test_a_dead_worker_is_started_again_and_signals_reach_all(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        (first, address), (second, _) = running.life(0, 0), running.life(1, 0)
        assert address == "unix:///run/d-0.sock"
        os.kill(second, signal.SIGKILL)
        again, address = running.life(1, 1)
        assert (again != second, address) == (True, "unix:///run/d-1.sock")
        running.process.send_signal(signal.SIGHUP)
        running.until(lambda: all((tmp_path / f"worker-{index}" / "hup").exists() for index in range(2)))
        assert is_running(first)
        running.process.send_signal(signal.SIGTERM)
        status, _, log = running.wait()
        assert (status, running.have_stopped()) == (0, [True, True])
        assert re.fullmatch(r".*ERROR +w1 worker 1 was ended by SIGKILL; it starts again in 0\.\d s\n", log), log
        assert not is_running(first)


@pytest.mark.faults
def test_ctrl_c_stops_all_without_a_word(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        pids = [running.life(index, 0)[0] for index in range(2)]
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does
        assert running.wait() == (0, "", "")
        assert running.have_stopped() == [True, True]
        assert not any(map(is_running, pids))


@pytest.mark.faults
def test_ctrl_c_while_workers_start_is_heeded(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        running.until(lambda: len(children.read_text(encoding="utf-8").split()) >= 2)
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.wait() == (0, "", "")


@pytest.mark.faults
def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        pids = [running.life(index, 0)[0] for index in range(2)]
        running.process.kill()
        running.until(lambda: not any(map(is_running, pids)))
        assert running.have_stopped() == [True, True]  # they drained


@pytest.mark.faults
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("second_is_misconfigured", "ConfigError can't listen; choose another\n"),
        ("fail_to_load", "SpeculantError not a graph file; build it again\n"),
    ],
)
def test_a_worker_that_cannot_start_stops_everything_with_its_one_line(tmp_path: Path, target: str, said: str) -> None:
    with supervised(tmp_path, target) as running:
        assert running.wait() == (7, said, "")


@pytest.mark.faults
def test_a_worker_that_fails_later_is_tried_again(tmp_path: Path) -> None:
    with supervised(tmp_path, "fail_on_second_life") as running:
        running.life(0, 0)
        os.kill(running.life(1, 0)[0], signal.SIGKILL)
        running.life(1, 1)
        running.process.send_signal(signal.SIGTERM)
        status, _, log = running.wait()
        assert status == 0
        assert "worker 1 ended with status 2: the graph is away; bring it back; it starts again in 0." in log


@pytest.mark.faults
def test_a_worker_that_fails_while_it_stops_is_told(tmp_path: Path) -> None:
    with supervised(tmp_path, "fail_while_stopping") as running:
        for index in range(2):
            running.life(index, 0)
        running.process.send_signal(signal.SIGTERM)
        status, _, log = running.wait()
        assert status == 1
        assert "worker 0 ended with status 5 while it stopped" in log
