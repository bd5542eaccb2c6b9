"""The class of every section of a settings file."""

from __future__ import annotations

from speculant_graph import config

KINDS = {
    "client": config.ClientConfig, "draft": config.DraftConfig, "generation": config.GenerationConfig,
    "draft_model": config.DraftModelConfig, "record": config.RecordConfig,
    "train": config.TrainConfig, "graph": config.GraphConfig, "server": config.ServerConfig,
    "service": config.ServiceConfig, "verifier": config.VerifierConfig,
}  # fmt: skip
