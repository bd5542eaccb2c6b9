"""The optimiser of the training script's matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are orthogonalised by Newton-Schulz steps (Jordan et al. 2024).

    Works on the last two dimensions, so a stack of expert matrices is updated expert by expert.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, dtype: torch.dtype, momentum: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self._dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Apply one update in place."""
        for group in self.param_groups:
            for parameter in group["params"]:
                velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
                velocity.lerp_(parameter.grad, 1 - group["momentum"])
                update = _orthogonalise(parameter.grad.lerp(velocity, group["momentum"]), self._dtype)
                scale = math.sqrt(max(1.0, parameter.shape[-1] / parameter.shape[-2]))
                parameter.mul_(1 - 0.01 * group["lr"]).add_(update, alpha=-group["lr"] * scale)


def _orthogonalise(matrix: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    x = (matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    transposed = x.shape[-2] > x.shape[-1]
    x = x.mT if transposed else x
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = (x.mT if transposed else x).to(matrix.dtype)
    return result
