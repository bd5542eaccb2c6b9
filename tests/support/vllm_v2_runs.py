"""Runs vLLM's V2 runner with and without drafts; a program for vLLM's own environment.

Usage: ``python vllm_v2_runs.py MODEL PROMPTS.json SCENARIO OUTPUT.json [SETTINGS]``. With SETTINGS, a JSON object, it
drafts. The output is ``{"ids", "metrics", "runner"}``: token ids by request, vLLM's counters, and the runner's name.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

_PROPOSER = "speculant_graph.engines.vllm.SpeculantProposer"
_DRAFTED = 6
_ALLOWED = [259, 260, 264, 266, 270, 280]
"""Tokens that sampling may choose."""

Ids = dict[str, list[int]]


class Runs:
    """Runs one model in several scenarios, each with its own engine flags."""

    def __init__(self, model: str, prompts: list[str], settings: dict[str, Any] | None) -> None:
        self._model, self._prompts, self._settings = model, prompts, settings

    def _make(self, **flags: Any) -> LLM:
        drafting: dict[str, Any] = {}
        if self._settings is not None:
            speculative = {"method": "custom_class", "model": _PROPOSER, "num_speculative_tokens": _DRAFTED}
            drafting = {"speculative_config": speculative, "additional_config": {"speculant": self._settings}}
        self.llm = LLM(
            self._model, dtype="float32", max_model_len=512, enforce_eager=True, disable_log_stats=False,
            enable_prefix_caching=False, **{"max_num_seqs": 8, **flags}, **drafting,
        )  # fmt: skip
        return self.llm

    def _generate(self, prompts: list[str], parameters: Any, **flags: Any) -> Ids:
        outputs = self._make(**flags).generate(prompts, parameters, use_tqdm=False)
        return {str(index): list(each.outputs[0].token_ids) for index, each in enumerate(outputs)}

    def one(self) -> Ids:
        """Decode one sequence at a time."""
        return self._generate(self._prompts[:3], _greedy(40), max_num_seqs=1)

    def eight(self) -> Ids:
        """Decode 24 sequences, eight at a time."""
        return self._generate(self._prompts, _greedy(40))

    def chunks(self) -> Ids:
        """Read prompts in several passes while other sequences decode."""
        prompts = [first + second for first, second in zip(self._prompts[:8], self._prompts[8:], strict=False)]
        return self._generate(prompts, _greedy(30), max_num_batched_tokens=40, max_num_seqs=4)

    def preempted(self) -> Ids:
        """Decode with a cache that is too small for all running sequences."""
        return self._generate(self._prompts[:12], _greedy(120), num_gpu_blocks_override=14)

    def come_and_go(self) -> Ids:
        """Decode 200 requests, and abort every seventh."""
        chance, ids = random.Random(0), Ids()
        plan = [(chance.choice(self._prompts), chance.randrange(3, 25), number % 7 == 0) for number in range(200)]
        engine, number, live = self._make().llm_engine, 0, set[str]()
        while number < len(plan) or live:
            while number < len(plan) and len(live) < 12:
                live.add(f"r{number}")
                engine.add_request(f"r{number}", plan[number][0], _greedy(plan[number][1]))
                number += 1
            for output in engine.step():
                name, tokens = output.request_id, list(output.outputs[0].token_ids)
                if plan[int(name[1:])][2] and name in live and len(tokens) > 1:
                    engine.abort_request([name])
                    live.discard(name)
                elif output.finished and name in live:
                    ids[name] = tokens
                    live.discard(name)
        return {name: tokens for name, tokens in sorted(ids.items()) if int(name[1:]) % 7}

    def structured(self) -> Ids:
        """Decode structured outputs with 40 JSON schemas and regular expressions."""
        forms: list[dict[str, Any]] = []
        for index in range(20):
            value = {"type": ("integer", "boolean", "null")[index % 3]}
            items = {"type": "array", "items": {"enum": ["a", "bb", "ccc"]}, "maxItems": 1 + index % 4}
            properties = {f"k{index}": value, "list": items}
            schema = {"type": "object", "properties": properties, "required": [*properties]}
            forms.append({"json": schema | {"additionalProperties": False}})
            regex = (r"[a-c]{3,9}-[0-9]{2,5}", r"(yes|no|maybe){1,3}", r"\d{4}-\d{2}-\d{2}", r"def [a-z]+\(self\):")
            forms.append({"regex": regex[index % 4] + f"x{{{1 + index % 3}}}"})
        parameters = [
            SamplingParams(temperature=0, max_tokens=60, structured_outputs=StructuredOutputsParams(**form))
            for form in forms
        ]
        return self._generate([self._prompts[index % 24] for index in range(40)], parameters)

    def sampled(self) -> Ids:
        """Sample short outputs from few tokens, each request with its own seed."""
        parameters = [
            SamplingParams(temperature=2.0, allowed_token_ids=_ALLOWED, max_tokens=3, seed=seed, ignore_eos=True)
            for seed in range(400)
        ]
        return self._generate([self._prompts[0]] * len(parameters), parameters)

    def tenants(self) -> Ids:
        """Repeat a tenant's output for the same tenant, and for another one."""
        llm, ids = self._make(max_num_seqs=1), Ids()
        for name in ("a", "a", "b", "a"):
            parameters = _greedy(40, extra_args={"speculant_tenant": name})
            before = _accepted(llm)
            [output] = llm.generate(self._prompts[:1], parameters, use_tqdm=False)
            llm.generate(self._prompts[1:2], _greedy(2), use_tqdm=False)  # by then the previous request has ended
            ids[f"{len(ids)} {name}"] = [_accepted(llm) - before, *output.outputs[0].token_ids]
        return ids


def _greedy(most: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, **more)


def _counts(llm: LLM) -> dict[str, int]:
    return {each.name.removeprefix("vllm:"): each.value for each in llm.get_metrics() if hasattr(each, "value")}


def _accepted(llm: LLM) -> int:
    return _counts(llm).get("spec_decode_num_accepted_tokens", 0)


if __name__ == "__main__":
    model, prompts, scenario, output, *settings = sys.argv[1:]
    texts = json.loads(Path(prompts).read_text("utf-8"))
    runs = Runs(model, texts, json.loads(settings[0]) if settings else None)
    written = getattr(runs, scenario)()
    config = runs.llm.llm_engine.vllm_config
    runner = {"is_v2": config.use_v2_model_runner, "is_asynchronous": config.scheduler_config.async_scheduling}
    content = {"ids": written, "metrics": _counts(runs.llm), "runner": runner}
    Path(output).write_text(json.dumps(content), "utf-8")
