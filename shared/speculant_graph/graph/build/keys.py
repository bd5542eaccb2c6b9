"""Keys: n-grams of N+1 tokens packed into words, gathered from a token stream and sorted.

A token takes ``bits`` bits as its id plus 1; 0 stands for the end of the stream or of a document. The order of keys,
word by word, is the lexicographic order of their n-grams, shorter ones first.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORD_BITS = 63  # 64 would do; one spare bit keeps every word non-negative as a signed number


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """How n-grams are packed."""

    length: int
    """Tokens of a key, N+1."""
    bits: int
    """Bits of a token."""
    per_word: int
    """Tokens in a word, the first one in the highest bits."""
    num_words: int
    """Words of a key."""

    @classmethod
    def of(cls, vocabulary_size: int, max_order: int) -> KeyLayout:
        """Return the layout for a vocabulary and a longest context."""
        length, bits = max_order + 1, vocabulary_size.bit_length()
        per_word = min(length, _WORD_BITS // bits)
        return cls(length, bits, per_word, -(-length // per_word))

    @property
    def bytes(self) -> int:
        """Size of a key."""
        return 8 * self.num_words

    def pack(self, ngram: tuple[int, ...]) -> list[int]:
        """Return the words of one n-gram of up to N+1 tokens."""
        values = [*(token_id + 1 for token_id in ngram), *(0,) * (self.per_word * self.num_words - len(ngram))]
        words = []
        for start in range(0, len(values), self.per_word):
            word = 0
            for value in values[start : start + self.per_word]:
                word = word << self.bits | value
            words.append(word)
        return words
