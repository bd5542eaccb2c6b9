"""Finds models and tokenizers by name: folders on this machine, or repositories on the hub."""

from __future__ import annotations

import os
from pathlib import Path

from speculant_graph.errors import ConfigError
from speculant_graph.extras import needed_for

_PATIENCE_S = 5
"""Timeout of the hub in seconds, unless an environment variable sets another."""
_PATIENCE_VARIABLE = "HF_HUB_ETAG_TIMEOUT"
_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")
"""Files of a repository; a copy in the hub's cache has at least one of them."""


def only_local(name: str, setting: str, hf_token: str | None = None) -> bool:
    """Check whether only cached files are available, before a library retries an unreachable hub again and again.

    Args:
        name: a folder, or a name on the hub.
        setting: the setting that names it, for messages.
        hf_token: access token, for gated repositories.

    Returns:
        Whether only the copy in the hub's cache is available, because the hub can't be reached.

    Raises:
        ConfigError: there is no such folder, and the hub has no such name or can't be reached. Names that look like
            paths are not looked up on the hub.
        ModuleNotFoundError: the extra ``build`` is not installed.
    """
    if os.path.isdir(name):
        return False
    if os.path.exists(name) or name.startswith((os.sep, ".", "~")) or name.count("/") > 1:
        raise ConfigError(f"there is no folder {name}", fix="set {field} to one", field=setting)
    with needed_for("fetching from the hub", "build"):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    try:
        get_hf_file_metadata(
            hf_hub_url(name, _FILES[-1]), token=hf_token, timeout=int(os.environ.get(_PATIENCE_VARIABLE, _PATIENCE_S))
        )
    except Exception as error:  # the HTTP library's error; the library depends on the release of huggingface_hub
        if isinstance(error, HfHubHTTPError) and not isinstance(error, GatedRepoError | RepositoryNotFoundError):
            return False  # the hub responds; the download shows whether the files exist
        is_name = not isinstance(error, ValueError)
        if is_name and any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES):
            return True
        reason = f"{type(error).__name__}: {first_line(error)}"
        token_setting = f"{setting.rpartition('.')[0]}.hf_token"
        raise ConfigError(
            f"there is no folder {name} here, and it can't be fetched from the hub ({reason})",
            fix=f"set {{field}} to a folder or a hub name, with {token_setting} and an accepted licence if the hub "
            "asks for them",
            field=setting,
        ) from error
    return False


def local_folder(name: str) -> Path | None:
    """Return the local folder of a named tokenizer, in the hub's cache or elsewhere; None if there is none."""
    if os.path.isdir(name):
        return Path(name)
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, _FILES[0])
    except (ModuleNotFoundError, ValueError):  # not installed, or the path of a deleted folder, not a hub name
        return None
    return Path(file).parent if isinstance(file, str) else None


def first_line(error: BaseException) -> str:
    """Return the first line of a library error's message, or the error's type if there is no message."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def sentence(error: BaseException) -> str:
    """Return the message of :func:`first_line` with a full stop, so that another sentence can follow."""
    text = first_line(error)
    return text if text[-1] in ".!?" else f"{text}."
