"""The rule that makes a cascade small enough for two cores, and keeps everything else.

Kept: stages, parents, teachers, gates, domains, row formats, kinds of reward, losses, filters, temperatures, routers,
replay, checks, and the kinds of parallel layout that fit two ranks. Made small, as `rule` says in words:

    answer   n tokens -> n / FACTOR, at least LEAST
    total    n tokens -> n / FACTOR + ROOM: prompts are real rows, which cannot be divided

So whatever fitted, fits; whatever was longer than something else still is; and a prompt of up to ROOM tokens has as
much room as its answer has at true size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade, Layout
from cascade_rl.rl_stages.config.grpo_stage import Extension, GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage

RANKS = 2
DENSE = {
    "tensor": ParallelConfig(tensor=RANKS),
    "context": ParallelConfig(context=RANKS),
    "pipeline": ParallelConfig(pipeline=RANKS),
}
FACTOR = 512
LEAST = 16  # tokens
ROOM = 6_144  # tokens; the prompts of NeMo-Gym's workplace have 5,100
STEPS = 1
VICTIM_STEPS = 2  # of the stage that is killed after its first checkpoint
LEARNING_STEPS, LEARNING_RATE = 30, 1e-2  # of the first SFT: enough to end answers as the demonstrations do
PROMPTS, ROLLOUTS, SEQUENCES, HELDOUT = 2, 4, 16, 4
TURNS = 4
GATE = 0.5  # a held-out score of four answers moves by 0.25
JUDGE_TOKENS = 64


def rule(cascade: Cascade) -> str:
    return (
        f"the same stages on {RANKS} ranks and a small model of the same family; answers of 1/{FACTOR} of their "
        f"tokens, and {ROOM:,} tokens for prompts; {STEPS} step of {PROMPTS} prompts x {ROLLOUTS} rollouts, "
        f"{LEARNING_STEPS} steps of the first SFT at a rate of {LEARNING_RATE:g}; {HELDOUT} held-out prompts per "
        f"domain, gates of {GATE}, no min_best_reward; judges on servers: a stand-in that speaks their protocol; no "
        "fields of parallel.megatron and rollout.vllm, which may need a GPU; "
        f"float32 on this CPU. Layout: {cascade.hardware}"
    )


def small_cascade(cascade: Cascade, base: BaseModel, sources: Mapping[str, str], judge_url: str) -> Cascade:
    """`sources`: path of a stage's data -> path to read instead. Raises UserError as Cascade does."""
    dense = _dense_kinds(cascade)
    first_sft = next((stage.name for stage in cascade.stages if isinstance(stage, SftStage)), None)
    steps_of = {first_sft: LEARNING_STEPS, victim(cascade).name: VICTIM_STEPS}
    stages = []
    for stage in cascade.stages:
        layout = _small_layout(cascade.layout(stage), next(dense))
        made = _small_stage(stage, max(steps_of.get(stage.name, STEPS), _parts(stage)), judge_url)
        moved = partial(_moved, sources=sources)
        stages.append(
            replace(
                made,
                data=tuple(map(moved, stage.data)),
                heldout=tuple(map(moved, stage.heldout)),
                nproc=layout.nproc,
                parallel=layout.parallel,
                rollout=layout.rollout,
            )
        )
    evaluation = replace(
        cascade.evaluation,
        prompts_per_domain=HELDOUT,
        max_new_tokens=answer(cascade.evaluation.max_new_tokens),
        min_answer_tokens=answer(cascade.evaluation.min_answer_tokens),
        suites=(),
    )
    name = f"{cascade.name}_rehearsal"
    return replace(cascade, name=name, base=base, stages=tuple(stages), evaluation=evaluation, layouts={})


def victim(cascade: Cascade) -> Stage:
    """The stage that a rehearsal kills: the first that samples."""
    return next((stage for stage in cascade.stages if isinstance(stage, OnPolicyStage)), cascade.stages[-1])


