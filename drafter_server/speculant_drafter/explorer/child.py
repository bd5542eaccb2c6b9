"""The explorer's process: reads questions on standard input, writes answers on standard output, until the former ends.

It runs at a low priority, and knows the graph files and nothing else of the sidecar.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from speculant_drafter.explorer.answers import OpenGraph
from speculant_drafter.explorer.failures import error_body, is_ours, status_of
from speculant_drafter.explorer.frames import LENGTH, pack, unpack
from speculant_drafter.explorer.question import Question
from speculant_graph.config import DraftConfig

_NICENESS = 10


class Answerer:
    """Answers questions about the graphs that are served at present."""

    def __init__(self, draft: DraftConfig, tokenizer_folder: Path | None) -> None:
        """Take what does not change: how the sidecar drafts, and where a tokenizer may be."""
        self._draft = draft
        self._tokenizer_folder = tokenizer_folder
        self._graphs: dict[int, OpenGraph] = {}

    def answer(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer a message.

        Args:
            header: ``graph`` with its name, generation, path and identity; ``served``, all generations.
            body: what the client sent.

        Returns:
            A header with the HTTP status, and with a line for the log if something failed; and a body.
        """
        try:
            for generation in self._graphs.keys() - set(header["served"]):
                del self._graphs[generation]
            question = Question.read(body)
            facts = header["graph"]
            answer = self._open(facts).answer(question)
            names = {"graph": facts["name"], "generation": facts["generation"]}
            return {"status": HTTPStatus.OK.value}, json.dumps({**names, **answer}, allow_nan=False).encode() + b"\n"
        except Exception as error:
            status, message = status_of(error)
            trace = "" if is_ours(error) else traceback.format_exc()
            return {"status": status.value, "log": trace}, error_body(message)

    def _open(self, facts: dict[str, Any]) -> OpenGraph:
        generation = facts["generation"]
        if generation not in self._graphs:
            self._graphs[generation] = OpenGraph.load(
                Path(facts["path"]), facts["identity"], self._draft, self._tokenizer_folder, facts["tokenizer"]
            )
        return self._graphs[generation]


def _serve(answerer: Answerer, questions: BinaryIO, answers: BinaryIO) -> None:
    while len(length := questions.read(LENGTH.size)) == LENGTH.size:
        answers.write(pack(*answerer.answer(*unpack(questions.read(*LENGTH.unpack(length))))))
        answers.flush()


def main() -> None:
    """Be the process: arguments are the sidecar's DraftConfig as JSON, and a tokenizer's folder or nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sidecar says when to end
    os.nice(_NICENESS)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not stand between answers
    folder = Path(sys.argv[2]) if sys.argv[2] else None
    answerer = Answerer(DraftConfig.model_validate_json(sys.argv[1]), folder)
    try:
        _serve(answerer, sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)  # the sidecar is gone, and nobody is left to say it to


if __name__ == "__main__":
    main()
