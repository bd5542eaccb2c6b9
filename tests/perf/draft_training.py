"""Follows docs/draft-model.md with the demo's pair: record, train, and evaluate on unseen documents.

    python tests/perf/draft_training.py contracts.txt manual.txt code.txt --folder loop

Each file is a kind of text, with two blank lines between documents. Its first two thirds give the prompts to record and
train on, and its last third the prompts of the new documents. Every command is printed before it runs. The last line of
each kind is JSON. A kind takes ten minutes to half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

from speculant_verifier.demo import DRAFT_MODEL_FOLDER, MODEL_FOLDER

SMALLEST = 8_000
"""Least number of characters of a document; a shorter one is joined with the next."""
PROMPT = 400
"""Number of characters of a prompt."""
MOST_DOCUMENTS = {"train": 150, "new": 60}
NUM_REQUESTS = 550
"""Approximate number of requests to record for a training."""
NUM_NEW = 3
"""Number of requests per new document."""
MAX_TOKENS = 96
"""Tokens of an answer, equal in training and in evaluation."""


def documents_of(text: str) -> list[str]:
    """Return the documents of a file in order."""
    found, part = [], ""
    for piece in text.split("\n\n\n"):
        part = f"{part}\n\n\n{piece}" if part else piece
        if len(part) >= SMALLEST:
            found.append(part)
            part = ""
    return found


def prompts_of(name: str, document: str, count: int, chosen: random.Random) -> list[dict[str, str]]:
    """Return prompts that begin at lines of a document and stop well before its end."""
    starts = [
        index + 1
        for index, character in enumerate(document[: -2 * PROMPT])
        if character == "\n" and document[index + 1].strip()
    ]
    drawn = sorted(chosen.sample(starts, min(count, len(starts))))
    return [{"prompt": document[start : start + PROMPT], "document": name} for start in drawn]


def write_prompts(corpus: Path, folder: Path) -> None:
    """Write the prompts of a kind of text, from training documents and from new ones."""
    found = [(f"{corpus.stem}-{index}", each) for index, each in enumerate(documents_of(corpus.read_text("utf-8")))]
    chosen, border = random.Random(0), int(len(found) * 0.67)
    parts = {"train": found[:border], "new": found[border:]}
    for part, documents in parts.items():
        if len(documents) > MOST_DOCUMENTS[part]:
            parts[part] = chosen.sample(documents, MOST_DOCUMENTS[part])
    for part, documents in parts.items():
        count = round(NUM_REQUESTS / len(documents)) if part == "train" else NUM_NEW
        prompts = [each for name, text in documents for each in prompts_of(name, text, count, chosen)]
        chosen.shuffle(prompts)
        lines = "".join(json.dumps(each) + "\n" for each in prompts)
        (folder / f"{part}.jsonl").write_text(lines, encoding="utf-8")


def speculant(*arguments: object) -> str:
    """Run a command and return the last line of its output."""
    command = ["speculant", *map(str, arguments)]
    print("$", *command, flush=True)
    run = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, check=False)
    return run.stdout.strip().rpartition("\n")[2]


def follow(corpus: Path, folder: Path) -> None:
    """Record, train and evaluate for one kind of text."""
    folder.mkdir(parents=True)
    write_prompts(corpus, folder)
    draft_model = ("--draft-model", DRAFT_MODEL_FOLDER)
    for part in ("train", "new"):
        speculant(
            "generate", "--prompts", folder / f"{part}.jsonl", "--model", MODEL_FOLDER, *draft_model, "--record",
            folder / part, "--strategy", "model", "--speculation", "on", "--max-tokens", MAX_TOKENS, "--json",
        )  # fmt: skip
    adapter = folder / "adapter"
    trained = speculant(
        "train", "--records", folder / "train", *draft_model, "--output", adapter, "--train.rank", 64, "--json"
    )
    judged = speculant("train", "--records", folder / "new", *draft_model, "--evaluate", adapter, "--json")
    print(json.dumps({"kind": corpus.stem, "trained": json.loads(trained), "new_documents": json.loads(judged)}))


def main() -> None:
    """Follow the page for every kind of text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="a new one for prompts, records and adapters")
    given = parser.parse_args()
    for corpus in given.corpus:
        follow(corpus, given.folder / corpus.stem)


if __name__ == "__main__":
    main()
