"""The plan of a whole cascade."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cascade_rl.launchers.plan.hardware import Assumed, Gpu
from cascade_rl.launchers.plan.model import model_of, teachers_of
from cascade_rl.launchers.plan.search.mend import mends
from cascade_rl.launchers.plan.search.split import Split, splits
from cascade_rl.launchers.plan.stage_plan import Setting, StagePlan, plan_stage
from cascade_rl.rl_stages.config.cascade import Cascade


@dataclass(frozen=True)
class Plan:
    """`model` describes the model, `source` says where its config.json was found.

    splits   stage -> its GPUs shared between trainer and engines in the best of each way
    """

    cascade: str
    gpu: Gpu
    assumed: Assumed
    model: str
    source: str
    stages: tuple[StagePlan, ...]
    splits: Mapping[str, tuple[Split, ...]]

    @property
    def gpu_hours(self) -> float:
        return sum(stage.gpu_hours for stage in self.stages)

    @property
    def disk_bytes(self) -> float:
        return sum(sum(stage.disk.values()) for stage in self.stages if stage.disk)

    @property
    def fits(self) -> bool:
        return all(stage.fits(self.gpu.capacity) for stage in self.stages)


def plan_cascade(cascade: Cascade, gpu: Gpu, assumed: Assumed) -> Plan:
    """Plans all stages, in the launcher's layouts for this GPU if it has any. Raises UserError for an unknown model,
    or for a teacher that is not here."""
    model = model_of(cascade.base)
    if gpu.name in cascade.layouts:
        cascade = replace(cascade, hardware=gpu.name)
    settings = [
        Setting(model, stage, cascade.layout(stage), cascade.evaluation, gpu, assumed, teachers_of(stage, model))
        for stage in cascade.stages
    ]
    described = f"{model.parameters:,} parameters, {model.file_itemsize} bytes each in its files"
    shared = {setting.stage.name: splits(setting) for setting in settings}
    return Plan(cascade.name, gpu, assumed, described, model.source, tuple(map(_mended, settings)), shared)


def _mended(setting: Setting) -> StagePlan:
    made = plan_stage(setting)
    return made if made.fits(setting.gpu.capacity) else replace(made, mends=mends(setting))
