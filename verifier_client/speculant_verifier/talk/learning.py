"""What ``/train`` and ``/eval`` do in a conversation with a model in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from speculant_graph.config_learning import DraftModelConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records.database import read_records, replay_of

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder

_MOST_RECORDS = 50
"""Of either kind that are replayed: somebody waits."""


class Learner:
    """Trains the draft model of a decoder on what it recorded, and says how its adapter does."""

    def __init__(self, decoder: SpeculativeDecoder, draft_model: DraftModelConfig, folder: Path | None) -> None:
        """Take the decoder, its draft model, and the folder of records; nothing is done yet."""
        self._decoder, self._draft_model, self._folder = decoder, draft_model, folder

    def train(self) -> str:
        """Train in a process of its own, wait for it, load what it published, and return what came of it.

        Raises:
            ConfigError: nothing can be trained.
            KeyboardInterrupt: Ctrl-C; the training is ended.
        """
        from speculant_verifier.training.process import TrainingProcess

        folder, adapters = self._recorded(), self._decoder.adapters
        assert adapters is not None
        serving = self._draft_model.model_copy(update={"adapter": adapters.state.present.folder})
        process = TrainingProcess(folder, serving)
        try:
            outcome = process.wait()
        finally:
            process.stop()
        if outcome.adapter is None:
            return f"no new adapter: {outcome.summary}"
        adapters.load(str(outcome.adapter))
        return f"adapter {outcome.adapter} drafts now, {outcome.summary}"

    def evaluate(self) -> str:
        """Replay the records with the present adapter against none, and return tokens a pass of both.

        Raises:
            ConfigError: there is no adapter, or no record of this tokenizer.
        """
        from speculant_verifier.training.examples import of_tokenizer
        from speculant_verifier.training.gate import compare
        from speculant_verifier.training.replay import replays_of

        folder, adapters = self._recorded(), self._decoder.adapters
        assert adapters is not None
        present = adapters.state.present
        if not present.name:
            raise ConfigError("no adapter drafts; /train makes one")
        found = [*read_records(folder)[-_MOST_RECORDS:], *replay_of(folder, None, _MOST_RECORDS)]
        target = self._decoder.target
        records = [each for each in found if each.pass_s > 0.0]
        if not records:
            raise ConfigError("nothing is recorded yet; write a message first")
        records = of_tokenizer(records, target.fingerprint.sha256, target.vocabulary_size)
        before, after = replays_of([adapters.base, adapters.model], records)
        return f"without and with {present.name}: {compare(before, after, records).line()}"

    def _recorded(self) -> Path:
        """Return the folder of records, with all that was recorded in it."""
        if self._folder is None or self._decoder.recorder is None or self._decoder.adapters is None:
            raise ConfigError("nothing is recorded or there is no draft model; begin with --record and --draft-model")
        self._decoder.recorder.flush()
        return self._folder
