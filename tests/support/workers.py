"""What workers run in tests of their supervisor; no gRPC here. They write what they see into their folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import ConfigError, GraphFileError

PROGRAM = """
import sys
from speculant_drafter.workers import supervise
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.log import log_to_stderr
from support import workers

if __name__ == "__main__":
    log_to_stderr()
    config = ServerConfig.model_validate_json(sys.argv[2])
    target = getattr(workers, sys.argv[1])
    try:
        status = supervise(config, DraftConfig(k=3), target, log_level="DEBUG", log_format="json")
    except SpeculantError as error:
        print(type(error).__name__, error)
        status = 7
    assert not [name for name in sys.modules if name.partition(".")[0] == "grpc"]
    sys.exit(status)
"""


def serve(config_json: str, draft_json: str, log_level: str, log_format: str, index: int) -> int:
    """Note life and signals as files of the worker's folder until SIGTERM."""
    config = ServerConfig.model_validate_json(config_json)
    assert DraftConfig.model_validate_json(draft_json).k == 3
    assert (log_level, log_format, config.workers) == ("DEBUG", "json", 1)
    assert config.learned is not None
    assert config.learned.name == f"worker-{index}"
    folder = config.learned
    folder.mkdir(parents=True, exist_ok=True)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGHUP, lambda *_: (folder / "hup").touch())
    number = len(list(folder.glob("life-*")))
    (folder / "making").write_text(f"{os.getpid()} {config.listen}", encoding="utf-8")
    (folder / "making").rename(folder / f"life-{number}")  # whole, or not there
    while not stopped.wait(0.02):
        pass
    (folder / "stopped").touch()
    return 0


def second_is_misconfigured(config_json: str, draft_json: str, log_level: str, log_format: str, index: int) -> int:
    """Serve as the first worker; as another one, fail as on wrong settings."""
    if index == 0:
        return serve(config_json, draft_json, log_level, log_format, index)
    raise ConfigError("can't listen; choose another")


def fail_to_load(config_json: str, draft_json: str, log_level: str, log_format: str, index: int) -> int:
    """Fail as on a damaged graph."""
    raise GraphFileError("not a graph file; build it again")


def fail_while_stopping(config_json: str, draft_json: str, log_level: str, log_format: str, index: int) -> int:
    """Serve, but end with an exit status."""
    serve(config_json, draft_json, log_level, log_format, index)
    return 5


def fail_on_second_life(config_json: str, draft_json: str, log_level: str, log_format: str, index: int) -> int:
    """Serve in the first and third life; in the second, fail as on wrong settings."""
    folder = Path(ServerConfig.model_validate_json(config_json).learned or "")
    if (folder / "life-0").exists() and not (folder / "failed").exists():
        (folder / "failed").touch()
        raise ConfigError("the graph is away; bring it back")
    return serve(config_json, draft_json, log_level, log_format, index)


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that is dead but not collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def environment() -> dict[str, str]:
    """Return an environment in which a new Python finds what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
