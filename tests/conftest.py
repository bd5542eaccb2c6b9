"""Settings and fixtures of the whole suite: hypothesis profile, tiny real models, one thread for torch."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from loguru import logger

from speculant_graph.log import silence

# A child process of a test must not spin on every core, and transformers must not look for a hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Servers of tests are on this machine. Tests of proxy variables set them themselves.
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]

# No test simulates a power failure, and on a busy machine syncing a graph takes longer than the rest of its build.
os.fsync = lambda _descriptor: None

# Shells start background processes with these signals ignored, and children inherit that. Then Ctrl-C could not be
# tested.
for which, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(which) == signal.SIG_IGN:
        signal.signal(which, default)

settings.register_profile(
    "suite", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("suite")


# Imports leave half a million objects, and garbage collection spends nearly all its time on scanning them again.
gc.set_threshold(20_000, 20, 20)


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report every finished test to ``.ci/run``."""
    if report.when == "call" and (path := os.environ.get("SPECULANT_TESTS_RUN")):
        with open(path, "ab") as counted:
            counted.write(b".")


def pytest_unconfigure() -> None:
    """Let the interpreter collect everything at exit, because the core reports objects that outlive it."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def quiet_again():
    """Undo a command's changes to the process's logging, whose standard error is closed after the test."""
    yield
    logger.remove()
    silence()


@pytest.fixture
def warnings():
    """Return the list that collects warnings, one line each."""
    messages = []
    logger.enable("speculant_graph")
    logger.enable("speculant_verifier")
    sink = logger.add(lambda message: messages.append(message.record["message"]), level="WARNING")
    yield messages
    logger.remove(sink)
    assert all(len(message.splitlines()) == 1 for message in messages)


@pytest.fixture(scope="session")
def gpt_oss():
    """Return a random gpt-oss with a sliding window of 16, as a target model."""
    from support.tiny_models import tiny_gpt_oss

    return tiny_gpt_oss()


@pytest.fixture(scope="session")
def llama():
    """Return a random Llama, as a target model."""
    from support.tiny_models import tiny_model

    return tiny_model("llama")
