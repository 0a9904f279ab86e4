"""A step of a run that can be recomputed, found without torch: to read its samples and weights takes seconds."""

from dataclasses import dataclass
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder


@dataclass(frozen=True)
class RecordedStep:
    """`step` counts from 1. Its weights are those of the checkpoint after `step - 1` others.

    ledgers  those of its weights, and of the older ones that it may have learned from
    """

    run: RunFolder
    stage: StageFolder
    step: int
    config: GrpoStage | MopdStage
    ledgers: tuple[Path, ...]

    @classmethod
    def find(cls, root: Path, name: str, step: int) -> "RecordedStep":
        """Raises UserError for another kind of stage, and if the data of the step are gone."""
        run = RunFolder.open(root)
        stage = run.stage(name)
        config = _settings(stage, step)
        if not stage.rollouts(step).exists() or step > len(stage.metrics.rows()):
            raise UserError(f"{stage.label}: expected the samples and metrics of step {step}, found none")
        _require_checkpoint(stage, step - 1)
        stale = run.cascade.layout(stage.config).rollout.max_staleness
        ledgers = tuple(path for version in range(step - 1 - stale, step) if (path := stage.ledger(version)).exists())
        if not ledgers:
            raise UserError(
                f"{stage.label}: expected the ledger of step {step} in {stage.ledger(step - 1)}, found none. It is "
                "deleted together with the checkpoint before the step: keep_checkpoints says how many are kept"
            )
        return cls(run, stage, step, config, ledgers)


def _settings(stage: StageFolder, step: int) -> GrpoStage | MopdStage:
    match stage.config:
        case GrpoStage() as config:
            return config.at(step - 1)
        case MopdStage() as config:
            return config
    raise UserError(
        f"{stage.label}: expected a GRPO or MOPD stage, found {stage.config.kind}, whose steps record no samples"
    )


def _require_checkpoint(stage: StageFolder, before: int) -> None:
    if before and before not in (steps := stage.checkpoint_steps()):
        kept = ", ".join(map(str, steps))
        raise UserError(
            f"{stage.label}: expected the checkpoint of step {before}, found those of steps {kept}. "
            "Name the step after one of these; checkpoint_every and keep_checkpoints say which there are"
        )
