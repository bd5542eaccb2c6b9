"""An adapter for your own engine: it decodes a batch, and gets drafts from ``EngineSessions`` before every pass.

The engine here is a greedy loop over a transformers model, without a cache. Your engine is faster, and keeps its own
verification rule. It needs only the four marked lines.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from speculant_graph import GraphBuilder
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.factory import load_engine_settings, open_sessions
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import standard_library_folder

MAX_TOKENS = 40
tokenizer = CorpusTokenizer.load(MODEL_FOLDER, special_tokens="parse")
model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
prompts = [tokenizer.encode(text) for text in ("    async def join(self):", "class Semaphore:\n    def __init__(self")]


@torch.inference_mode()
def accepted(text: list[int], draft: Sequence[int]) -> list[int]:
    """Verify a draft in one pass; return the tokens that match the model's choices, and the model's next token."""
    chosen = model(torch.tensor([[*text, *draft]])).logits[0, len(text) - 1 :].argmax(-1).tolist()
    right = next((at for at, token in enumerate(draft) if token != chosen[at]), len(draft))
    return chosen[: right + 1]


def decode(settings: dict[str, object] | None) -> tuple[list[list[int]], int]:
    """Decode all prompts, with drafts if there are settings for them; also return the number of passes."""
    texts, num_passes = [list(prompt) for prompt in prompts], 0
    ends = [len(text) + MAX_TOKENS for text in texts]
    size = tokenizer.fingerprint.vocabulary_size
    sessions = None
    if settings is not None:
        read = load_engine_settings(settings, "the example")  # 1: once, at start
        sessions = open_sessions(  # 2: fixed width, because a pass without a cache costs the same for any draft
            read, tokenizer.fingerprint, most_drafted=8, vocabulary_size=size, has_fixed_width=True
        )
    while running := [at for at, text in enumerate(texts) if len(text) < ends[at]]:
        drafts: list[list[int]] = [[]] * len(running)
        if sessions is not None:
            room = [ends[at] - len(texts[at]) - 1 for at in running]
            drafts = sessions.draft([texts[at] for at in running], room).lists()  # 3: before every pass
        for at, draft in zip(running, drafts, strict=True):
            texts[at] += accepted(texts[at], draft)
        num_passes += 1
    if sessions is not None:
        sessions.close()  # 4: at the end
    return texts, num_passes


with tempfile.TemporaryDirectory() as folder:
    graph = Path(folder, "graph.pkl")
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER), neural=False)
    builder.build_from_files(sorted(standard_library_folder().glob("asyncio/*.py")))
    builder.save(graph)
    plain, plain_passes = decode(None)
    drafted, drafted_passes = decode({"graph_path": str(graph)})

assert drafted == plain
passes = f"{plain_passes} passes plainly, {drafted_passes} with drafts"
print(f"the same {MAX_TOKENS} tokens of {len(plain)} sequences: {passes}")
