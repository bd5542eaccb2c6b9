"""The demo: real components that are small enough for any machine."""

from pathlib import Path

MODEL_FOLDER = Path(__file__).with_name("model")
"""The demo's model."""
DRAFT_MODEL_FOLDER = Path(__file__).with_name("draft_model")
"""Folder with the demo's draft model."""
