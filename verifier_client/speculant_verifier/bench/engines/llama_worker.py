"""llama-cpp-python in a process of its own, as ``speculant bench engines`` orders it; one sequence at a time."""

from __future__ import annotations

import time
from typing import Any

from speculant_verifier.bench.engines.worker import Decode, serve_orders

_LONGEST_LOOKUP = 3


def _start(order: dict[str, Any]) -> tuple[Decode, Any]:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    from speculant_graph.engines.llama_cpp import SpeculantDraft

    method, most = order["method"], order["most_drafted"]
    draft: Any = None
    if method == "lookup":
        draft = LlamaPromptLookupDecoding(max_ngram_size=_LONGEST_LOOKUP, num_pred_tokens=most)
    elif method != "none":
        draft = SpeculantDraft(order["model"], most, **order["settings"])
    llama = Llama(
        order["model"],
        n_ctx=order["max_length"],
        n_threads=1,
        n_threads_batch=1,
        swa_full=True,
        verbose=False,
        draft_model=draft,
    )
    passes = 0
    evaluate = llama.eval

    def counted(tokens: Any) -> None:
        nonlocal passes
        passes += 1
        evaluate(tokens)

    llama.eval = counted

    def decode(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        nonlocal passes
        passes, started_s, texts = 0, time.perf_counter(), []
        for prompt in prompts:
            llama.reset()
            text: list[int] = []
            for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
                text.append(int(token))
                if token == llama.token_eos() or len(text) == max_tokens:
                    break
            texts.append(text)
        seconds = time.perf_counter() - started_s
        return {"ids": texts, "seconds": seconds, "passes": passes}

    return decode, lambda: list(draft.sessions.counts.seconds) if isinstance(draft, SpeculantDraft) else []


if __name__ == "__main__":
    serve_orders(_start)
