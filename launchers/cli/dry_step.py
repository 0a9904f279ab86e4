"""`cascade dry-step`: a training step of one rank of a launcher's stage on fake tensors, beside what the plan says."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.routes import routes_dtype
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.launchers.plan.command import load_cascade
from cascade_rl.launchers.plan.hardware import GIB, read_hardware
from cascade_rl.launchers.plan.model import Model, model_of
from cascade_rl.launchers.plan.trainer_memory import TrainerRank
from cascade_rl.launchers.plan.workload import workload_of
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.config.text import override

if TYPE_CHECKING:
    from cascade_rl.engine.train.dry_step import DryStep
    from cascade_rl.engine.train.losses import Loss

STATE = ("weights", "gradients", "optimizer")
FORWARD = ("activations", "head", "batch")
PEAK = (*FORWARD, "backward")
"""Terms of the plan. Its head has what the head's backward allocates, so that a forward pass holds less."""


def run(options: argparse.Namespace) -> int:
    rank = trainer_rank(options.launcher, options.stage, options.hardware, options.rank, options.settings)
    found = step_of(rank, read_hardware(options.hardware)[0].kernels)
    layout = rank.layout
    title = f"{options.stage}: rank {rank.rank} of {layout.nproc}, {rank.tokens:,} tokens a pass, GiB"
    table = Table("", "dry step", "plan", "difference", title=title)
    for row in _rows(found, rank):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    if found.without_gradient:
        console.print(f"trained parameters without a gradient: {', '.join(found.without_gradient)}", style="red")
    return 1 if found.without_gradient else 0


def trainer_rank(
    launcher: Path, stage_name: str, hardware: str, number: int, settings: Sequence[str] = ()
) -> TrainerRank:
    """Raises UserError for an unknown stage, or one that trains no policy."""
    cascade, (gpu, assumed) = override(load_cascade(launcher), settings), read_hardware(hardware)
    if hardware in cascade.layouts:
        cascade = replace(cascade, hardware=hardware)
    stage = next((stage for stage in cascade.stages if stage.name == stage_name), None)
    if not isinstance(stage, SftStage | OnPolicyStage):
        expected = ", ".join(stage.name for stage in cascade.stages if isinstance(stage, SftStage | OnPolicyStage))
        raise UserError(f"stage: expected one that trains a policy, {expected}, found {stage_name}.")
    layout = cascade.layout(stage)
    work = workload_of(stage, layout.rollout, assumed)
    return TrainerRank(model_of(cascade.base), stage, layout, work, number, gpu.kernel_config, assumed)


def step_of(rank: TrainerRank, architecture: str) -> "DryStep":
    """Each micro-batch is a sequence of `token_budget` tokens. A replica has one, and a pipeline enough to be full."""
    from cascade_rl.engine.train.dry_step import dry_step

    parallel, stage = rank.parallel, rank.stage
    replicas = rank.layout.nproc // (parallel.tensor * parallel.pipeline * parallel.context)
    micro_batches = 1 if parallel.pipeline == 1 else 2 * parallel.pipeline
    return dry_step(
        rank.model.hf,
        parallel,
        [_sequence(rank.model, stage, rank.layout)] * replicas * micro_batches,
        _loss(stage),
        rank=rank.rank,
        world=rank.layout.nproc,
        token_budget=stage.token_budget,
        architecture=architecture,
        router=stage.router,
    )


def _loss(stage: Stage) -> "Loss":
    from cascade_rl.engine.train.losses import PolicyLoss, SftLoss
    from cascade_rl.kernels.policy_objective import PolicyObjective

    return SftLoss() if isinstance(stage, SftStage) else PolicyLoss(PolicyObjective())


def _sequence(model: Model, stage: Stage, layout: Layout) -> TrainSequence:
    """Its routes, if they are replayed, choose the experts evenly."""
    tokens, routes = stage.token_budget, None
    values: dict[str, np.ndarray] = {}
    if isinstance(stage, OnPolicyStage):
        values = {name: np.ones(tokens, np.float32) for name in ("advantage", "share", "rollout_logprob")}
        if layout.rollout.replay_routes and model.routes:
            layers = model.pattern.count("E")
            chosen = np.arange(tokens * model.routes) % model.experts
            routes = chosen.reshape(tokens, layers, -1).astype(routes_dtype(model.experts - 1))
    return TrainSequence(np.zeros(tokens + 1, np.int64), np.ones(tokens, bool), 1.0, values, routes)


def _rows(found: "DryStep", rank: TrainerRank) -> Iterator[tuple[str, ...]]:
    held, training = rank.resident(), rank.training()
    for name in STATE:
        yield _row(name, getattr(found, name), held[name])
    for name, size, terms in (("forward pass", found.forward, FORWARD), ("peak of the step", found.peak, PEAK)):
        yield _row(name, size, sum(training[term] for term in terms))


def _row(name: str, found: float, planned: float) -> tuple[str, ...]:
    return name, *(f"{size / GIB:.3f}" for size in (found, planned, found - planned))
