"""What a run of the decoder came to, for people and for machines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speculant_graph.types import DrafterState

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.results import StepEvent


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Counts and times of one run."""

    tokens: int = 0
    """Emitted."""
    elapsed_s: float = 0.0
    """From the call to now."""
    first_token_s: float | None = None
    """From the call to the first token, if there was one."""
    steps: int = 0
    """Forward passes after the prompts, of all sequences."""
    steps_without_drafter: int = 0
    """Those without a draft because the drafter did not answer."""
    drafted: int = 0
    """Drafted tokens that were verified."""
    accepted: int = 0
    """How many of them were emitted."""
    from_target_cache: int = 0
    """Tokens without a pass: the target's logits after their prefix were kept from an earlier one."""
    drafter: DrafterState | None = None
    """How the drafter was at last; None if that is not known."""
    failure: str = ""
    """Why it did not answer, if it did not."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the run, reading prompts included."""
        return self.tokens / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per forward pass, those from the target cache left out; 1 is plain decoding. None without a pass."""
        return (self.tokens - self.from_target_cache) / self.steps if self.steps else None

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens, 0 if none were drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def line(self) -> str:
        """Return one line for people, without a line end."""
        parts = [counted_tokens(self.tokens), f"{self.tokens_per_s:.1f} tokens/s"]
        if self.first_token_s is not None:
            parts.append(f"first after {self.first_token_s:.2f} s")
        if self.tokens_per_step is not None:
            parts.append(f"{self.tokens_per_step:.2f} per step")
        if self.from_target_cache:
            parts.append(f"{self.from_target_cache} from the target cache")
        if self.drafted:
            parts.append(f"{self.accepted} of {self.drafted} drafted accepted ({self.acceptance_rate:.0%})")
        if self.drafter == "off":
            parts.append("no drafter")
        else:
            if self.drafter is not None:
                parts.append(f"drafter {self.drafter}" + (f" ({self.failure})" if self.failure else ""))
            if self.steps:
                parts.append(f"{self.steps_without_drafter} of {self.steps} steps without the drafter")
        return ", ".join(parts)


def counted_tokens(count: int) -> str:
    """Return a number of tokens in words."""
    return f"{count} token{'' if count == 1 else 's'}"


class RunMeter:
    """Measures a run of a decoder without other callers, also one that is interrupted."""

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        """Begin to measure."""
        self._decoder = decoder
        self._before = self._counts()
        self._started_s = time.perf_counter()
        self._first_token_s: float | None = None

    def note(self, event: StepEvent) -> None:
        """Take notice of an event."""
        if self._first_token_s is None and event.token_ids:
            self._first_token_s = time.perf_counter() - self._started_s

    def statistics(self) -> RunStatistics:
        """Return what the run came to so far."""
        drafter = self._decoder.drafter
        counts = {name: now - self._before[name] for name, now in self._counts().items()}
        return RunStatistics(
            elapsed_s=time.perf_counter() - self._started_s,
            first_token_s=self._first_token_s,
            drafter=drafter.state,
            failure=drafter.statistics.last_failure if drafter.state == "unavailable" else "",
            **counts,
        )

    def _counts(self) -> dict[str, int]:
        totals = self._decoder.totals
        return {
            "tokens": totals.num_tokens,
            "steps": totals.num_rows,
            "steps_without_drafter": totals.num_steps_without_drafter,
            "drafted": sum(totals.drafted_by_depth),
            "accepted": sum(totals.accepted_by_depth),
            "from_target_cache": self._decoder.engine.logits_cache.hits,
        }
