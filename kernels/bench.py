"""Speed and memory of the ops beside their baselines, in one process on the same tensors.

    python -m cascade_rl.kernels.bench [--json FILE]

Every number is checked first: a provider whose log-probs are not those of float64 on a sample of rows has no time. On
a GPU the shapes are those of a 30B and an 8B model's head; on a CPU the torch path runs on a small one and the compile
gate follows, and nothing that is printed says anything about a GPU.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from cascade_rl.kernels import gate
from cascade_rl.kernels.fused_linear_kl import fused_linear_kl
from cascade_rl.kernels.fused_linear_logprob import fused_linear_logprob
from cascade_rl.kernels.logprob_from_logits import logprob_from_logits

SAMPLED_ROWS = 256
RERUNS = 20
MAX_REPEATS, MIN_REPEATS = 10, 3


@dataclass(frozen=True)
class Shape:
    tokens: int
    hidden: int
    vocab: int

    def __str__(self) -> str:
        return f"{self.tokens} x {self.hidden} x {self.vocab}"


GPU_SHAPES = [
    Shape(tokens, hidden, vocab)
    for hidden, vocab in ((2688, 131072), (4096, 151936))
    for tokens in (8192, 16384, 65536)
]
CPU_SHAPES = [Shape(512, 256, 8192)]
TOTAL_SECONDS, PROVIDER_SECONDS = 240.0, 8.0


@dataclass(frozen=True)
class Row:
    """One provider at one shape; `note` says why there is no time."""

    op: str
    provider: str
    shape: str
    forward_ms: float | None = None
    both_ms: float | None = None
    peak_mb: float | None = None  # above what the inputs hold, forward and backward; GPU only
    error: float | None = None  # largest, of the log-prob or KL against float64
    note: str = ""


type Loss = Callable[[], Tensor]  # per token, differentiable into the leaves of its tensors


@dataclass(frozen=True)
class Head:
    """Random inputs of one shape, of the scale that a trained head has: logits within about +-15."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor

    @classmethod
    def random(cls, shape: Shape, device: torch.device) -> "Head":
        generator = torch.Generator(device).manual_seed(0)
        hidden = torch.randn(shape.tokens, shape.hidden, generator=generator, device=device, dtype=torch.bfloat16)
        weight = torch.randn(shape.vocab, shape.hidden, generator=generator, device=device, dtype=torch.bfloat16)
        weight.mul_(3 / shape.hidden**0.5)
        targets = torch.randint(0, shape.vocab, (shape.tokens,), generator=generator, device=device)
        return cls(hidden.requires_grad_(), weight.requires_grad_(), targets)

    def logprob_of_sample(self) -> Tensor:
        """[sample] float64."""
        rows = slice(0, SAMPLED_ROWS)
        logits = self.hidden[rows].detach().double() @ self.weight.detach().double().T
        return torch.log_softmax(logits, 1).gather(1, self.targets[rows, None])[:, 0]


def eager(head: Head) -> Tensor:
    """What everyone writes first: bfloat16 logits, float32 softmax."""
    logits = (head.hidden @ head.weight.T).float()
    return torch.log_softmax(logits, -1).gather(1, head.targets[:, None])[:, 0]


def ours(head: Head) -> Tensor:
    return fused_linear_logprob(head.hidden, head.weight, head.targets, vocab_size=len(head.weight)).logprob


def liger(head: Head) -> Tensor:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    return -LigerFusedLinearCrossEntropyLoss(reduction="none")(head.weight, head.hidden, head.targets)


def cut_cross_entropy(head: Head) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(head.hidden, head.weight, head.targets, reduction="none")


def verl(head: Head) -> Tensor:
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(head.hidden, head.weight, head.targets, 1.0, "none", None)[0]


