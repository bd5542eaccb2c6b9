"""Build a graph from your logs: past answers become a tenant's learned text, and then a graph.

A sidecar with ``--server.learned FOLDER`` learns automatically from every answer that it drafts for. This program does
the same with answers from a log. Then it runs a command that inspects the folder and exports it as a graph.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from speculant_graph import LearnedStore, NgramGraph, SequenceStep, SessionDrafter
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_verifier.demo import MODEL_FOLDER

LOG = [
    (
        f"Where is parcel {number}?",
        f" Thank you for your message. Parcel {number} has left our warehouse and arrives within two working days.",
    )
    for number in range(100, 140)
]
"""(prompt, answer), as a service writes them to its log."""

tokenizer = CorpusTokenizer.load(MODEL_FOLDER)


def passes(graph: NgramGraph | None, prompt: str, answer: str) -> int:
    """Return the number of passes in which a model writes this answer, with drafts of up to eight tokens."""
    drafter, text, end = SessionDrafter(graph), tokenizer.encode(prompt), tokenizer.encode(prompt + answer)
    drafter.open(1)
    drafter.accept(1, text)
    num_passes = 0
    while len(text) < len(end):
        [draft] = drafter.draft([SequenceStep(1, (), node_budget=8)])
        rest, parent, num_right = end[len(text) :], 0, 0
        for at, (token, above) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):  # follows one path
            if above == parent and num_right < len(rest) - 1 and token == rest[num_right]:
                parent, num_right = at + 1, num_right + 1
        drafter.accept(1, rest[: num_right + 1])
        text += rest[: num_right + 1]
        num_passes += 1
    return num_passes


with tempfile.TemporaryDirectory() as folder:
    learned, exported = Path(folder, "learned"), Path(folder, "learned.pkl")
    with LearnedStore(1_000_000, learned, tokenizer.fingerprint) as store:
        drafter = SessionDrafter(None, learned=store)
        for number, (prompt, answer) in enumerate(LOG):
            drafter.open(number, tenant="acme", learn=True)
            drafter.accept(number, tokenizer.encode(prompt))
            drafter.accept(number, tokenizer.encode(answer))
            drafter.close(number)
        drafter.save()

    inspect = [sys.executable, "-m", "speculant", "inspect", "--learned", str(learned), "--tenant", "acme"]
    inspect += ["--graph.tokenizer-name", str(MODEL_FOLDER)]
    subprocess.run([*inspect, "--export", str(exported)], check=True)

    new = ("Where is parcel 777?", LOG[0][1].replace("100", "777"))
    before, after = passes(None, *new), passes(NgramGraph.load(exported), *new)
    print(f"an answer to a new request takes {before} passes without the graph, {after} with it")
