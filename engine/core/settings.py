"""Configuration of the engine: frozen, torch-free, units in the names."""

from dataclasses import dataclass
from typing import Literal

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import MegatronFields, VllmFields

Recomputed = Literal["full", "core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts"]

Precision = Literal["float32", "bfloat16"]

Placement = Literal["colocated", "disaggregated"]


@dataclass(frozen=True)
class ParallelConfig:
    """How one model is split over ranks, and in what numbers they compute. The data parallel size is the world size
    divided by the ranks of a replica.

    tensor            ranks that share each layer's heads and channels, and the vocabulary
    pipeline          ranks in a pipeline
    virtual_pipeline  model chunks on each of them; stage s is chunk s // pipeline of rank s % pipeline
    pipeline_layers   layers of each stage (one symbol of the hybrid pattern each); None: they differ by at most one
    context           ranks that share the tokens of each sequence
    expert            ranks that share the experts of a layer, each with whole ones
    expert_tensor     ranks that share the channels of an expert. It defaults to 1, not to `tensor`: experts of a
                      fine-grained MoE are too narrow to split
    sequence          splits the activations between tensor parallel layers by tokens, over the tensor parallel ranks
    recompute         what is computed again in the backward pass instead of being kept: "full", every layer, or parts
                      of layers by Megatron's names; none by default
    offload_reference   the weights of a KL term's reference, and of the student while teachers of its own model
                      compute, stay in host memory
    megatron          fields of Megatron-Core that are passed on
    precision         dtype of weights and activations. Gradients are summed and Adam's weights are kept in float32
                      either way, as are the scores of routers and the statistics of the vocabulary. The default is
                      what every machine computes alike; a GPU trains in bfloat16, because no attention kernel there
                      takes packed rows in float32
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    pipeline_layers: tuple[int, ...] | None = None
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False
    recompute: tuple[Recomputed, ...] = ()
    offload_reference: bool = False
    megatron: MegatronFields | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if "full" in self.recompute and len(self.recompute) > 1:
            raise UserError(
                "parallel.recompute: expected full, which is every layer, or parts of layers; found "
                f"{', '.join(self.recompute)}. Leave out full or the others."
            )
        if self.megatron:
            self._check_recompute(self.megatron)

    def _check_recompute(self, megatron: MegatronFields) -> None:
        for name in ("recompute_method", "recompute_num_layers"):
            if getattr(megatron, name) is not None and self.recompute != ("full",):
                raise UserError(
                    f"parallel.megatron.{name}: expected it with parallel.recompute=full, found "
                    f"parallel.recompute={','.join(self.recompute) or 'nothing'}. Set that, or leave the field out."
                )
        if megatron.moe_shared_expert_overlap and "shared_experts" in self.recompute:
            raise UserError(
                "parallel.recompute: expected no shared_experts with parallel.megatron.moe_shared_expert_overlap, in "
                "which they run beside the other experts; found both. Leave out one."
            )

    @property
    def stages(self) -> int:
        return self.pipeline * self.virtual_pipeline


@dataclass(frozen=True)
class RouterConfig:
    """The routers of a mixture of experts in training. Their scores are float32. There is no load-balancing loss.

    trained           False: the gates get no gradient and no optimizer state. NVIDIA's recipe for Nemotron-3-Nano
                      30B-A3B (NVIDIA-NeMo/RL, grpo_nanov3.yaml) freezes the gates in RL and keeps updating the bias
                      by 1e-3
    bias_update_rate  step of each expert's selection bias per update, in families that have one: up if the expert had
                      fewer tokens than the mean, down if more. None: 1e-3 if trained, otherwise 0, which keeps the bias
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
class LoraConfig:
    """Low-rank adapters (arXiv 2106.09685): each weight is W0 + alpha / rank * B A, and only A and B are trained.

    Defaults follow "LoRA Without Regret" (Schulman and Thinking Machines Lab, 2025): adapters on every matrix of the
    layers, alpha 32 at any rank, and a learning rate about ten times that of full training (`optimizer.lr`).

    rank     rows of A and columns of B; an adapter has rank x (inputs + outputs) numbers
    alpha    scale of B A is alpha / rank, so that one learning rate suits all ranks
    targets  Hugging Face names of the matrices that get adapters, such as q_proj or down_proj; empty: every matrix that
             tensor parallelism splits, experts included, but for embedding and head
    """

    rank: int
    alpha: float = 32.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"lora.rank: expected at least 1, found {self.rank}.")
        if not self.alpha > 0:
            raise UserError(f"lora.alpha: expected more than 0, found {self.alpha}.")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW. Betas default to the papers' value for RL (arXiv 2603.19220, Tables 8 and 9; arXiv 2512.13607). The papers
    state neither weight decay nor clip: these follow NeMo-RL's recipe for Nano (NVIDIA-NeMo/RL, grpo_nanov3.yaml).

    lr              learning rate after the warm-up
    betas           decay rates of Adam's two moments
    eps             added to the root of the second moment
    weight_decay    decoupled, on all parameters but vectors, such as norms and biases
    clip_grad       largest norm of the whole gradient; 0: no clip
    schedule        the learning rate after the warm-up: "constant", or a decay to min_lr
    warmup_steps    steps in which the rate rises linearly from warmup_init_lr to lr
    warmup_init_lr  learning rate of the first step of the warm-up
    min_lr          learning rate at the end of a decay
    schedule_steps  steps of a decay that is longer than the stage; None: those of the stage
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
    """The vLLM engines of a stage: all alike, and the same number on each node that has some.

    engines         number of engines on all nodes together; they share the requests
    tensor          tensor parallel workers of each engine: each takes a CUDA device of its node, or is a CPU process
                    of one thread
    expert_parallel  each worker holds whole experts instead of a part of each; needs CUDA
    max_model_len   tokens that a prompt and its answer share
    max_num_seqs    requests that one engine works on at once
    kv_cache_mib    size of the KV cache of one worker
    dtype           of the engine's weights, activations and cache
    replay_routes   the trainer sends each token to the experts that the engine chose for it; no effect without experts
    probe_bound     the largest |log p_train - log p_engine| of any token of a refit's probe, in nats; unless both sides
                    compute in float32, of 99.9 % of its tokens
    probe_mean_bound  the largest mean of it
    refit           what engines get in a stage with `lora`: merged "weights", or the "adapters" alone, of which workers
                    make the same weights, to the bit, with a copy of the base in host memory (docs/lora.md)
    checksum        what both sides of a refit compare for each slice: the sum of its words, or a digest (full equality)
    checksum_every  compare at weight versions that are a multiple of this; 0: never
    sleep           engines release their device memory while the trainer works; needs CUDA
    deterministic   an interrupted batch ends with the bits that it would have had. Cost: missing samples are sampled
                    again with the whole of their batch, turns are sampled together, and no batch finds prefixes that
                    another one cached
    placement       "colocated": engines sample while the trainer waits, in turn on its cards. "disaggregated": they
                    have their own, and can sample while it learns: the cards behind the ranks' where one node holds
                    both, otherwise whole nodes (docs/async.md)
    max_staleness   weight versions by which the first token of a sample may be older than the weights that learn from
                    it. 0: a step samples, then learns. 1: while it learns, the engines sample for the next one. More:
                    for so many of the next ones, and samples in flight go on under new weights (docs/async.md)
    cache_at_refit  what becomes of the keys, values and states of a sample in flight when new weights come
                    (max_staleness of 2 or more): "recomputed", or "kept" as the older weights have made them
    batch_order     which groups a step learns from (max_staleness of 3 or more): "starting", those of its own prompts;
                    "ending", those that ended first, of its own prompts and of later ones (docs/async.md)
    weight_buffer   new weights arrive in memory of their own while an engine samples, and go into its layers between
                    two steps (max_staleness of 2 or more). Cost: each worker holds its weights twice
    start_limit_s   seconds that an engine has until its first answer; a cold compilation takes minutes
    silence_limit_s  seconds that an engine with work may go without a token or an answer; then it is replaced
    part_every_s    seconds between two moments at which an engine hands over what it has of unfinished samples: what is
                    drawn again if it dies. No effect with `deterministic`, which draws the whole batch again
    vllm            fields of vLLM's EngineArgs that are passed on
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
    probe_mean_bound: float = 0.1
    refit: Literal["weights", "adapters"] = "weights"
    checksum: Literal["sums", "digests"] = "sums"
    checksum_every: int = 10
    sleep: bool = False
    deterministic: bool = False
    placement: Placement = "colocated"
    max_staleness: int = 0
    cache_at_refit: Literal["recomputed", "kept"] = "recomputed"
    batch_order: Literal["starting", "ending"] = "starting"
    weight_buffer: bool = False
    start_limit_s: float = 3600.0
    silence_limit_s: float = 600.0
    part_every_s: float = 30.0
    vllm: VllmFields | None = None

    def __post_init__(self) -> None:
        for name in ("engines", "tensor"):
            if getattr(self, name) < 1:
                raise UserError(f"rollout.{name}: expected at least 1, found {getattr(self, name)}.")
        for name in ("start_limit_s", "silence_limit_s", "part_every_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"rollout.{name}: expected more than 0, found {getattr(self, name)}.")
        self._check_placement()
        self._check_flight()

    def _check_placement(self) -> None:
        if self.max_staleness < 0:
            raise UserError(f"rollout.max_staleness: expected 0 or more, found {self.max_staleness}.")
        if self.max_staleness and self.placement == "colocated":
            raise UserError(
                "rollout.max_staleness: expected 0 with rollout.placement=colocated, whose engines wait while the "
                f"trainer learns; found {self.max_staleness}. Set rollout.placement=disaggregated, or 0."
            )
        if self.sleep and self.placement == "disaggregated":
            raise UserError(
                "rollout.sleep: expected False with rollout.placement=disaggregated, whose engines have memory of "
                "their own; found True. Leave it out."
            )

    def _check_flight(self) -> None:
        if self.deterministic and self.in_flight:
            raise UserError(
                "rollout.deterministic: expected False with rollout.max_staleness of 2 or more, where the token at "
                "which new weights reach a sample depends on time; found True. Set rollout.max_staleness=1, or "
                "rollout.deterministic=false."
            )
        for name, unset in (("cache_at_refit", "recomputed"), ("weight_buffer", False)):
            if (found := getattr(self, name)) != unset and not self.in_flight:
                raise UserError(
                    f"rollout.{name}: expected {unset} with rollout.max_staleness below 2, where no sample is in "
                    f"flight when new weights come; found {found}. Leave it out."
                )
        if self.batch_order == "ending" and self.max_staleness < 3:
            raise UserError(
                "rollout.batch_order: expected starting with rollout.max_staleness below 3, where a step may leave no "
                "group to the next one, for which it would be too old; found ending. Leave it out."
            )

    @property
    def in_flight(self) -> bool:
        """Whether new weights reach samples that have begun under older ones."""
        return self.max_staleness > 1

    @property
    def steps_ahead(self) -> int:
        """How many steps' prompts are drawn beside those of the step that is learned. In the order of ending a group
        may be left for the step after that which asked for it, so it begins a step later."""
        return self.max_staleness - (self.batch_order == "ending")

    def keeps_prefixes(self, moe: bool) -> bool:
        """Whether an engine that can, keeps prefixes of its requests for later ones. On CUDA vLLM keeps the experts of
        each cached block, and returns experts only if it keeps prefixes."""
        return (self.replay_routes and moe) or not self.deterministic


Check = Literal["none", "sums", "digests"]
"""What both sides of a refit compare for each slice."""


def check_world(parallel: ParallelConfig, world: int) -> None:
    """Raises UserError unless `world` ranks make a whole number of replicas."""
    for kind in (("tensor", "pipeline", "context"), ("expert", "expert_tensor", "pipeline")):
        sizes = [getattr(parallel, name) for name in kind]
        replica = sizes[0] * sizes[1] * sizes[2]
        if world % replica:
            told = " x ".join(f"{name} {size}" for name, size in zip(kind, sizes, strict=True))
            raise UserError(
                f"the number of ranks must be a multiple of {replica} ({told}), found {world} ranks: "
                "change nproc or the parallel sizes"
            )
