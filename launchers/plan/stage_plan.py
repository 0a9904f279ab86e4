"""The plan of one stage: problems of its layout, memory and time of each phase, and the total cost."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from cascade_rl.distillation.teacher_model import check_teacher, teacher_layout
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.precisions import check_gpu_precision
from cascade_rl.engine.models import check_layout
from cascade_rl.engine.models.layout import divides, token_multiple
from cascade_rl.engine.rollout.engine_layout import check_cut
from cascade_rl.engine.rollout.seats import divide
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import Assumed, Gpu
from cascade_rl.launchers.plan.judge_memory import judge_host_bytes, judge_memory
from cascade_rl.launchers.plan.model import Model, teacher_name
from cascade_rl.launchers.plan.pace import STEP, Way, pace_of, way_of
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
    def apart(self) -> bool:
        """Whether the engines have GPUs of their own."""
        return self.layout.rollout.placement == "disaggregated" and self.has_engines

    @property
    def engine_gpus(self) -> int:
        """Those that no rank of the trainer shares."""
        return self.layout.rollout.engines * self.layout.rollout.tensor if self.apart else 0

    @property
    def gpus(self) -> int:
        return self.layout.nproc + self.engine_gpus

    @property
    def nodes(self) -> int:
        return math.ceil(self.gpus / self.gpu.gpus_per_node)

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

    way     how engines and trainer share a step, and `flow` of the engines where samples are in flight
    mends   the nearest settings that fit, if the stage does not
    sandbox_core_hours   of all verifications that run programs
    """

    name: str
    kind: str
    gpus: int
    steps: int
    problems: tuple[str, ...]
    way: Way = "in turn"
    phases: tuple[Phase, ...] = ()
    cache: CacheUse | None = None
    flow: float = 0.0
    tokens: int = 0
    evaluation_seconds: float = 0.0
    sandbox_core_hours: float = 0.0
    disk: Mapping[str, float] | None = None
    host_bytes_per_node: float = 0.0
    mends: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        return STEP[self.way](pace_of({phase.name: phase.seconds for phase in self.phases}, self.flow))

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
    way: Way = way_of(layout.rollout.max_staleness) if setting.samples else "in turn"
    made = StagePlan(stage.name, stage.kind, setting.gpus, stage.steps, tuple(problems(setting)), way)
    if made.problems:
        return made
    return replace(
        made,
        phases=tuple(_timed(setting)),
        cache=_cache(setting) if setting.has_engines else None,
        flow=flow(setting, layout.rollout.max_staleness) if way == "in flight" else 0.0,
        tokens=work.tokens,
        evaluation_seconds=_evaluation(setting),
        sandbox_core_hours=stage.steps * _sandbox_core_seconds(setting) / 3600,
        disk=disk_bytes(setting.model, stage, layout, work),
        host_bytes_per_node=_host_bytes(setting),
    )


