"""Log-probs over the tokens that top-k and top-p kept, with their gradients, against float64."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cascade_rl.kernels.linear_logprob import IGNORED, linear_logprob
from tests.gloo import run_ranks
from tests.kernels.oracles import PATHS, gradients, largest_error, leaf, log_softmax, on_path, relative_error

TOKENS, HIDDEN, VOCAB, KEPT = 24, 12, 50, 6


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, head, targets, temperatures and kept ids: none for every fourth token, one for the second."""
    hidden, weight = torch.randn(TOKENS, HIDDEN), torch.randn(64, HIDDEN)
    ids = torch.stack([torch.randperm(VOCAB)[:KEPT] for _ in range(TOKENS)])
    counts = 1 + torch.arange(TOKENS) % KEPT
    counts[::4], counts[1] = 0, 1
    targets = ids[:, 0].clone()
    targets[[2, 23]] = IGNORED
    shuffled = ids.where(torch.arange(KEPT) < counts[:, None], IGNORED).roll(1, 1)
    return hidden, weight, targets, 0.5 + torch.rand(TOKENS), shuffled


def oracle(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor, kept: Tensor) -> Tensor:
    keep = torch.zeros(TOKENS, VOCAB + 1, dtype=torch.bool)
    keep = keep.scatter(1, kept.where(kept != IGNORED, VOCAB), True)[:, :VOCAB]
    keep |= ~keep.any(1, keepdim=True)
    log_p = log_softmax(hidden, weight[:VOCAB], temperature, keep)
    return log_p.gather(1, targets.clamp(min=0)[:, None])[:, 0].where(targets != IGNORED, 0)


@pytest.mark.parametrize("path", PATHS)
def test_values_and_gradients_equal_float64(path: str) -> None:
    hidden, weight, *rest = inputs()
    leaves, exact = (hidden.requires_grad_(), weight.requires_grad_()), (leaf(hidden), leaf(weight))
    targets, temperature, kept = rest
    with on_path(path):
        found, _ = linear_logprob(*leaves, targets, temperature, vocab_size=VOCAB, kept=kept)
        found_gradients = gradients([found], leaves)
    expected = oracle(*exact, *rest)
    assert largest_error(found, expected) < 5e-6
    assert float(found.detach()[1]) == 0.0  # the target is the only id kept
    for gradient, wanted in zip(found_gradients, gradients([expected], exact), strict=True):
        assert relative_error(gradient, wanted) < 5e-6


def of_a_shard(hidden: Tensor, weight: Tensor, *rest: Tensor) -> list[Tensor]:
    """This rank's log-probs, gradient of the hidden states, and gradient of its rows of the head."""
    dist.init_process_group("gloo")
    rows = len(weight) // dist.get_world_size()
    leaves = hidden.requires_grad_(), weight[dist.get_rank() * rows :][:rows].clone().requires_grad_()
    targets, temperature, kept = rest
    tp_group = dist.group.WORLD
    found, _ = linear_logprob(*leaves, targets, temperature, vocab_size=VOCAB, kept=kept, tp_group=tp_group)
    return [found.detach(), *gradients([found], leaves)]


def test_two_tensor_parallel_ranks_equal_float64() -> None:
    hidden, weight, *rest = inputs()
    exact = leaf(hidden), leaf(weight)
    expected = oracle(*exact, *rest)
    of_hidden, of_weight = gradients([expected], exact)
    ranks = run_ranks(2, of_a_shard, hidden, weight, *rest)
    for found, gradient, _ in ranks:
        assert largest_error(found, expected) < 5e-6
        assert relative_error(gradient, of_hidden) < 5e-6
    assert relative_error(torch.cat([rank[2] for rank in ranks]), of_weight) < 5e-6
