"""Text to token ids and back, with the ``tokenizers`` library alone (never transformers).

Also the one definition of a tokenizer's identity, which graph files, drafters and verifiers compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.errors import ConfigError
from speculant_graph.types import Fingerprint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"


def fingerprint_of(name: str, tokenizer: Tokenizer) -> Fingerprint:
    """Return the identity of a tokenizer.

    The digest is SHA-256 over the vocabulary with added tokens in order of id, the merges and the names of
    special tokens, as canonical JSON. A transformers tokenizer's ``backend_tokenizer`` has the digest of the
    file it came from.

    Args:
        name: what it was loaded by, kept for messages.
        tokenizer: the tokenizer; it is not changed.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    definition = json.loads(tokenizer.to_str())
    identity = {
        "vocabulary": sorted((token_id, token) for token, token_id in vocabulary.items()),
        "merges": definition["model"].get("merges"),
        "special_tokens": sorted(token["content"] for token in definition["added_tokens"] if token["special"]),
    }
    canonical = json.dumps(identity, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return Fingerprint(
        name=name,
        sha256=hashlib.sha256(canonical.encode("ascii")).hexdigest(),
        vocabulary_size=max(vocabulary.values(), default=-1) + 1,
    )


class CorpusTokenizer:
    """A tokenizer that treats everything in a text as text: it adds no special token and recognises none."""

    def __init__(self, name: str, tokenizer: Tokenizer, bos_id: int | None = None, eos_id: int | None = None) -> None:
        """Take over a tokenizer object, whose treatment of special tokens is changed.

        Args:
            name: what it was loaded by.
            tokenizer: the tokenizer itself.
            bos_id: id of the token that begins a document, if there is one.
            eos_id: id of the token that ends a document, if there is one.
        """
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.fingerprint = fingerprint_of(name, tokenizer)

    @classmethod
    def load(cls, name_or_folder: str | Path, hf_token: str | None = None) -> CorpusTokenizer:
        """Load a tokenizer from a folder with ``tokenizer.json``, or by its name on the hub.

        Raises:
            ConfigError: there is no such tokenizer, or no access to it.
            ModuleNotFoundError: the extra ``build`` is not installed.
        """
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            if error.name != "tokenizers":
                raise
            raise ModuleNotFoundError(
                'tokenizing text needs: pip install "speculant-graph[build]"', name=error.name
            ) from error
        name = str(name_or_folder)
        if Path(name).is_dir():
            name = str(Path(name).resolve())  # a graph remembers it, and is read from other folders
            file, config_file = Path(name) / _TOKENIZER_FILE, Path(name) / _CONFIG_FILE
            if not file.is_file():
                raise ConfigError(f"folder {name} has no {_TOKENIZER_FILE}; set --graph.tokenizer-name to one that has")
        else:
            file, config_file = _download(name, hf_token)
        try:
            tokenizer = Tokenizer.from_file(str(file))
            config = json.loads(config_file.read_text("utf-8")) if config_file.is_file() else {}
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"tokenizer {name} can't be read ({_one_line(error)}); download it again") from error
        return cls(name, tokenizer, _special_id(tokenizer, config, "bos"), _special_id(tokenizer, config, "eos"))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of one text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many texts, computed on all cores."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _special_id(tokenizer: Tokenizer, config: dict[str, Any], role: str) -> int | None:
    token = config.get(f"{role}_token")
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else tokenizer.token_to_id(content)


def _download(name: str, hf_token: str | None) -> tuple[Path, Path]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError

    try:
        file = Path(hf_hub_download(name, _TOKENIZER_FILE, token=hf_token))
        try:
            config_file = Path(hf_hub_download(name, _CONFIG_FILE, token=hf_token))
        except LocalEntryNotFoundError:  # it may be there: without it special tokens would be missed in silence
            raise
        except EntryNotFoundError:
            config_file = file.with_name(_CONFIG_FILE)
    except GatedRepoError as error:
        raise ConfigError(f"tokenizer {name} needs permission; accept its licence and set --graph.hf-token") from error
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"tokenizer {name} is not on this machine and the hub can't be reached; name a folder"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no tokenizer {name} ({_one_line(error)}); set --graph.tokenizer-name to a folder or a hub name"
        ) from error
    return file, config_file


def _one_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
