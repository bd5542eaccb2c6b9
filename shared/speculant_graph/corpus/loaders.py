"""Files to text: finds the files of a corpus and streams their characters.

Knows nothing of tokens, except where a text may be cut without changing them.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from speculant_graph.errors import ConfigError, CorpusError

TEXT_SUFFIXES = frozenset({
    ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".html", ".java", ".js", ".jsx",
    ".kt", ".lua", ".md", ".php", ".pl", ".py", ".rb", ".rs", ".rst", ".scala", ".sh", ".sql",
    ".swift", ".tex", ".ts", ".tsx", ".txt", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""What is taken from a folder; files that are named one by one may end in anything."""

_BLOCK_BYTES = 1 << 20

# GPT-style pre-tokenizers split text into words first, and no token crosses a word. Two places begin a word
# in all of them, whatever is around: the space between two letters, and a letter after a newline. That
# newline must follow a visible character: GPT-2's \s+(?!\S) takes a longer run of blanks whole at the end of
# a text, but leaves its last blank over inside of one. And the letter must be one: "/" belongs to the newline
# before it in o200k.
_CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])|(?<=\S\n)(?=[^\W\d_])")


def list_corpus_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """List the files of a corpus once each, in the order given; the files of a folder are sorted.

    Args:
        paths: files, and folders that are searched with all their subfolders for :data:`TEXT_SUFFIXES`.

    Raises:
        CorpusError: a path does not exist, a folder holds no text, or nothing was named.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if _is_text(file, path))
            if not found:
                raise CorpusError(f"{path} holds no text; name files, or a folder with text or source code")
        elif path.is_file():
            found = [path]
        else:
            raise CorpusError(f"{path} does not exist; name text files or folders that hold them")
        for file in found:
            files.setdefault(file.resolve(), file)
    if not files:
        raise CorpusError("no corpus; name text files or folders that hold them")
    return list(files.values())


def _is_text(file: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not is_hidden and file.suffix in TEXT_SUFFIXES and file.is_file()


def read_chunks(path: Path, chunk_size: int, encoding: str = "utf-8") -> Iterator[str]:
    r"""Stream a file's text in non-empty pieces; line ends are read as ``\n``.

    Pieces end where GPT-style tokenizers separate words in any case, so that the token ids of the pieces are
    those of the whole text. They have at least ``chunk_size`` characters (the last one excepted), and more
    where the text has no such place. Tokenizers that see spaces as part of a running text (SentencePiece) may
    differ at the cuts.

    Raises:
        ConfigError: the encoding does not exist.
        CorpusError: the file can't be read or is not in this encoding.
    """
    pending = ""
    searched = 0
    for text in _decoded_blocks(path, encoding):
        pending += text
        start = 0
        while cut := _CUT.search(pending, max(start + chunk_size, searched)):
            yield pending[start : cut.start()]
            start = cut.start()
        pending = pending[start:]
        # A cut is known by the two characters behind it, which the next block may bring.
        searched = max(0, len(pending) - 1)
    if pending:
        yield pending


def _decoded_blocks(path: Path, encoding: str) -> Iterator[str]:
    try:
        "".encode(encoding)
        decoder = codecs.getincrementaldecoder(encoding)()
    except LookupError as error:
        raise ConfigError(f"{encoding!r} is no text encoding; set --graph.encoding, for example to utf-8") from error
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    offset = 0
    try:
        with path.open("rb") as file:
            while True:
                block = file.read(_BLOCK_BYTES)
                held_bytes = len(decoder.getstate()[0])
                text = decoder.decode(block, final=not block)
                offset += len(block)
                yield newlines.decode(text, final=not block)
                if not block:
                    return
    except UnicodeDecodeError as error:
        position = offset - held_bytes + error.start
        raise CorpusError(
            f"{path}: byte {position} is not {encoding} ({error.reason}); "
            "set --graph.encoding to the encoding of the file"
        ) from error
    except OSError as error:
        raise CorpusError(f"{path} can't be read ({error.strerror}); check the file and its permissions") from error
