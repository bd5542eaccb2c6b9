"""Settings shared by the commands that decode: the model, its drafter, and request records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from speculant_graph.config import (
    ClientConfig,
    DraftConfig,
    DraftModelConfig,
    GenerationConfig,
    RecordConfig,
    VerifierConfig,
)
from speculant_graph.settings import CommandSettings, GraphPaths
from speculant_verifier.suitability import Sources, log_choice, suited

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder


class DecodingSettings(CommandSettings):
    """Base class for the settings of the commands that decode: generate, chat and verifier."""

    graph_path: GraphPaths = []  # noqa: RUF012 - every instance gets its own copy
    """N-gram graph file from which this process drafts, or up to four graph files that act as layers."""
    verifier: VerifierConfig = VerifierConfig()
    """The model."""
    draft: DraftConfig = DraftConfig()
    """Drafting options."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """Settings of a small language model that also drafts; only its name is required."""
    generation: GenerationConfig = GenerationConfig()
    """Settings for sampling and for the length of the output."""
    client: ClientConfig = ClientConfig()
    """Connection to the drafter sidecar, if one is used."""
    record: RecordConfig = RecordConfig()
    """Settings of the detailed mode, which records whole requests in a database. --record DIR is short for
    --record.folder DIR."""

    @property
    def suited_draft(self) -> DraftConfig:
        """Drafting settings, with a drafting strategy that suits the verification rule.

        Raises:
            ConfigError: strategy, rule, graph, sidecar and draft model are incompatible.
        """
        has_ngrams = bool(self.graph_path) or bool(self.client.address)
        return suited(self.draft, self.generation, Sources(has_ngrams, bool(self.draft_model.name)))

    def open_decoder(self, *, require_same_tokenizer: bool = True) -> SpeculativeDecoder:
        """Load the model and open its drafter; warn if there is no drafter."""
        from speculant_verifier.decoder import SpeculativeDecoder
        from speculant_verifier.model.progress import quiet_transformers

        quiet_transformers()
        draft = self.suited_draft
        log_choice(self.generation.rule, draft, self.draft)
        decoder = SpeculativeDecoder(
            self.graph_path,
            self.verifier,
            draft,
            client_config=self.client,
            require_same_tokenizer=require_same_tokenizer,
            draft_model=self.draft_model,
            record=self.record,
        )
        if decoder.drafter.state == "off" and draft.k:
            logger.warning(
                "plain decoding: strategy {} needs --graph or --drafter; --strategy tree drafts from the sequence "
                "itself, too",
                draft.strategy,
            )
        return decoder
