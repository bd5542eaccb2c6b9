"""Detailed mode: what the target rejected, and what it preferred, in files."""

from speculant_verifier.disagreements.recorder import (
    Disagreement,
    DisagreementRecorder,
    RecorderStatistics,
    read_disagreements,
)

__all__ = ["Disagreement", "DisagreementRecorder", "RecorderStatistics", "read_disagreements"]
