"""The plan of one stage: problems of its layout, memory and time of each phase, and the total cost."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from cascade_rl.distillation.teacher_model import check_teacher, teacher_layout
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.precisions import check_gpu_precision
from cascade_rl.engine.models import check_layout
from cascade_rl.engine.models.layout import divides, token_multiple
from cascade_rl.engine.rollout.engine_layout import check_cards, check_cut
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import Assumed, Gpu
from cascade_rl.launchers.plan.judge_memory import judge_host_bytes, judge_memory
from cascade_rl.launchers.plan.model import Model, teacher_name
from cascade_rl.launchers.plan.step_time import (
    EngineTime,
    forward_seconds,
    hand_out_seconds,
    passes,
    reading_seconds,
    refit_seconds,
)
from cascade_rl.launchers.plan.storage import checkpoint_host_bytes, disk_bytes, sample_host_bytes
from cascade_rl.launchers.plan.trainer_memory import Terms, TrainerRank, has_copy, states_per_token
from cascade_rl.launchers.plan.workload import Workload, workload_of
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage


@dataclass(frozen=True)
class Setting:
    """A stage with everything that determines its plan. `teachers` are those that it has, by name."""

    model: Model
    stage: Stage
    layout: Layout
    evaluation: Evaluation
    gpu: Gpu
    assumed: Assumed
    teachers: Mapping[str, Model] = field(default_factory=dict)

    @property
    def work(self) -> Workload:
        return workload_of(self.stage, self.layout.rollout, self.assumed)

    @property
    def nodes(self) -> int:
        return math.ceil(self.layout.nproc / self.gpu.gpus_per_node)

    @property
    def samples(self) -> bool:
        return isinstance(self.stage, OnPolicyStage)

    @property
    def has_engines(self) -> bool:
        """Whether engines run, for sampling or evaluation."""
        return self.stage.trains_policy and bool(self.evaluation.domains)

    @property
    def states(self) -> int:
        return states_per_token(self.stage, self.teachers.values())

    @property
    def worker(self) -> EngineWorker:
        return EngineWorker(self.model, self.layout.rollout, self.assumed)


@dataclass(frozen=True)
class Phase:
    """Memory of the fullest GPU in bytes by term, and seconds per step: 0 if the phase is part of another."""

    name: str
    memory: Terms
    seconds: float

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())


@dataclass(frozen=True)
class CacheUse:
    """The cache of one engine. `block_tokens` are tokens per block; `running` sequences decode at once on average."""

    tokens: int
    block_tokens: int
    sequences_at_longest: float
    sequences_at_mean: float
    running: int


@dataclass(frozen=True)
class StagePlan:
    """If the layout has `problems`, nothing else is planned.

    mends   the nearest settings that fit, if the stage does not
    sandbox_core_hours   of all verifications that run programs
    """

    name: str
    kind: str
    gpus: int
    steps: int
    problems: tuple[str, ...]
    phases: tuple[Phase, ...] = ()
    cache: CacheUse | None = None
    tokens: int = 0
    evaluation_seconds: float = 0.0
    sandbox_core_hours: float = 0.0
    disk: Mapping[str, float] | None = None
    host_bytes_per_node: float = 0.0
    mends: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.tokens / self.step_seconds / self.gpus if self.phases else 0.0

    @property
    def gpu_hours(self) -> float:
        return self.gpus * (self.steps * self.step_seconds + self.evaluation_seconds) / 3600

    @property
    def fullest(self) -> Phase | None:
        """The phase with the most memory, which breaks first."""
        return max(self.phases, key=lambda phase: phase.bytes, default=None)

    def fits(self, capacity: float) -> bool:
        return not self.problems and all(phase.bytes <= capacity for phase in self.phases)


def plan_stage(setting: Setting) -> StagePlan:
    stage, layout, work = setting.stage, setting.layout, setting.work
    made = StagePlan(stage.name, stage.kind, layout.nproc, stage.steps, tuple(problems(setting)))
    if made.problems:
        return made
    return replace(
        made,
        phases=tuple(_timed(setting)),
        cache=_cache(setting) if setting.has_engines else None,
        tokens=work.tokens,
        evaluation_seconds=_evaluation(setting),
        sandbox_core_hours=stage.steps * _sandbox_core_seconds(setting) / 3600,
        disk=disk_bytes(setting.model, stage, layout, work),
        host_bytes_per_node=_host_bytes(setting),
    )


def problems(setting: Setting) -> Iterator[str]:
    """What the engine would refuse, in its own words, and what would make it fail in the middle of a step."""
    layout, rollout, gpu = setting.layout, setting.layout.rollout, setting.gpu
    checks: list[Callable[[], object]] = [partial(check_gpu_precision, layout.parallel.precision)]
    if not divides(setting.model.hf, setting.model.name_map, layout.parallel, layout.nproc):
        checks.append(partial(check_layout, setting.model.hf, layout.parallel, layout.nproc))
    checks += [partial(_check_teacher, setting, *teacher) for teacher in setting.teachers.items()]
    if setting.has_engines:
        checks += [setting.worker.weights, partial(check_cards, rollout), partial(check_cut, setting.model.hf, rollout)]
    for check in checks:
        try:
            check()
        except UserError as error:
            yield str(error)
    multiple = token_multiple(layout.parallel)
    longest = -(-setting.work.longest // multiple) * multiple
    if longest > setting.stage.token_budget:
        yield (
            f"token_budget = {setting.stage.token_budget:,}: expected room for the longest sequence, {longest:,} "
            f"tokens (of which {setting.work.prompt:,} are the prompt)"
        )
    if setting.has_engines:
        yield from _places(rollout.engines, rollout.tensor, setting.nodes, min(layout.nproc, gpu.gpus_per_node))
        if setting.worker.cache().sequences(rollout.max_model_len) < 1:
            yield (
                f"rollout.kv_cache_mib = {rollout.kv_cache_mib:,}: expected room for one sequence of max_model_len = "
                f"{rollout.max_model_len:,} tokens"
            )


def _check_teacher(setting: Setting, name: str, teacher: Model) -> None:
    if teacher is not setting.model:
        layout = setting.layout
        sizes = layout.parallel, layout.nproc, layout.rollout.max_model_len
        check_teacher(f"{setting.stage.name}.teachers, {name}", teacher.hf, setting.model.hf, *sizes)


def _places(engines: int, tensor: int, nodes: int, gpus: int) -> Iterator[str]:
    if engines % nodes:
        yield f"rollout.engines: expected a multiple of the {nodes} nodes, found {engines}"
    elif engines // nodes * tensor > gpus:
        yield (
            f"rollout.engines = {engines} x rollout.tensor = {tensor}: expected at most the {gpus} GPUs of a node, "
            f"found {engines // nodes * tensor} workers on each"
        )


def memory(setting: Setting) -> dict[str, Terms]:
    """Phase -> terms of the fullest GPU, which a trainer rank and a worker of an engine share."""
    ranks = range(0, setting.layout.nproc, setting.layout.nproc // setting.layout.parallel.pipeline)
    of_stages = [_memory_of(setting, rank) for rank in ranks]
    return {name: max((phases[name] for phases in of_stages), key=lambda t: sum(t.values())) for name in of_stages[0]}


def _memory_of(setting: Setting, rank: int) -> dict[str, Terms]:
    trainer = TrainerRank(
        setting.model,
        setting.stage,
        setting.layout,
        setting.work,
        rank,
        setting.gpu.kernel_config,
        setting.assumed,
        setting.teachers.values(),
    )
    held, kept = trainer.resident(), trainer.kept()
    asleep: Terms = setting.worker.asleep() if setting.has_engines else {}
    awake: Terms = setting.worker.awake() if setting.has_engines else {}
    judge, judge_asleep = judge_memory(setting.stage, setting.worker, setting.work.longest)
    reading = {**held, **trainer.reading(), **asleep, **judge_asleep}
    phases: dict[str, Terms] = {}
    if setting.has_engines:
        phases["engine"] = {**held, **kept, **awake, **judge}
    if setting.samples or not setting.stage.trains_policy:
        phases["log-prob"] = reading
    if setting.teachers:
        phases["teachers"] = {**held, **trainer.teaching(), **asleep, **judge_asleep}
    elif has_copy(setting.stage, setting.model, ()):
        phases["reference"] = reading
    phases["train"] = {**held, **trainer.training(), **asleep, **judge_asleep}
    if setting.has_engines:
        phases["refit"] = {**held, **kept, **trainer.refit(), **awake, **setting.worker.refit(), **judge_asleep}
    return phases


def _timed(setting: Setting) -> Iterator[Phase]:
    seconds = _seconds(setting)
    for name, terms in memory(setting).items():
        yield Phase(name, terms, seconds.get(name, 0.0))
    if verification := _sandbox_core_seconds(setting):
        yield Phase("verify", {}, verification / (setting.gpu.cores_per_node * setting.nodes))
    if setting.samples:
        yield Phase("control", {}, _hand_out(setting))


def _seconds(setting: Setting) -> dict[str, float]:
    model, stage, layout, work = setting.model, setting.stage, setting.layout, setting.work
    forward = _forward(setting, model)
    seconds = {"log-prob": forward, "reference": forward, "train": passes(layout.parallel) * forward}
    if setting.samples:
        seconds["engine"] = _engines(setting).generation(work.drawn, work.prompt, work.answer, work.longest_answer)
        seconds["refit"] = refit_seconds(model, layout.rollout, setting.gpu, setting.assumed)
    if isinstance(stage, MopdStage):
        teachers = [setting.teachers[teacher_name(*teacher)] for teacher in stage.teachers.items()]
        forward = sum(_forward(setting, teacher) for teacher in teachers) / len(teachers)
        reading = sum(reading_seconds(teacher, setting.assumed) for teacher in setting.teachers.values())
        seconds["teachers"] = forward + reading
    return seconds


def _forward(setting: Setting, model: Model) -> float:
    return forward_seconds(model, setting.stage, setting.layout, setting.work, setting.gpu, setting.assumed)


def _hand_out(setting: Setting) -> float:
    return hand_out_seconds(setting.model, setting.layout, setting.work, setting.assumed, setting.states)


def _engines(setting: Setting) -> EngineTime:
    return EngineTime(setting.model, setting.layout.rollout, setting.gpu, setting.assumed)


def _cache(setting: Setting) -> CacheUse:
    work, cache = setting.work, setting.worker.cache()
    rollout = setting.layout.rollout
    longest, mean = (work.longest, work.mean) if setting.samples else (rollout.max_model_len, work.mean)
    each = math.ceil((work.drawn or _evaluated(setting)) / rollout.engines)
    return CacheUse(
        tokens=int(cache.sequences(rollout.max_model_len) * rollout.max_model_len),
        block_tokens=cache.block_tokens,
        sequences_at_longest=cache.sequences(longest),
        sequences_at_mean=cache.sequences(mean),
        running=_engines(setting).batch(each, mean),
    )


def _evaluated(setting: Setting) -> int:
    return len(setting.evaluation.domains) * setting.evaluation.prompts_per_domain


def _evaluation(setting: Setting) -> float:
    """Seconds of the evaluations before and after the stage. That of a reward model is negligible."""
    if not setting.has_engines:
        return 0.0
    longest = setting.evaluation.max_new_tokens
    mean = max(round(setting.assumed.answer_share * longest), 1)
    prompt = min(setting.assumed.prompt_tokens, setting.layout.rollout.max_model_len - longest)
    return 2 * _engines(setting).generation(_evaluated(setting), prompt, mean, longest)


def _host_bytes(setting: Setting) -> float:
    model, layout, gpus = setting.model, setting.layout, min(setting.layout.nproc, setting.gpu.gpus_per_node)
    samples = sample_host_bytes(model, setting.stage, layout, setting.work, gpus, setting.states)
    first = (0, layout.nproc, layout.parallel)
    lora = setting.stage.lora
    checkpoint = checkpoint_host_bytes(model.adapters(*first, lora).state if lora else model.state(*first))
    teachers = sum(_shard_bytes(teacher, layout) for teacher in setting.teachers.values())
    return samples + gpus * (checkpoint + teachers) + judge_host_bytes(setting.stage, setting.worker, gpus)


def _shard_bytes(teacher: Model, layout: Layout) -> int:
    return teacher.state(0, layout.nproc, teacher_layout(teacher.hf, layout.parallel)).weights


def _sandbox_core_seconds(setting: Setting) -> float:
    """Core seconds of a step. Several domains are assumed to have equal shares."""
    stage = setting.stage
    if not isinstance(stage, OnPolicyStage) or isinstance(stage, MopdStage):
        return 0.0
    costs = [setting.assumed.core_seconds.get(domain, 0.0) for domain in stage.trained_domains]
    return setting.work.drawn * sum(costs) / len(costs)
