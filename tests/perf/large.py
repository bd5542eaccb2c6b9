"""Builds a graph from 100 MB of text, and checks the memory of the build and the counts in the graph.

    python tests/perf/large.py [--megabytes 100] [--memory 1GB] [--contexts 40] [--folder DIR]

The text is generated: words follow a Zipf distribution, and each is drawn among the followers of the previous word. A
separate process builds the graph like ``speculant build``. Its anonymous memory, which no file backs, must never exceed
``--memory``. Then the tokenizers library alone tokenizes the text again, file by file, for a slow count. The count
covers all tokens, and the successors of some contexts of every order. For these, every position of the text is compared
with the context. Progress goes to standard error, and the last line is a JSON object. The exit status is 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import ByteSize, TypeAdapter
from tokenizers import Tokenizer

from speculant_graph.bench.report import begin
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.graph.ngrams import NgramGraph

TOKENIZER = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"
BOS, EOS = "<|startoftext|>", "<|endoftext|>"
MAX_ORDER = 5
WORDS, FOLLOWERS, FILE_BYTES = 20_000, 40, 1_000_000
POLL_S = 0.02


def write_text(folder: Path, num_bytes: int, seed: int = 0) -> None:
    """Write text files of about a megabyte each, ``num_bytes`` in total."""
    random = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(WORDS)]
    # Each word has a fixed set of followers, and the first of them is the most frequent.
    followers = np.minimum(random.zipf(1.2, (WORDS, FOLLOWERS)), WORDS) - 1
    show, written, word = begin("writing the text"), 0, 0
    for index in range(max(1, round(num_bytes / FILE_BYTES))):
        lines: list[str] = []
        size = 0
        while size < FILE_BYTES:
            line = []
            for rank in np.minimum(random.zipf(1.5, 12), FOLLOWERS) - 1:
                word = int(followers[word, rank])
                line.append(words[word])
            lines.append(" ".join(line) + ".\n")
            size += len(lines[-1])
        (folder / f"{index:05}.txt").write_text("".join(lines), "utf-8")
        written += size
        show(min(written, num_bytes), num_bytes)


def build(corpus: Path, output: Path, memory: int) -> dict[str, float]:
    """Build the graph in a separate process; return the seconds and the peak of anonymous bytes."""
    arguments = ["build", corpus, "-o", output, "--tokenizer", TOKENIZER, "--max-order", MAX_ORDER, "--memory", memory]
    command = [sys.executable, "-m", "speculant_graph.cli.main", *map(str, arguments)]
    begin("building the graph")
    started, peak = time.monotonic(), 0
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = [line.split()[1] for line in status.read_text("utf-8").splitlines() if line.startswith("RssAnon:")]
            peak = max([peak, *(1024 * int(kilobytes) for kilobytes in found)])
            time.sleep(POLL_S)
    if process.returncode:
        sys.exit(f"the build ended with {process.returncode}")
    return {"build_s": round(time.monotonic() - started, 1), "peak_anon_bytes": peak}


def tokenise(corpus: Path) -> Iterator[UInt32Array]:
    """Yield the token ids of every file, between BOS and EOS, in build order."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    ends = [tokenizer.token_to_id(name) for name in (BOS, EOS)]
    files, show = sorted(corpus.iterdir()), begin("tokenising again")
    for index, file in enumerate(files, start=1):
        ids = tokenizer.encode(file.read_text("utf-8"), add_special_tokens=False).ids
        yield np.array([ends[0], *ids, ends[1]], np.uint32)
        show(index, len(files))


def compare(graph: NgramGraph, token_ids: UInt32Array, num_contexts: int, seed: int = 1) -> dict[str, int]:
    """Compare the graph with a slow count.

    Args:
        graph: the graph.
        token_ids: the whole text.
        num_contexts: contexts per order to compare; half are drawn from the text, half are random tokens.
        seed: random seed of the contexts.
    """
    random = np.random.default_rng(seed)
    unigrams = np.bincount(token_ids, minlength=graph.vocabulary_size)
    compared, differences = unigrams.size, sum(graph.count([i]) != unigrams[i] for i in range(unigrams.size))
    show = begin("counting contexts slowly")
    for order in range(1, MAX_ORDER + 1):
        for index in range(num_contexts):
            start = int(random.integers(token_ids.size - order))
            context = token_ids[start : start + order]
            if index % 2:
                context = random.permutation(context)
            is_here = np.ones(token_ids.size - order, bool)
            for offset, token_id in enumerate(context):
                is_here &= token_ids[offset : token_ids.size - order + offset] == token_id
            ids, counts = np.unique(token_ids[order:][is_here], return_counts=True)
            found = graph.successors(context.tolist())
            compared += 1
            differences += not (np.array_equal(found.token_ids, ids) and np.array_equal(found.counts, counts))
            show((order - 1) * num_contexts + index + 1, MAX_ORDER * num_contexts)
    return {"compared": int(compared), "differences": int(differences)}


def main() -> int:
    """Run the check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of the text")
    parser.add_argument("--memory", default="1GB", help="most anonymous memory of the build")
    parser.add_argument("--contexts", type=int, default=40, help="contexts of every order that are compared")
    parser.add_argument("--folder", help="where text and graph go; the folder for temporary files by default")
    arguments = parser.parse_args()
    memory = int(TypeAdapter(ByteSize).validate_python(arguments.memory))
    with tempfile.TemporaryDirectory(prefix="speculant-large-", dir=arguments.folder) as name:
        corpus, output = Path(name, "corpus"), Path(name, "graph.pkl")
        corpus.mkdir()
        write_text(corpus, int(1e6 * arguments.megabytes))
        figures: dict[str, object] = {"text_bytes": sum(file.stat().st_size for file in corpus.iterdir())}
        figures |= build(corpus, output, memory) | {"bound_bytes": memory}
        graph = NgramGraph.load(output, complete=True)
        token_ids = np.concatenate(list(tokenise(corpus)))
        figures |= {"tokens": token_ids.size, "ngrams": sum(graph.trie.nodes_per_level)}
        figures["file_bytes"] = output.stat().st_size
        compared = compare(graph, token_ids, arguments.contexts)
        is_right = graph.metadata.num_tokens == token_ids.size and not compared["differences"]
        is_within = int(str(figures["peak_anon_bytes"])) <= memory
    sys.stdout.write(json.dumps({**figures, **compared, "right": is_right, "within_bound": is_within}) + "\n")
    return 0 if is_right and is_within else 1


if __name__ == "__main__":
    sys.exit(main())