def problems(setting: Setting) -> Iterator[str]:
    """What the engine would refuse, in its own words, and what would make it fail in the middle of a step."""
    layout, rollout = setting.layout, setting.layout.rollout
    checks: list[Callable[[], object]] = [partial(check_gpu_precision, layout.parallel.precision)]
    if not divides(setting.model.hf, setting.model.name_map, layout.parallel, layout.nproc):
        checks.append(partial(check_layout, setting.model.hf, layout.parallel, layout.nproc))
    checks += [partial(_check_teacher, setting, *teacher) for teacher in setting.teachers.items()]
    if setting.has_engines:
        checks += [setting.worker.weights, partial(check_cut, setting.model.hf, rollout)]
    yield from _refusals(checks)
    multiple = token_multiple(layout.parallel)
    longest = -(-setting.work.longest // multiple) * multiple
    if longest > setting.stage.token_budget:
        yield (
            f"token_budget = {setting.stage.token_budget:,}: expected room for the longest sequence, {longest:,} "
            f"tokens (of which {setting.work.prompt:,} are the prompt)"
        )
    if setting.has_engines:
        yield from _places(setting)
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


def _refusals(checks: Iterable[Callable[[], object]]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except UserError as error:
            yield str(error)


def _places(setting: Setting) -> Iterator[str]:
    """What does not divide over the nodes, and engines that share more GPUs of a node than its ranks have."""
    rollout = setting.layout.rollout
    try:
        division = divide(setting.layout.nproc, rollout, setting.gpu.gpus_per_node)
    except UserError as error:
        yield str(error)
        return
    workers = 0 if setting.apart else rollout.engines // division.nodes * rollout.tensor
    if workers > division.ranks:
        yield (
            f"rollout.engines = {rollout.engines} x rollout.tensor = {rollout.tensor}: expected at most the "
            f"{division.ranks} GPUs of a node, found {workers} workers on each"
        )


def memory(setting: Setting) -> dict[str, Terms]:
    """Phase -> terms of the fullest GPU, which a trainer rank and a worker of an engine share unless they are apart."""
    ranks = range(0, setting.layout.nproc, setting.layout.nproc // setting.layout.parallel.pipeline)
    of_stages = [_memory_of(setting, rank) for rank in ranks]
    return {name: max((phases[name] for phases in of_stages), key=lambda t: sum(t.values())) for name in of_stages[0]}


def fullest_bytes(setting: Setting) -> float:
    """Of the fullest GPU in its fullest phase."""
    return max(sum(terms.values()) for terms in memory(setting).values())


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
    held, kept, worker = trainer.resident(), trainer.kept(), setting.worker
    judge, judge_asleep = judge_memory(setting.stage, worker, setting.work.longest)
    asleep = {**(worker.asleep() if setting.has_engines else {}), **judge_asleep}
    beside: Terms = {} if setting.apart else asleep
    reading = {**held, **trainer.reading(), **beside}
    phases: dict[str, Terms] = {}
    if setting.has_engines:
        phases["engine"] = _fullest(setting, {**held, **kept}, {**worker.awake(), **judge})
    if setting.samples or not setting.stage.trains_policy:
        phases["log-prob"] = reading
    if setting.teachers:
        phases["teachers"] = {**held, **trainer.teaching(), **beside}
    elif has_copy(setting.stage, setting.model, ()):
        phases["reference"] = reading
    phases["train"] = {**held, **trainer.training(), **beside}
    if setting.has_engines:
        receiving = {**worker.awake(), **worker.refit(), **judge_asleep}
        phases["refit"] = _fullest(setting, {**held, **kept, **trainer.refit()}, receiving)
    return phases


def _fullest(setting: Setting, trainer: Terms, engine: Terms) -> Terms:
    """Of the GPU that both share, or of the fuller one where they do not."""
    return max(trainer, engine, key=lambda terms: sum(terms.values())) if setting.apart else {**trainer, **engine}


def _timed(setting: Setting) -> Iterator[Phase]:
    needs, takes = memory(setting), seconds(setting)
    for name in (*needs, *(name for name in takes if name not in needs)):
        yield Phase(name, needs.get(name, {}), takes.get(name, 0.0))


def seconds(setting: Setting) -> dict[str, float]:
    """Phase of a step -> how long it takes, whatever else goes on at the same time."""
    model, stage, layout, work = setting.model, setting.stage, setting.layout, setting.work
    forward = _forward(setting, model)
    found = {"train": passes(layout.parallel) * forward}
    if setting.samples or not stage.trains_policy:
        found["log-prob"] = forward
    if isinstance(stage, MopdStage):
        found["teachers"] = _teaching_seconds(setting, stage)
    elif has_copy(stage, model, ()):
        found["reference"] = forward
    if setting.samples:
        found["engine"] = engines(setting).generation(work.drawn, work.prompt, work.answer, work.longest_answer)
        found["refit"] = refit_seconds(model, layout.rollout, setting.gpu, setting.assumed)
    if verification := _sandbox_core_seconds(setting):
        found["verify"] = verification / (setting.gpu.cores_per_node * setting.nodes)
    if setting.samples:
        found["control"] = hand_out_seconds(model, layout, work, setting.assumed, setting.states)
    return found


def _teaching_seconds(setting: Setting, stage: MopdStage) -> float:
    """Each domain's share of the samples is read by its teacher."""
    teachers = [setting.teachers[teacher_name(*teacher)] for teacher in stage.teachers.items()]
    forward = sum(_forward(setting, teacher) for teacher in teachers) / len(teachers)
    return forward + sum(reading_seconds(teacher, setting.assumed) for teacher in setting.teachers.values())


def flow(setting: Setting, staleness: int) -> float:
    """Seconds of the engines for a step's samples, with those of `staleness` steps in flight."""
    work = setting.work
    return engines(setting).flow(work.drawn, work.prompt, work.answer, work.longest_answer, staleness)


def _forward(setting: Setting, model: Model) -> float:
    return forward_seconds(model, setting.stage, setting.layout, setting.work, setting.gpu, setting.assumed)


def engines(setting: Setting) -> EngineTime:
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
        running=engines(setting).batch(each, mean),
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
    return 2 * engines(setting).generation(_evaluated(setting), prompt, mean, longest)


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
