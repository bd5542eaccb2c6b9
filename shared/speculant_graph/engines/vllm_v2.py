"""Drafts for vLLM's V2 model runner, which has no hook for custom drafters. This module is tested with vLLM 0.32.

The flags are the same as for V1 (:mod:`speculant_graph.engines.vllm`). vLLM calls :func:`register` in every process,
through the entry point ``vllm.general_plugins``. If a vLLM configuration names this project's proposer,
:func:`register` changes the speculative method to ``ngram_gpu``. With ``ngram_gpu``, V2 keeps asynchronous scheduling.
This module's speculator then replaces V2's own speculator for ``ngram_gpu``. If the installed V2 does not support this
replacement, vLLM runs V1 as before. All code that depends on vLLM's internals is in this file.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
import torch  # vLLM has imported numpy and torch already
from loguru import logger
from numpy.typing import NDArray

from speculant_graph._core import RowDrafts

PROPOSER = "speculant_graph.engines.vllm.SpeculantProposer"
"""Model name that selects this project's drafts in ``--speculative-config``."""
_RUN_WITH, _V1, _V2 = "0.32", "custom_class", "ngram_gpu"  # a release and two methods of vLLM
_SPECULATORS, _RUNNER = "vllm.v1.worker.gpu.spec_decode", "vllm.v1.worker.gpu.model_runner"


def register() -> None:
    """Patch vLLM's configuration so that it can select this project's drafts; vLLM calls this in every process."""
    from vllm.config import VllmConfig  # vLLM has imported it already

    known_init, uses_v2 = VllmConfig.__post_init__, getattr(VllmConfig, "use_v2_model_runner", None)
    if not isinstance(uses_v2, property) or known_init.__module__ == __name__:
        return

    def post_init(config: Any) -> None:
        if _names_us(config):
            import_module("speculant_graph.engines.vllm").check_config(config)
            _choose_runner(config)
        known_init(config)

    def use_v2_model_runner(config: Any) -> bool:
        is_used: bool = uses_v2.__get__(config)
        if is_used and _names_us(config):
            _replace_speculator()  # before this process makes its model runner
        return is_used

    VllmConfig.__post_init__ = post_init
    VllmConfig.use_v2_model_runner = property(use_v2_model_runner)


def _names_us(config: Any) -> bool:
    return getattr(config.speculative_config, "model", None) == PROPOSER


def _choose_runner(config: Any) -> None:
    """Set the speculative method that makes vLLM choose V2, if the installed V2 supports this project's drafts."""
    config.speculative_config.method = _V2
    if problem := problem_with_v2(config):
        config.speculative_config.method = _V1
        problem = f"V1 model runner and without asynchronous scheduling: {problem}"
    logger_of = import_module("vllm.logger").init_logger  # as vLLM's own lines look
    logger_of("vllm.speculant").info("speculant-graph drafts with the %s", problem or "V2 model runner")


def problem_with_v2(config: Any) -> str:
    """Return why vLLM's V2 can't run a configuration with this project's drafts; empty if V2 can."""
    with suppress(ImportError, AttributeError, TypeError, ValueError):
        if len(signature(import_module(_SPECULATORS).init_speculator).parameters) == 3:
            known = {"0": "VLLM_USE_V2_MODEL_RUNNER is 0"}.get(os.environ.get("VLLM_USE_V2_MODEL_RUNNER", ""))
            return "" if config.use_v2_model_runner else known or "Triton is missing, or vLLM has logged another reason"
    return f"V2 of this vLLM differs from that of {_RUN_WITH}"


def _replace_speculator() -> None:
    package: Any = import_module(_SPECULATORS)
    known = package.init_speculator
    if known.__module__ == __name__:
        return

    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        if not _names_us(vllm_config):
            return known(vllm_config, device, req_states)
        from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

        # The base class provides methods that later releases may call on every speculator.
        speculator = type("SpeculantSpeculator", (Speculator, BaseSpeculator), {})(vllm_config, device, req_states)
        _hear_of_requests(speculator)
        return speculator

    for module in filter(None, (package, sys.modules.get(_RUNNER))):
        module.init_speculator = init_speculator


