"""Which extra brings which module, so that a missing one is reported as a command to type."""

from __future__ import annotations

_EXTRA_OF_MODULE = {
    "torch": "verifier",
    "transformers": "verifier",
    "huggingface_hub": "build",
    "tokenizers": "build",
    "rich": "build",
    "grpc_health": "drafter",
}


def missing_extra(error: ImportError) -> str | None:
    """Explain an import error that an extra would cure; None for any other, which is a bug and must stay visible."""
    module = (error.name or "").split(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return f'{module} is not installed; run: pip install "speculant-graph[{extra}]"'
