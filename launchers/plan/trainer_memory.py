"""What a trainer rank holds on its GPU: throughout the stage, and during a pass over micro-batches."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cascade_rl.distillation.teacher_model import teacher_layout
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.lora.memory import AdapterBytes
from cascade_rl.engine.models.memory import StateBytes
from cascade_rl.engine.models.name_map import Place
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.plan import BUCKET_BYTES
from cascade_rl.kernels.runtime.configs import Config
from cascade_rl.launchers.plan.activations import INT64, embedding_bytes, final_bytes, kept_bytes, layer_bytes
from cascade_rl.launchers.plan.hardware import GIB, Assumed
from cascade_rl.launchers.plan.model import Model, trained_itemsize
from cascade_rl.launchers.plan.workload import Workload, values_per_token
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage

Terms = Mapping[str, float]
"""Name -> bytes on one GPU."""

ROUNDS_IN_FLIGHT = 2  # rounds of a refit (engine/refit/transport.py)


@dataclass(frozen=True)
class TrainerRank:
    """One rank of a stage. All ranks of a pipeline stage hold equally much.

    teachers  those of the stage; one of the student's model is `model` itself
    """

    model: Model
    stage: Stage
    layout: Layout
    work: Workload
    rank: int
    kernels: Config
    assumed: Assumed
    teachers: Collection[Model] = ()

    @property
    def parallel(self) -> ParallelConfig:
        return self.layout.parallel

    @property
    def place(self) -> Place:
        return place_of(self.rank, self.layout.nproc, self.parallel)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on this rank."""
        return self.stage.token_budget // self.parallel.context

    @property
    def is_last(self) -> bool:
        return self.place.pipeline.rank == self.parallel.pipeline - 1

    @property
    def _state(self) -> StateBytes:
        return self.model.state(self.rank, self.layout.nproc, self.parallel)

    @property
    def _adapters(self) -> AdapterBytes | None:
        lora = self.stage.lora
        return self.model.adapters(self.rank, self.layout.nproc, self.parallel, lora) if lora else None

    def resident(self) -> Terms:
        """Held from the start of the stage to its end. `copy` holds the weights of the reference or of a teacher, and
        those under adapters. `heads` are those of all teachers of an exact divergence."""
        adapters, process = self._adapters, GIB * (self.assumed.context_gib + self.assumed.communicators_gib)
        state, weights = adapters.state if adapters else self._state, self._state.weights
        held = {"weights": weights, "gradients": state.gradients, "optimizer": state.optimizer}
        copy = weights if has_copy(self.stage, self.model, self.teachers) and not is_base(self.stage) else 0
        if adapters:
            held["weights"] += state.weights
            copy += adapters.base
        copy = 0 if self.parallel.offload_reference else copy
        return {**held, "copy": copy, "heads": self._heads(), "process": process}

    def teaching(self) -> Terms:
        """What the teacher that needs most adds to `resident` while it computes (distillation/seats.py)."""
        return max(map(self._teaching, self.teachers), key=lambda terms: sum(terms.values()))

    def training(self) -> Terms:
        """The peak, right after the last forward pass, when the schedule holds the most micro-batches."""
        kept = self._kept_layers() + self._recomputed_layer() + self._ends()
        terms = {
            "activations": kept * self.tokens,
            "head": self._head(training=True),
            "backward": self._largest_layer() * self.tokens,  # gradients of the tensors that one layer kept
            "batch": self._batch_bytes() * self.tokens * self._passes_in_flight(),
        }
        if self._adapters:
            terms["weights' gradients"] = self._adapters.backward
        return self._with_fragments(terms)

    def reading(self) -> Terms:
        """A pass without gradients holds the tensors of one layer at a time."""
        terms = {
            "activations": (self._largest_layer() + self._ends()) * self.tokens,
            "head": self._head(training=False),
            "batch": self._batch_bytes() * self.tokens,
        }
        return self._with_fragments(terms)

    def kept(self) -> Terms:
        """What torch's allocator cannot give back after a step: blocks that outlive it lie among those that do not."""
        return {"cached": self.assumed.cached * sum(self.training().values())}

    def refit(self) -> Terms:
        return {"buckets": ROUNDS_IN_FLIGHT * BUCKET_BYTES}

    def _teaching(self, teacher: Model) -> Terms:
        if teacher is self.model:
            return self.reading()
        layout = replace(self.layout, parallel=teacher_layout(teacher.hf, self.parallel))
        other = replace(self, model=teacher, layout=layout)
        return {"teacher": other._state.weights, **other.reading()}

    def _heads(self) -> float:
        if not self.is_last or not states_per_token(self.stage, self.teachers):
            return 0
        columns = self.model.vocabulary / self.parallel.tensor
        return trained_itemsize(self.parallel) * columns * sum(teacher.hidden for teacher in self.teachers)

    def _batch_bytes(self) -> int:
        return batch_bytes(self.model, self.stage, self.layout, states_per_token(self.stage, self.teachers))

    def _with_fragments(self, terms: Terms) -> Terms:
        return {**terms, "fragments": self.assumed.fragmentation * sum(terms.values())}

    def _layers(self) -> list[str]:
        chunks = self.model.name_map.chunks(self.place)
        return [self.model.pattern[layer] for chunk in chunks for layer in chunk]

    def _layer_bytes(self) -> list[float]:
        return [layer_bytes(self.model, symbol, self.parallel) for symbol in self._layers()]

    def _recomputed_layer(self) -> float:
        """What the layer that backward computes again keeps in addition."""
        kept = (kept_bytes(self.model, symbol, self.parallel) for symbol in self._layers())
        return max(whole - part for whole, part in zip(self._layer_bytes(), kept, strict=True))

    def _kept_layers(self) -> float:
        """Bytes per token over all micro-batches in flight. A pass through a model chunk keeps what its layers keep."""
        kept = (kept_bytes(self.model, symbol, self.parallel) for symbol in self._layers())
        return sum(kept) / self.parallel.virtual_pipeline * self._passes_in_flight()

    def _passes_in_flight(self) -> int:
        """Passes in flight in Megatron's 1F1B schedule: plain, or interleaved in groups of `pipeline` micro-batches."""
        behind = self.parallel.pipeline - 1 - self.place.pipeline.rank
        chunks = self.parallel.virtual_pipeline
        return behind + 1 if chunks == 1 else 2 * behind + (chunks - 1) * self.parallel.pipeline + 1

    def _ends(self) -> float:
        first = embedding_bytes() if self.place.pipeline.rank == 0 else 0
        return first + (final_bytes(self.model, self.parallel) if self.is_last else 0)

    def _largest_layer(self) -> float:
        return max(self._layer_bytes())

    def _head(self, *, training: bool) -> float:
        """Working memory of the head on the last stage (linear_logprob_triton.py and slabs.py of kernels/parts)."""
        if not self.is_last or isinstance(self.stage, RewardModelStage):
            return 0
        size, hidden, config = trained_itemsize(self.parallel), self.model.hidden, self.kernels
        columns = self.model.vocabulary / self.parallel.tensor
        rows = self.tokens * hidden * size
        if not training:
            tiles = columns / config.statistics.columns
            return rows + 3 * 4 * tiles * min(self.tokens, config.launch_tokens)
        exponentials = min(config.saved_bytes, size * self.tokens * columns)
        tile = (size * self.tokens + (size + 4) * hidden) * config.gradient.columns
        slab = max(config.gradient_bytes, tile)
        gradients = (4 + size) * self.tokens * hidden + size * columns * hidden  # of the rows, of the weight
        operands = 2 * rows  # the rows, and their copies as operands of the products
        chosen = (1 + 4) * self.tokens * (1 + top_k(self.stage)) ** 2  # which ids of a token are equal
        return exponentials + slab + gradients + operands + chosen


