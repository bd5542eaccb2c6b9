"""A new strategy needs only a record and a number; added to a copy of the packages, it drafts everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import speculant_verifier
from speculant_graph import _core
from support.pages import ROOT

EDITS = {
    "protos/speculant_graph/rpc/v1/drafter.proto": {"enum Strategy {": "  STRATEGY_DUMMY = 99;"},
    "shared/speculant_graph/strategies.py": {
        "NgramStrategyName = Literal[": '    "dummy",',
        "STRATEGIES: dict[StrategyName, Capabilities] = {": """    "dummy": Capabilities(
        summary="a chain of the most probable tokens", evidence="all sources",
        runs_by="best-first", number=99, reads=("sources", "max_depth"), is_calibrated=True,
    ),""",
    },
}
"""The additions to each file: the text before each, and the added text."""
USE = """
import sys

sys.meta_path[:] = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]  # the checkout's
import numpy as np

from speculant_graph import strategies
from speculant_graph.config import DraftConfig, GenerationConfig, NgramDraftConfig, VerifierConfig
from speculant_graph.bench.replay import BenchReplaySettings
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.rpc.convert import decode_options, encode_options
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.suitability import FITTING
from support.graphs import graph_of
from support.sessions import started
from support.tiny_models import tiny_gpt_oss

assert strategies.__file__.startswith(sys.argv[1]), strategies.__file__
graph = graph_of([np.random.default_rng(0).integers(0, 6, 600).tolist()], 4, 100)
drafters = [SessionDrafter(graph, DraftConfig(strategy=name)) for name in ("dummy", "adaptive")]
dummy, adaptive = (started(each, 1, [1, 2, 3]) for each in drafters)
assert dummy.strategy == "dummy" and len(dummy) and dummy.token_ids == adaptive.token_ids
assert dummy.path_probabilities == adaptive.path_probabilities
assert decode_options(encode_options(DraftOptions("dummy"))).strategy == "dummy"
assert "'dummy'" in NgramDraftConfig.model_fields["strategy"].description
assert "dummy" in FITTING["token"] and "dummy" not in FITTING["tree-wor"]
BenchReplaySettings(traces=["x"], strategy=["dummy"])

one = dict(target=tiny_gpt_oss(), verifier_config=VerifierConfig(measure_costs=False, num_threads=1))
wanted = GenerationConfig(max_tokens=20, speculation="on", ignore_end_tokens=True)
with SpeculativeDecoder(draft_config=DraftConfig(strategy="dummy"), **one) as decoder:
    [result] = decoder.generate([[5, 9, 3]], wanted)
    [plain] = decoder.generate([[5, 9, 3]], wanted.model_copy(update={"speculation": "off"}))
assert result.token_ids == plain.token_ids and result.num_drafts > 0
"""


def test_three_files_are_enough(tmp_path: Path) -> None:
    assert len(EDITS) <= 3
    packages = tmp_path / "shared"
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    shutil.copytree(ROOT / "shared/speculant_graph", packages / "speculant_graph", ignore=ignored, dirs_exist_ok=True)
    verifier = Path(speculant_verifier.__file__).parent
    shutil.copytree(verifier, packages / "speculant_verifier", ignore=ignored)
    shutil.copy(_core.__file__, packages / "speculant_graph")
    shutil.copytree(ROOT / "protos", tmp_path / "protos", dirs_exist_ok=True)
    for name, additions in EDITS.items():
        text = (tmp_path / name).read_text(encoding="utf-8")
        for place, addition in additions.items():
            assert text.count(place) == 1, (name, place)
            text = text.replace(place, f"{place}\n{addition}\n")
        (tmp_path / name).write_text(text, encoding="utf-8")
    search = os.pathsep.join([str(packages), str(ROOT / "tests")])
    subprocess.run(
        [sys.executable, "-c", USE, str(packages)], env={**os.environ, "PYTHONPATH": search}, cwd=tmp_path, check=True
    )
