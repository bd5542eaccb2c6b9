"""A sidecar with an explorer in a separate process, and an HTTP client for it."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from speculant_graph.corpus.source import CorpusFile
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from support.processes import Sidecar, start_sidecar

PATIENCE_S = 240.0
TEXT = "The parties agree to the terms. The parties agree to talk. In case of doubt the parties talk.\n" * 4
API = "/explorer/api/v1/graphs"
LOCAL = {"metrics_listen": "127.0.0.1:0"}


def tokenizer_in(folder: Path) -> CorpusTokenizer:
    """Write a tokenizer with one token per byte and a few longer tokens; return it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "r"), ("i", "e"), ("ar", "t"), ("art", "ie")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return CorpusTokenizer.load(folder)


def text_graph(path: Path, tokenizer: CorpusTokenizer, text: str = TEXT, max_order: int = 4) -> Path:
    """Write the graph of a text to a file, replacing it atomically, and the text to a file in the same folder."""
    graph = build_from_token_ids(tokenizer.encode(text), tokenizer.fingerprint, max_order=max_order)
    corpus = path.with_suffix(".txt")
    corpus.write_text(text, encoding="utf-8")
    read = CorpusFile(str(corpus), corpus.stat().st_size, hashlib.sha256(corpus.read_bytes()).hexdigest())
    NgramGraph(graph.trie, dataclasses.replace(graph.metadata, corpus_files=(read,))).save(path)
    return path


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """Return the parsed JSON body."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Error message of the response."""
        message = self.json["error"]
        assert "\n" not in message
        return str(message)


class Asker:
    """An HTTP client of one explorer."""

    def __init__(self, address: str, **headers: str) -> None:
        self.address = address
        self._headers = headers

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> Answer:
        """Send a request on a new connection."""
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """Get a page."""
        return self.ask("GET", path)

    def look(self, graph: str = "text", /, **question: object) -> Answer:
        """Query a graph."""
        return self.ask("POST", f"{API}/{graph}/look", json.dumps(question), **{"Content-Type": "application/json"})


@dataclass(frozen=True)
class Explored:
    """A running sidecar and its explorer."""

    sidecar: Sidecar
    asker: Asker

    @property
    def url(self) -> str:
        """URL of the explorer."""
        return f"http://{self.asker.address}/explorer/"


def address_in(sidecar: Sidecar) -> str:
    """Return the HTTP address from a sidecar's log."""
    found = re.search(r"metrics on (\S+?)(?:;|\n)", sidecar.log)
    assert found, sidecar.log
    return found.group(1)


@contextmanager
def exploring(graph_path: Path, folder: Path, **settings: Any) -> Iterator[Explored]:
    """Serve a graph with an explorer; ``settings`` are passed to :func:`support.processes.start_sidecar`."""
    sidecar = start_sidecar(graph_path, folder / "drafter.sock", log=("INFO", "text"), **{**LOCAL, **settings})
    try:
        yield Explored(sidecar, Asker(address_in(sidecar)))
    finally:
        if sidecar.process.poll() is None:
            sidecar.stop()
