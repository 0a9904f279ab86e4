"""The stages of Nemotron-Cascade 1 (arXiv 2512.13607) on a dense Qwen3, shared by its three launchers.

The numbers of the RL stages are in rl_stages/recipes/cascade1.py; docs/papers.md lists what the paper does not state.
The base model is in `models/` and the data in `data/`, relative to the folder from which this is launched; symbolic
links work. Demonstrations have the names of their releases by nvidia on the Hub. Prompts are in `data/cascade1/`, made
as docs/papers.md says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade, Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import Stage

PROMPT_TOKENS = 4096
BFLOAT16_TME_BOUND = 1.05  # not in the paper; NVIDIA-NeMo/RL, docs/adding-new-models.md, section 3
GATE = 0.05  # not in the paper, which has no gates


@dataclass(frozen=True, kw_only=True)
class Size:
    """The settings in which the models differ.

    recipe          settings of each RL stage, by name
    answer_tokens   length of the longest answer of all stages
    sft             learning rate and steps of both SFT stages
    h100, b200      training ranks, tensor-parallel size, context-parallel size, workers per rollout engine
    kv_cache_gib    of an engine in stages with the reward model, whose memory is taken from the KV caches
    """

    name: str
    base: BaseModel
    recipe: Mapping[str, Mapping[str, Any]]
    answer_tokens: int
    sft: tuple[tuple[float, int], tuple[float, int]]
    h100: tuple[int, int, int, int]
    b200: tuple[int, int, int, int]
    kv_cache_gib: int

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.answer_tokens + PROMPT_TOKENS


def cascade1(size: Size) -> Cascade:
    stages = _stages(size)
    return Cascade(
        name=size.name,
        base=size.base,
        stages=stages,
        # ours, at the temperature of the paper's evaluation
        evaluation=Evaluation(
            domains=("instruction_following", "math", "code", "swe_agentless"),
            unmeasured=("rlhf",),
            prompts_per_domain=512,
            max_new_tokens=32_768,
            min_answer_tokens=8_192,
            temperature=0.6,
        ),
        layouts={"h100": _by_stage(size, stages, *size.h100), "b200": _by_stage(size, stages, *size.b200)},
    )


def _stages(size: Size) -> tuple[Stage, ...]:
    (first_lr, first_steps), (second_lr, second_steps) = size.sft
    return (
        # Released: 5.44 M and 7.80 M + 0.16 M rows. 256 of them in each of the paper's steps are one epoch within 7 %
        _sft("sft_16k", first_lr, first_steps, 16_384, "data/Nemotron-Cascade-SFT-Stage-1", parent="base"),
        _sft(
            "sft_32k",
            second_lr,
            second_steps,
            32_768,
            "data/Nemotron-Cascade-SFT-Stage-2*7797730",
            "data/Nemotron-Cascade-SFT-SWE*162262",
        ),
        # The paper trains Qwen2.5-72B-Instruct. Such a model may be served instead (docs/papers.md). Ours is the policy
        # after SFT, taken to be as weak as the paper's 7B reward model, which needed shaped rewards: `shaped`.
        RewardModelStage(
            name="reward_model",
            domain="preference",
            data=("data/cascade1/preference_pairs",),  # 82K: HelpSteer2, HelpSteer3, synthetic off-topic pairs
            token_budget=16_384,
        ),
        _rl(
            size,
            "rlhf",
            "rlhf",
            "data/cascade1/rlhf",  # the pairs' prompts without mathematics and competitive programming
            reward_model=RewardModel(kind="bradley_terry", model="reward_model", shaped=True),
        ),
        _rl(
            size,
            "if_rl",
            "instruction_following",
            "data/cascade1/instruction_following",
            reward_model=_if_bonus(size.recipe["if_rl"]["thinking_fraction"]),
        ),
        _rl(size, "math_rl", "math", "data/cascade1/math", keeps=("instruction_following",)),
        # 9.8K, not released
        _rl(size, "code_rl", "code", "data/cascade1/code", keeps=("instruction_following", "math")),
        _rl(
            size,
            "swe_rl",
            "swe_agentless",
            "data/cascade1/swe_agentless",
            keeps=("instruction_following", "math", "code"),
            reward_model=RewardModel(
                kind="server",
                model="moonshotai/Kimi-Dev-72B",
                url="http://swe-judge:8000/v1",
                max_tokens=4096,
                deadline_seconds=3600.0,
            ),
        ),
    )


def _if_bonus(thinking_fraction: float) -> RewardModel | None:
    """The reward model that thinking models get in addition to the rules (section 4)."""
    return RewardModel(kind="bradley_terry", model="reward_model", bonus=True) if thinking_fraction == 1 else None


def _sft(name: str, lr: float, steps: int, longest: int, *data: str, **more: Any) -> SftStage:
    """One epoch. The cosine is 100K steps long and the stage ends before (arXiv 2512.13607). Warm-up: not stated."""
    optimizer = OptimizerConfig(lr=lr, schedule="cosine", schedule_steps=100_000, betas=(0.9, 0.95), weight_decay=1e-4)
    return SftStage(
        name=name,
        domain="general",
        data=data,
        steps=steps,
        sequences_per_step=256,
        token_budget=longest,
        overlong="drop",
        optimizer=optimizer,
        checkpoint_every=250,
        **more,
    )


def _rl(size: Size, name: str, domain: str, data: str, keeps: tuple[str, ...] = (), **more: Any) -> GrpoStage:
    """`keeps`: the domains of earlier stages, whose scores are gated."""
    return GrpoStage(
        name=name,
        domain=domain,
        data=(data,),
        token_budget=size.tokens,
        tme_bound=BFLOAT16_TME_BOUND,
        checkpoint_every=10,
        gate=dict.fromkeys(keeps, GATE),
        **size.recipe[name],
        **more,
    )


def _by_stage(
    size: Size, stages: tuple[Stage, ...], nproc: int, tensor: int, context: int, workers: int
) -> Mapping[str, Layout]:
    """One layout for all stages, except that engines have smaller caches in stages with the reward model."""
    shared = _layout(size, nproc, tensor, context, workers, kv_cache_gib=24)
    beside_reward_model = _layout(size, nproc, tensor, context, workers, kv_cache_gib=size.kv_cache_gib)
    beside = [stage.name for stage in stages if "reward_model" in stage.models_read.values()]
    return {stage.name: shared for stage in stages} | dict.fromkeys(beside, beside_reward_model)


def _layout(size: Size, nproc: int, tensor: int, context: int, workers: int, kv_cache_gib: int) -> Layout:
    """Trainer and engines share the GPUs in turn. The paper states no layout, only 8 DGX-H100 nodes for code tests."""
    rollout = RolloutConfig(
        engines=nproc // workers,
        tensor=workers,
        max_model_len=size.tokens,
        max_num_seqs=64,
        kv_cache_mib=kv_cache_gib << 10,
        dtype="bfloat16",
        probe_bound=0.5,  # nats, of 99.9 % of the tokens, which are unlikely text; not measured on a GPU
        sleep=True,
    )
    parallel = ParallelConfig(tensor=tensor, context=context, sequence=True, precision="bfloat16")
    return Layout(nproc=nproc, parallel=parallel, rollout=rollout)
