"""``SpeculativeDecoder``: the model's own text, sooner. The way in for Python users.

It puts the parts together (model, drafter, engine) and turns text into token ids and back; the decoding itself is in
:mod:`speculant_verifier.engine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, overload

from speculant_graph.client import DrafterClient, LocalDrafter, NullDrafter
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.draft.generator import CHAIN_STRATEGY_NAMES
from speculant_graph.errors import ConfigError, GenerationError, TokenizerMismatchError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Drafter, Fingerprint, TokenId
from speculant_verifier.engine import ActiveSequence, Emission, Engine
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult, StepEvent
from speculant_verifier.stream import TextStream

Prompt = str | Sequence[TokenId]
"""Text, or token ids that are used as they are."""


class SpeculativeDecoder:
    """A model that drafts from a graph and verifies the drafts itself.

    The text is what the model alone would have written: for a given prompt, settings and seed it does not depend on
    the graph, on the drafter, or on whether there is one.

    Example:
        >>> decoder = SpeculativeDecoder(graph_path="graph.pkl", verifier_config=VerifierConfig(model_name="my-model"))
        >>> result = decoder.generate("A termination clause", GenerationConfig(max_tokens=50))
        >>> print(result.text, result.acceptance_rate)
    """

    def __init__(
        self,
        graph_path: str | Path | None = None,
        verifier_config: VerifierConfig | None = None,
        draft_config: DraftConfig | None = None,
        *,
        client_config: ClientConfig | None = None,
        drafter: Drafter | None = None,
        target: TargetModel | None = None,
    ) -> None:
        """Load the model and find the drafter.

        Args:
            graph_path: draft in this process from this graph.
            verifier_config: which model; ignored if ``target`` is given.
            draft_config: how to draft, and how much. Without a graph, a sidecar or a drafter the strategies that draft
                from the sequence itself do so in this process; with 'greedy' and 'sampling' it is plain decoding.
            client_config: draft by the sidecar at its address instead.
            drafter: or by this drafter; the caller closes it.
            target: a model that is already loaded.

        Raises:
            ConfigError: more than one source of drafts, or the model can't be loaded.
            GraphFileError: the graph can't be read.
            TokenizerMismatchError: the graph was built with another tokenizer than the model's.
        """
        sidecar = client_config if client_config is not None and client_config.address else None
        if sum(source is not None for source in (graph_path, sidecar, drafter)) > 1:
            raise ConfigError("give one source of drafts: graph_path, client_config.address or drafter")
        self.draft_config = draft_config or DraftConfig()
        graph = None if graph_path is None else NgramGraph.load(graph_path)
        self.verifier_config = verifier_config or VerifierConfig()
        self.target = target or TargetModel.load(self.verifier_config)
        self._owns_drafter = drafter is None
        self.drafter: Drafter
        if drafter is not None:
            self.drafter = drafter
        elif graph is not None:
            _check_tokenizers(graph.metadata.tokenizer, self.target.fingerprint)
            self.drafter = LocalDrafter(graph, self.draft_config)
        elif sidecar is not None:
            self.drafter = DrafterClient(
                sidecar, tokenizer=self.target.fingerprint, draft=self.draft_config, wants_proposals=False
            )
        elif self.draft_config.strategy in CHAIN_STRATEGY_NAMES:  # which know nothing but a graph
            self.drafter = NullDrafter()
        else:
            self.drafter = LocalDrafter(None, self.draft_config)

    @overload
    def generate(self, prompt: str, generation_config: GenerationConfig | None = None) -> GenerationResult: ...

    @overload
    def generate(
        self, prompt: list[Prompt] | list[str], generation_config: GenerationConfig | None = None
    ) -> list[GenerationResult]: ...

    def generate(
        self, prompt: str | list[Prompt] | list[str], generation_config: GenerationConfig | None = None
    ) -> GenerationResult | list[GenerationResult]:
        """Continue a prompt, or each prompt of a list in one batch.

        Args:
            prompt: one text, or a list whose items are texts or lists of token ids.
            generation_config: settings for all of them.

        Returns:
            One result, or a list in the order of the prompts.

        Raises:
            GenerationError: a prompt is empty, too long for the model, or holds ids outside its vocabulary.
        """
        prompts: Sequence[Prompt] = [prompt] if isinstance(prompt, str) else prompt
        results: list[GenerationResult | None] = [None] * len(prompts)
        for emission in self._run(prompts, generation_config or GenerationConfig()):
            if emission.finish_reason is not None:
                results[emission.sequence.index] = self._result(emission)
        finished = [result for result in results if result is not None]
        return finished[0] if isinstance(prompt, str) else finished

    def stream(
        self, prompt: str | list[Prompt] | list[str], generation_config: GenerationConfig | None = None
    ) -> Iterator[StepEvent]:
        """Like :meth:`generate`, but yield what every step emits as it happens.

        The texts of a prompt's events, put together, are the text of its result, which the last event carries.
        """
        prompts: Sequence[Prompt] = [prompt] if isinstance(prompt, str) else prompt
        texts = [TextStream(self.target.decode) for _ in prompts]
        for emission in self._run(prompts, generation_config or GenerationConfig()):
            yield self._event(emission, texts[emission.sequence.index])

    def close(self) -> None:
        """Free the drafter, unless the caller brought it."""
        if self._owns_drafter:
            self.drafter.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _run(self, prompts: Sequence[Prompt], config: GenerationConfig) -> Iterator[Emission]:
        requests = [(self._token_ids(prompt, number), config) for number, prompt in enumerate(prompts)]
        if not requests:
            return iter(())
        engine = Engine(self.target, self.drafter, self.verifier_config.max_batch_size, self.draft_config.k)
        return engine.run(requests)

    def _token_ids(self, prompt: Prompt, number: int) -> list[TokenId]:
        if isinstance(prompt, str):
            try:
                prompt.encode()
            except UnicodeEncodeError as error:
                raise GenerationError(f"prompt {number} is not valid text ({error.reason}); give UTF-8") from error
        token_ids = self.target.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not token_ids:
            raise GenerationError(f"prompt {number} is empty; give at least one token")
        if len(token_ids) >= self.target.max_length:
            raise GenerationError(
                f"prompt {number} has {len(token_ids)} tokens, but '{self.target.name}' takes at most "
                f"{self.target.max_length - 1}; shorten it"
            )
        if not all(0 <= token < self.target.vocabulary_size for token in token_ids):
            raise GenerationError(
                f"prompt {number} holds token ids outside 0..{self.target.vocabulary_size - 1}; "
                "use the model's own tokenizer"
            )
        return token_ids

    def _visible(self, token_ids: Sequence[TokenId], *, is_last: bool) -> Sequence[TokenId]:
        ends = is_last and token_ids and token_ids[-1] in self.target.end_token_ids
        return token_ids[:-1] if ends else token_ids

    def _event(self, emission: Emission, text: TextStream) -> StepEvent:
        is_last = emission.finish_reason is not None
        visible = self._visible(emission.token_ids, is_last=emission.finish_reason == "stop")
        accepted = text.push(visible[: emission.num_accepted])
        own = text.push(visible[emission.num_accepted :], final=is_last)
        return StepEvent(
            prompt_index=emission.sequence.index,
            token_ids=emission.token_ids,
            num_accepted=emission.num_accepted,
            text=accepted + own,
            accepted_text=accepted,
            result=self._result(emission) if is_last else None,
        )

    def _result(self, emission: Emission) -> GenerationResult:
        assert emission.finish_reason is not None
        sequence: ActiveSequence = emission.sequence
        return GenerationResult(
            text=self.target.decode(self._visible(sequence.output, is_last=emission.finish_reason == "stop")),
            token_ids=sequence.output,
            prompt_token_ids=sequence.prompt,
            finish_reason=emission.finish_reason,
            num_steps=sequence.num_steps,
            num_steps_without_drafter=sequence.num_steps_without_drafter,
            drafted_by_depth=tuple(sequence.drafted_by_depth),
            accepted_by_depth=tuple(sequence.accepted_by_depth),
            times=sequence.times(),
        )


def _check_tokenizers(graph: Fingerprint, model: Fingerprint) -> None:
    if graph.sha256 != model.sha256:
        raise TokenizerMismatchError(
            f"the graph was built with the tokenizer '{graph.name}', the model uses '{model.name}' and they differ; "
            f"build the graph again with --graph.tokenizer-name {model.name}"
        )
