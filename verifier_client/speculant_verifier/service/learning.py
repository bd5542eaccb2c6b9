"""Trains the draft model of a running verifier: counts failures, runs a training process, and loads the new adapter.

Training is the task of the server and not of the decoder. A library should not start processes, and only a server runs
long enough for a training.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

from loguru import logger

from speculant_graph.config import DraftModelConfig, RecordConfig, TrainConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.training.publishing import output_of, withdraw

_PROGRAM = ("nice", "-n", "19", sys.executable, "-m", "speculant", "train")
_STOP_WAIT_S = 3.0


def environment_of(draft_model: DraftModelConfig, train: TrainConfig, present: str) -> dict[str, str]:
    """Return the environment of a ``speculant train`` process.

    Args:
        draft_model: the draft model to train.
        train: training settings.
        present: folder of the present adapter, which a new adapter must beat; empty if there is no present adapter.
    """
    given = {f"train__{name}": value for name, value in train.model_dump().items()} | {
        "draft_model__name": draft_model.name,
        "draft_model__adapter": present,
    }
    return os.environ | {f"SPECULANT_{name.upper()}": str(value) for name, value in given.items()}


class Learning:
    """Trains a draft model while a decoder serves requests; a thread runs one training process at a time."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        draft_model: DraftModelConfig,
        record: RecordConfig,
        train: TrainConfig,
        *,
        poll_s: float = 1.0,
    ) -> None:
        """Start with the latest published adapter, unless the settings name an adapter.

        Args:
            decoder: the serving decoder, with a draft model and a recorder.
            draft_model: settings of the decoder's draft model.
            record: settings of the decoder's records.
            train: training settings, including the number of new failures that starts a training.
            poll_s: seconds between two checks of the recorder's counts.
        """
        assert decoder.adapters is not None
        assert decoder.engine.recorder is not None
        assert record.folder is not None
        self._adapters, self._recorder, self._records = decoder.adapters, decoder.engine.recorder, record.folder
        self._output = output_of(record.folder, draft_model)
        self._adapters.rolled_back = partial(withdraw, self._output)
        self._draft_model, self._train, self._poll_s = draft_model, train, poll_s
        self._process: subprocess.Popen[str] | None = None
        self._complaint = ""
        self._lock = threading.Lock()  # guards _process
        self._closing = threading.Event()
        self._worker = threading.Thread(target=self._work, name="learning", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """Stop a running training, by force after a few seconds; a published adapter stays intact."""
        self._closing.set()
        with self._lock:
            for signal_number in (signal.SIGTERM, signal.SIGKILL):
                if self._process is None or self._process.poll() is not None:  # its id may be reused by now
                    break
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal_number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_WAIT_S)
        self._worker.join()

    def _work(self) -> None:
        if self._output.exists() and not self._draft_model.adapter:
            self._load()
        num_seen = 0
        while not self._closing.wait(self._poll_s):
            counts = self._recorder.statistics
            if counts.failures - num_seen < self._train.min_failures:
                continue
            num_seen = counts.failures
            if len(counts.tenants) > 1:
                self._complain("there are records of several tenants; train for one with speculant train --tenant")
                continue
            self._train_once()

    def _train_once(self) -> None:
        logger.info("training the draft model")
        try:
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = self._started()
        except OSError as error:
            self._complain(f"training can't be started ({error}); check {self._output.parent}")
            return
        shown, complaints = self._process.communicate()
        if self._closing.is_set():
            return
        status = self._process.returncode
        lines = shown.splitlines() or complaints.splitlines()
        if status == 0:
            logger.info("trained the draft model: {}", "; ".join(lines))
            self._load()
        else:  # a process killed by a signal, e.g. when out of memory, prints no reason
            self._complain(lines[-1] if lines and status > 0 else f"training ended with status {status}")

    def _started(self) -> subprocess.Popen[str]:
        """Start a training process with the lowest priority."""
        self._output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # weights reveal what they were trained on
        return subprocess.Popen(
            [*_PROGRAM, f"--records={self._records}", f"--output={self._output}"],
            env=environment_of(self._draft_model, self._train, self._adapters.state.present.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _load(self) -> None:
        try:
            self._adapters.load(str(self._output))
        except ConfigError as error:
            self._complain(str(error))

    def _complain(self, text: str) -> None:
        """Log why there is no new adapter, unless the reason is the same as before."""
        if text != self._complaint:
            logger.warning("no new adapter: {}", text)
        self._complaint = text
