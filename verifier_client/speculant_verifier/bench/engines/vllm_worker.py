"""vLLM in a process of its own, as ``speculant bench engines`` orders it."""

from __future__ import annotations

import os
import time
from typing import Any

from speculant_verifier.bench.engines.worker import Decode, serve_orders


def _start(order: dict[str, Any]) -> tuple[Decode, Any]:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
    os.environ.update(VLLM_LOGGING_LEVEL="WARNING", VLLM_PLUGINS="none")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=order["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=order["max_length"],
        max_num_seqs=order["batch"],
        speculative_config=order.get("speculative"),
        additional_config=order.get("additional") or {},
        enable_prefix_caching=False,
    )

    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    passes, execute = 0, runner.execute_model

    def counted(scheduled: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal passes
        passes += len(scheduled.num_scheduled_tokens)
        return execute(scheduled, *arguments, **more)

    runner.execute_model = counted

    def decode(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        nonlocal passes
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        passes, started_s = 0, time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        seconds = time.perf_counter() - started_s
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        return {"ids": ids, "seconds": seconds, "passes": passes}

    def draft_times() -> list[float]:
        sessions = getattr(getattr(runner, "drafter", None), "sessions", None)
        return [] if sessions is None else list(sessions.counts.seconds)

    return decode, draft_times


if __name__ == "__main__":
    serve_orders(_start)