def answer(tokens: int) -> int:
    return max(tokens // FACTOR, LEAST) if tokens > LEAST else tokens


def total(tokens: int) -> int:
    return answer(tokens) + ROOM


def _small_stage(stage: Stage, steps: int, judge_url: str) -> Stage:
    share = steps / stage.steps
    common = {
        "steps": steps,
        "token_budget": total(stage.token_budget),
        "checkpoint_every": 1,
        "keep_checkpoints": 1,
        "gate": dict.fromkeys(stage.gate, GATE),
        "optimizer": _small_optimizer(stage, share),
    }
    return replace(stage, **(common | _of_kind(stage, share, judge_url)))


def _parts(stage: Stage) -> int:
    """Of a length curriculum, which has a step for each part."""
    return len(stage.extensions) + 1 if isinstance(stage, GrpoStage) else 1


def _of_kind(stage: Stage, share: float, judge_url: str) -> dict[str, Any]:
    if isinstance(stage, SftStage):
        return {"sequences_per_step": SEQUENCES, "checkpoint_every": max(1, round(stage.steps * share))}
    if isinstance(stage, RewardModelStage):
        return {"pairs_per_step": PROMPTS}
    assert isinstance(stage, OnPolicyStage)
    small: dict[str, Any] = {
        "prompts_per_step": PROMPTS,
        "rollouts_per_prompt": min(stage.rollouts_per_prompt, ROLLOUTS),
        "sampling": _small_sampling(stage.sampling),
        "min_answer_tokens": answer(stage.min_answer_tokens),
    }
    if isinstance(stage, GrpoStage):
        small["min_best_reward"] = None  # so small a policy never answers as well
        small["extensions"] = tuple(_small_extension(*part) for part in enumerate(stage.extensions, start=1))
        small["reward_model"] = stage.reward_model and _small_judge(stage.reward_model, judge_url)
    return small


def _small_sampling(sampling: Sampling) -> Sampling:
    return replace(
        sampling,
        max_new_tokens=answer(sampling.max_new_tokens),
        max_total_tokens=sampling.max_total_tokens and total(sampling.max_total_tokens),
        max_turns=min(sampling.max_turns, TURNS),
    )


def _small_extension(step: int, change: Extension) -> Extension:
    return replace(change, from_step=step, max_new_tokens=answer(change.max_new_tokens))


def _small_judge(judge: RewardModel, url: str) -> RewardModel:
    if judge.url is None:
        return judge
    return replace(judge, url=url, max_tokens=min(judge.max_tokens, JUDGE_TOKENS), api_key_env=None, concurrency=8)


def _small_optimizer(stage: Stage, share: float) -> Any:
    settings = stage.optimizer
    scaled = replace(
        settings,
        warmup_steps=round(settings.warmup_steps * share),
        schedule_steps=settings.schedule_steps and max(1, round(settings.schedule_steps * share)),
    )
    if not isinstance(stage, SftStage):
        return scaled
    return replace(scaled, lr=LEARNING_RATE, min_lr=LEARNING_RATE / 20, schedule="cosine", schedule_steps=None)


def _dense_kinds(cascade: Cascade) -> Iterator[ParallelConfig]:
    """In turn, the kinds of parallelism that the layouts have: two ranks have room for one of them at a time."""
    used = [cascade.layout(stage).parallel for stage in cascade.stages]
    played = [cut for kind, cut in DENSE.items() if any(getattr(parallel, kind) > 1 for parallel in used)]
    return cycle(played or [ParallelConfig()])


def _small_layout(layout: Layout, dense: ParallelConfig) -> Layout:
    parallel = replace(
        dense,
        expert=RANKS if layout.parallel.expert > 1 and dense.pipeline == 1 else 1,
        sequence=layout.parallel.sequence and dense.tensor > 1,
        recompute=layout.parallel.recompute,
    )
    return Layout(nproc=RANKS, parallel=parallel, rollout=_small_rollout(layout.rollout))


def _small_rollout(rollout: RolloutConfig) -> RolloutConfig:
    return replace(
        rollout,
        engines=1,
        tensor=1,
        expert_parallel=False,
        max_model_len=total(rollout.max_model_len),
        max_num_seqs=16,
        kv_cache_mib=64,
        dtype="float32",
        sleep=False,
        vllm=None,
    )


def _moved(text: str, sources: Mapping[str, str]) -> str:
    """The source at its new path, without its count, which may be above the rows there."""
    source = Source.parse(text)
    if source.path not in sources:
        return text
    return sources[source.path] + (f"*{source.weight}" if source.weight else "")
