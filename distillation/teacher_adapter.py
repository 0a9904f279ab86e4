"""A teacher that is an adapter on some base: it needs memory for its factors alone."""

from pathlib import Path

from cascade_rl.engine.core.settings import LoraConfig
from cascade_rl.engine.lora.adapters import merge_shard
from cascade_rl.engine.lora.peft import read_factors
from cascade_rl.engine.lora.peft_config import read_peft
from cascade_rl.engine.lora.rules import factor_map
from cascade_rl.engine.models import HfConfig, family_of
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
    return _names(read_peft(folder), student.hf_config) <= _names(student.lora.config, student.hf_config)


def _names(lora: LoraConfig, hf: HfConfig) -> set[str]:
    return {str(parameter) for parameter in factor_map(family_of(hf).name_map(hf), lora).parameters}
