"""Optional modules: a missing one is reported as the command that installs it, any other import error stays a bug."""

from __future__ import annotations

_OPTIONAL_MODULES = frozenset(
    {"accelerate", "torch", "transformers", "tokenizers", "huggingface_hub", "rich", "safetensors", "grpc_health"}
)


def missing_extra(error: ImportError, extra: str) -> str | None:
    """Explain an import error that installing an extra would cure.

    Args:
        error: what an import raised.
        extra: the extra that brings all that the importing part needs.

    Returns:
        One line with the command to type; None if the module is not an optional one, so that the error is a bug.
    """
    module = (error.name or "").split(".")[0]
    if module not in _OPTIONAL_MODULES or not isinstance(error, ModuleNotFoundError):
        return None
    return f'{module} is not installed; run: pip install "speculant-graph[{extra}]"'
