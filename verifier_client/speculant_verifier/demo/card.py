"""The demo model's card, written by the training script with the figures it measured."""

from __future__ import annotations

from collections.abc import Mapping

_CARD = """# speculant demo model

A {parameters:,}-parameter gpt-oss (14 layers, alternating sliding and full attention, attention sinks, 4 experts of
which 2 per token) with its own 4,096-token byte-level BPE tokenizer. It exists so that `speculant demo` can run a real
model of the real architecture on any machine; it is not useful for anything else.

| | |
| --- | --- |
| trained on | the standard library of CPython {python}: what `demo/corpus.py` lists, {corpus_tokens:,} tokens |
| licence of that text | Python Software Foundation License 2 |
| training | {steps:,} steps, {trained_tokens:,} tokens, {seconds:,} s on 2 CPU cores |
| training loss | {training_loss} nats a token (moving average at the end) |
| validation loss | {validation_loss} nats a token, on files of the same packages that training never saw |
| weights | bfloat16 safetensors, loaded as float32 for exact comparisons |

The gap between the two losses is meant: the model knows its library nearly by heart, as a model served on its own
domain knows its documents, and it does not generalise far beyond it.

Retrain: `python -m speculant_verifier.demo.train --minutes {minutes:g}` (another interpreter version trains on that
version's library).
"""


_DRAFT_CARD = """# speculant demo draft model

A {parameters:,}-parameter gpt-oss of 2 layers with the tokenizer of the demo model, for which it drafts. It knows
Python, and a part of what that one knows by heart, so that it is right now and then, and can learn the rest; it is not
useful for anything else.

| | |
| --- | --- |
| trained on | the standard library of CPython {python}, `UNKNOWN_MODULES` left out, {corpus_tokens:,} tokens |
| licence of that text | Python Software Foundation License 2 |
| training | {steps:,} steps, {trained_tokens:,} tokens, {seconds:,} s on a CPU core |
| training loss | {training_loss} nats a token (moving average at the end) |
| loss on the rest | {validation_loss} nats a token, on the modules that the demo model knows and this one does not |
| weights | bfloat16 safetensors, loaded as float32 for exact comparisons |

Retrain: `python -m speculant_verifier.demo.train --draft --minutes {minutes:g} --threads 1`
"""


def model_card(figures: Mapping[str, float], python_version: str, minutes: float, *, is_draft: bool = False) -> str:
    """Fill the card with what training measured."""
    card = _DRAFT_CARD if is_draft else _CARD
    return card.format(python=python_version, minutes=minutes, **figures)
