"""The library in one process: build a graph, decode with drafts, and compare with plain decoding.

The text is Python's own ``asyncio`` package. The model is the demo's, which was trained on it. Replace both with your
own.
"""

import tempfile
from pathlib import Path

from speculant_graph import DraftConfig, GenerationConfig, GraphBuilder, SpeculativeDecoder, VerifierConfig
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import standard_library_folder

PROMPT = "class EchoProtocol(asyncio.Protocol):\n    def connection_made(self, transport):"

with tempfile.TemporaryDirectory() as folder:
    graph = Path(folder, "graph.pkl")
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER), neural=False)  # training it takes some seconds
    builder.build_from_files(sorted(standard_library_folder().glob("asyncio/*.py")))
    builder.save(graph)

    decoder = SpeculativeDecoder(
        graph_path=graph,
        verifier_config=VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", measure_costs=False),
        draft_config=DraftConfig(k=8),
    )
    plain = decoder.generate(PROMPT, GenerationConfig(max_tokens=60, speculation="off"))
    drafted = decoder.generate(PROMPT, GenerationConfig(max_tokens=60, speculation="on"))
    decoder.close()

assert drafted.token_ids == plain.token_ids
print(PROMPT + drafted.text)
print(f"the same {len(plain.token_ids)} tokens: {plain.num_steps} passes plainly, {drafted.num_steps} with drafts")
