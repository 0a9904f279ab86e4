"""References in float64 with every tensor materialised, for all kernels."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from cascade_rl.kernels.parts.vocabulary import IGNORED
from cascade_rl.kernels.runtime.interpreter import interpreted

PATHS = ("torch", "triton")


def on_path(path: str) -> AbstractContextManager:
    """In this block, ops on CPU tensors take `path`."""
    return interpreted() if path == "triton" else contextlib.nullcontext()


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().double().requires_grad_()


def log_softmax(
    hidden: Tensor, weight: Tensor, temperature: Tensor | float = 1.0, keep: Tensor | None = None
) -> Tensor:
    """[tokens, vocab]; columns where `keep` is false get -1e300, which keeps gradients finite."""
    if isinstance(temperature, Tensor):
        temperature = temperature.double()[:, None]
    logits = hidden.double() @ weight.double().T / temperature
    return torch.log_softmax(logits if keep is None else logits.where(keep, -1e300), -1)


def entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1)


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | float,
    candidates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logprob, entropy, log_sum_exp [tokens], candidate_logprob [tokens, candidates]; zero for ignored targets."""
    t = temperature.double()[:, None] if isinstance(temperature, Tensor) else temperature
    logits = hidden.double() @ weight.double().T / t
    chosen = torch.cat([targets[:, None], candidates], 1)
    log_sum_exp = logits.logsumexp(1)
    logprob = logits.gather(1, chosen.clamp_min(0)) - log_sum_exp[:, None]
    logprob = logprob.masked_fill(chosen == IGNORED, 0)
    seen = targets != IGNORED
    outputs = logprob[:, 0], entropy(logits - log_sum_exp[:, None]), log_sum_exp, logprob[:, 1:]
    return tuple(x.where(seen if x.dim() == 1 else seen[:, None], 0) for x in outputs)


def gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor], seed: int = 7) -> tuple[Tensor, ...]:
    """Gradients of a fixed random linear combination of all elements of the outputs."""
    generator = torch.Generator().manual_seed(seed)
    combination = sum(
        (output * torch.randn(output.shape, generator=generator).to(output.dtype)).sum() for output in outputs
    )
    return torch.autograd.grad(combination, leaves)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative error in the Frobenius norm."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def largest_error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach().double()).abs().max()) if found.numel() else 0.0
