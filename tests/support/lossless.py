"""Runs of one engine in many circumstances, and the output of every request by plain decoding alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from speculant_graph.client import LocalDrafter, NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import EMPTY_DRAFT, Draft, Drafter, PassReport, SequenceStep
from speculant_verifier.engine import ActiveSequence, Engine, Request
from speculant_verifier.model import PREFILL_CHUNK, TargetModel
from support.graphs import graph_of

WINDOW = 128
LENGTHS = (1, 400, 5, 127, 128, 129, 300, 9)
"""Prompt lengths. Short prompts are read together with the first draft; longer ones earlier, in one or more chunks."""

MIXED = (
    GenerationConfig(),
    GenerationConfig(temperature=0.9, top_p=0.95, seed=11),
    GenerationConfig(repetition_penalty=1.3),
    GenerationConfig(temperature=1.2, top_k=20, min_p=0.05, seed=5, logprobs=2),
    GenerationConfig(logit_bias={3: 2.0, 7: -9.0}, min_tokens=9, end_token_ids=(65, 66)),
    GenerationConfig(temperature=2.0, repetition_penalty=1.2, rule="gumbel", seed=3),
    GenerationConfig(temperature=0.8, top_p=0.9, presence_penalty=0.5, rule="nasd", seed=8),
    GenerationConfig(temperature=0.0, logit_bias={9: 1.0}, repetition_penalty=0.9),
)
"""Settings whose output depends only on prompt, settings and seed, not on drafts."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request and its arrival time."""

    prompt: tuple[int, ...]
    config: GenerationConfig
    after_steps: int = 0
    """Number of engine steps before it is added."""


@dataclass(slots=True)
class Outcome:
    """The results of a run."""

    engine: Engine
    sequences: list[ActiveSequence] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        """Emitted tokens of every job."""
        return [sequence.output for sequence in self.sequences]


def mixed_jobs(num_tokens: int, seed: int = 0) -> list[Job]:
    """Return prompts of all lengths with settings of all kinds, paired at random by the seed."""
    generator = random.Random(seed)
    configs = list(MIXED)
    generator.shuffle(configs)
    common = {"max_tokens": num_tokens, "speculation": "on"}
    return [
        Job(
            tuple(generator.randrange(250) for _ in range(length)),
            config.model_copy(update=common | {"ignore_end_tokens": config.end_token_ids is None}),
        )
        for length, config in zip(LENGTHS, configs, strict=True)
    ]


def decode(
    target: TargetModel, jobs: Sequence[Job], drafter: Drafter | None = None, budget: int = 6, **options: Any
) -> Outcome:
    """Decode all jobs to their end in one engine; each request joins after its number of steps."""
    strategy, prefill_chunk = options.pop("strategy", "greedy"), options.pop("prefill_chunk", PREFILL_CHUNK)
    drafter = drafter or NullDrafter()
    engine = options.pop("engine", None) or Engine(
        target,
        drafter,
        VerifierConfig(**options),
        DraftConfig(k=budget, strategy=strategy),
        prefill_chunk=prefill_chunk,
    )
    sequences: dict[int, ActiveSequence] = {}
    reasons: dict[int, str] = {}
    emitted: dict[int, list[int]] = {}
    step = 0
    while engine.has_work or len(sequences) < len(jobs):
        for index, job in enumerate(jobs):
            if index not in sequences and job.after_steps <= step:
                sequences[index] = engine.add(Request(index, job.prompt, job.config))
        for output in engine.step():
            index = output.sequence.index
            assert index not in reasons, "nothing is emitted after the end"
            emitted.setdefault(index, []).extend(output.token_ids)
            if output.finish_reason is not None:
                reasons[index] = output.finish_reason
        step += 1
        assert step < 100_000
    assert engine.num_running == engine.num_waiting == 0
    assert not getattr(drafter, "open_sessions", ()), "every session must be closed"
    ordered = [sequences[index] for index in range(len(jobs))]
    for index, sequence in enumerate(ordered):
        assert tuple(emitted.get(index, ())) == sequence.output, "what was emitted is what is there"
    return Outcome(engine, ordered, [reasons[index] for index in range(len(jobs))])


def alone(target: TargetModel, job: Job) -> tuple[int, ...]:
    """Return the output of plain decoding, with one request in the batch."""
    outcome = decode(target, [Job(job.prompt, job.config)], budget=0, max_batch_size=1)
    assert outcome.reasons != ["error"], outcome.sequences[0].error
    return outcome.outputs[0]


def remembered(target: TargetModel, job: Job) -> tuple[int, ...]:
    """Return the same for a target that does not change; each job is decoded once and cached."""
    return _alone(target, job.prompt, job.config.model_dump_json())


@cache
def _alone(target: TargetModel, prompt: tuple[int, ...], config: str) -> tuple[int, ...]:
    return alone(target, Job(prompt, GenerationConfig.model_validate_json(config)))


def graph_like(jobs: Sequence[Job], outputs: Sequence[Sequence[int]], vocabulary_size: int = 258):
    """Return a graph of texts that resemble the outputs: 7 % of the tokens are replaced, with noise in between."""
    generator = random.Random(1)
    documents = []
    for job, output in zip(jobs, outputs, strict=True):
        documents.append([generator.randrange(vocabulary_size) for _ in range(30)])
        text = [*job.prompt[-8:], *output]
        documents.append([t if generator.random() < 0.93 else generator.randrange(vocabulary_size) for t in text])
    return graph_of(documents, 4, vocabulary_size)


class Moody:
    """A drafter that fails at random steps, like one over a network: empty drafts and the state "unavailable"."""

    def __init__(self, drafter: Drafter, share_of_failures: float, seed: int = 0) -> None:
        self._drafter, self._share = drafter, share_of_failures
        self._generator = random.Random(seed)
        self.state = drafter.state
        self.statistics = drafter.statistics
        self.open_sessions: set[int] = set()

    def open(self, session_id: int) -> None:
        self.open_sessions.add(session_id)
        self._drafter.open(session_id)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        failed = self._generator.random() < self._share
        self.state = "unavailable" if failed else "ok"
        return [EMPTY_DRAFT] * len(steps) if failed else self._drafter.draft(steps)

    def observe(self, report: PassReport) -> float:
        return self._drafter.observe(report)

    def finish(self, session_id: int) -> None:
        self.open_sessions.discard(session_id)
        self._drafter.finish(session_id)

    def close(self) -> None:
        self._drafter.close()


def local_drafter(graph, strategy: str, budget: int, **options: Any) -> LocalDrafter:
    """Return a drafter in this process, whose errors are raised."""
    return LocalDrafter(graph, DraftConfig(k=budget, strategy=strategy, **options))
