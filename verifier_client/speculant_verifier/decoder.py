"""``SpeculativeDecoder``, the entry point for Python users: lossless speculative decoding with a model.

The decoder assembles model, drafter and engine, and converts between text and token ids.
:mod:`speculant_verifier.engine` does the decoding.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

from speculant_graph.argument_types import require_methods, require_paths, require_types
from speculant_graph.budget import StepBudget
from speculant_graph.client import LocalDrafter, NullDrafter, client_of
from speculant_graph.config import (
    ClientConfig,
    DraftConfig,
    DraftModelConfig,
    GenerationConfig,
    RecordConfig,
    VerifierConfig,
)
from speculant_graph.corpus.tokenize import require_same
from speculant_graph.draft.options import warn_of_unread
from speculant_graph.errors import GenerationRequestError
from speculant_graph.graph.layers import load_layers
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import STRATEGIES, StrategyName
from speculant_graph.types import Drafter, SessionOptions, TokenId
from speculant_verifier.conversation.chat_format import ChatFormat
from speculant_verifier.conversation.template_prompt import Message
from speculant_verifier.conversation.text import Batch, Prompt, Prompts
from speculant_verifier.draft_model.adapters import Adapters
from speculant_verifier.draft_model.factory import load_draft_model, open_model_drafter
from speculant_verifier.engine import Engine, Request
from speculant_verifier.engine.runner import Runner
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel
from speculant_verifier.nasd.nasd_drafter import NasdDrafter
from speculant_verifier.records.record import RecordIdentity
from speculant_verifier.results import GenerationResult, StepEvent
from speculant_verifier.sources import require_one_source
from speculant_verifier.speculation import CostTable, ObservedCosts, batches_up_to, load_or_measure
from speculant_verifier.suitability import Sources, require_strategy

_ARGUMENTS: dict[str, type | tuple[type, ...]] = {
    "verifier_config": VerifierConfig,
    "draft_config": DraftConfig,
    "client_config": ClientConfig,
    "draft_model": DraftModelConfig,
    "target": TargetModel,
    "require_same_tokenizer": bool,
    "record": RecordConfig,
}
_OWN_DRAFTERS: dict[StrategyName, Callable[[DraftConfig, int], Drafter]] = {"nasd": NasdDrafter}
"""Constructors of the drafters that run in the verifier's process, by drafting strategy. Each constructor takes the
drafting settings and the vocabulary size."""
_DEEP = 128
"""Default ``max_depth`` if every pass streams weights into memory, because long drafts then cost little."""


class SpeculativeDecoder:
    """Decodes speculatively: a drafter drafts from a graph, and the model verifies the drafts.

    With the verification rules ``follow``, ``gumbel`` and ``nasd``, token ids equal those of plain decoding with the
    same model, prompt, settings and seed. The other rules keep the distribution of the output.

    All methods are thread-safe and may be called from any event loop. The requests of all callers share one batch.

    Examples:
        >>> decoder = SpeculativeDecoder(graph_path="graph.pkl", verifier_config=VerifierConfig(model_name="my-model"))
        >>> result = decoder.generate("A termination clause", GenerationConfig(max_tokens=50))
        >>> print(result.text, result.acceptance_rate)
    """

    def __init__(
        self,
        graph_path: str | Path | Sequence[str | Path] | None = None,
        verifier_config: VerifierConfig | None = None,
        draft_config: DraftConfig | None = None,
        *,
        client_config: ClientConfig | None = None,
        draft_model: DraftModelConfig | None = None,
        drafter: Drafter | None = None,
        target: TargetModel | None = None,
        require_same_tokenizer: bool = True,
        record: RecordConfig | None = None,
    ) -> None:
        """Load the model and open the drafter.

        Args:
            graph_path: graph to draft from in this process, or up to four graphs as layers.
            verifier_config: the model and how to run it; with ``target``, only how to run it.
            draft_config: drafting strategy and limits. If there is no graph, sidecar or drafter, strategies that draft
                from the sequence itself run in this process. If there is no graph, sidecar or drafter, the strategies
                'greedy' and 'sampling' draft nothing.
            client_config: if it has an address, the sidecar at this address drafts instead of a graph.
            draft_model: a small language model that drafts together with n-grams (strategies 'tree' and 'specexec') or
                alone ('model', and 'specexec' without a graph or a sidecar).
            drafter: a drafter to use instead of a graph or a sidecar; the caller closes it.
            target: a model that is already loaded.
            require_same_tokenizer: raise if the first request finds that the sidecar's tokenizer differs. If False, or
                if a later request finds a difference, decoding continues without the sidecar's drafts.
            record: detailed mode: which finished requests are recorded, and where; None records no requests.

        Raises:
            ConfigError: an argument has a wrong type, several sources of drafts are given, the model can't be loaded,
                or the records folder can't be created.
            GraphFileError: a graph can't be read.
            TokenizerMismatchError: a graph was built with a tokenizer that differs from the model's.
        """
        require_types(locals(), _ARGUMENTS)
        require_methods("drafter", drafter, ("open", "draft", "finish", "close"))
        sidecar = client_config if client_config is not None and client_config.address else None
        paths = require_paths("graph_path", graph_path)
        require_one_source(paths or None, sidecar, drafter)
        self.draft_config = draft_config or DraftConfig()
        graphs = load_layers(paths, verify=True)
        self.verifier_config = verifier_config or VerifierConfig()
        self.target = target or TargetModel.load(self.verifier_config)
        if graphs:
            require_same(graphs[0].metadata.tokenizer, self.target.fingerprint)
        self._owns_drafter, self._owns_target = drafter is None, target is None
        if self.target.offload is not None:
            wide = {"k": self.target.offload.plan.most_nodes, "max_depth": _DEEP}
            unset = {name: value for name, value in wide.items() if name not in self.draft_config.model_fields_set}
            self.draft_config = self.draft_config.model_copy(update=unset)
        strategy = self.draft_config.strategy
        if sidecar is None:  # a sidecar's client does this check itself
            warn_of_unread(self.draft_config)
        wanted = draft_model if draft_model is not None and draft_model.name else None
        has_ngrams = bool(graphs) or sidecar is not None
        require_strategy(strategy, Sources(has_ngrams, wanted is not None, drafter is not None))
        base = None if wanted is None else load_draft_model(wanted, self.verifier_config, self.target)
        drafts = not STRATEGIES[strategy].needs_graph or bool(graphs) or sidecar is not None
        self.costs = self._measured_costs() if drafts or (drafter is not None and drafter.state != "off") else None
        """Measured durations of forward passes on this machine; None if they were not measured."""
        # SpecExec's tree comes from the draft model alone if the only n-grams are those of the sequence itself.
        model_alone = STRATEGIES[strategy].runs_by == "draft-model" or (
            base is not None and STRATEGIES[strategy].fills_budget and not has_ngrams
        )
        self.drafter: Drafter = (
            drafter if drafter is not None else self._opened_drafter(graphs, sidecar, drafts=drafts and not model_alone)
        )
        budget = StepBudget(ObservedCosts(self.costs)) if self.costs is not None else None
        self.record_identity = RecordIdentity(tenant=client_config.tenant if client_config is not None else "")
        """Record fields that the engine can't know: draft model, adapter and tenant."""
        self.adapters: Adapters | None = None
        """Loads and swaps the draft model's LoRA adapters; None if there is no draft model."""
        if wanted is not None and base is not None:
            ngrams = None if model_alone else self.drafter
            self.drafter = open_model_drafter(
                base, self.target, self.verifier_config, self.draft_config, ngrams, budget
            )
            self.adapters = Adapters(self.drafter, base, wanted, self.record_identity)
        self.engine = Engine(
            self.target,
            self.drafter,
            self.verifier_config,
            self.draft_config,
            budget=budget,
            require_same_tokenizer=require_same_tokenizer,
            record=record,
            identity=self.record_identity,
        )
        """The engine. Callers only read the engine's queues, caches and counts; the decoder does everything else."""
        self._runner = Runner(self.engine)

    @property
    def num_sequences(self) -> int:
        """Number of running and waiting sequences of all callers."""
        return self._runner.num_sequences

    def _measured_costs(self) -> CostTable | None:
        if not (self.verifier_config.measure_costs and self.draft_config.k):
            return None
        batches = batches_up_to(self.verifier_config.max_batch_size)
        return load_or_measure(self.target, batches, most_nodes=self.draft_config.k)

    def _opened_drafter(self, graphs: Sequence[NgramGraph], sidecar: ClientConfig | None, *, drafts: bool) -> Drafter:
        """Open the drafter that the settings name, except a draft model, which is opened separately."""
        strategy = self.draft_config.strategy
        wanted = STRATEGIES[strategy]
        if graphs:
            return LocalDrafter(graphs, self.draft_config)
        if sidecar is not None:
            return client_of(
                sidecar,
                tokenizer=self.target.fingerprint,
                draft=self.draft_config,
                wants_proposals=wanted.has_proposals,
            )
        if wanted.runs_by == "verifier":
            return _OWN_DRAFTERS[strategy](self.draft_config, self.target.vocabulary_size)
        if drafts:
            return LocalDrafter(None, self.draft_config, vocabulary_size=self.target.vocabulary_size)
        return NullDrafter()  # all other strategies need a graph

    @overload
    def generate(self, prompt: str, generation_config: GenerationConfig | None = None) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        generation_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompt: str | Prompts,
        generation_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
    ) -> GenerationResult | list[GenerationResult]:
        """Continue a prompt, or each prompt of a list in one batch.

        Args:
            prompt: one text, or a list whose items are texts or lists of token ids.
            generation_config: settings for all prompts, or a list with the settings of each prompt.

        Returns:
            A single result if the prompt is one text; otherwise a list of results, ordered by prompt and then by sample
            (``n`` per prompt).

        Raises:
            GenerationError: a single text can't be continued, or ``n`` is above 1 for a single text. If one prompt of a
                list fails, its result has the finish reason ``error``, and the other prompts continue.
        """
        batch = self._batch(prompt, generation_config)
        for output in self._runner.stream(batch.requests):
            batch.note(output)
        return batch.outcome()

    def stream(
        self,
        prompt: str | Prompts,
        generation_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        *,
        documents: Sequence[str] = (),
    ) -> Iterator[StepEvent]:
        """Decode like :meth:`generate`, but yield every step's output as it is emitted.

        The last event of a sample carries its result, whose text is the concatenation of the texts in all its events.
        Closing the iterator cancels the generation. For a list of prompts, ``documents`` may name the document to which
        each prompt belongs. Request records store the document names, because a trained adapter is evaluated on unseen
        documents.
        """
        batch = self._batch(prompt, generation_config, documents=documents)
        for output in self._runner.stream(batch.requests):
            yield batch.event(output)

    async def astream(
        self,
        prompt: str | Prompts,
        generation_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        *,
        session: SessionOptions | None = None,
        shared_length: int = 0,
    ) -> AsyncIterator[StepEvent]:
        """Stream like :meth:`stream`, in an event loop; cancelling the task cancels the generation.

        Args:
            prompt: as in :meth:`generate`.
            generation_config: as in :meth:`generate`.
            session: options of the drafting sessions, in addition to the drafter's settings.
            shared_length: number of prompt tokens that later prompts will probably share as a prefix, such as
                instructions. The prefix cache keeps the first ``shared_length`` tokens for later prompts.
        """
        events = self.paced_stream(prompt, generation_config, session=session, shared_length=shared_length)
        async with aclosing(events):
            async for event in events:
                if event is not None:
                    yield event

    def paced_stream(
        self,
        prompt: str | Prompts,
        generation_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        *,
        session: SessionOptions | None = None,
        shared_length: int = 0,
        pause_s: float | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[StepEvent | None, None]:
        """Stream like :meth:`astream` for clients that may read slowly, and also yield None after every pause.

        Args:
            prompt: as in :meth:`generate`.
            generation_config: as in :meth:`generate`.
            session: as in :meth:`astream`.
            shared_length: as in :meth:`astream`.
            pause_s: seconds without an event after which the iterator yields None; with None, it never does.
            ended: called in the event loop when a sequence has ended, even if its events were not read.

        Raises:
            GenerationRequestError: prompts or settings are malformed. This error is raised when ``paced_stream`` is
                called, not when the returned iterator is read.
        """
        batch = self._batch(prompt, generation_config, session, shared_length)
        return self._runner.astream(batch.requests, batch.event, pause_s=pause_s, ended=ended)

    @property
    def totals(self) -> EngineTotals:
        """Counts and times of all requests since the decoder was created."""
        return self.engine.totals

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The model's chat format.

        Raises:
            ConfigError: the model was created without a tokenizer.
        """
        return ChatFormat(self.target.tokenizer)

    def chat_prompt(self, messages: Sequence[Message], **options: Any) -> list[TokenId]:
        """Apply the model's chat template to a conversation; return the prompt's token ids.

        Args:
            messages: messages such as ``{"role": "user", "content": "..."}``.
            options: options of the template, such as ``reasoning_effort="low"``.

        Raises:
            GenerationError: the tokenizer has no template, or the template refuses the messages.
        """
        return self.chat_format.render(messages, **options)

    def check(self, prompt: Sequence[TokenId], config: GenerationConfig) -> None:
        """Reject a prompt that can never be decoded, before it is queued.

        Raises:
            GenerationError: the prompt or the settings are invalid.
        """
        self.engine.check(Request(0, tuple(prompt), config, grammar=self.target.grammar(config, prompt)))

    def close(self) -> None:
        """Close the engine, and also the drafter and the model unless the caller passed them."""
        self._runner.close()
        if self._owns_drafter:
            self.drafter.close()
        if self._owns_target:
            self.target.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _batch(
        self,
        prompt: str | Prompts,
        config: GenerationConfig | Sequence[GenerationConfig] | None,
        session: SessionOptions | None = None,
        shared_length: int = 0,
        documents: Sequence[str] = (),
    ) -> Batch:
        prompts: Sequence[Prompt] = [prompt] if isinstance(prompt, str) else prompt
        if (
            not isinstance(prompts, Sequence)
            or isinstance(prompts, bytes | bytearray)
            or (prompts and not any(hasattr(each, "__len__") for each in prompts))  # for example one prompt's token ids
        ):
            raise GenerationRequestError(
                "a {field} must be a text; several must be a list of texts or lists of token ids",
                fix="give these",
                field="prompt",
            )
        one = GenerationConfig() if config is None else config
        configs: Sequence[GenerationConfig] = one if isinstance(one, Sequence) else [one] * len(prompts)
        if not all(isinstance(each, GenerationConfig) for each in configs):
            raise GenerationRequestError(
                "settings must be a GenerationConfig, or a list with one for each prompt; give these"
            )
        if len(configs) != len(prompts):
            raise GenerationRequestError(
                f"there are {len(configs)} settings for {len(prompts)} prompts; give one for all, or one for each"
            )
        if documents and len(documents) != len(prompts):
            raise GenerationRequestError(
                f"there are {len(documents)} documents for {len(prompts)} prompts; name one for each, or none"
            )
        if isinstance(prompt, str) and configs[0].n > 1:
            raise GenerationRequestError("there would be several results for one text; give the prompt in a list")
        is_single = isinstance(prompt, str)
        strategy = self.draft_config.strategy if self._owns_drafter and self.drafter.state != "off" else None
        return Batch(
            self.target,
            prompts,
            configs,
            is_single=is_single,
            session=session,
            strategy=strategy,
            shared_length=shared_length,
            documents=documents,
        )
