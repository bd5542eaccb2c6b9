"""``speculant train`` as a process of its own, for programs that go on decoding meanwhile. No torch here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from speculant_graph.config_learning import DraftModelConfig, RecordConfig, TrainConfig
from speculant_graph.errors import ConfigError

_PROGRAM = ("nice", "-n", "19", sys.executable, "-m", "speculant", "train", "--json")
_STOP_WAIT_S = 3.0


def require_learning(draft_model: DraftModelConfig, record: RecordConfig, train: TrainConfig) -> None:
    """Refuse to train by itself what can't be trained.

    Raises:
        ConfigError: no draft model is named, or no folder of records.
    """
    if train.min_failures and not (draft_model.name and record.folder):
        raise ConfigError(
            "train.min_failures trains a draft model on records; set --draft-model and --record, or leave it out"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a training."""

    adapter: Path | None
    """The name of the adapter that was published; None if none was."""
    summary: str
    """Why, or why not, in one line."""


class TrainingProcess:
    """A training that runs, as unimportant as a process can be."""

    def __init__(self, records: Path, draft_model: DraftModelConfig, train: TrainConfig | None = None) -> None:
        """Start it.

        Args:
            records: folder of records.
            draft_model: what is trained; its adapter is what serves now.
            train: how; None: from the environment and the settings file.

        Raises:
            ConfigError: it can't be started, or there is no folder for its adapter.
        """
        output = adapter_path(records, draft_model)
        given: dict[str, object] = {f"draft_model__{name}": getattr(draft_model, name) for name in ("name", "adapter")}
        given |= {f"train__{name}": value for name, value in (train.model_dump().items() if train else ())}
        try:
            output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # weights reveal what they were trained on
            self._process = subprocess.Popen(
                [*_PROGRAM, f"--records={records}", f"--output={output}"],
                env=os.environ | {f"SPECULANT_{name.upper()}": str(value) for name, value in given.items()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"a training can't be started ({error}); check {output.parent}") from error

    def wait(self) -> Outcome:
        """Wait for its end; while this waits, :meth:`stop` may be called by another thread."""
        shown, complaints = self._process.communicate()
        try:
            figures = json.loads(shown.splitlines()[-1])
            gate = figures["gate"] or {"reason": "no state was better than the beginning"}
        except (IndexError, ValueError, KeyError, TypeError):
            status, lines = self._process.returncode, complaints.strip().splitlines()
            is_explained = lines and status > 0  # a signal, such as that of memory that has ended, leaves no words
            return Outcome(None, lines[-1] if is_explained else f"the training ended with status {status}")
        if figures["adapter"] is None:
            return Outcome(None, gate["reason"])
        before, after = (gate["failures"][f"tokens_per_pass_{side}"] for side in ("before", "after"))
        return Outcome(Path(figures["adapter"]), f"tokens a pass {before:.2f} -> {after:.2f}")

    def stop(self) -> None:
        """End it, by force if it takes longer than a moment; what is published stays whole."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:  # its id may be another's by now
                return
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_WAIT_S)
                return


def adapter_path(records: Path, draft_model: DraftModelConfig) -> Path:
    """Return the name at which the adapter of a folder of records is published."""
    return records / "adapters" / PurePath(draft_model.name).name
