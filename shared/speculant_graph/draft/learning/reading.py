"""Reads a tenant's learned text for reports, changes nothing, and works while a sidecar uses the folder."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.draft.learning.database import ID_BYTES, write_documents
from speculant_graph.draft.learning.fold_process import FoldJob
from speculant_graph.draft.learning.fold_worker import fold, merge_older
from speculant_graph.draft.learning.layers import Layer, find_layers, folder_of
from speculant_graph.draft.learning.learned_files import name_of
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.files import replacing, workspace, writing
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint

_TRIES = 5


@dataclass(frozen=True, slots=True)
class LearnedText:
    """A snapshot of a tenant's learned text."""

    folder: Path
    """The folder with the learned text of one graph."""
    texts: tuple[tuple[int, bytes], ...]
    """Young text, which is not yet in a graph file, oldest first. Each item has a row id (milliseconds since 1970) and
    little-endian 32-bit token ids."""
    layers: tuple[Layer, ...]
    """Graph files of the older text, oldest first."""
    database_bytes: int
    """Size in bytes of the tenant's database, which contains the young text and the target model's top tokens."""
    damaged: tuple[Path, ...] = ()
    """Graph files that can't be read; their text is lost."""

    @property
    def num_young_tokens(self) -> int:
        """Number of tokens in the young text."""
        return sum(len(text) for _, text in self.texts) // ID_BYTES


def read_learned(learned: Path, tenant: str) -> LearnedText:
    """Return the learned text of a tenant.

    Args:
        learned: the folder with the learned text of one graph; a sidecar has one such folder per graph below
            ``server.learned``.
        tenant: name of the tenant, any text.

    Raises:
        ConfigError: the folder has no text of the tenant, or can't be read.
    """
    name = name_of(tenant)
    database, folder = learned / f"{name}.sqlite", folder_of(learned, name)
    if not database.exists() and not folder.is_dir():
        if not learned.is_dir():
            raise ConfigError(f"there is no folder {learned}", fix="check its name", field="learned")
        is_one = (learned / "shared.sqlite").exists()
        named = "check the tenant" if tenant else "name one by --tenant"
        raise ConfigError(
            f"there is no learned text of {'this tenant' if tenant else 'requests without a tenant'} in {learned}",
            fix=named if is_one else "name the folder of one graph, one level below",
            field="learned",
        )
    for _ in range(_TRIES):
        # Read rows first: their ids show which of them a fold has turned into a file meanwhile.
        texts = _texts(database) if database.exists() else []
        found = find_layers(folder)
        if not found.damaged:  # else a file was replaced just then, or is damaged
            break
    ranges = [layer.ids for layer in found.layers]
    young = tuple(row for row in texts if not any(first <= row[0] <= last for first, last in ranges))
    num_bytes = database.stat().st_size if database.exists() else 0
    return LearnedText(learned, young, found.layers, num_bytes, tuple(path for path, _ in found.damaged))


def export_learned(learned: LearnedText, output: Path, tokenizer: Fingerprint | None) -> NgramGraph:
    """Write all learned text of a tenant as one ordinary graph. No n-gram crosses from one text into the next.

    Args:
        learned: the tenant's learned text.
        output: the graph file.
        tokenizer: the tokenizer of the ids; None takes it from the graph files.

    Raises:
        ConfigError: there is no text, the tokenizer is unknown, or the output is in the folder of the learned text.
        TokenizerMismatchError: the graph files have another tokenizer.
        GraphFileError: a file is damaged, or the output can't be written.
    """
    if output.resolve().is_relative_to(learned.folder.resolve()):
        raise ConfigError(f"{output} is in the folder of the learned text", fix="name a file elsewhere", field="export")
    if learned.layers:
        known = NgramGraph.load(learned.layers[-1].path).metadata.tokenizer
        if tokenizer is not None and tokenizer.sha256 != known.sha256:
            raise TokenizerMismatchError(
                f"the learned text has tokenizer {known.name} ({known.sha256[:12]}), not {tokenizer.name} "
                f"({tokenizer.sha256[:12]}); name the first, or none"
            )
        tokenizer = known
    if tokenizer is None:
        raise ConfigError(
            "no graph file names the tokenizer of the learned text",
            fix="name it by --tokenizer",
            field="graph.tokenizer_name",
        )
    with workspace(output) as folder:
        job = FoldJob(str(folder), 0, tokenizer, tuple(str(layer.path) for layer in learned.layers))
        with writing(output), job.tokens.open("xb") as file:
            _, num_tokens, num_documents = write_documents(file, learned.texts, tokenizer.vocabulary_size)
        if num_tokens:
            fold(FoldJob(job.folder, num_documents, tokenizer, job.older))
        elif learned.layers:
            with writing(output):
                shutil.copyfile(learned.layers[-1].path, folder / "newest")
            merge_older(FoldJob(job.folder, 0, tokenizer, job.older[:-1]), folder / "newest")
        else:
            raise ConfigError("there is no learned text of this tenant", fix="check the tenant", field="tenant")
        with replacing(output, lambda path: NgramGraph.load(path, verify=True), folder) as temporary:
            job.graph.replace(temporary)
    return NgramGraph.load(output)


def _texts(path: Path) -> list[tuple[int, bytes]]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT id, CAST(token_ids AS BLOB) FROM texts ORDER BY id")
            return [(text_id, text) for text_id, text in rows if text]  # damage may make it NULL
    except sqlite3.Error as error:
        raise ConfigError(f"{path} can't be read ({error})", fix="check it", field="learned") from error
