"""Seconds of the phases of a step. The rates, and the shares of them that real code reaches, are in hardware.toml.

decode      A decoding step reads every weight that one of the B sequences needs, and the keys, values and states of
            each sequence; it writes the states. It takes bytes / (workers x memory rate x share), or the time of its
            FLOPs if that is longer, plus a fixed overhead. N answers of mean length are decoded in batches of B. Then
            the longest answer decodes its remaining tokens alone.
flow        Samples of S steps are in flight, taken in the order of their starting. The longest answer then has the time
            of S steps, and by Little's law S x (samples of a step) x mean / longest sequences decode at once.
prefill     FLOPs of the prompts / (GPUs of the engines x peak x share)
log-prob    forward FLOPs / (trainer GPUs x peak x share of training) x bubble; an update takes three times as long,
            four times if it recomputes layers
bubble      1 + (pipeline - 1) / (micro-batches x virtual_pipeline)
refit       bytes of a worker / network rate: every worker gets its weights from other nodes
teacher     like log-prob, of the teacher's FLOPs, each domain's share of the sequences the same; plus the time to read
            each teacher's weights
control     bytes of the samples of a step x seconds per byte in which they come from rank 0 to their replicas
"""

import math
from dataclasses import dataclass

from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import Assumed, Gpu
from cascade_rl.launchers.plan.model import Model
from cascade_rl.launchers.plan.storage import sample_bytes
from cascade_rl.launchers.plan.workload import Workload
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.stage import Stage

FORWARD_AND_BACKWARD = 3
MOST_OF_A_LAYER = {"full", "mlp", "moe"}  # what recomputes one of them takes one forward pass more


@dataclass(frozen=True)
class EngineTime:
    """Times of all engines of a stage."""

    model: Model
    rollout: RolloutConfig
    gpu: Gpu
    assumed: Assumed

    @property
    def worker(self) -> EngineWorker:
        return EngineWorker(self.model, self.rollout, self.assumed)

    def generation(self, sequences: int, prompt: int, answer: int, longest: int) -> float:
        each = math.ceil(sequences / self.rollout.engines)
        batch = self.batch(each, prompt + answer)
        decoding = each * answer / batch * self.decode_step(batch, prompt + answer // 2)
        tail = (longest - answer) * self.decode_step(1, prompt + longest)
        return self._prefill(sequences, prompt) + decoding + tail

    def flow(self, sequences: int, prompt: int, answer: int, longest: int, staleness: int) -> float:
        """Seconds for the samples of a step in the long run, with those of `staleness` steps in flight."""
        each = sequences / self.rollout.engines
        batch = self.batch(int(staleness * each * answer / longest), prompt + answer)
        decoding = each * answer / batch * self.decode_step(batch, prompt + answer // 2)
        return self._prefill(sequences, prompt) + decoding

    def batch(self, sequences: int, tokens: int) -> int:
        """How many sequences an engine decodes at once, limited by its cache and `max_num_seqs`."""
        return max(min(sequences, self.rollout.max_num_seqs, int(self.worker.cache().sequences(tokens))), 1)

    def decode_step(self, batch: int, tokens: int) -> float:
        """Seconds to decode one token for each of `batch` sequences of `tokens`."""
        read = self.weight_bytes(batch) + batch * self._cache_bytes(tokens)
        by_bytes = read / (self.rollout.tensor * self.gpu.memory_gb_s * 1e9 * self.assumed.decode_bandwidth)
        return max(by_bytes, batch * self.model.cost.per_token / self._flops(self.rollout.tensor)) + self._overhead

    def weight_bytes(self, batch: int) -> float:
        """Bytes of weights of an engine that `batch` tokens touch. Experts are chosen uniformly."""
        config, size = self.model.config, self.worker.itemsize
        layers, experts = self.model.pattern.count("E"), config.get("num_moe_experts", 1)
        expert = (3 if config["gated_linear_unit"] else 2) * self.model.hidden * config.get("moe_ffn_hidden_size", 0)
        untouched = (1 - config.get("moe_router_topk", 1) / experts) ** batch
        embedding = self.model.vocabulary * self.model.hidden
        return size * (self.model.parameters - embedding - layers * experts * untouched * expert)

    @property
    def _overhead(self) -> float:
        return self.assumed.engine_step_ms / 1e3

    def _cache_bytes(self, tokens: int) -> float:
        """Bytes of a sequence over all workers. States count twice: they are read and written."""
        worker, model = self.worker, self.model
        states = 2 * model.state_layers * worker.state_bytes()
        return self.rollout.tensor * (model.attention_layers * worker.token_bytes() * tokens + states)

    def _prefill(self, sequences: int, prompt: int) -> float:
        flops = sequences * self.model.cost.of([prompt])[0]
        return flops / self._flops(self.rollout.engines * self.rollout.tensor)

    def _flops(self, gpus: int) -> float:
        return gpus * self.gpu.bf16_tflops * 1e12 * self.assumed.prefill_flops


def forward_seconds(model: Model, stage: Stage, layout: Layout, work: Workload, gpu: Gpu, assumed: Assumed) -> float:
    """Seconds of a forward pass of the trainer over the sequences of a step."""
    share = assumed.train_flops if "E" in model.pattern else assumed.dense_train_flops
    flops = work.sequences * model.cost.of([work.mean])[0]
    return flops / (layout.nproc * gpu.bf16_tflops * 1e12 * share) * _bubble(stage, layout, work)


def passes(parallel: ParallelConfig) -> int:
    """How many forward passes an update takes."""
    return FORWARD_AND_BACKWARD + bool(MOST_OF_A_LAYER & set(parallel.recompute))


def _bubble(stage: Stage, layout: Layout, work: Workload) -> float:
    cut = layout.parallel
    replicas = layout.nproc // (cut.tensor * cut.pipeline * cut.context)
    passes = math.ceil(work.tokens / (stage.token_budget * replicas)) * cut.virtual_pipeline
    return 1 + (cut.pipeline - 1) / passes


def refit_seconds(model: Model, rollout: RolloutConfig, gpu: Gpu, assumed: Assumed) -> float:
    return EngineWorker(model, rollout, assumed).weights() / (gpu.network_gb_s * 1e9)


def hand_out_seconds(model: Model, layout: Layout, work: Workload, assumed: Assumed, states: int) -> float:
    """Seconds in which the samples of a step, at mean lengths, come from rank 0 to their replicas."""
    return work.tokens * sample_bytes(model, layout, states) / 1e9 * assumed.hand_out_s_per_gb


def reading_seconds(model: Model, assumed: Assumed) -> float:
    """Seconds to read the files of a model."""
    return model.parameters * model.file_itemsize / (assumed.read_gb_s * 1e9)
