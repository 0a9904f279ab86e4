"""What a worker of a vLLM engine holds on its GPU, and how many sequences its cache takes.

The cache is laid out as vLLM 0.32 does (`v1/core/kv_cache_utils.py`, `platforms/interface.py`): pages of one size,
which a Mamba layer's state must fit; layers in groups of equal length, and a block is a page for each of a group's
layers. A sequence takes one block of each Mamba group, and of each attention group one for every `block_tokens`.
"""

import math
from dataclasses import dataclass

from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.engine.models.hf_config import read
from cascade_rl.engine.refit.plan import BUCKET_BYTES
from cascade_rl.launchers.plan.activations import layer_bytes
from cascade_rl.launchers.plan.hardware import GIB, Assumed
from cascade_rl.launchers.plan.model import Model
from cascade_rl.launchers.plan.trainer_memory import ROUNDS_IN_FLIGHT, Terms

BLOCK_TOKENS = 16  # vLLM's default on CUDA; 128 on a CPU
GROUPS_ALIKE = 1.5  # kinds of layers whose numbers differ by less are padded to one group each


@dataclass(frozen=True)
class Cache:
    """Of one worker; all workers of an engine hold a part of the same sequences.

    block_bytes    of a block over its group's layers
    blocks         in kv_cache_mib
    block_tokens   of an attention layer
    attention_groups, mamba_groups   of layers
    """

    block_bytes: int
    blocks: int
    block_tokens: int
    attention_groups: int
    mamba_groups: int

    def blocks_of(self, tokens: int) -> int:
        """Of a sequence."""
        return self.attention_groups * math.ceil(tokens / self.block_tokens) + self.mamba_groups

    def sequences(self, tokens: int) -> float:
        """Of so many tokens each, at the same time; vLLM's "maximum concurrency"."""
        return self.blocks / self.blocks_of(tokens)


@dataclass(frozen=True)
class EngineWorker:
    """The worker of rank 0, which holds as much as any."""

    model: Model
    rollout: RolloutConfig
    assumed: Assumed

    @property
    def itemsize(self) -> int:
        return 2 if self.rollout.dtype == "bfloat16" else 4

    def weights(self) -> int:
        """Raises UserError where vLLM cannot cut the model."""
        rollout = self.rollout
        return self.itemsize * self.model.worker_numbers(rollout.tensor, expert_parallel=rollout.expert_parallel)

    def awake(self) -> Terms:
        return {
            "engine weights": self.weights(),
            "KV and Mamba cache": self.rollout.kv_cache_mib << 20,
            "engine work": self.work(),
            "engine process": self.process(),
        }

    def asleep(self) -> Terms:
        """Without sleep mode an engine keeps what it has."""
        return {"engine process": self.process()} if self.rollout.sleep else self.awake()

    def refit(self) -> Terms:
        return {"engine buckets": ROUNDS_IN_FLIGHT * BUCKET_BYTES}

    def process(self) -> float:
        communicators = self.assumed.communicators_gib / 2 if self.rollout.tensor > 1 else 0
        return GIB * (self.assumed.context_gib + communicators)

    def work(self) -> float:
        """One layer's tensors for the largest batch of prompt tokens, and float32 logits, twice, of all requests."""
        cut = ParallelConfig(tensor=self.rollout.tensor)
        layer = max(layer_bytes(self.model, symbol, cut) for symbol in set(self.model.pattern))
        tokens = min(self.assumed.prefill_batch_tokens, self.rollout.max_num_seqs * self.rollout.max_model_len)
        logits = 2 * 4 * self.rollout.max_num_seqs * self.model.vocabulary
        return layer * self.itemsize / self.model.itemsize * tokens + logits

    def token_bytes(self) -> float:
        """Keys and values of a token in one attention layer."""
        groups = max(self.model.config["num_query_groups"] // self.rollout.tensor, 1)
        return 2 * groups * self.model.config["kv_channels"] * self.itemsize

    def state_bytes(self) -> float:
        """Of a sequence in one Mamba layer: the convolution's last inputs, in the model's dtype, and float32 states."""
        config, tensor = self.model.config, self.rollout.tensor
        heads, groups, state = (config[f"mamba_{key}"] for key in ("num_heads", "num_groups", "state_dim"))
        groups = groups if groups % tensor == 0 else tensor  # one for each worker then
        channels = heads * config["mamba_head_dim"]
        convolved = (channels + 2 * groups * state) // tensor * (read(self.model.hf, "conv_kernel") - 1)
        return convolved * self.itemsize + 4 * (channels // tensor) * state

    def cache(self, least_block_tokens: int = BLOCK_TOKENS) -> Cache:
        attention, mamba = self.model.pattern.count("*"), self.model.pattern.count("M")
        state = self.state_bytes() if mamba else 0
        block = max(math.ceil(state / (least_block_tokens * self.token_bytes())), 1) * least_block_tokens
        fewest, most = sorted((attention, mamba)) if mamba else (attention, attention)
        layers = most if most < GROUPS_ALIKE * fewest else fewest
        block_bytes = int(block * self.token_bytes()) * layers
        blocks = (self.rollout.kv_cache_mib << 20) // block_bytes
        return Cache(block_bytes, blocks, block, math.ceil(attention / layers), math.ceil(mamba / layers))
