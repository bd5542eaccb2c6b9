"""Names of models and tokenizers: folders of this machine, or repositories of the hub."""

from __future__ import annotations

import os
from pathlib import Path

from speculant_graph.errors import ConfigError
from speculant_graph.extras import needed_for

_PATIENCE_S = 5
"""With a hub that does not answer, unless a variable sets another one."""
_PATIENCE_VARIABLE = "HF_HUB_ETAG_TIMEOUT"
_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")
"""A copy in the hub's cache has at least one of them."""


def only_local(name: str, setting: str, hf_token: str | None = None) -> bool:
    """Find out where the files of a name are, before a library asks a hub that can't be reached again and again.

    Args:
        name: a folder, or a name on the hub.
        setting: flag that it was given by, for messages.
        hf_token: for repositories that need one.

    Returns:
        Whether only the copy in the hub's cache is left, as the hub can't be reached.

    Raises:
        ConfigError: there is no such folder, and no such name on the hub or no way to ask it. What looks like a path
            is not asked for.
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
    except Exception as error:  # of the HTTP library, which is another one with other releases of huggingface_hub
        if isinstance(error, HfHubHTTPError) and not isinstance(error, GatedRepoError | RepositoryNotFoundError):
            return False  # the hub answers: whether the files are there shows when they are fetched
        is_name = not isinstance(error, ValueError)
        if is_name and any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES):
            return True
        reason = f"{type(error).__name__}: {first_line(error)}"
        token_setting = f"{setting.rpartition('.')[0]}.hf_token"
        raise ConfigError(
            f"there is no folder {name} here, and the hub does not give it ({reason})",
            fix=f"set {{field}} to a folder or a hub name, with {token_setting} and an accepted licence if it asks for "
            "them",
            field=setting,
        ) from error
    return False


def local_folder(name: str) -> Path | None:
    """Return the folder of this machine that a tokenizer's name stands for, in the hub's cache or not; None if none."""
    if os.path.isdir(name):
        return Path(name)
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, _FILES[0])
    except (ModuleNotFoundError, ValueError):  # not installed; a folder that is gone is no name on the hub
        return None
    return Path(file).parent if isinstance(file, str) else None


def first_line(error: BaseException) -> str:
    """Return the message of a library's error, in one line."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def sentence(error: BaseException) -> str:
    """Return the same with a full stop, for a sentence to follow."""
    text = first_line(error)
    return text if text[-1] in ".!?" else f"{text}."
