"""Trees in SGLang's layout, compared byte for byte with SGLang's own corpus; and the algorithm in its registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.real_engines import EXAMPLE, installed

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

_PROGRAM = """
import json, random
import numpy as np
from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from speculant_graph.engines.rows import as_rows
from speculant_graph.types import Draft
from speculant_sglang import lay_out, register

register()
register()  # a second time changes nothing
algorithm = SpeculativeAlgorithm.from_string("SPECULANT")
chance = random.Random(5)
same = sizes = 0
for width in (2, 6, 12):
    corpus = NgramCorpus(max_trie_depth=8, draft_token_num=width, max_bfs_breadth=4)
    texts = [[chance.randrange(1, 9) for _ in range(40)] for _ in range(6)]
    corpus.batch_put(texts)
    corpus.synchronize()
    for number in range(20):
        queries = [text[: chance.randrange(1, 30)] for text in chance.sample(texts, 3)]
        names = [f"{number}-{row}" for row in range(3)]
        tokens, mask = corpus.batch_get(names, [query[-8:] for query in queries], [len(query) for query in queries])
        drafts = []
        for ids, ancestors in zip(tokens.reshape(3, width), mask.reshape(3, width, width)):
            size = width
            while size > 1 and ids[size - 1] == 0:  # no token of the texts: what it filled up with
                size -= 1
            parents = [max(np.flatnonzero(ancestors[node, :node]).tolist()) for node in range(1, size)]
            drafts.append(Draft(tuple(ids[1:size].tolist()), tuple(parents)))
            sizes += size - 1
        ours = lay_out([query[-1] for query in queries], as_rows(drafts), width)
        same += all(
            (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()) for a, b in zip(ours, (tokens, mask))
        )
print(json.dumps({"same": same, "sizes": sizes, "is_ngram": algorithm.is_ngram()}))
"""


def test_trees_are_laid_out_as_sglang_does() -> None:
    folder = installed("sglang")
    outcome = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(EXAMPLE)]), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert outcome.returncode == 0, outcome.stderr[-3_000:]
    found = json.loads(outcome.stdout.splitlines()[-1])
    assert found["same"] == 60, found
    assert found["sizes"] > 300
    assert found["is_ngram"]
