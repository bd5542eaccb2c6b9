"""Runs vLLM, llama-cpp-python or llama-server in its own process for ``speculant bench engines``.

The worker process reads orders from standard input and writes results to standard output, both as JSON Lines. This file
runs in the engine's own installation, which may lack torch and the other modules of this package.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Decode = Callable[[list[list[int]], int], tuple[list[list[int]], int, list[float]]]
"""Function that takes prompts and the maximum number of new tokens per prompt. The function returns the new tokens, the
number of passes summed over all sequences, and the drafting times. The drafting times list the duration of every batch
of drafts since the worker's start, in seconds; empty if unknown."""
Gap = Callable[[list[int]], float]
"""Function that takes token ids and returns the difference between the log-probabilities of the two best next
tokens."""

_LONGEST_LOOKUP = 3
_START_TIMEOUT_S = 300.0


def start_vllm(order: dict[str, Any]) -> tuple[Decode, Gap]:
    """Create the vLLM engine that an order describes."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
    os.environ.update(VLLM_LOGGING_LEVEL="WARNING", VLLM_PLUGINS="none", VLLM_USE_V2_MODEL_RUNNER="0")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=order["model"],
        dtype=order["dtype"],
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

    def decode(prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], int, list[float]]:
        nonlocal passes
        passes = 0
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        sessions = getattr(getattr(runner, "drafter", None), "sessions", None)
        draft_s = [] if sessions is None else list(sessions.counts.seconds)
        return [list(output.outputs[0].token_ids) for output in outputs], passes, draft_s

    def gap(text: list[int]) -> float:
        sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
        [output] = llm.generate([{"prompt_token_ids": text}], sampling, use_tqdm=False)
        best, second = sorted((each.logprob for each in output.outputs[0].logprobs[0].values()), reverse=True)[:2]
        return float(best - second)

    return decode, gap


def start_llama(order: dict[str, Any]) -> tuple[Decode, Gap]:
    """Create the llama-cpp-python engine that an order describes; it decodes one sequence at a time."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    from speculant_graph.engines.llama_cpp import SpeculantDraft

    draft: Any = None
    if order["method"] == "lookup":
        draft = LlamaPromptLookupDecoding(max_ngram_size=_LONGEST_LOOKUP, num_pred_tokens=order["most_drafted"])
    elif order["method"] != "none":
        draft = SpeculantDraft(order["model"], order["most_drafted"], **order["settings"])
    llama = Llama(
        order["model"],
        n_ctx=order["max_length"],
        n_threads=1,
        n_threads_batch=1,
        swa_full=True,
        verbose=False,
        draft_model=draft,
    )
    passes, evaluate = 0, llama.eval

    def counted(tokens: Any) -> None:
        nonlocal passes
        passes += 1
        evaluate(tokens)

    llama.eval = counted

    def decode(prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], int, list[float]]:
        nonlocal passes
        passes, texts = 0, []
        for prompt in prompts:
            llama.reset()
            text: list[int] = []
            for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
                text.append(int(token))
                if token == llama.token_eos() or len(text) == max_tokens:
                    break
            texts.append(text)
        return texts, passes, list(draft.sessions.counts.seconds) if isinstance(draft, SpeculantDraft) else []

    def gap(text: list[int]) -> float:
        llama.reset()
        llama.eval(text)
        best, second = sorted(llama.eval_logits[-1], reverse=True)[:2]
        return float(best - second)

    return decode, gap


def start_llama_server(order: dict[str, Any]) -> tuple[Decode, Gap]:
    """Start the unmodified llama-server that an order describes; it decodes one sequence at a time."""
    import httpx2

    from speculant_graph.bench.processes import free_port

    port = free_port()
    command = [
        order["program"], "-m", order["model"], "--host", "127.0.0.1", "--port", str(port), "-c",
        str(order["max_length"]), "-np", "1", "--no-webui", "--swa-full", "--cache-ram", "0",
        # With flash attention, rounding differs between passes over one and over several tokens, which flips ties.
        "-fa", "off", *order["flags"],
    ]  # fmt: skip
    process = subprocess.Popen(command)
    atexit.register(process.terminate)
    http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=_START_TIMEOUT_S, trust_env=False)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit("llama-server does not start")
        try:
            if http.get("/health").is_success:
                break
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)

    def decode(prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], int, list[float]]:
        passes, texts = 0, []
        for prompt in prompts:
            body = {
                "prompt": prompt, "n_predict": max_tokens, "temperature": 0, "top_k": 1, "samplers": ["top_k"],
                "return_tokens": True, "cache_prompt": False,
            }  # fmt: skip
            answer = http.post("/completion", json=body).raise_for_status().json()
            texts.append(answer["tokens"])
            passes += len(answer["tokens"]) - answer["timings"].get("draft_n_accepted", 0)
        return texts, passes, []

    def gap(text: list[int]) -> float:
        body = {"prompt": text, "n_predict": 1, "temperature": 0, "n_probs": 2, "cache_prompt": False}
        answer = http.post("/completion", json=body).raise_for_status().json()
        best, second = (each["logprob"] for each in answer["completion_probabilities"][0]["top_logprobs"][:2])
        return float(best - second)

    return decode, gap


_START = {"vllm": start_vllm, "llama-cpp-python": start_llama, "llama-server": start_llama_server}


def main() -> None:
    """Create the engine that the first input line describes, and process orders until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines may print to standard output

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    order = json.loads(sys.stdin.readline())
    decode, gap = _START[order["engine"]](order)
    answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "text" in order:
            answer({"gap": gap(order["text"])})
            continue
        started_s = time.perf_counter()
        ids, passes, draft_s = decode(order["prompts"], order["max_tokens"])
        answer({"ids": ids, "seconds": time.perf_counter() - started_s, "passes": passes, "draft_s": draft_s})


if __name__ == "__main__":
    main()
