"""Byte-level BPE by ``tiktoken``: the ids of the ``tokenizers`` library, several times as fast.

Only for tokenizers that provably merge alike, and after both have split a sample of text alike.

Why they merge alike: both apply the first merge in order, leftmost first, until none is left. tokenizers merges
listed pairs in order of the list, tiktoken any pair whose joint bytes are a token, in order of ids. Let the listed
products have ascending ids, and let every token come out of its own bytes by the listed merges. Merges inside of a
range of bytes are those of that range alone, as long as none crosses its ends. So the pair that is joined into a
token is always the one that ends the merging of the token's own bytes: it is listed, there is only one, and both
libraries find it in the same order.

Special tokens that are parsed are cut out of the text before. Both libraries take the leftmost; tokenizers the longest
of those that begin at one offset, tiktoken any of them. So none may begin with another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.extras import needed_for

if TYPE_CHECKING:
    from tiktoken import Encoding
    from tokenizers import Tokenizer

# tokenizers' own, where a byte-level pre-tokenizer names none.
_DEFAULT_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# One code point in so many stands for its neighbours; a prime visits all kinds of blocks.
_PROBED_CODE_POINTS = [code for code in range(0x80, 0x32000, 29) if not 0xD800 <= code < 0xE000]
PROBES = (
    "",
    "The parties' agreement: it's THEIRS, WE'LL see: don't, I'Ve, 'tis, ''s, x'\u017fy, e\u0301's, a\u2019s\n",
    "  lead\n\n\n  and trail  \n \t\n\r\n\r \r\n\x0b\x0c\x1c\x85\u00a0\u2003\u2028\u2029\u3000 \u200b\ufeff end \n  ",
    "0 1 12 123 1234 12345678901 1,234.5e-6 0x7fff \u0661\u0662\u0663\u0664\u0665 \u00b2\u00b3\u00bd\u2167",
    "def f(x): return {'a': [x**2, -1]}  # ok?!\n\t/* // */ https://a.b/c?d=e&f=%20#/\n/\n//\n",
    "<|startoftext|><|endoftext|> <|start|>assistant<|channel|>final<|message|><|return|><s></s>[INST]<|unused|>",
    "a\u0301\u0301 \u0301\u20dd x\u0308Y\u0327\u0302 \u0e33 \u0903 A\u0300B\u0301c \ufe0f",
    "\U0001f44d\U0001f3fd \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u260e\ufe0f \U0010ffff",
    "nul\0nul \x01\x02\x7f\x80\xad end",
    "camelCaseWords HTTPServerError snake_case_name ABCdefGHI aB Ab AB ab A b",
    "!!!???...---===___***///\\\\\\~~~ ,,;; \"\"'' ```",
    "a" * 3_000 + " " * 3_000 + "b " + "\n" * 3_000 + "Ab" * 1_500 + "7" * 1_000 + "." * 1_000 + "\u0301" * 300,
    "".join(f"a{chr(code)}B {chr(code)}1{chr(code)}\n" for code in _PROBED_CODE_POINTS),
)
"""Texts on which pre-tokenizers differ, if they do."""

Encode = Callable[[str], NDArray[np.uint32]]


class FastBpe:
    """A tokenizer's equivalent in tiktoken."""

    def __init__(self, encoding: Encoding, slow: Encode, parsed: frozenset[str]) -> None:
        """Take tiktoken's encoding, the tokenizer's own, for what tiktoken refuses, and the special tokens to parse."""
        self._encoding = encoding
        self._slow = slow
        self._parsed = parsed

    @classmethod
    def of(cls, tokenizer: Tokenizer, slow: Encode) -> FastBpe | None:
        """Make the equivalent of a tokenizer, None if it may differ from a byte-level BPE that tiktoken can be.

        Raises:
            ModuleNotFoundError: tiktoken is not installed.
        """
        with needed_for("fast tokenizing", "build"):
            import tiktoken

        definition = json.loads(tokenizer.to_str())
        pattern = _pattern(definition)
        ranks = None if pattern is None else _ranks(definition["model"])
        special = {} if tokenizer.encode_special_tokens else _special_ids(definition)
        if pattern is None or ranks is None or special is None:
            return None
        # Without a special token tiktoken would look for the empty one at every byte. It is never allowed.
        known = special or {"<|unused|>": max(ranks.values()) + 1}
        try:
            encoding = tiktoken.Encoding("corpus", pat_str=pattern, mergeable_ranks=ranks, special_tokens=known)
        except ValueError:  # its regular expressions are not those of tokenizers
            return None
        return cls(encoding, slow, frozenset(special))

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Return the token ids of a text, shape ``[num_tokens]``; other threads go on meanwhile."""
        try:
            return self._encoding.encode_to_numpy(text, allowed_special=self._parsed, disallowed_special=())
        except ValueError:  # a run of blanks that is too long for its regular expressions
            return self._slow(text)

    def agrees_on(self, texts: Iterable[str]) -> bool:
        """Return whether tiktoken's ids of all these texts are those of the tokenizer itself."""
        return all(np.array_equal(self.encode(text), self._slow(text)) for text in texts)


def _pattern(definition: dict[str, Any]) -> str | None:
    if definition.get("normalizer") is not None or not all(token["special"] for token in definition["added_tokens"]):
        return None
    match definition.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _DEFAULT_PATTERN
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    return None


def _special_ids(definition: dict[str, Any]) -> dict[str, int] | None:
    tokens = definition["added_tokens"]
    ids: dict[str, int] = {token["content"]: token["id"] for token in tokens}
    has_rules = any(token[rule] for token in tokens for rule in ("lstrip", "rstrip", "single_word", "normalized"))
    if has_rules or any(longer.startswith(shorter) for shorter, longer in pairwise(sorted(ids))):
        return None
    return ids


def _ranks(model: dict[str, Any]) -> dict[bytes, int] | None:
    if model["type"] != "BPE" or any(
        model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    ):
        return None
    vocabulary: dict[str, int] = model["vocab"]
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    ids = np.fromiter((vocabulary[left + right] for left, right in merges), np.int64, len(merges))
    if np.any(np.diff(ids) < 0):
        return None
    alphabet = byte_alphabet()
    tokens = {left + right for left, right in merges}.union(alphabet)
    if not vocabulary.keys() >= alphabet.keys() or not set("".join(tokens)) <= alphabet.keys():
        return None
    if model.get("ignore_merges") and len(tokens) < len(vocabulary):
        return None  # a word may be a token that no merges lead to
    if not _come_out_of_their_bytes(tokens, vocabulary, merges):
        return None
    to_latin = str.maketrans({character: chr(byte) for character, byte in alphabet.items()})
    return {token.translate(to_latin).encode("latin-1"): vocabulary[token] for token in tokens}


def _come_out_of_their_bytes(tokens: Iterable[str], vocabulary: dict[str, int], merges: list[Any]) -> bool:
    from tokenizers.models import BPE

    model = BPE(vocab=vocabulary, merges=merges, cache_capacity=0, ignore_merges=False)
    for token in tokens:
        pieces = model.tokenize(token)
        if len(pieces) != 1 or pieces[0].id != vocabulary[token]:
            return False
    return True


def byte_alphabet() -> dict[str, int]:
    """Return the character that stands for each byte in byte-level vocabularies: visible Latin-1, then from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}