def linear_providers(device: torch.device) -> dict[str, Callable[[Head], Tensor]]:
    providers: dict[str, Callable[[Head], Tensor]] = {"ours": ours, "torch eager": eager}
    if device.type == "cuda":
        providers |= {
            "torch.compile": torch.compile(eager),
            "liger": liger,
            "cut-cross-entropy": cut_cross_entropy,
            "verl": verl,
        }
    return providers


def measured(
    op: str, provider: str, shape: Shape, loss: Loss, leaves: list[Tensor], exact: Tensor, bound: float
) -> Row:
    """A provider is foreign code: whatever it raises is its row's note."""
    try:
        error = float((loss().detach()[: len(exact)].double() - exact).abs().max())
        if not error <= bound:
            return Row(op, provider, str(shape), error=error, note=f"wrong: error above {bound:g}")
        combination = torch.randn(shape.tokens, device=leaves[0].device)

        def forward() -> None:
            with torch.no_grad():
                loss()

        def both() -> None:
            torch.autograd.grad(loss(), leaves, combination)

        device = leaves[0].device
        peak = _peak_mb(both, device)
        return Row(op, provider, str(shape), _milliseconds(forward, device), _milliseconds(both, device), peak, error)
    except Exception as reason:
        return Row(op, provider, str(shape), note=f"{type(reason).__name__}: {str(reason).splitlines()[0][:90]}")


def linear_rows(shape: Shape, device: torch.device) -> Iterator[Row]:
    head = Head.random(shape, device)
    exact = head.logprob_of_sample()
    leaves = [head.hidden, head.weight]
    for name, provider in linear_providers(device).items():
        bound = 2e-5 if name == "ours" else 0.2  # bfloat16 logits are off by that much, and are timed all the same
        yield measured("logprob", name, shape, partial(provider, head), leaves, exact, bound)
    yield Row("logprob", "one matrix product", str(shape), forward_ms=_product_ms(head, device))
    yield Row("logprob", "ours, rerun", str(shape), note=_reruns(head))


def _product_ms(head: Head, device: torch.device) -> float:
    hidden, weight = head.hidden.detach()[:8192], head.weight.detach()
    scale = len(head.hidden) / len(hidden)  # all logits at once would not fit beside the others
    return _milliseconds(lambda: hidden @ weight.T, device) * scale


def _reruns(head: Head) -> str:
    rows = Head(head.hidden.detach()[:2048], head.weight.detach(), head.targets[:2048])
    first = ours(rows)
    same = sum(torch.equal(ours(rows), first) for _ in range(RERUNS))
    half = torch.equal(ours(Head(rows.hidden[1000:], rows.weight, rows.targets[1000:])), first[1000:])
    return f"{same} of {RERUNS} reruns bitwise equal; a part of the batch {'equal' if half else 'NOT equal'}"


def logits_rows(shape: Shape, device: torch.device) -> Iterator[Row]:
    logits = (torch.randn(shape.tokens, shape.vocab, device=device) * 3).bfloat16().requires_grad_()
    targets = torch.randint(0, shape.vocab, (shape.tokens,), device=device)
    sample = logits[:SAMPLED_ROWS].detach().double()
    exact = torch.log_softmax(sample, 1).gather(1, targets[:SAMPLED_ROWS, None])[:, 0]
    providers: dict[str, Loss] = {
        "ours": lambda: logprob_from_logits(logits, targets).logprob,
        "torch eager": lambda: -F.cross_entropy(logits.float(), targets, reduction="none"),
    }
    for name, loss in providers.items():
        yield measured("logprob_from_logits", name, shape, loss, [logits], exact, 2e-5)
    copy = torch.empty_like(logits)
    yield Row("logprob_from_logits", "copy", str(shape), _milliseconds(lambda: copy.copy_(logits.detach()), device))


