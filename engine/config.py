"""Configuration of the engine: frozen, torch-free, units in the names."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ParallelConfig:
    """How one model is cut. Data parallelism is what remains of the world size.

    Expert tensor parallelism defaults to 1, not to the tensor parallel size: experts of a fine-grained MoE
    are too narrow to cut.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW. Betas default to the papers' RL value (facts/paper.md 1.1); weight decay and clip are not stated
    there and follow NeMo-RL's public Nano recipe."""

    lr: float = 3e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    warmup_init_lr: float = 0.0
    min_lr: float = 0.0


@dataclass(frozen=True)
class RolloutConfig:
    """One vLLM engine."""

    max_model_len: int = 4096
    max_num_seqs: int = 64
    kv_cache_mib: int = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    replay_routes: bool = True
    probe_bound: float = 1e-4
