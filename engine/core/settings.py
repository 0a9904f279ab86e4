"""Configuration of the engine: frozen, torch-free, units in the names."""

from dataclasses import dataclass
from typing import Literal

from cascade_rl.engine.core.errors import UserError


@dataclass(frozen=True)
class ParallelConfig:
    """How one model is cut. Data parallelism is what remains of the world size.

    pipeline          ranks in a pipeline
    virtual_pipeline  model chunks on each of them; stage s is chunk s // pipeline of rank s % pipeline
    pipeline_layers   layers of each stage (a symbol of the hybrid pattern each); None: numbers that differ by one
    context           ranks that share the tokens of each sequence
    expert_tensor     defaults to 1, not to `tensor`: experts of a fine-grained MoE are too narrow to cut
    sequence          activations between the cut layers are cut by tokens over the tensor parallel ranks
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    pipeline_layers: tuple[int, ...] | None = None
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False

    @property
    def stages(self) -> int:
        return self.pipeline * self.virtual_pipeline


@dataclass(frozen=True)
class RouterConfig:
    """The routers of a mixture of experts in training. Their scores are float32, and no loss balances the load.

    trained           False: the gates get no gradient and no optimizer state. NVIDIA's recipes for the 30B-A3B
                      model of both papers freeze the gates in RL and go on moving the bias by 1e-3 (facts/paper.md 5.2)
    bias_update_rate  step of each expert's selection bias per update, up if it had fewer tokens than the mean, down
                      if more, in families that have one; None: 1e-3 if trained, otherwise 0, which keeps the bias
    dispatcher        "alltoall": each token goes to its experts' ranks; "allgather": every token to every rank, which
                      pads micro-batches to the whole token budget; "flex": DeepEP, needs CUDA
    """

    trained: bool = True
    bias_update_rate: float | None = None
    dispatcher: Literal["allgather", "alltoall", "flex"] = "alltoall"

    def __post_init__(self) -> None:
        if self.bias_update_rate is not None and self.bias_update_rate < 0:
            raise UserError(f"router.bias_update_rate: expected 0 or more, found {self.bias_update_rate}.")

    @property
    def bias_step(self) -> float:
        if self.bias_update_rate is not None:
            return self.bias_update_rate
        return 1e-3 if self.trained else 0.0


DEFAULT_ROUTER = RouterConfig()


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW. Betas default to the papers' RL value (facts/paper.md 1.1); weight decay and clip are not stated
    there and follow NeMo-RL's public Nano recipe.

    schedule_steps  steps that a decay is made for, where the stage ends before; None: the stage's
    """

    lr: float = 3e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    warmup_init_lr: float = 0.0
    min_lr: float = 0.0
    schedule_steps: int | None = None


@dataclass(frozen=True)
class RolloutConfig:
    """The vLLM engines of a stage, all alike, as many on each node of its job.

    engines       engines of all nodes, which share the requests
    tensor        tensor parallel workers of each; so many CUDA devices of its node, or CPU processes of one thread
    expert_parallel  each worker holds whole experts instead of a part of each; needs CUDA
    max_num_seqs  requests that one engine works on at once; kv_cache_mib is for one worker too
    checksum      what of each slice of a refit both sides compare: the sum of its words, or a digest (full equality)
    checksum_every  weight versions between two refits that are compared; 0 for never
    sleep         engines give their device memory back while the trainer works; needs CUDA
    deterministic a draw that was interrupted ends with the bits that it would have had: what is missing is drawn with
                  the whole of its batch again, at that price; turns are drawn together; no prefix is cached
    """

    engines: int = 1
    tensor: int = 1
    expert_parallel: bool = False
    max_model_len: int = 4096
    max_num_seqs: int = 64
    kv_cache_mib: int = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    replay_routes: bool = True
    probe_bound: float = 1e-4
    checksum: Literal["sums", "digests"] = "sums"
    checksum_every: int = 10
    sleep: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in ("engines", "tensor"):
            if getattr(self, name) < 1:
                raise UserError(f"rollout.{name}: expected at least 1, found {getattr(self, name)}.")


Check = Literal["none", "sums", "digests"]
"""What both sides of a refit compare of each slice."""


def check_world(parallel: ParallelConfig, world: int) -> None:
    """Raises UserError where `world` ranks are no whole number of replicas."""
    for kind in (("tensor", "pipeline", "context"), ("expert", "expert_tensor", "pipeline")):
        sizes = [getattr(parallel, name) for name in kind]
        replica = sizes[0] * sizes[1] * sizes[2]
        if world % replica:
            told = " x ".join(f"{name} {size}" for name, size in zip(kind, sizes, strict=True))
            raise UserError(
                f"the number of ranks must be a multiple of {replica} ({told}), found {world} ranks: "
                "change nproc or the parallel sizes"
            )
