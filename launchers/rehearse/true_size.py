"""What would fail if the cascade were started at its true size, as far as a machine without its GPUs can tell.

In the order in which a run would meet it: a server whose name does not resolve, prompts that are too long, a layout
that the engine would refuse, memory that the plan says is missing.
"""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.local.prompt_lengths import overlong_prompts
from cascade_rl.launchers.plan.cascade_plan import plan_cascade
from cascade_rl.launchers.plan.hardware import names, read_hardware
from cascade_rl.launchers.plan.table import verdict
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.run.known_data import KnownData


def failures(cascade: Cascade, base: BaseModel, sources: Mapping[str, str]) -> dict[str, list[str]]:
    """A line each, by stage. `base` has the tokenizer and `sources` has the rows that stand in for what is not here."""
    known, planned = KnownData(), _of_plan(cascade)
    return {
        stage.name: [*_of_stage(cascade, stage, base, sources, known), *planned.get(stage.name, ())]
        for stage in cascade.stages
    }


def _of_stage(
    cascade: Cascade, stage: Stage, base: BaseModel, sources: Mapping[str, str], known: KnownData
) -> Iterator[str]:
    judge = stage.reward_model if isinstance(stage, GrpoStage) else None
    if judge and judge.url and not _resolves(judge.url):
        yield f"{stage.name}: its judge {judge.model} is expected at {judge.url}, which does not resolve here"
    if isinstance(stage, OnPolicyStage):
        data = tuple(sources.get(source.path, source.path) for source in map(Source.parse, stage.data))
        readable = replace(cascade, base=replace(base, published=cascade.base.published))
        yield from _overlong(replace(stage, data=data), readable, known)


def _overlong(stage: OnPolicyStage, cascade: Cascade, known: KnownData) -> Iterator[str]:
    """Of one stage, as it stands in the whole cascade, whose layouts and evaluation decide the lengths."""
    stages = tuple(stage if other.name == stage.name else other for other in cascade.stages)
    try:
        yield from overlong_prompts(replace(cascade, stages=stages), known, [stage])
    except UserError as error:
        yield str(error)


def _of_plan(cascade: Cascade) -> dict[str, list[str]]:
    if cascade.hardware not in names():
        return {}
    plan = plan_cascade(cascade, *read_hardware(cascade.hardware))
    return {stage.name: list(verdict(plan, stage)) for stage in plan.stages}


def _resolves(url: str) -> bool:
    try:
        socket.getaddrinfo(urlsplit(url).hostname, None)
    except OSError:
        return False
    return True
