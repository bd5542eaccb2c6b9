"""llama.cpp through llama-cpp-python: a draft model for ``Llama``.

.. code-block:: python

    draft = SpeculantDraft("model.gguf", 8, graph_path="graph.pkl")
    llama = Llama("model.gguf", draft_model=draft)

``Llama`` decodes one text at a time and verifies chains of drafted tokens of any length. ``llama-server`` has no hook
for a draft model in Python; see :mod:`speculant_graph.engines.llama_cpp.lookup_table`.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.corpus.tokenize import CorpusTokenizer, fingerprint_from
from speculant_graph.engines.factory import load_engine_settings, open_sessions
from speculant_graph.errors import ConfigError
from speculant_graph.extras import needed_for
from speculant_graph.types import Fingerprint

if TYPE_CHECKING:
    from gguf import GGUFReader

_CONTROL, _UNUSED = 3, 5
"""llama.cpp's type numbers of special tokens and of unused token ids."""


class SpeculantDraft:
    """Draft model for one ``Llama`` object.

    A text that does not continue the previous call's text starts a new session.
    """

    def __init__(
        self, model_path: str | Path, most_drafted: int = 8, *, tokenizer: str | Path | None = None, **settings: Any
    ) -> None:
        """Open the drafter.

        Args:
            model_path: the model's GGUF file; its tokenizer is compared with the graph's.
            most_drafted: maximum number of tokens to draft.
            tokenizer: folder or hub name of the model's tokenizer; needed if the GGUF conversion changed the tokenizer.
            settings: fields of :class:`~speculant_graph.engines.factory.EngineSettings`; sections are dictionaries.

        Raises:
            ConfigError: a setting is wrong, or the file can't be read.
            GraphFileError: the graph can't be read.
            TokenizerMismatchError: the graph was built with a tokenizer other than the model's.
            ModuleNotFoundError: the extra ``llama-cpp`` is not installed.
        """
        if tokenizer is None:
            fingerprint = gguf_fingerprint(model_path)
        else:
            fingerprint = CorpusTokenizer.load(tokenizer, special_tokens="parse").fingerprint
        self.sessions = open_sessions(
            load_engine_settings(settings, "SpeculantDraft"),
            fingerprint,
            most_drafted=most_drafted,
            vocabulary_size=fingerprint.vocabulary_size,
        )
        """Holds the drafter session of the current text."""
        self._most = most_drafted
        atexit.register(self.close)

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return a draft that continues a text.

        Args:
            input_ids: all tokens so far, shape ``[length]``.

        Returns:
            Up to ``most_drafted`` drafted tokens.
        """
        return np.array(self.sessions.draft([input_ids], [self._most]).token_ids, np.intc)

    def finish(self) -> None:
        """End the current text, so that later texts can draft from it at once."""
        self.sessions.draft([], [])

    def close(self) -> None:
        """End the current text, and close the drafter."""
        self.sessions.close()


def gguf_fingerprint(path: str | Path) -> Fingerprint:
    """Return the fingerprint of the tokenizer in a GGUF file; it equals the original tokenizer's fingerprint.

    Args:
        path: the file.

    Raises:
        ConfigError: the file can't be read, or has no byte-pair (BPE) tokenizer.
        ModuleNotFoundError: the extra ``llama-cpp`` is not installed.
    """
    with needed_for("reading GGUF files", "llama-cpp"):
        from gguf import GGUFReader
    try:
        reader = GGUFReader(path)
    except Exception as error:  # the library raises various errors for damaged files
        raise ConfigError(f"{path} can't be read as GGUF ({error}); name the model's file") from error
    tokens, types, merges = (_field(reader, name) for name in ("tokens", "token_type", "merges"))
    if not tokens or not merges or len(types) != len(tokens):
        raise ConfigError(f"{path} has no tokenizer of byte pairs; name its folder as tokenizer")
    return fingerprint_from(
        str(path),
        {token: token_id for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED},
        [merge.split(" ", 1) for merge in merges],
        [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL],
    )


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return [] if field is None else field.contents()
