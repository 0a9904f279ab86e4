"""A scoring process of `BradleyTerryScorer`.

    python -m cascade_rl.rl_stages.rewards.reward_models.bradley_terry.server FD PARENT

FD is an inherited socket. The first message on it is a `Model`, and the answer None or the UserError that it meets.
Each further message is a list of conversations, and the answer their rewards. PARENT is the id of the process that
started this one.
"""

import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.engine.cluster.rank_environment import ALONE
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.engine.core.quiet_libraries import quiet_libraries
from cascade_rl.engine.core.settings import Precision

if TYPE_CHECKING:
    from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.classifier import ClassifierModel
    from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.trained_model import TrainedModel


@dataclass(frozen=True)
class Model:
    """The folder of a reward model, and the dtype of its hidden states ("float32" or "bfloat16")."""

    folder: Path
    dtype: Precision


def open_model(model: Model) -> "ClassifierModel | TrainedModel":
    """A published reward model, or the export of a `reward_model` stage. UserError if the folder holds neither."""
    import torch

    from cascade_rl.engine.models.head import SCALAR_HEAD_FILE
    from cascade_rl.rl_stages.rewards.reward_models.bradley_terry import classifier, trained_model

    dtype, head = getattr(torch, model.dtype), model.folder / SCALAR_HEAD_FILE
    if not head.is_file():
        return classifier.checkpoint(model.folder, dtype)
    if not classifier.is_classified(model.folder):
        return trained_model.TrainedModel(model.folder, model.dtype)
    return classifier.export(model.folder, dtype, head)


def serve(connection: Connection) -> None:
    """Answers until the connection ends."""
    try:
        model = open_model(connection.recv())
    except UserError as error:
        connection.send(error)
        return
    connection.send(None)
    while True:
        connection.send(model.score(connection.recv()))


def main() -> None:
    die_with_parent()
    if os.getppid() != int(sys.argv[2]):
        sys.exit("the rank that started this process ended before the process could ask to end with it")
    quiet_libraries()
    os.environ.update(ALONE)
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        sys.exit("the trainer closed the connection")


if __name__ == "__main__":
    main()
