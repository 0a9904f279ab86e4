"""The checks that one process makes, each with its exit code."""

import socket
from importlib.metadata import version
from pathlib import Path

import torch

from cascade_rl.engine.backend import cards
from cascade_rl.engine.backend.machine import backend
from cascade_rl.kernels.linear_logprob import linear_logprob
from cascade_rl.launchers.card import installed
from cascade_rl.launchers.card.check import Check, Unfit
from cascade_rl.launchers.stage import node_probe

KERNEL_BOUND = 1e-4  # nats, of bfloat16 inputs whose products are summed in float32


def node() -> str:
    """Driver, memory and clocks, as a job's node is looked at before its ranks start."""
    state = node_probe.observe(Path.cwd(), socket.gethostname(), gpus=True)
    if problems := list(state.problems(cards=1, nodes=1)):
        raise Unfit("; ".join(problems))
    return "; ".join(f"{gpu['name']}, {gpu['free_mib']} of {gpu['total_mib']} MiB free" for gpu in state.gpus or ())


def nccl() -> str:
    """The refit needs no more of NCCL than torch does: no two ranks of a card meet in one of its communicators."""
    loaded, wanted = cards.nccl(), version("nvidia-nccl-cu13")
    if loaded != wanted:
        raise Unfit(
            f"expected NCCL {wanted}, which torch was built with, found {loaded}: another libnccl.so comes first. Look "
            "for it in LD_LIBRARY_PATH and LD_PRELOAD"
        )
    return loaded


def peers() -> str:
    if pairs := cards.unreachable():
        raise Unfit(
            f"expected each card to read the others' memory, found {len(pairs)} pairs that cannot, one is {pairs[0]}: "
            "NCCL goes through the host there, and tensor and expert parallelism are slow. Look at `nvidia-smi topo -m`"
        )
    return f"{cards.count()} cards"


def attention() -> str:
    found = {
        what: cards.attention(torch.bfloat16, shared)
        for what, shared in (("bfloat16", False), ("bfloat16 under context parallelism", True))
    }
    for what, chosen in found.items():
        if chosen is None:
            raise Unfit(
                f"expected Transformer Engine to have an attention for packed rows in {what}, found none: run with "
                "NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2, which says why each was refused"
            )
    return "; ".join(f"{what}: {chosen}" for what, chosen in found.items())


def kernels() -> str:
    """The log-prob kernel beside float64, which always takes the path in plain torch."""
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 256, generator=draw).bfloat16().to(backend().device) for rows in (128, 4096))
    targets = torch.arange(128, device=backend().device)
    found, exact = (
        linear_logprob(states, head, targets, 16.0, vocab_size=4096)[0]
        for states, head in ((hidden, weight), (hidden.double(), weight.double()))
    )
    gap = float((found - exact).abs().max())
    if not gap <= KERNEL_BOUND:
        raise Unfit(f"expected log-probs within {KERNEL_BOUND:.0e} of float64, found {gap:.1e}: see kernels/README.md")
    return f"log-probs within {gap:.1e} of float64"


CHECKS = (
    Check(11, "packages", "what Megatron imports for our layers loads beside the installed torch", installed.packages),
    Check(12, "layers", "each class of the layer specs is there, none is a stand-in", installed.layers),
    Check(13, "node", "driver, free memory of cards and host, clocks, shared memory, disk", node),
    Check(14, "NCCL", "the NCCL that loads is torch's own", nccl),
    Check(15, "peers", "each card reaches the memory of the others", peers),
    Check(16, "attention", "Transformer Engine has an attention for packed rows in bfloat16", attention),
    Check(17, "kernels", "our log-prob kernel compiles, and agrees with float64", kernels),
)
