"""Settings of the draft model: which it is, what is recorded for it, and how an adapter is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field

from speculant_graph.config_base import Config


class DraftModelConfig(Config):
    """A small language model that drafts beside the graph, in the verifier's process and on its device."""

    name: str = ""
    """Any causal model with the target's tokenizer: a name on the hub or a folder; empty: none."""
    adapter: str = ""
    """LoRA adapter to begin with: a folder, or one of 'adapters' by its name; empty: none."""
    adapters: dict[str, Path] = {}  # noqa: RUF012 - every instance gets its own copy
    """Folders of adapters by names of your own: legal=adapters/legal"""


class RecordConfig(Config):
    """Detailed mode: whole requests in a database, to find out where drafts fail and to train a draft model."""

    folder: Path | None = None
    """Write finished requests to a SQLite database in this folder: prompt and output as token ids, and per position
    what was drafted, by what, whether it was accepted, and the target's most probable tokens. None: nothing is kept."""
    threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """A request of whose emitted tokens a smaller share was drafted is a failure; others may become replay."""
    max_bytes: Annotated[ByteSize, Field(ge=10_000)] = ByteSize(200_000_000)
    """Most bytes of failures, and of replay; the oldest are deleted."""


class TrainConfig(Config):
    """How a LoRA adapter of the draft model is trained on records."""

    rank: Annotated[int, Field(ge=1, le=1_024)] = 8
    """Rank of the adapter's matrices; for models of a billion parameters about half a percent of them is trained.
    Models of a few million want a rank of about half their width, and as much alpha."""
    alpha: Annotated[float, Field(gt=0.0)] = 16.0
    """The adapter counts alpha / rank."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3e-3
    """Highest learning rate; it warms up over the first steps and goes down as a cosine. Models of billions of
    parameters may want a tenth of it."""
    epochs: Annotated[float, Field(gt=0.0)] = 4.0
    """How often every failure is seen; what is kept is the best state, by the loss of requests that are held out."""
    min_failures: Annotated[int, Field(ge=0)] = 0
    """The verifier trains an adapter when it has recorded so many new failures; 0: never by itself."""
