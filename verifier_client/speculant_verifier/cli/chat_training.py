"""The chat commands /stats (draft statistics), /train and /eval (training and evaluation of the draft model).

/train and /eval run ``speculant train`` in a separate process and show its output. Because training runs in a separate
process, it never changes the model in use. Ctrl-C ends the training and keeps its best state so far, as in ``speculant
train`` on the command line.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from speculant_graph.config import DraftModelConfig, RecordConfig, TrainConfig
from speculant_graph.errors import ConfigError

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder


class ChatTraining:
    """Trains and evaluates a decoder's draft model, and reports drafting statistics."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        draft_model: DraftModelConfig,
        record: RecordConfig,
        train: TrainConfig,
        tenant: str,
        note: Callable[[str], object],
    ) -> None:
        """Load the adapter that an earlier training published, unless the settings name an adapter.

        Args:
            decoder: the decoder, with a draft model and records.
            draft_model: settings of the draft model.
            record: settings of the records.
            train: settings of the training.
            tenant: tenant of the conversation; training uses only this tenant's records.
            note: function that shows a line of text.
        """
        self._decoder, self._draft_model, self._record, self._train = decoder, draft_model, record, train
        self._tenant, self._note = tenant, note
        if decoder.adapters is not None and record.folder is not None:
            from speculant_verifier.training.publishing import output_of, withdraw

            published = output_of(record.folder, draft_model)
            decoder.adapters.rolled_back = partial(withdraw, published)
            if published.exists() and not draft_model.adapter:
                try:
                    decoder.adapters.load(str(published))
                except ConfigError as error:
                    note(f"the published adapter is not used: {error}")

    def train(self) -> None:
        """Train an adapter on the recorded requests; load it if it beats the current one on held-out documents.

        Raises:
            ConfigError: there is no draft model, or recording is off.
        """
        from speculant_verifier.draft_model.adapters import described
        from speculant_verifier.training.publishing import output_of

        adapters = self._decoder.adapters
        if adapters is None or self._record.folder is None:
            raise ConfigError("there is nothing to train, or to learn from; start with --draft-model and --record")
        output = output_of(self._record.folder, self._draft_model)
        output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # weights reveal training text
        if self._run(f"--output={output}", present=adapters.state.present.folder) == 0:
            self._note(f"the draft model now has {described(adapters.load(str(output)))}")

    def evaluate(self) -> None:
        """Measure the draft model once with its current adapter and once without an adapter, and compare the two.

        Raises:
            ConfigError: there is no adapter, or recording is off.
        """
        adapters = self._decoder.adapters
        folder = "" if adapters is None else adapters.state.present.folder
        if not folder or self._record.folder is None:
            raise ConfigError("no adapter is used, or recording is off; /train makes one from the records of --record")
        self._run(f"--evaluate={folder}", present="")

    def statistics(self) -> str:
        """Return the drafting statistics since the start of the chat, as lines of text."""
        from speculant_verifier.draft_model.adapters import described

        totals, engine = self._decoder.totals, self._decoder.engine
        num_drafted, num_accepted = sum(totals.drafted_by_depth), sum(totals.accepted_by_depth)
        lines = [f"{totals.num_tokens} tokens in {totals.num_rows} passes, {num_accepted} of {num_drafted} drafted"]
        lines[0] += " tokens accepted"
        if (rolling := engine.acceptance.of("")) is not None:
            lines.append(f"{rolling:.0%} of the latest requests' tokens that had drafts were accepted")
        if self._decoder.adapters is not None:
            state = self._decoder.adapters.state
            share = "" if state.acceptance is None else f", right about {state.acceptance:.0%} of {state.num_judged}"
            lines.append(f"draft model with {described(state.present)}: {state.num_passes} passes{share}")
        if engine.recorder is not None:
            engine.recorder.flush()
            lines.append(f"recorded: {engine.recorder.statistics.line()}")
        return "\n".join(lines)

    def _run(self, argument: str, *, present: str) -> int:
        """Run ``speculant train``; return its exit status. Ctrl-C also reaches the training; wait until it ends."""
        from speculant_verifier.service.learning import environment_of

        recorder = self._decoder.engine.recorder
        if recorder is not None:
            recorder.flush()
        arguments = argument, f"--tenant={self._tenant}"
        process = subprocess.Popen(
            [sys.executable, "-m", "speculant", "train", f"--records={self._record.folder}", *arguments],
            env=environment_of(self._draft_model, self._train, present),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        with process:
            while process.poll() is None:
                with suppress(KeyboardInterrupt):
                    for line in process.stdout:
                        self._note(line.rstrip("\n"))
                    process.wait()
        return process.returncode
