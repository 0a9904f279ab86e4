"""A teacher that is an adapter on some base: it needs memory for its factors alone."""

from pathlib import Path

from cascade_rl.engine.lora.adapters import merge_shard
from cascade_rl.engine.lora.peft import read_factors
from cascade_rl.engine.lora.peft_config import read_peft
from cascade_rl.engine.lora.rules import factor_map, with_partners
from cascade_rl.engine.models import family_of
from cascade_rl.engine.train.trainer import Trainer


class TeacherAdapter:
    """The adapter in `folder`, in PEFT's form, on this rank's weights of `model`. Factors are in host memory.

    Raises UserError as `read_factors` does.
    """

    def __init__(self, model: Trainer, folder: Path) -> None:
        self._scale = read_peft(folder).scale
        self._weights = dict(model.module.named_parameters())
        self._factors = list(read_factors(folder, model.hf_config))

    @property
    def bytes(self) -> int:
        return sum(a.nbytes + b.nbytes for _, a, b in self._factors)

    def merge(self) -> None:
        """The weights, which are the base's, become the teacher's."""
        for shard, a, b in self._factors:
            weight = self._weights[shard.weight.name]
            merge_shard(weight, weight.detach(), shard, a, b, self._scale)


def fits(folder: Path, student: Trainer) -> bool:
    """Whether all weights that the adapter in `folder` changes have adapters of the student's too."""
    assert student.lora
    name_map = family_of(student.hf_config).name_map(student.hf_config)
    teacher = with_partners(name_map, read_peft(folder))
    changed, own = (factor_map(name_map, lora).parameters for lora in (teacher, student.lora.config))
    return set(map(str, changed)) <= set(map(str, own))
