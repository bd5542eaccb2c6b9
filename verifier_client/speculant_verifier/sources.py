"""Checks that models, tokenizers and graphs exist. This module does not import torch, which would take seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from speculant_graph.config import ClientConfig, VerifierConfig
from speculant_graph.corpus.hub import only_local
from speculant_graph.errors import ConfigError

MODEL_SETTING = "verifier.model_name"
TOKENIZER_SETTING = "verifier.tokenizer_name"


def require_sources(
    config: VerifierConfig, graph_paths: Sequence[Path] = (), client: ClientConfig | None = None
) -> None:
    """Reject models, tokenizers and graphs that do not exist, and invalid addresses.

    Args:
        config: settings with the names of the model and its tokenizer.
        graph_paths: graphs to draft from, as layers.
        client: client settings; if they have an address, drafts come from the sidecar at this address.

    Raises:
        ConfigError: the model or tokenizer does not exist, the hub can't be reached, there are several sources of
            drafts or too many layers, or an address or credential is invalid.
        GraphFileError: a graph can't be opened.
        TokenizerMismatchError: the graphs have different tokenizers.
    """
    sidecar = client if client is not None and client.address else None
    require_one_source(graph_paths or None, sidecar)
    if sidecar is not None:
        from speculant_graph.rpc.addresses import plain_address, split_addresses
        from speculant_graph.rpc.channel import Endpoint

        for address in split_addresses(sidecar.address):
            Endpoint.of(plain_address(address), sidecar)
    if graph_paths:
        from speculant_graph.graph.layers import load_layers

        load_layers(graph_paths)
    is_model_local(config)
    if config.tokenizer_name is not None:
        is_tokenizer_local(config)


def require_one_source(*sources: object) -> None:
    """Reject more than one source of drafts; an argument that is None does not count as a source.

    Raises:
        ConfigError: there are several sources.
    """
    if sum(source is not None for source in sources) > 1:
        raise ConfigError(
            "drafts have one source: give a graph (--graph, graph_path) or a sidecar (--drafter, client_config)"
        )


def is_model_local(config: VerifierConfig) -> bool:
    """Return whether the hub can't be reached, so that only the cached copy of the model is available.

    Raises:
        ConfigError: the model does not exist, its folder has no model, or the hub can't be reached.
    """
    folder = Path(config.model_name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(
            f"folder {folder} holds no model: it needs config.json, tokenizer.json, tokenizer_config.json "
            f"and weights in *.safetensors",
            fix="set {field} to one that has them",
            field=MODEL_SETTING,
        )
    return only_local(config.model_name, MODEL_SETTING, access_token(config))


def is_tokenizer_local(config: VerifierConfig) -> bool:
    """Return whether the hub can't be reached, so that only the cached copy of the tokenizer is available.

    Raises:
        ConfigError: the tokenizer does not exist, or the hub can't be reached.
    """
    if config.tokenizer_name is None:
        return is_model_local(config)
    return only_local(config.tokenizer_name, TOKENIZER_SETTING, access_token(config))


def access_token(config: VerifierConfig) -> str | None:
    """Return the access token for the hub."""
    return config.hf_token.get_secret_value() if config.hf_token else None
