"""The log files of jobs through NeMo-Run. A separate module, because it imports NeMo-Run."""

from dataclasses import dataclass
from pathlib import Path

from nemo_run.core.execution.slurm import SlurmJobDetails


@dataclass(kw_only=True)
class StageLogs(SlurmJobDetails):
    """Puts the logs into the stage's folder, with the names that the sbatch backend uses."""

    @property
    def stdout(self) -> Path:
        return self._in_folder("sbatch_%j.out")

    @property
    def srun_stdout(self) -> Path:
        return self._in_folder("job_%j_${SLURM_RESTART_COUNT:-0}.out")

    def _in_folder(self, name: str) -> Path:
        assert self.folder is not None
        return Path(self.folder) / name
