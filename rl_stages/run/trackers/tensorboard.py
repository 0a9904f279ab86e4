"""TensorBoard: event files in the stage's folder. It is always written, and needs no server."""

from collections.abc import Mapping

from cascade_rl.rl_stages.run.run_folder import StageFolder


class TensorBoard:
    """A tracker. Hides what a killed attempt wrote after the newest checkpoint, so that a repeated step counts once."""

    id = None

    def __init__(self, folder: StageFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder.root / "tensorboard"), purge_step=folder.last_step() + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:
        self._writer.close()
