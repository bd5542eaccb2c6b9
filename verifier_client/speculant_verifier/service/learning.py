"""The verifier's own training: failures are counted, a process trains, and what it publishes is swapped in.

It is the server that does this, not the decoder: a library starts no processes, and only a server runs for as long as
a training takes.
"""

from __future__ import annotations

import threading
from pathlib import Path

from loguru import logger

from speculant_graph.config_learning import DraftModelConfig, RecordConfig, TrainConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.training.process import TrainingProcess, adapter_path


class Learning:
    """Trains a draft model while a decoder serves, one training at a time, in a thread and a process of its own."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        draft_model: DraftModelConfig,
        record: RecordConfig,
        train: TrainConfig,
        *,
        poll_s: float = 1.0,
    ) -> None:
        """Begin with the adapter that was published last, unless the settings name one.

        Args:
            decoder: serves; it has a draft model, and records.
            draft_model: its draft model.
            record: where it records.
            train: how to train, and after how many new failures.
            poll_s: seconds between two looks at what was recorded.
        """
        assert decoder.adapters is not None
        assert decoder.recorder is not None
        assert record.folder is not None
        self._adapters, self._recorder, self._folder = decoder.adapters, decoder.recorder, record.folder
        self._draft_model, self._train, self._poll_s = draft_model, train, poll_s
        self._process: TrainingProcess | None = None
        self._complaint = ""
        self._lock = threading.Lock()  # of the process
        self._closing = threading.Event()
        self._worker = threading.Thread(target=self._work, name="learning", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """End a training that runs."""
        self._closing.set()
        with self._lock:
            if self._process is not None:
                self._process.stop()
        self._worker.join()

    def _work(self) -> None:
        published = adapter_path(self._folder, self._draft_model)
        if published.exists() and not self._draft_model.adapter:
            self._load(published)
        num_seen = 0
        while not self._closing.wait(self._poll_s):
            counts = self._recorder.statistics
            if counts.failures - num_seen < self._train.min_failures:
                continue
            num_seen = counts.failures
            if counts.num_tenants > 1:
                self._complain("there are records of several tenants; train for one with speculant train --tenant")
                continue
            self._train_once()

    def _train_once(self) -> None:
        logger.info("training the draft model")
        try:
            with self._lock:
                if self._closing.is_set():
                    return
                serving = self._draft_model.model_copy(update={"adapter": self._adapters.state.present.folder})
                self._process = TrainingProcess(self._folder, serving, self._train)
            outcome = self._process.wait()
        except ConfigError as error:
            self._complain(str(error))
            return
        if self._closing.is_set():
            return
        if outcome.adapter is None:
            self._complain(outcome.summary)
            return
        logger.info("trained the draft model: {}", outcome.summary)
        self._load(outcome.adapter)

    def _load(self, adapter: Path) -> None:
        try:
            self._adapters.load(str(adapter))
        except ConfigError as error:
            self._complain(str(error))

    def _complain(self, text: str) -> None:
        """Log why there is no new adapter; not again while it stays the same."""
        if text != self._complaint:
            logger.warning("no new adapter: {}", text)
        self._complaint = text
