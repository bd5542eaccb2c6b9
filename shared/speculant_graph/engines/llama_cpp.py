"""llama.cpp by llama-cpp-python: the draft model that a ``Llama`` asks for drafts.

.. code-block:: python

    draft = SpeculantDraft("model.gguf", 8, graph_path="graph.pkl")
    llama = Llama("model.gguf", draft_model=draft)

It decodes one text at a time and verifies chains of any length. (For ``llama-server``, which has no such hook, see
:mod:`speculant_graph.graph.llama_lookup`.)
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.corpus.gguf_tokenizer import gguf_fingerprint
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.opening import load_engine_settings, open_sessions
from speculant_graph.engines.sessions import EngineRow


class SpeculantDraft:
    """Drafts for one ``Llama``; a text that does not go on with the one before ends that."""

    def __init__(
        self, model_path: str | Path, most_drafted: int = 8, *, tokenizer: str | Path | None = None, **settings: Any
    ) -> None:
        """Open what drafts come from.

        Args:
            model_path: the model's GGUF file, whose tokenizer is compared with the graph's.
            most_drafted: most tokens to draft.
            tokenizer: folder or hub name of the model's tokenizer, if the one in the file was changed when it was made.
            settings: as in :class:`~speculant_graph.engines.opening.EngineSettings`; sections are dictionaries.

        Raises:
            ConfigError: a setting is wrong, or the file can't be read.
            GraphFileError: the graph can't be read.
            TokenizerMismatchError: the graph is of another tokenizer than the model.
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
        """The text that is decoded now."""
        self._most = most_drafted
        atexit.register(self.close)

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Draft after a text.

        Args:
            input_ids: all tokens so far, shape ``[length]``.

        Returns:
            Up to ``most_drafted`` tokens.
        """
        [draft] = self.sessions.draft([EngineRow(input_ids, self._most)])
        return np.array(draft.token_ids, np.intc)

    def finish(self) -> None:
        """End the text, so that later ones learn of it at once."""
        self.sessions.draft([])

    def close(self) -> None:
        """End the text and let the drafter go."""
        self.sessions.close()
