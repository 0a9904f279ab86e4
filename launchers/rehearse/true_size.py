"""What would fail if the cascade were started at its true size, as far as a machine without its GPUs can tell.

In the order in which a run would meet it: a server whose name does not resolve, prompts that are too long, a layout
that the engine would refuse, memory that the plan says is missing.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
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
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.run.known_data import KnownData


def failures(cascade: Cascade, base: BaseModel, sources: Mapping[str, str]) -> dict[str, list[str]]:
    """A line each, by stage. `base` has the tokenizer and `sources` has the rows that stand in for what is not here."""
    known, planned = KnownData(), _of_plan(cascade)
    readable = replace(cascade, base=base, stages=tuple(_moved(stage, sources) for stage in cascade.stages))
    return {stage.name: [*_of_stage(readable, stage, known), *planned.get(stage.name, ())] for stage in readable.stages}


def _moved(stage: Stage, sources: Mapping[str, str]) -> Stage:
    return replace(stage, data=_paths(stage.data, sources), heldout=_paths(stage.heldout, sources))


def _paths(data: Sequence[str], sources: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sources.get(source.path, source.path) for source in parse_sources(data))


def _of_stage(cascade: Cascade, stage: Stage, known: KnownData) -> Iterator[str]:
    judge = stage.reward_model if isinstance(stage, GrpoStage) else None
    if judge and judge.url and not _resolves(judge.url):
        yield f"{stage.name}: its judge {judge.model} is expected at {judge.url}, which does not resolve here"
    try:
        yield from overlong_prompts(cascade, known, [stage])
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
