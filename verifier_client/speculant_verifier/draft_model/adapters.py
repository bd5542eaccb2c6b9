"""Loads, swaps and rolls back the draft model's LoRA adapters at run time.

An adapter is first validated and merged into a copy of the base model, so weights in use are never modified. The merged
copy replaces the draft model between two decoding steps. A rollback loads the previous adapter again. The rollback is
automatic if the new adapter predicts a clearly smaller share of its first tokens than the previous adapter predicted of
its last tokens. Adapters change only the drafts, never the output.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from speculant_graph.config import DraftModelConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.draft_model.drafter import HIT_WINDOW, ModelDrafter
from speculant_verifier.model import TargetModel
from speculant_verifier.records.record import RecordIdentity

_FEWEST_JUDGED = 400
"""Minimum number of judged tokens that the new and the previous adapter must each have before an automatic rollback. A
new adapter stays once its window of judged tokens is full, because after enough comparisons any adapter looks worse by
chance."""
_ERRORS = 4.0
"""Number of standard errors by which the new adapter's hit rate must be below the previous adapter's for a rollback.
The threshold is higher than chance alone requires, because the two adapters also draft different texts."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A draft model with one adapter, or with none."""

    name: str
    """Name under which the adapter was requested; empty for the base model."""
    folder: str
    """Path of the adapter's folder, with symbolic links resolved."""
    digest: str
    """sha256 of the adapter's weights; empty for the base model."""
    tenants: frozenset[str] | None = None
    """Tenants for whose sequences the adapter drafts; None means all tenants."""


BASE = Adapter("", "", "")
"""The draft model without an adapter."""


@dataclass(frozen=True, slots=True)
class AdapterState:
    """The adapter in use and its statistics."""

    present: Adapter
    """The adapter in use."""
    previous: Adapter | None
    """The adapter that a rollback would restore."""
    acceptance: float | None
    """Share of the latest judged tokens that the model predicted; None if no tokens were judged. At most
    ``drafter.HIT_WINDOW`` tokens count."""
    num_judged: int
    """Number of judged tokens from which ``acceptance`` is computed."""
    previous_acceptance: float | None
    """``acceptance`` of the previous adapter when it was replaced."""
    num_passes: int
    """Number of passes of the draft model since it was first loaded, summed over all adapters."""
    passes_s: float
    """Total duration of the ``num_passes`` passes in seconds."""


class Adapters:
    """Loads adapters and swaps them; safe to use from any thread."""

    def __init__(
        self,
        drafter: ModelDrafter,
        base: TargetModel,
        config: DraftModelConfig,
        identity: RecordIdentity,
    ) -> None:
        """Start with the base model, or with the adapter in the settings.

        Args:
            drafter: the drafter.
            base: the model without an adapter; it stays unchanged, because adapters are merged into copies.
            config: the draft model's settings, with the names of adapters.
            identity: the draft model's identity in records, updated after every swap.

        Raises:
            ConfigError: the adapter in the settings can't be used.
        """
        self._drafter, self._config, self._base = drafter, config, base
        self._identity = identity
        identity.draft_model = config.name
        self._lock = threading.Lock()
        self._present, self._previous = BASE, None  # type: tuple[Adapter, Adapter | None]
        self._hits_before = (0, 0)
        self._is_on_trial = False
        self.rolled_back: Callable[[str, str], object] = lambda _replaced, _restored: None
        """Function called after a rollback, with the folders of the replaced and the restored adapter."""
        drafter.ended = self._judge
        if config.adapter:
            self.load(config.adapter)
            self._previous = None

    @property
    def names(self) -> dict[str, Path]:
        """Folder of each adapter in the settings, by the adapter's name."""
        return dict(self._config.adapters)

    @property
    def state(self) -> AdapterState:
        """The adapter in use and its statistics."""
        return AdapterState(
            present=self._present,
            previous=self._previous,
            acceptance=_share(self._drafter.hits),
            num_judged=self._drafter.hits[0],
            previous_acceptance=None if self._previous is None else _share(self._hits_before),
            num_passes=self._drafter.num_passes,
            passes_s=self._drafter.passes_s,
        )

    def load(self, name: str) -> Adapter:
        """Load an adapter, which drafts from the next step on; loading the adapter in use does nothing.

        Args:
            name: a name in the settings, or a folder; empty for the base model.

        Raises:
            ConfigError: the adapter is missing, damaged, or for another model; the present adapter stays in use.
        """
        with self._lock:  # one load at a time
            return self._load(name, self._config.adapters.get(name, Path(name)))

    def rollback(self) -> Adapter:
        """Load the previous adapter again, from its folder.

        Raises:
            ConfigError: there is no previous adapter, it was already restored, or its folder is gone.
        """
        with self._lock:
            if self._previous is None:
                raise ConfigError("there is no adapter to go back to; load one by its name")
            replaced = self._present
            adapter = self._load(self._previous.name, Path(self._previous.folder))
            self._previous, self._is_on_trial = None, False
            self.rolled_back(replaced.folder, adapter.folder)
        return adapter

    def _judge(self) -> None:
        """Roll back the adapter, at the end of a sequence, if it is worse than the previous adapter."""
        (num_before, right_before), (num_now, right_now) = self._hits_before, self._drafter.hits
        if not self._is_on_trial or min(num_before, num_now) < _FEWEST_JUDGED:
            return
        share = (right_before + right_now) / (num_before + num_now)
        error = math.sqrt(share * (1 - share) * (1 / num_before + 1 / num_now))
        if right_before / num_before - right_now / num_now > _ERRORS * error:
            self._is_on_trial = False
            logger.warning(
                "{} predicts {:.0%} of {} tokens, the previous one {:.0%}: it is rolled back",
                described(self._present), right_now / num_now, num_now, right_before / num_before,
            )  # fmt: skip
            threading.Thread(target=self._take_back, daemon=True).start()  # requests continue meanwhile
        elif num_now >= HIT_WINDOW:
            self._is_on_trial = False

    def _take_back(self) -> None:
        try:
            self.rollback()
        except ConfigError as error:
            logger.warning("{}", error)

    def _load(self, name: str, folder: Path) -> Adapter:
        adapter, model = BASE, self._base
        if name:
            from speculant_verifier.draft_model.adapter_files import with_adapter

            adapted, info = with_adapter(self._base.model, self._config.name, folder)
            adapter = Adapter(name, str(info.folder), info.digest, info.tenants)
            model = self._base.with_weights(adapted)
        present = self._present
        if (adapter.digest, adapter.tenants) == (present.digest, present.tenants):
            return present  # a swap would lose the previous adapter
        self._previous, self._hits_before, self._is_on_trial = present, self._drafter.hits, True
        self._present, self._identity.adapter = adapter, adapter.digest
        tenants = adapter.tenants
        if tenants is not None:  # requests without a tenant count as ``identity.tenant``'s
            tenants = tenants - {""} | ({""} if self._identity.tenant in tenants else set())
        self._drafter.swap(model, tenants)
        logger.info("the draft model now has {}", described(adapter))
        return adapter


def _share(hits: tuple[int, int]) -> float | None:
    num_judged, num_right = hits
    return num_right / num_judged if num_judged else None


def described(adapter: Adapter) -> str:
    """Return a text that names an adapter and its tenants."""
    if not adapter.name:
        return "no adapter"
    whose = [f"tenant '{each}'" if each else "requests without a tenant" for each in sorted(adapter.tenants or ())]
    return f"adapter '{adapter.name}'" + (f" of {' and '.join(whose)}" if whose else "")