def has_copy(stage: Stage, model: Model, teachers: Collection[Model]) -> bool:
    """Whether the stage computes with a second set of weights of `model` (engine/train/reference.py)."""
    return any(teacher is model for teacher in teachers) or (isinstance(stage, GrpoStage) and stage.kl_coefficient > 0)


def is_base(stage: Stage) -> bool:
    """Whether this set is that under the stage's adapters, which is kept in any case."""
    return stage.lora is not None and not isinstance(stage, MopdStage)


def states_per_token(stage: Stage, teachers: Collection[Model]) -> int:
    """Float32 of a teacher's hidden state that ride with each token: as many as the widest teacher has."""
    exact = isinstance(stage, MopdStage) and stage.objective == "exact"
    return max((teacher.hidden for teacher in teachers), default=0) if exact else 0


def batch_bytes(model: Model, stage: Stage, layout: Layout, states: int = 0) -> int:
    """Bytes per token of a micro-batch (engine/train/packing.py): ids, positions, targets, mask, temperature, values,
    routes, kept ids, and so many numbers of a teacher's `states`."""
    replayed = isinstance(stage, OnPolicyStage) and layout.rollout.replay_routes
    ids = 3 + top_k(stage) + (model.routes if replayed else 0)
    return INT64 * ids + 1 + 4 + 4 * (values_per_token(stage) + states)


def top_k(stage: Stage) -> int:
    """The most tokens that are kept at a position; 0 if the stage samples from the whole vocabulary."""
    return stage.sampling.top_k if isinstance(stage, OnPolicyStage) else 0
