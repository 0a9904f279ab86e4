"""Published steps of GRPO, and what the plan says of each, with the assumptions of hardware.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.engine.models import read_config
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import read_hardware
from cascade_rl.launchers.plan.model import PUBLISHED, Model
from cascade_rl.launchers.plan.pace import STEP, way_of
from cascade_rl.launchers.plan.search.split import pace_with
from cascade_rl.launchers.plan.stage_plan import Setting
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage

TABLE = tomllib.loads(Path(__file__).with_name("published_steps.toml").read_text())
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # the config.json of a published one, and what is different
    "qwen3_30b_a3b": ("qwen3_30b_a3b", {}),
    "qwen3_32b": ("qwen3_14b", {"num_hidden_layers": 64, "num_attention_heads": 64, "intermediate_size": 25_600}),
    "qwen3_235b_a22b": (
        "qwen3_30b_a3b",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "intermediate_size": 12_288,
            "moe_intermediate_size": 1536,
        },
    ),
}
NAMES = {"qwen3_30b_a3b": "Qwen3-30B-A3B", "qwen3_32b": "Qwen3-32B", "qwen3_235b_a22b": "Qwen3-235B-A22B"}


@dataclass(frozen=True)
class PublishedStep:
    """See published_steps.toml."""

    hardware: str
    model: str
    gpus: list[int]
    samples: int
    longest: int
    mean: int
    engine: int
    train: list[int]
    seconds: float
    recompute: bool = False
    staleness: int = 0

    @cached_property
    def predicted(self) -> float:
        """Seconds. Of the recipes with an age of 1, all samples in flight have begun together, as with ours."""
        return STEP[way_of(self.staleness)](pace_with(self.setting, self.staleness))

    @property
    def told(self) -> str:
        """The row of docs/plan.md."""
        gpus, error = " + ".join(map(str, self.gpus)), self.predicted / self.seconds - 1
        numbers = f"{gpus} | {self.staleness} | {self.seconds:g} | {self.predicted:.1f} | {error:+.0%}"
        return f"| {self.hardware.upper()} | {NAMES[self.model]} | {self.longest:,} | {numbers} |"

    @property
    def setting(self) -> Setting:
        given: Mapping[str, float] = TABLE["assumed"]
        prompt = int(given["prompt_tokens"])
        longest = self.longest - prompt
        share = (self.mean - prompt) / longest
        gpu, assumed = read_hardware(self.hardware, {"prompt_tokens": prompt, "answer_share": share})
        model = _model(self.model)
        stage = GrpoStage(
            name="rl", domain="math", data=("generate:math",), steps=1, prompts_per_step=self.samples // 32,
            rollouts_per_prompt=32, sampling=Sampling(max_new_tokens=longest), token_budget=self.longest,
            kl_coefficient=given["kl_coefficient"],
        )  # fmt: skip
        tensor, context, expert, pipeline = self.train
        parallel = ParallelConfig(
            tensor=tensor, context=context, expert=expert, pipeline=pipeline, sequence=tensor > 1,
            recompute=("full",) if self.recompute else (), precision="bfloat16",
        )  # fmt: skip
        apart = self.staleness > 0
        rollout = RolloutConfig(
            engines=self.gpus[-1] // self.engine, tensor=self.engine, max_model_len=self.longest, max_num_seqs=1024,
            dtype="bfloat16", sleep=not apart, placement="disaggregated" if apart else "colocated",
            replay_routes=False,
        )  # fmt: skip
        memory = gpu.capacity * given["memory_apart" if apart else "memory_together"]
        cache = int(memory - EngineWorker(model, rollout, assumed).weights()) >> 20
        layout = Layout(nproc=self.gpus[0], parallel=parallel, rollout=replace(rollout, kv_cache_mib=cache))
        return Setting(model, stage, layout, Evaluation(domains=("math",), max_new_tokens=1), gpu, assumed)


@cache
def _model(name: str) -> Model:
    base, changed = MODELS[name]
    return Model(read_config(PUBLISHED / base) | changed, name)


STEPS = [PublishedStep(**step) for step in TABLE["step"]]
