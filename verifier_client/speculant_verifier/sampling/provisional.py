from __future__ import annotations

from dataclasses import dataclass

from speculant_verifier.sampling.choice import choose


class Sampler:
    def __init__(self, config):
        self.config = config

    def next_number(self):
        return 0.5


def make_sampler(config, **kw):
    return Sampler(config)


@dataclass
class RowContext:
    sampler: Sampler
    token_ids: list
    draft: object
    first: int


class RowTarget:
    def __init__(self, logits, context):
        depths = [0]
        for p in context.draft.parents:
            depths.append(depths[p] + 1)
        known = len(context.token_ids)
        self.choices = choose(
            logits[context.first : context.first + len(depths)], [known + d for d in depths], context.sampler.config
        )

    def choice_after(self, node):
        return self.choices[node]


def targets_of(logits, contexts):
    return [RowTarget(logits[i], c) for i, c in enumerate(contexts)]
