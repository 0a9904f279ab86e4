"""In what a machine trains. Torch-free, since a launch asks before it submits a job."""

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import Precision

ON_CPU: tuple[Precision, ...] = ("float32", "bfloat16")
ON_GPU: tuple[Precision, ...] = ("bfloat16",)


def check_gpu_precision(precision: Precision) -> None:
    """Raises UserError for a precision in which a GPU cannot train."""
    if precision not in ON_GPU:
        raise UserError(
            f"parallel.precision: expected {' or '.join(ON_GPU)} on a GPU, found {precision}. In float32 Transformer "
            "Engine has no attention under context parallelism, and without it only one that holds [sequences, heads, "
            "longest, longest] scores (docs/attention_backends.md): set parallel.precision=bfloat16"
        )
