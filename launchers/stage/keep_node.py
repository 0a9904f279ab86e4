"""The first process of a node that has engines and no rank.

    python -m cascade_rl.launchers.stage.keep_node RUN NUMBER HEAD PORT

It computes nothing, and takes no memory of a card.
"""

import sys
from pathlib import Path

from cascade_rl.engine.core.quiet_libraries import quiet_libraries
from cascade_rl.rl_stages.run.run_folder import RunFolder


def main(run: Path, number: int, head: str, port: int) -> None:
    from cascade_rl.engine.backend.machine import keep_compiled
    from cascade_rl.engine.rollout.nodes import keep_node
    from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

    if vllm_cpu_patches.takes_cards():  # not by `backend()`, which opens one
        keep_compiled(RunFolder.open(run).cache)
    keep_node(number, head, port)


if __name__ == "__main__":
    quiet_libraries()
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
