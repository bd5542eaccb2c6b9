"""Finds the encoding of a text file: its byte order mark, UTF-8, a named encoding, or an unambiguous guess."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from speculant_graph.corpus.alphabets import ENCODINGS, decide
from speculant_graph.corpus.source import UTF_8, Source
from speculant_graph.errors import CorpusError
from speculant_graph.extras import needed_for

AUTO = "auto"
"""Value of the setting ``graph.encoding`` with which the encoding is guessed."""

# UTF-32 comes first, because its marks begin with, or contain, the marks of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UNMARKED = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_CONTROL_BYTES = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROLS = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 4
_NEAR = 3
"""Number of lines that a sample keeps before and after each line with bytes above 127."""
_MOST_DAMAGED = 0.1
_LEAST_LETTERS = 6
_NO_TEXT = frozenset({"Cn", "Co"})
_FIX = "name the encoding (graph.encoding), convert the file to UTF-8, or leave it out"
_BINARY = "looks binary; leave it out, or name its encoding (graph.encoding) if it is text"


class Encoding(NamedTuple):
    """The encoding of a text."""

    name: str
    """Name of the codec in Python."""
    is_guess: bool = False
    """True if the encoding was guessed from the text alone."""


def find_encoding(source: Source, named: str = AUTO, on_bytes: Callable[[int], None] | None = None) -> Encoding:
    """Find the encoding of a file, and check that the whole file can be decoded.

    A byte order mark decides the encoding. Valid UTF-8 that is not plain ASCII is read as UTF-8 even if another
    encoding is named. Text in other encodings is hardly ever valid UTF-8 by chance.

    Args:
        source: the file, not yet read.
        named: encoding of files that are not UTF-8; :data:`AUTO` guesses it.
        on_bytes: called with the size of each block read, in bytes.

    Raises:
        CorpusError: the file can't be read or unpacked, is binary, is not in the named encoding, or its encoding is
            ambiguous.
    """
    first = next(source.reopened(lambda _: None).blocks(), b"")
    for mark, name in _MARKS:
        if first.startswith(mark):
            problem = _wrong_with(source, name, on_bytes)
            if problem:
                is_utf_8 = name == UTF_8
                reason = f"begins like {'UTF-8' if is_utf_8 else name.upper()}, but is damaged ({problem})"
                raise CorpusError(f"{source.label}: {reason}; correct it, or leave it out")
            return Encoding(name)
    is_ascii, has_nul, problem = _read_as_utf_8(source, on_bytes)
    if not problem and not has_nul and (not is_ascii or named == AUTO or _is_wide(named)):
        return Encoding(UTF_8)
    if named != AUTO:
        problem = _wrong_with(source, named)
        if problem:
            raise CorpusError(f"{source.label}: is not {named} ({problem}); {_FIX}")
        return Encoding(UTF_8 if codecs.lookup(named).name == "utf-8" else named)
    if has_nul:
        wide = _guess_wide(source, first)
        if wide is None and (problem or source.format != "lines"):
            raise CorpusError(f"{source.label}: {_BINARY}")
        return wide or Encoding(UTF_8)  # a crash may leave such bytes in a line; the line is then a bad record
    return _guess(source, problem)


def _is_wide(name: str) -> bool:
    return codecs.lookup(name).name.startswith(("utf-16", "utf-32"))


def _read_as_utf_8(source: Source, on_bytes: Callable[[int], None] | None) -> tuple[bool, bool, str]:
    """Return whether a file is ASCII, whether it has zero bytes, and the reason if it is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_ascii, has_nul, problem, num_lines = True, False, "", 1
    for block in source.reopened(on_bytes or (lambda _: None)).blocks():
        has_nul = has_nul or 0 in block
        if not problem and not (block.isascii() and not decoder.getstate()[0]):
            is_ascii = False
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                num_lines += error.object.count(b"\n", 0, error.start)
                problem = f"byte 0x{error.object[error.start]:02x} in line {num_lines}"
        if not problem:
            num_lines += block.count(b"\n")
    if not problem and decoder.getstate()[0]:
        problem = f"half a character at the end, in line {num_lines}"
    return is_ascii, has_nul, problem


