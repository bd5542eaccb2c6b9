"""The class of every section of a settings file."""

from __future__ import annotations

from speculant_graph import config, config_learning

KINDS = {
    "client": config.ClientConfig, "draft": config.DraftConfig, "generation": config.GenerationConfig,
    "draft_model": config_learning.DraftModelConfig, "record": config_learning.RecordConfig,
    "train": config_learning.TrainConfig, "graph": config.GraphConfig, "server": config.ServerConfig,
    "service": config.ServiceConfig, "verifier": config.VerifierConfig,
}  # fmt: skip
