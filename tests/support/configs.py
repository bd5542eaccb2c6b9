"""The class of every section of a settings file."""

from __future__ import annotations

from speculant_graph.settings import SECTIONS, AllSettings

KINDS = {name: AllSettings.model_fields[name].annotation for name in SECTIONS}
