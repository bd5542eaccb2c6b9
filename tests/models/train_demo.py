"""Trains the demo's models: small gpt-oss models of Python's standard library, with their own byte-level BPE tokenizer.

Usage: ``python tests/models/train_demo.py --minutes 50 [--draft] [--out FOLDER] [--threads 2]``, or ``make train``. It
writes the files that ``speculant demo`` loads: ``model.safetensors`` in bfloat16, ``config.json``, ``tokenizer.json``.
The last line of standard output is a JSON object with the figures for the model card, README.md. ``--draft`` trains the
draft model, with 2 layers and the same tokenizer. It sees more text but not all of it, so its drafts are right only
sometimes.

Every expert runs on every token, inside ``torch.compile`` with bfloat16 autocast. The result is exact, because the
router's weights of unchosen experts are zero. Muon optimizes the matrices, and AdamW all other parameters. On a CPU
this is about ten times faster than the stock loop over routed tokens. On a CPU without bfloat16 instructions, products
of bfloat16 matrices take 24 times as long as in float32, so use ``--float32`` there.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedTokenizerFast
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from speculant_verifier.demo import DRAFT_MODEL_FOLDER, MODEL_FOLDER
from speculant_verifier.demo.corpus import draft_files, training_files

BOS, PAD, EOS = "<|startoftext|>", "<|pad|>", "<|endoftext|>"
VOCABULARY_SIZE = 4096
SEQUENCE_LENGTH = 320
BATCH_SIZE = 10


class Muon(torch.optim.Optimizer):
    """Momentum with matrix updates orthogonalized by Newton-Schulz steps (Jordan et al. 2024).

    It works on the last two dimensions, so a stack of expert matrices is updated expert by expert. torch's Muon accepts
    only single matrices.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95})
        self._dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
                velocity.lerp_(parameter.grad, 1 - group["momentum"])
                update = self._orthogonalised(parameter.grad.lerp(velocity, group["momentum"]))
                scale = math.sqrt(max(1.0, parameter.shape[-1] / parameter.shape[-2]))
                parameter.mul_(1 - 0.01 * group["lr"]).add_(update, alpha=-group["lr"] * scale)

    def _orthogonalised(self, matrix: Tensor) -> Tensor:
        x = (matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(self._dtype)
        transposed = x.shape[-2] > x.shape[-1]
        x = x.mT if transposed else x
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        result: Tensor = (x.mT if transposed else x).to(matrix.dtype)
        return result


def train_tokenizer(files: list[Path]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer that splits digits and keeps indentation together."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[BOS, PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((path.read_text("utf-8") for path in files), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def model_config(*, is_draft: bool = False) -> GptOssConfig:
    """Return the configuration, deep and narrow, so that a pass over eight tokens costs little more than over one."""
    return GptOssConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=144,
        intermediate_size=256 if is_draft else 176,
        head_dim=32,
        num_attention_heads=5,
        num_key_value_heads=1,
        num_hidden_layers=2 if is_draft else 14,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=128,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )


def _every_expert(module: Any, hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Run all experts on all tokens ``hidden [n, h]`` as two wide matmuls, weighted by the router's choice."""
    experts, width = module.num_experts, module.intermediate_size
    kind = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    share = hidden.new_zeros(hidden.shape[0], experts).scatter(1, indices, weights.to(hidden.dtype)).to(kind)
    # De-interleaving the small weights, not the large activations, keeps every matmul contiguous.
    fused = torch.cat([module.gate_up_proj[..., ::2], module.gate_up_proj[..., 1::2]], -1).to(kind)
    bias = torch.cat([module.gate_up_proj_bias[..., ::2], module.gate_up_proj_bias[..., 1::2]], -1).to(kind)
    both = hidden.to(kind) @ fused.permute(1, 0, 2).reshape(hidden.shape[1], -1) + bias.reshape(-1)
    both = both.view(-1, experts, 2 * width)
    gate = both[..., :width].clamp(max=module.limit)
    up = both[..., width:].clamp(-module.limit, module.limit)
    mixed = (up + 1) * (gate * torch.sigmoid(gate * module.alpha)) * share[:, :, None]
    down = module.down_proj.reshape(experts * width, -1).to(kind)
    total = mixed.reshape(-1, experts * width) @ down + share @ module.down_proj_bias.to(kind)
    output: Tensor = total.to(hidden.dtype)
    return output


class Trainer:
    """One training run: data in, trained model and its losses out."""

    def __init__(
        self,
        config: GptOssConfig,
        tokenizer: PreTrainedTokenizerFast,
        training: list[Path],
        validation: list[Path],
        dtype: torch.dtype,
    ) -> None:
        self._dtype = dtype
        self.training = self._stream(tokenizer, training)
        self.validation = self._stream(tokenizer, validation)
        ALL_EXPERTS_FUNCTIONS.register("every_expert", _every_expert)
        config._attn_implementation = "eager"
        config._experts_implementation = "every_expert"
        self.model = GptOssForCausalLM(config)
        self.loss = torch.compile(self._loss, dynamic=False)

    @staticmethod
    def _stream(tokenizer: PreTrainedTokenizerFast, files: list[Path]) -> Tensor:
        tokens: list[int] = []
        for path in files:
            tokens += [
                tokenizer.bos_token_id,
                *tokenizer.encode(path.read_text("utf-8")),
                tokenizer.eos_token_id,
            ]
        return torch.tensor(tokens)

    def _loss(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            output = self.model(batch[:, :-1], use_cache=False, output_router_logits=True)
        logits = output.logits.reshape(-1, VOCABULARY_SIZE).float()
        return F.cross_entropy(logits, batch[:, 1:].reshape(-1)), output.aux_loss

    def _sample(self, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(self.training) - SEQUENCE_LENGTH - 1, (BATCH_SIZE,), generator=generator)
        return torch.stack([self.training[start : start + SEQUENCE_LENGTH + 1] for start in starts.tolist()])

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean cross-entropy over the validation files, in nats per token."""
        span = SEQUENCE_LENGTH + 1
        rows = [self.validation[i : i + span] for i in range(0, len(self.validation) - span, SEQUENCE_LENGTH)]
        usable = len(rows) // BATCH_SIZE * BATCH_SIZE
        losses = [float(self.loss(torch.stack(rows[i : i + BATCH_SIZE]))[0]) for i in range(0, usable, BATCH_SIZE)]
        return sum(losses) / len(losses)

    def save(self, folder: Path) -> None:
        """Write the weights in bfloat16; the training copy stays float32."""
        weights = {
            name: tensor.to(torch.bfloat16)
            for name, tensor in self.model.state_dict().items()
            if name != "lm_head.weight"  # tied to the embedding; a converted copy would be stored twice
        }
        self.model.save_pretrained(folder, state_dict=weights)

    def run(self, budget_s: float, seed: int, folder: Path) -> dict[str, float]:
        """Train for ``budget_s`` seconds with regular saves; return the figures for the model card."""
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        named = [(name, parameter) for name, parameter in self.model.named_parameters()]
        matrices = [p for name, p in named if p.ndim >= 2 and ("proj" in name) and "bias" not in name]
        chosen = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in chosen]
        optimisers = [
            Muon(matrices, 0.02, self._dtype),
            torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01),
        ]
        rates = [0.02, 4e-3]
        self.loss(self._sample(generator))[0].backward()  # compile before the clock starts
        started, step, average = time.monotonic(), 0, math.nan
        while (progress := (time.monotonic() - started) / budget_s) < 1:
            factor = min(1.0, (step + 1) / 60) * min(1.0, max(0.0, (1 - progress) / 0.6))
            for optimiser, rate in zip(optimisers, rates, strict=True):
                optimiser.zero_grad(set_to_none=True)
                optimiser.param_groups[0]["lr"] = rate * factor
            loss, balance = self.loss(self._sample(generator))
            (loss + 0.01 * balance).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimiser in optimisers:
                optimiser.step()
            average = loss.item() if step == 0 else 0.98 * average + 0.02 * loss.item()
            step += 1
            if step % 50 == 0:
                elapsed = time.monotonic() - started
                rate = step * BATCH_SIZE * SEQUENCE_LENGTH / elapsed
                print(
                    f"step {step}  {elapsed:.0f} s  loss {average:.3f}  {rate:.0f} tokens/s",
                    file=sys.stderr,
                    flush=True,
                )
            if step % 1000 == 0:
                self.save(folder)
        self.save(folder)
        return {
            "steps": step,
            "trained_tokens": step * BATCH_SIZE * SEQUENCE_LENGTH,
            "corpus_tokens": len(self.training),
            "training_loss": round(average, 4),
            "validation_loss": round(self.validation_loss(), 4),
            "seconds": round(time.monotonic() - started),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }


def main() -> None:
    """Train, save and report."""
    parser = argparse.ArgumentParser(description="Train the demo model on the standard library.")
    parser.add_argument("--minutes", type=float, default=50.0, help="training time after compilation")
    parser.add_argument("--out", type=Path, help="output folder; by default that of the demo")
    parser.add_argument("--draft", action="store_true", help="train the draft model, from the folder of the demo's")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--float32", action="store_true", help="compute in float32 instead of bfloat16")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    training, validation = draft_files() if options.draft else training_files()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL_FOLDER) if options.draft else train_tokenizer(training)
    out: Path = options.out or (DRAFT_MODEL_FOLDER if options.draft else MODEL_FOLDER)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    dtype = torch.float32 if options.float32 else torch.bfloat16
    trainer = Trainer(model_config(is_draft=options.draft), tokenizer, training, validation, dtype)
    print(json.dumps(trainer.run(options.minutes * 60, options.seed, out) | {"python": platform.python_version()}))


if __name__ == "__main__":
    main()