def _hear_of_requests(speculator: Speculator) -> None:
    """Patch V2's runner to report new requests to a speculator, because vLLM does not pass on their parameters."""
    runner: Any = getattr(sys.modules.get(_RUNNER), "GPUModelRunner", None)
    if (known := getattr(runner, "add_requests", None)) is None:
        return

    def add_requests(self: Any, scheduler_output: Any) -> None:
        if self.speculator is speculator:
            speculator.begin(getattr(scheduler_output, "scheduled_new_reqs", ()))
        known(self, scheduler_output)

    runner.add_requests = add_requests


class _Text:
    """A request's text, and the draft that follows it."""

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        self.tokens, self.drafted = array("i", tokens.tobytes()), list[int]()


class Speculator:
    """The speculator that V2 calls after every pass.

    If drafting fails, the rows get no drafts; only the first error is logged.
    """

    supports_mm_inputs = _has_warned = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        """Open the drafter; ``req_states`` contains the texts of the runner's requests, by slot."""
        from speculant_graph.engines.vllm import open_for_worker

        speculative, num_rows = vllm_config.speculative_config, int(vllm_config.scheduler_config.max_num_seqs)
        self._most, self._states = int(speculative.num_speculative_tokens), req_states
        self._group = import_module("vllm.distributed").get_tp_group()
        self._max_length = int(vllm_config.model_config.max_model_len)
        self.enable_adaptive_verification = bool(getattr(speculative, "enable_adaptive_verification", False))
        self.sessions = open_for_worker(vllm_config, has_fixed_width=True)  # if the width varies, vLLM chooses it
        self._drafts = torch.zeros((num_rows, self._most), dtype=torch.int64, device=device)
        self.draft_token_confidence_probs = torch.zeros((num_rows, self._most), device=device)
        """Per drafted token, the probability of its acceptance after all earlier tokens are accepted, ``[rows, k]``."""
        self._is_cuda, is_copied, shape = device.type == "cuda", device.type != "cpu", self._drafts.shape
        if self._is_cuda:
            self._stream, self._event = torch.cuda.Stream(device), torch.cuda.Event()
        # Host buffers for copies from and to the device, with numpy views, because a torch call takes 10 us with cold
        # caches. The copy of a step ends before the next step, which waits for its pass. On a CPU there is no copy.
        self._added = torch.empty((2, num_rows), dtype=torch.int64, pin_memory=self._is_cuda)
        written = torch.empty(shape, dtype=torch.int64, pin_memory=self._is_cuda) if is_copied else self._drafts
        self._chances = torch.empty(shape, pin_memory=self._is_cuda)
        self._heard, self._written = self._added.numpy(), written.numpy()
        self._parts = [(self._drafts[:rows], written[:rows] if is_copied else None) for rows in range(num_rows + 1)]
        self._texts, self._wanted = dict[str, _Text](), dict[str, tuple[object, object]]()

    def init_cudagraph_manager(self, *_: object) -> None:
        """Do nothing: vLLM's interface requires this method, but no CUDA graph is captured here."""

    capture = init_cudagraph_manager

    def begin(self, requests: Sequence[Any]) -> None:
        """Record the tenants and graphs that new requests name in their ``vllm_xargs``."""
        for request in requests:
            if self.sessions and (
                named := self.sessions.names_of(getattr(request.sampling_params, "extra_args", None))
            ):
                self._wanted[request.req_id] = named

    def propose(
        self, input_batch: Any, *args: Any, dummy_run: bool = False, num_speculative_tokens: int | None = None, **_: Any
    ) -> torch.Tensor:
        """Return drafts, int64 ``[rows, k]`` on the device, after the launched forward pass has ended.

        The method uses two of vLLM's positional ``args``; both are tensors on the device. The fifth of ``args`` is the
        number of tokens that the pass added to each row, int32 ``[rows]``. The seventh of ``args`` is the last token of
        each slot, int64 ``[slots, 1]``.
        """
        drafts = self._parts[count := int(input_batch.num_reqs)][0]
        if dummy_run:
            return drafts
        if self.sessions is not None:
            try:
                most = self._most if num_speculative_tokens is None else num_speculative_tokens
                self._draft(input_batch, args[4], args[6], count, most)
            except Exception as error:  # vLLM's internals change, and decoding must continue
                self._warn(error)
                drafts.zero_()
        if self._group.world_size > 1:  # all ranks must verify the same draft, but they learn at different times
            self._group.broadcast(drafts, src=0)
        return drafts

    def _draft(self, batch: Any, added: torch.Tensor, last: torch.Tensor, count: int, most: int) -> None:
        ids, reading, (drafts, written) = batch.req_ids, batch.is_prefilling_np.tolist(), self._parts[count]
        known = [None if reading[row] else self._texts.get(ids[row]) for row in range(count)]
        num_added, last_tokens = self._to_host(batch, added, last, count)  # waits, so independent work precedes it
        rows = [row for row in range(count) if num_added[row]]  # other rows still read their prompts
        texts = [self._grown(batch, row, known[row], num_added[row], last_tokens[row]) for row in rows]
        ids, tokens = [ids[row] for row in rows], [text.tokens for text in texts]
        wanted = [self._wanted.get(each, (None, None)) for each in ids] if self._wanted else ()
        tenants, graphs = zip(*wanted, strict=True) if wanted else (None, None)
        widths = [max(0, min(most, self._max_length - len(each) - 1)) for each in tokens]
        assert self.sessions is not None
        reads = any(reading)
        made = self.sessions.draft(tokens, widths, request_ids=ids, tenants=tenants, graphs=graphs, read_prompts=reads)
        # vLLM embeds and verifies k tokens of every row, so missing ones are filled with a valid token.
        filled = [[token] * self._most for token in last_tokens]
        for row, text, drafted in zip(rows, texts, made.lists(), strict=True):
            filled[row] = text.drafted = drafted + filled[row][len(drafted) :]
        self._written[:count] = filled
        if written is not None:
            drafts.copy_(written, non_blocking=True)
        if self.enable_adaptive_verification:
            self._add_chances(rows, made, count)

    def _add_chances(self, rows: list[int], made: RowDrafts, count: int) -> None:
        chances, ends = self._chances.numpy(), np.cumsum(made.lengths)
        chances[:count] = 0.0
        for row, along in zip(rows, np.split(np.array(made.path_probabilities), ends[:-1]), strict=False):
            chances[row, : len(along)] = along / [1.0, *along[:-1]]
        self.draft_token_confidence_probs[:count].copy_(self._chances[:count], non_blocking=True)

    def _grown(self, batch: Any, row: int, text: _Text | None, num_added: int, last: int) -> _Text:
        """Return the text of a row, extended by the tokens that the pass added."""
        if text is not None:
            text.tokens.extend([*text.drafted[: num_added - 1], last])
            return text
        # The request is new, or it was preempted and resumed.
        slot = int(batch.idx_mapping_np[row])
        text = _Text(self._states.all_token_ids.gpu[slot, : int(self._states.total_len.gpu[slot])].cpu().numpy())
        for ended in (self._texts.keys() | self._wanted.keys()) - self._states.req_id_to_index.keys():
            self._texts.pop(ended, None), self._wanted.pop(ended, None)
        self._texts[batch.req_ids[row]] = text
        return text

    def _to_host(self, batch: Any, added: torch.Tensor, last: torch.Tensor, count: int) -> list[list[int]]:
        """Copy the number of added tokens and the last token of every row to the host.

        The copy waits until the device has computed these values, but not for work launched later.
        """
        if not self._is_cuda:
            every = last.tolist()  # one torch call; selecting the rows in torch would take four
            return [added.tolist(), [every[slot][0] for slot in batch.idx_mapping_np]]
        host, tensors = self._added[:, :count], (added[:count], last.view(-1)[batch.idx_mapping[:count]])
        self._stream.wait_stream(torch.cuda.current_stream(added.device))
        with torch.cuda.stream(self._stream):
            for source, target in zip(tensors, host, strict=True):
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
            self._event.record()
        self._event.synchronize()
        return list(self._heard[:, :count].tolist())

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned, hint = True, f"run with vLLM {_RUN_WITH}, or with V1 by VLLM_USE_V2_MODEL_RUNNER=0"
            logger.warning("no drafts, decoding continues without them: {!r}; {}", error, hint)
        self._texts.clear()