def kl_rows(shape: Shape, device: torch.device) -> Iterator[Row]:
    student, teacher = Head.random(shape, device), Head.random(shape, device)
    with torch.no_grad():
        teacher.weight.add_(torch.randn_like(teacher.weight), alpha=0.3 / shape.hidden**0.5)
    leaves = [student.hidden, student.weight]

    def log_softmax(head: Head, rows: slice, dtype: torch.dtype) -> Tensor:
        return torch.log_softmax(head.hidden[rows].to(dtype) @ head.weight.to(dtype).T, 1)

    def exact_kl(rows: slice, dtype: torch.dtype) -> Tensor:
        log_p, log_q = log_softmax(student, rows, dtype), log_softmax(teacher, rows, dtype).detach()
        return (log_p.exp() * (log_p - log_q)).sum(1)

    def chunked() -> Tensor:
        starts = range(0, shape.tokens, 1024)
        return torch.cat([exact_kl(slice(start, start + 1024), torch.float32) for start in starts])

    def fused() -> Tensor:
        operands = (student.hidden, student.weight, teacher.hidden, teacher.weight)
        return fused_linear_kl(*operands, kind="reverse", vocab_size=shape.vocab)

    exact = exact_kl(slice(0, SAMPLED_ROWS), torch.float64).detach()
    for name, loss in {"ours": fused, "chunked torch": chunked}.items():
        yield measured("reverse KL", name, shape, loss, leaves, exact, 1e-4)


def _milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Median of up to MAX_REPEATS runs, within the provider's time."""
    run()
    times: list[float] = []
    deadline = time.perf_counter() + PROVIDER_SECONDS / 2
    while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and time.perf_counter() < deadline):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_mb(run: Callable[[], object], device: torch.device) -> float | None:
    if device.type != "cuda":
        run()
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def all_rows(device: torch.device, shapes: list[Shape], seconds: float) -> list[Row]:
    """Every op at every shape, as long as there is time."""
    deadline = time.monotonic() + seconds
    found: list[Row] = []
    for shape in shapes:
        for rows in (linear_rows, logits_rows, kl_rows):
            if time.monotonic() > deadline:
                found.append(Row(rows.__name__.removesuffix("_rows"), "all", str(shape), note="no time left"))
                continue
            if rows is logits_rows and shape.tokens > 16384:
                continue  # the logits alone are 17 GB
            for row in rows(shape, device):
                print(row_text(row), flush=True)
                found.append(row)
    return found


def row_text(row: Row) -> str:
    numbers = (row.forward_ms, row.both_ms, row.peak_mb)
    cells = ["" if number is None else f"{number:.2f}" for number in numbers]
    error = "" if row.error is None else f"{row.error:.1e}"
    columns = "".join(f"{cell:>11}" for cell in (*cells, error))
    return f"{row.op:20} {row.shape:22} {row.provider:20}{columns}  {row.note}"


def run(json_path: Path | None) -> int:
    """The whole benchmark; `cascade bench kernels` calls it. 1 if the gate or a number of ours is wrong."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"device: {name}; torch {torch.__version__}")
    if not on_gpu:
        print("No GPU: the torch path against naive torch, then the compile gate. Nothing below is a GPU's number.")
    rows = all_rows(device, GPU_SHAPES if on_gpu else CPU_SHAPES, TOTAL_SECONDS)
    complaints = [] if on_gpu else gate.check()
    header = ("forward ms", "both ms", "peak MB", "error")
    print(f"\n{'op':20} {'tokens x hidden x vocab':22} {'provider':20}" + "".join(f"{title:>11}" for title in header))
    print("\n".join(row_text(row) for row in rows))
    print("\n".join(complaints) or ("" if on_gpu else "gate: nothing to complain of"))
    if json_path is not None:
        answer = {"device": name, "torch": torch.__version__, "rows": [asdict(row) for row in rows], "gate": complaints}
        json_path.write_text(json.dumps(answer, indent=1) + "\n")
    wrong = [row for row in rows if row.provider == "ours" and row.note]
    return int(bool(complaints or wrong))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cascade_rl.kernels.bench", description="Kernel benchmark.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return run(parser.parse_args().json)


if __name__ == "__main__":
    sys.exit(main())
