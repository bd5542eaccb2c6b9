"""Answers by a model in this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import PurePath
from typing import cast

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError
from speculant_verifier.chat.backend import Delta, Messages
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.harmony import ChannelSplitter, HarmonyTokens
from speculant_verifier.results import StepEvent
from speculant_verifier.run_statistics import RunMeter, RunStatistics


class LocalBackend:
    """Answers by a decoder, which is closed with it."""

    def __init__(self, decoder: SpeculativeDecoder, config: GenerationConfig) -> None:
        """Take a decoder for this conversation alone.

        Raises:
            GenerationError: the model has no chat template that takes messages of a user.
        """
        decoder.chat_prompt([{"role": "user", "content": "Hello"}])  # fails now rather than after the first message
        self.name = PurePath(decoder.target.name).name
        self.finish_reason = ""
        self._decoder, self._config = decoder, config
        self._harmony = HarmonyTokens.of(decoder)
        self._meter = RunMeter(decoder)

    def answer(self, messages: Messages, attempt: int) -> Generator[Delta, None, None]:
        """Yield an answer as it comes; see :class:`~speculant_verifier.chat.backend.Backend`.

        Raises:
            GenerationError: the conversation does not fit the model, or decoding failed.
        """
        self._meter, self.finish_reason = RunMeter(self._decoder), ""
        prompt = self._decoder.chat_prompt(messages)
        splitter = ChannelSplitter(self._harmony, self._decoder.target.decode) if self._harmony else None
        config = self._config.model_copy(update={"seed": (self._config.seed + attempt) % (1 << 63), "n": 1})
        stream = cast("Generator[StepEvent, None, None]", self._decoder.stream([prompt], config))
        with closing(stream) as events:
            for event in events:
                self._meter.note(event)
                if event.result is not None and event.result.error:
                    raise GenerationError(event.result.error)
                for token_ids, text, is_accepted in (
                    (event.token_ids[: event.num_accepted], event.accepted_text, True),
                    (event.token_ids[event.num_accepted :], event.text[len(event.accepted_text) :], False),
                ):
                    is_last = event.result is not None and not is_accepted
                    pieces = splitter.push(token_ids, text, final=is_last) if splitter else [("content", text)]
                    for kind, piece in pieces:
                        yield Delta(**{kind: piece}, is_accepted=is_accepted)
                if event.result is not None:
                    self.finish_reason = event.result.finish_reason

    @property
    def statistics(self) -> RunStatistics:
        """How the latest answer came about."""
        return self._meter.statistics()

    def close(self) -> None:
        """Close the decoder."""
        self._decoder.close()
