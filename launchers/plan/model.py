"""The sizes that the plan reads from a config.json, and where it finds that file for a base model and for teachers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cascade_rl.distillation.teacher_model import same_model, teacher_config
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.lora.memory import AdapterBytes, adapter_bytes
from cascade_rl.engine.lora.rules import adapter_shards, factor_map
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.flops import SequenceCost, sequence_cost
from cascade_rl.engine.models.hf_config import HfConfig, export_dtype, read
from cascade_rl.engine.models.memory import StateBytes, state_bytes
from cascade_rl.engine.models.name_map import Cut, NameMap, vocabulary
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.vllm_map import WHOLE, WorkerPlace, worker_shards
from cascade_rl.rl_stages.config.base import BEST, BaseModel, is_folder
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import Stage

PUBLISHED = Path(__file__).parents[2] / "engine/models/published"


@dataclass(frozen=True)
class Model:
    """A model, described by its config.json. `source` says where that was found."""

    hf: HfConfig
    source: str

    @cached_property
    def pattern(self) -> str:
        return family_of(self.hf).pattern(self.hf)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The sizes by their names in Megatron."""
        return family_of(self.hf).transformer_config(self.hf)

    @cached_property
    def name_map(self) -> NameMap:
        return family_of(self.hf).name_map(self.hf)

    @cached_property
    def cost(self) -> SequenceCost:
        return sequence_cost(self.hf)

    @cached_property
    def parameters(self) -> int:
        return self.name_map.parameter_count()

    @property
    def file_itemsize(self) -> int:
        """Bytes of a weight in the files of the model."""
        return 2 if export_dtype(self.hf) == "bfloat16" else 4

    @property
    def hidden(self) -> int:
        return self.config["hidden_size"]

    @property
    def qk_norm(self) -> bool:
        return self.config.get("qk_layernorm", False)

    @property
    def attention_layers(self) -> int:
        return sum(map(self.pattern.count, "*+"))

    @property
    def state_layers(self) -> int:
        """Those that keep a state of each sequence: Mamba and gated delta nets."""
        return sum(map(self.pattern.count, "MG"))

    @property
    def rotary(self) -> float:
        """The share of a head's channels that turn with the position."""
        positions = family_of(self.hf).model_kwargs(self.hf)
        return positions.get("rotary_percent", 1.0) if positions["position_embedding_type"] == "rope" else 0.0

    @property
    def vocabulary(self) -> int:
        """Rows of the head, padding included."""
        return vocabulary("", read(self.hf, "vocab_size"), 0).shard_shape(1)[0]

    @property
    def experts(self) -> int:
        return self.config.get("num_moe_experts") or 0

    @property
    def routes(self) -> int:
        """The number of experts that are chosen for a token, over all layers."""
        return self.pattern.count("E") * self.config.get("moe_router_topk", 0)

    def state(self, rank: int, world: int, parallel: ParallelConfig) -> StateBytes:
        """State of trainer rank `rank`, cached."""
        key = (rank, world, parallel)
        if key not in self._states:
            place = place_of(rank, world, parallel)
            self._states[key] = state_bytes(self.name_map.shards(place), place, trained_itemsize(parallel))
        return self._states[key]

    def adapters(self, rank: int, world: int, parallel: ParallelConfig, lora: LoraConfig) -> AdapterBytes:
        """Those of trainer rank `rank`, cached."""
        key = (rank, world, parallel, lora)
        if key not in self._adapters:
            place = place_of(rank, world, parallel)
            shards = adapter_shards(self.name_map, lora, place)
            self._adapters[key] = adapter_bytes(shards, place, trained_itemsize(parallel))
        return self._adapters[key]

    def factors(self, lora: LoraConfig) -> int:
        """How many numbers the adapters of the whole model have."""
        return factor_map(self.name_map, lora).parameter_count()

    def worker_numbers(self, tensor: int, *, expert_parallel: bool) -> int:
        """How many numbers a worker of an engine holds, cached. Raises UserError if vLLM cannot shard the model."""
        key = (tensor, expert_parallel)
        if key not in self._workers:
            cut = Cut(0, tensor)
            shards = worker_shards(self.hf, WorkerPlace(cut, cut if expert_parallel else WHOLE))
            self._workers[key] = sum(math.prod(shard.shape) for shard in shards)
        return self._workers[key]

    @cached_property
    def _workers(self) -> dict[tuple[int, bool], int]:
        return {}

    @cached_property
    def _states(self) -> dict[tuple[int, int, ParallelConfig], StateBytes]:
        return {}

    @cached_property
    def _adapters(self) -> dict[tuple[int, int, ParallelConfig, LoraConfig], AdapterBytes]:
        return {}


def trained_itemsize(parallel: ParallelConfig) -> int:
    """Bytes of a weight and of an activation in the trainer."""
    return 2 if parallel.precision == "bfloat16" else 4


def model_of(base: BaseModel) -> Model:
    """The model of `base.hf_config`, of the folder `base.hf`, or of `base.published` if that folder is not here.

    Raises UserError if there is none.
    """
    if base.hf_config is not None:
        return Model(dict(base.hf_config), "base.hf_config")
    folder = Path(str(base.hf))
    if base.published is None or (folder / "config.json").is_file():
        return Model(read_config(folder), str(folder))
    return Model(read_config(PUBLISHED / base.published), f"engine/models/published/{base.published}")


def teachers_of(stage: Stage, student: Model) -> Mapping[str, Model]:
    """Each teacher of the stage by its name; each "best" may be another one, and has the name of its domain behind it.
    A teacher of the student's model is `student` itself.

    Raises UserError if a folder has no config.json, or a model that cannot teach the student.
    """
    if not isinstance(stage, MopdStage):
        return {}
    return {
        teacher_name(domain, name): _teacher(f"{stage.name}.teachers.{domain}", name, student)
        for domain, name in stage.teachers.items()
    }


def teacher_name(domain: str, name: str) -> str:
    return f"{name} in {domain}" if name == BEST else name


def _teacher(where: str, name: str, student: Model) -> Model:
    if not is_folder(name):
        return student
    config = teacher_config(where, read_config(name), student.hf)
    return student if same_model(config, student.hf) else Model(config, name)
