"""What a worker of a vLLM engine holds on its GPU, and how many sequences fit in its cache.

The cache has the layout of vLLM 0.32 (vllm/v1/core/kv_cache_utils.py, vllm/platforms/interface.py). All pages have the
same size, and the state of a Mamba layer must fit in one; a gated delta net is a Mamba layer here. Layers form groups
of equal size, and a block is one page for each layer of a group. A sequence takes one block per `block_tokens` tokens
of each attention group, and of each Mamba group one block, or STATES_WITH_PREFIXES if prefixes are kept. Of latent
attention every worker has the whole latents.
"""

import math
from dataclasses import dataclass

from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.engine.models.hf_config import read
from cascade_rl.engine.refit.plan import BUCKET_BYTES
from cascade_rl.launchers.plan.activations import FLOAT32, layer_bytes
from cascade_rl.launchers.plan.hardware import GIB, Assumed
from cascade_rl.launchers.plan.model import Model
from cascade_rl.launchers.plan.trainer_memory import ROUNDS_IN_FLIGHT, Terms

BLOCK_TOKENS = 16  # vLLM's default on CUDA; 128 on a CPU
# Of each Mamba layer: the newest two (vLLM's `MambaSpec` in vllm/v1/kv_cache_interface.py), and that at the end of the
# prompt (vLLM's vllm/model_executor/layers/mamba/mamba_mixer2.py).
STATES_WITH_PREFIXES = 3
GROUPS_ALIKE = 1.5  # kinds of layers whose counts differ by less than this factor are padded to one group each


@dataclass(frozen=True)
class Cache:
    """The cache of one worker. All workers of an engine hold a part of the same sequences.

    block_bytes    bytes of a block, over all layers of its group
    blocks         number of blocks in kv_cache_mib
    block_tokens   tokens of a block of an attention group
    attention_groups, mamba_groups   numbers of groups
    states         Mamba states of a sequence in each layer
    """

    block_bytes: int
    blocks: int
    block_tokens: int
    attention_groups: int
    mamba_groups: int
    states: int

    def blocks_of(self, tokens: int) -> int:
        """Blocks of a sequence of `tokens`."""
        return self.attention_groups * math.ceil(tokens / self.block_tokens) + self.mamba_groups * self.states

    def sequences(self, tokens: int) -> float:
        """How many sequences of `tokens` fit at the same time: vLLM's "maximum concurrency"."""
        return self.blocks / self.blocks_of(tokens)


@dataclass(frozen=True)
class EngineWorker:
    """The worker of rank 0, which holds at least as much as any other."""

    model: Model
    rollout: RolloutConfig
    assumed: Assumed

    @property
    def itemsize(self) -> int:
        return 2 if self.rollout.dtype == "bfloat16" else 4

    def weights(self) -> int:
        """Raises UserError if vLLM cannot shard the model this way."""
        rollout = self.rollout
        return self.itemsize * self.model.worker_numbers(rollout.tensor, expert_parallel=rollout.expert_parallel)

    def awake(self) -> Terms:
        return {
            "engine weights": self.weights(),
            **({"weight buffer": self.weights()} if self.rollout.weight_buffer else {}),
            "KV and Mamba cache": self.rollout.kv_cache_mib << 20,
            "engine work": self.work(),
            "engine process": self.process(),
        }

    def asleep(self) -> Terms:
        """Without sleep mode, an engine keeps all its memory."""
        return {"engine process": self.process()} if self.rollout.sleep else self.awake()

    def refit(self) -> Terms:
        return {"engine buckets": ROUNDS_IN_FLIGHT * BUCKET_BYTES}

    def process(self) -> float:
        communicators = self.assumed.communicators_gib / 2 if self.rollout.tensor > 1 else 0
        return GIB * (self.assumed.context_gib + communicators)

    def work(self) -> float:
        """Tensors of one layer for the largest prefill batch, and two copies of the float32 logits of all requests."""
        cut = ParallelConfig(tensor=self.rollout.tensor, precision=self.rollout.dtype)
        layer = max(layer_bytes(self.model, symbol, cut) for symbol in set(self.model.pattern))
        tokens = min(self.assumed.prefill_batch_tokens, self.rollout.max_num_seqs * self.rollout.max_model_len)
        logits = 2 * 4 * self.rollout.max_num_seqs * self.model.vocabulary
        return layer * tokens + logits

    def token_bytes(self) -> float:
        """Bytes of the keys and values of a token in one attention layer; of latents, every worker has the whole."""
        config = self.model.config
        if "+" in self.model.pattern:
            return (config["kv_lora_rank"] + config["qk_pos_emb_head_dim"]) * self.itemsize
        groups = max(config["num_query_groups"] // self.rollout.tensor, 1)
        return 2 * groups * config["kv_channels"] * self.itemsize

    def state_bytes(self) -> float:
        """Bytes of a sequence in one Mamba layer or delta net: last convolution inputs in the engine's dtype, and
        float32 states. 0 for a model without such layers."""
        if not self.model.state_layers:
            return 0
        return self._delta_net_state() if "G" in self.model.pattern else self._mamba_state()

    def _delta_net_state(self) -> float:
        config, tensor = self.model.config, self.rollout.tensor
        width = config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"] // tensor
        convolved = 2 * config["linear_num_key_heads"] * width // tensor + values
        return convolved * (config["linear_conv_kernel_dim"] - 1) * self.itemsize + FLOAT32 * values * width

    def _mamba_state(self) -> float:
        config, tensor = self.model.config, self.rollout.tensor
        heads, groups, state = (config[f"mamba_{key}"] for key in ("num_heads", "num_groups", "state_dim"))
        groups = groups if groups % tensor == 0 else tensor  # vLLM then gives each worker one
        channels = heads * config["mamba_head_dim"]
        convolved = (channels + 2 * groups * state) // tensor * (read(self.model.hf, "conv_kernel") - 1)
        return convolved * self.itemsize + FLOAT32 * (channels // tensor) * state

    def cache(self, least_block_tokens: int = BLOCK_TOKENS) -> Cache:
        attention, mamba = self.model.attention_layers, self.model.state_layers
        state = self.state_bytes()
        block = max(math.ceil(state / (least_block_tokens * self.token_bytes())), 1) * least_block_tokens
        fewest, most = sorted((attention, mamba)) if mamba else (attention, attention)
        layers = most if most < GROUPS_ALIKE * fewest else fewest
        block_bytes = int(block * self.token_bytes()) * layers
        blocks = (self.rollout.kv_cache_mib << 20) // block_bytes
        states = STATES_WITH_PREFIXES if self.rollout.keeps_prefixes(moe=self.model.experts > 0) else 1
        return Cache(block_bytes, blocks, block, math.ceil(attention / layers), math.ceil(mamba / layers), states)