def _wrong_with(source: Source, name: str, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return why a file can't be decoded with an encoding; empty if it can."""
    decoder = codecs.getincrementaldecoder(name)()
    try:
        for block in source.reopened(on_bytes or (lambda _: None)).blocks():
            strange = _CONTROLS.search(decoder.decode(block))
            if strange:
                return f"has the control character U+{ord(strange[0]):04X}"
        decoder.decode(b"", final=True)
    except UnicodeError as error:
        return error.reason if isinstance(error, UnicodeDecodeError) else str(error)
    return ""


def _guess_wide(source: Source, first: bytes) -> Encoding | None:
    """Return the encoding of a UTF-16 or UTF-32 text without a byte order mark; None if the file may be binary."""
    for name in _UNMARKED:
        width = 4 if "32" in name else 2
        text = first[: len(first) // width * width].decode(name, "replace")
        # Binary 16-bit numbers also decode to characters, but hardly ever to words separated by spaces.
        letters = [character for character in text if character.isalpha()]
        latin = sum("\t" <= character < "\u0250" for character in text)
        if (
            text
            and latin >= 0.9 * len(text)
            and len(letters) >= 0.4 * len(text)
            and len(set(letters)) >= _LEAST_LETTERS
            and (" " in text or "\n" in text)
            and not any(character == "\ufffd" or unicodedata.category(character) in _NO_TEXT for character in set(text))
            and not _wrong_with(source, name)
        ):
            return Encoding(name, is_guess=True)
    return None


def _guess(source: Source, problem: str) -> Encoding:
    """Return the one encoding that gives words of a known language; UTF-8 if only few JSON Lines are damaged.

    Raises:
        CorpusError: there is no such encoding, or more than one.
    """
    with needed_for(f"reading {source.label}, which is not UTF-8,", "build"):
        import charset_normalizer

    samples: list[bytes] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_damaged = num_whole = 0
    for block in source.reopened(lambda _: None).blocks():
        if _CONTROL_BYTES.search(block):
            raise CorpusError(f"{source.label}: {_BINARY}")
        if block.isascii():
            continue
        text = decoder.decode(block)
        damaged = text.count("\ufffd")
        num_damaged += damaged
        num_whole += len(text) - len(text.encode("ascii", "ignore")) - damaged
        if len(samples) < _SAMPLES:
            samples.append(_lines_with_high_bytes(block))
    if num_damaged <= _MOST_DAMAGED * num_whole and source.format == "lines":
        return Encoding(UTF_8)  # a line that can't be decoded is a bad record
    if num_damaged <= _MOST_DAMAGED * num_whole:
        raise CorpusError(
            f"{source.label}: is UTF-8 but for {problem}",
            fix="correct it, or name the encoding ({field})",
            field="graph.encoding",
        )
    sample = b"\n".join(samples)
    matches = charset_normalizer.from_bytes(sample, cp_isolation=list(ENCODINGS), preemptive_behaviour=False)
    plausible = {name for match in matches for name in match.could_be_from_charset}
    name = decide(sample, plausible) if plausible else None
    if name is None or _wrong_with(source, name):
        raise CorpusError(f"{source.label}: is not UTF-8 ({problem}), and its encoding is in doubt; {_FIX}")
    return Encoding(name, is_guess=True)


def _lines_with_high_bytes(block: bytes) -> bytes:
    """Return a block's lines with bytes above 127 and the lines around them, whose words identify the language."""
    lines = block.splitlines()
    chosen: list[bytes] = []
    size = 0
    following = 0
    for number, line in enumerate(lines):
        if line.isascii():
            continue
        for near in lines[max(following, number - _NEAR) : number + _NEAR + 1]:
            chosen.append(near[:_SAMPLE_BYTES])
            size += len(near)
        following = number + _NEAR + 1
        if size > _SAMPLE_BYTES:
            break
    return b"\n".join(chosen)
