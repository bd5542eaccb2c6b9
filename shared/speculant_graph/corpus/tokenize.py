"""Converts text to token ids and back, with only the ``tokenizers`` library (never transformers).

This module also decides where a text may be cut without changing its ids. The module defines the two things on which
graph files, drafters and verifiers must agree: a tokenizer's identity, and the encoding of prompts.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from speculant_graph.corpus.hub import first_line, local_folder, only_local
from speculant_graph.errors import ConfigError, GraphError, TokenizerMismatchError
from speculant_graph.extras import needed_for
from speculant_graph.types import Fingerprint, SpecialTokensName, TokenId

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_SETTING = "graph.tokenizer_name"

# GPT-style pre-tokenizers split text into words first, and no token crosses the border of a word. In all of them, in
# any context, a word begins at two positions: at the space between two letters, and at a letter after a newline. The
# newline must follow a visible character: at the end of a text, GPT-2's \s+(?!\S) matches a whole run of blanks, but
# inside of a text it leaves out the last blank. A letter must follow, because o200k joins "/" to the newline before it.
CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])|(?<=\S\n)(?=[^\W\d_])")
# Tables of numbers have no such position, and must not fill the memory. With the published patterns of GPT-2 and its
# successors, a word begins at two more positions: at a single space, and at any visible character except "/" after a
# newline.
_RARE_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=\S\n)(?=[^\s/])")
_PATIENCE = 1 << 18
_CUT_PROBES = (
    ("one of", " the two"), ("at", " a"), ("in", " order"), ("A", " B"), ("do", " not"),
    ("one\n", "two"), ("one.\n", "The"), ("}\n", "if"), ("1,\n", "2"), ("1", " 2"), (",", " 'a"), (")\n", "}"),
)  # fmt: skip


def fingerprint_of(name: str, tokenizer: Tokenizer) -> Fingerprint:
    """Return the identity of a tokenizer: its name, digest and vocabulary size.

    The digest is SHA-256 over canonical JSON. The JSON contains the vocabulary in order of id, including added tokens;
    the merges; and the names of special tokens. A transformers tokenizer's ``backend_tokenizer`` has the same digest as
    a tokenizer loaded from the same file.

    Args:
        name: the name that it was loaded by, for messages.
        tokenizer: the tokenizer; it is not changed.
    """
    definition = json.loads(tokenizer.to_str())
    return fingerprint_from(
        name,
        tokenizer.get_vocab(with_added_tokens=True),
        definition["model"].get("merges"),
        [token["content"] for token in definition["added_tokens"] if token["special"]],
    )


def fingerprint_from(
    name: str, vocabulary: Mapping[str, int], merges: Sequence[Any] | None, special_tokens: Iterable[str]
) -> Fingerprint:
    """Return the identity of a tokenizer from its parts; see :func:`fingerprint_of`.

    Args:
        name: its name, for messages; not part of the identity.
        vocabulary: the id of every token.
        merges: pairs in the order in which they are merged, if the tokenizer has merges.
        special_tokens: tokens that ordinary text must not produce.
    """
    identity = {
        "vocabulary": sorted((token_id, token) for token, token_id in vocabulary.items()),
        "merges": merges,
        "special_tokens": sorted(special_tokens),
    }
    canonical = json.dumps(identity, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return Fingerprint(
        name=name,
        sha256=hashlib.sha256(canonical.encode("ascii")).hexdigest(),
        vocabulary_size=max(vocabulary.values(), default=-1) + 1,
    )


def require_same(expected: Fingerprint, found: Fingerprint, graph: str = "the graph") -> None:
    """Raise an error if a tokenizer differs from the graph's tokenizer.

    Args:
        expected: the graph's fingerprint.
        found: the caller's fingerprint.
        graph: the graph's name, for the message.

    Raises:
        TokenizerMismatchError: the fingerprints differ.
    """
    if expected.sha256 != found.sha256:
        raise TokenizerMismatchError(
            f"{graph} was built with tokenizer {expected.name} ({expected.sha256[:12]}), "
            f"not with {found.name} ({found.sha256[:12]})",
            fix=f"build it again with {found.name}",
        )


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[TokenId]:
    """Return the token ids of a prompt, as both verifiers and graphs encode it.

    As in transformers, special tokens spelled out in the text are parsed, and the tokenizer's own template adds others,
    such as BOS.

    Args:
        tokenizer: a transformers tokenizer's ``backend_tokenizer``, or a tokenizer from the same file.
        text: the whole prompt.

    Raises:
        GraphError: the text has millions of equal characters in a row.
    """
    if tokenizer.truncation is not None:  # set for training
        tokenizer.no_truncation()
    if tokenizer.padding is not None:
        tokenizer.no_padding()
    return encode_texts(tokenizer, [text], add_special_tokens=True)[0]


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool = False
) -> list[list[TokenId]]:
    """Return the token ids of texts.

    Args:
        tokenizer: encodes the texts.
        texts: the texts.
        add_special_tokens: whether the tokenizer's own template adds tokens around them.

    Raises:
        GraphError: a text has millions of equal characters in a row.
    """
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the library does not export it, and it is not an Exception
            raise
        raise GraphError(
            f"the tokenizer gave up ({first_line(error)}); look for millions of identical characters in a row"
        ) from None
    return [encoding.ids for encoding in encodings]


class CorpusTokenizer:
    """A corpus tokenizer that adds no special tokens, and parses special tokens in a text only on request."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        bos_id: int | None = None,
        eos_id: int | None = None,
        revision: str = "",
        special_tokens: SpecialTokensName = "text",
    ) -> None:
        """Wrap a tokenizer object, and change its treatment of special tokens.

        Args:
            name: the name that it was loaded by.
            tokenizer: the tokenizer itself.
            bos_id: id of the token that begins a document, if there is one.
            eos_id: id of the token that ends a document, if there is one.
            revision: commit of its repository on the hub, if any.
            special_tokens: how special tokens spelled out in a text are read; in prompts they are always parsed.
        """
        tokenizer.encode_special_tokens = special_tokens == "text"
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.revision = revision
        self.fingerprint = fingerprint_of(name, tokenizer)

    def __reduce__(self) -> tuple[Callable[..., CorpusTokenizer], tuple[Any, ...]]:
        """Return the constructor and arguments with which another process makes a copy."""
        special_tokens = "text" if self._tokenizer.encode_special_tokens else "parse"
        name = self.fingerprint.name
        return CorpusTokenizer, (name, self._tokenizer, self.bos_id, self.eos_id, self.revision, special_tokens)

    @classmethod
    def load(
        cls, name_or_folder: str | Path, hf_token: str | None = None, special_tokens: SpecialTokensName = "text"
    ) -> CorpusTokenizer:
        """Load a tokenizer by its name on the hub, or from a folder with ``tokenizer.json``; ``~`` is expanded.

        Args:
            name_or_folder: folder or name.
            hf_token: access token, if the tokenizer is gated on the hub.
            special_tokens: how special tokens spelled out in a text are read. "parse" avoids a copy of the vocabulary
                if the caller encodes only prompts.

        Raises:
            ConfigError: there is no such tokenizer, or access to it is refused.
            ModuleNotFoundError: the extra ``build`` is not installed.
        """
        with needed_for("tokenizing text", "build"):
            from tokenizers import Tokenizer
        name, revision = os.path.expanduser(name_or_folder), ""
        if os.path.isdir(name):
            name = str(Path(name).resolve())  # the graph stores this name, and may be read from other folders
            file, config_file = Path(name) / _TOKENIZER_FILE, Path(name) / _CONFIG_FILE
            if not file.is_file():
                raise ConfigError(
                    f"folder {name} has no {_TOKENIZER_FILE}", fix="set {field} to a folder that has it", field=_SETTING
                )
        else:
            is_local = only_local(str(name_or_folder), _SETTING, hf_token)
            file, config_file = _download(name, hf_token, is_local=is_local)
            revision = file.parent.name  # the hub's cache has one folder per commit
        try:
            tokenizer = Tokenizer.from_buffer(file.read_bytes())  # from_file opens only paths in UTF-8
            config = json.loads(config_file.read_text("utf-8")) if config_file.is_file() else {}
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(
                f"tokenizer {name} can't be read ({first_line(error)})", fix="download it again", field=_SETTING
            ) from error
        bos_id, eos_id = (_special_id(tokenizer, config, role) for role in ("bos", "eos"))
        return cls(name, tokenizer, bos_id, eos_id, revision, special_tokens)

    def require(self, expected: Fingerprint) -> None:
        """Raise an error if a graph was built with another tokenizer.

        Raises:
            TokenizerMismatchError: the fingerprints differ.
        """
        require_same(expected, self.fingerprint)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of one text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many texts, computed on all cores.

        Raises:
            GraphError: a text has millions of equal characters in a row.
        """
        return encode_texts(self._tokenizer, texts)

    def encode_prompt(self, text: str) -> list[TokenId]:
        """Return the token ids of a prompt as the verifier encodes it; see :func:`encode_prompt`."""
        return encode_prompt(self._prompt_tokenizer, text)

    @cached_property
    def _prompt_tokenizer(self) -> Tokenizer:
        if not self._tokenizer.encode_special_tokens:
            return self._tokenizer
        parsing = copy.deepcopy(self._tokenizer)  # other threads may be encoding text
        parsing.encode_special_tokens = False
        return parsing

    @property
    def is_cuttable(self) -> bool:
        """Whether texts may be encoded piece by piece, as :func:`cut_text` cuts them.

        False for tokenizers that treat spaces as part of running text (SentencePiece), and for tokenizers with added
        tokens that a cut could change. Tokenizers whose texts can't be cut encode whole documents.
        """
        for token in self._tokenizer.get_added_tokens_decoder().values():
            is_text = token.special and self._tokenizer.encode_special_tokens
            has_rules = token.lstrip or token.rstrip or token.single_word
            if not is_text and (has_rules or may_be_cut(token.content)):
                return False
        return all(self.encode(left + right) == self.encode(left) + self.encode(right) for left, right in _CUT_PROBES)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, including special tokens."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def may_be_cut(token: str) -> bool:
    """Return whether the inside of a token has a place to cut for :func:`cut_text`, in any surrounding text."""
    return any(1 < cut.start() <= len(token) for cut in _RARE_CUT.finditer(f"x{token}x"))


def cut_text(texts: Iterable[str], chunk_size: int) -> Iterator[str]:
    """Cut a text into non-empty pieces whose token ids, concatenated, are those of the whole text.

    Pieces end where GPT-style tokenizers always separate words; for these tokenizers,
    :attr:`CorpusTokenizer.is_cuttable` is true. A piece has at least ``chunk_size`` characters and extends to the next
    position for a cut; only the last may be shorter.

    Args:
        texts: the text in blocks of any size.
        chunk_size: minimum number of characters in a piece.
    """
    pending = ""
    searched = rarely_searched = 0
    for text in texts:
        pending += text
        start = 0
        while True:
            cut = CUT.search(pending, max(start + chunk_size, searched))
            if cut is None:
                # A cut is recognised by the two characters after it, which may be in the next block.
                searched = max(start, len(pending) - 1)
                if len(pending) - start <= _PATIENCE:
                    break
                cut = _RARE_CUT.search(pending, max(start + chunk_size, rarely_searched))
                if cut is None:
                    rarely_searched = searched
                    break
            yield pending[start : cut.start()]
            start = cut.start()
        pending = pending[start:]
        searched -= start
        rarely_searched = max(0, rarely_searched - start)
    if pending:
        yield pending


def local_tokenizer(expected: Fingerprint, beside: Path | None = None) -> CorpusTokenizer:
    """Load the tokenizer of a graph from its folder, or the hub's cache; nothing is downloaded.

    Args:
        expected: the graph's fingerprint.
        beside: another folder to search.

    Raises:
        ConfigError: the tokenizer is not on this machine, or can't be read.
        TokenizerMismatchError: a different tokenizer was found by that name.
        ModuleNotFoundError: the extra ``build`` is not installed.
    """
    if beside is not None:
        with suppress(ConfigError, TokenizerMismatchError):
            tokenizer = CorpusTokenizer.load(beside)
            tokenizer.require(expected)
            return tokenizer
    folder = local_folder(expected.name)
    if folder is None:
        raise ConfigError(
            "the tokenizer is not on this machine", fix="download it, or name its folder (graph.tokenizer_name)"
        )
    tokenizer = CorpusTokenizer.load(folder)
    tokenizer.require(expected)
    return tokenizer


def lazy_decode(expected: Fingerprint) -> Callable[[Sequence[int]], str]:
    """Return a function that decodes with a graph's tokenizer; :func:`local_tokenizer` loads it at the first call.

    If loading fails, the returned function logs one warning and returns empty texts.
    """

    @cache
    def tokenizer() -> CorpusTokenizer | None:
        try:
            return local_tokenizer(expected)
        except (ConfigError, TokenizerMismatchError, ModuleNotFoundError) as error:
            logger.warning("tokens are shown without text: {}", error)
            return None

    def decode(token_ids: Sequence[int]) -> str:
        found = tokenizer()
        return "" if found is None else found.decode(token_ids)

    return decode


def _special_id(tokenizer: Tokenizer, config: dict[str, Any], role: str) -> int | None:
    token = config.get(f"{role}_token")
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else tokenizer.token_to_id(content)


def _download(name: str, hf_token: str | None, *, is_local: bool) -> tuple[Path, Path]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        file = Path(hf_hub_download(name, _TOKENIZER_FILE, token=hf_token, local_files_only=is_local))
        try:
            config_file = Path(hf_hub_download(name, _CONFIG_FILE, token=hf_token, local_files_only=is_local))
        except LocalEntryNotFoundError:  # the hub may have it; without it, special tokens would be missed silently
            raise
        except EntryNotFoundError:
            config_file = file.with_name(_CONFIG_FILE)
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"tokenizer {name} is incomplete in the hub's cache and the hub can't be reached", fix="name a folder"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no tokenizer {name} ({first_line(error)})", fix="set {field} to a folder or a hub name", field=_SETTING
        ) from error
    return file, config_file
