"""The scoring process of `BradleyTerryScorer`: `python -m ... FOLDER`, one JSON line in and one out for each batch."""

import json
import os
import sys
from pathlib import Path

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.engine.core.quiet_libraries import quiet_libraries
from cascade_rl.rl_stages.rewards.reward_models.shaping import scored_text


def serve(folder: Path) -> None:
    """Answers until stdin ends. What libraries print goes to stderr."""
    from transformers import AutoTokenizer

    from cascade_rl.rl_stages.rewards.reward_models.bradley_terry_model import (
        TOKEN_BUDGET,
        encode_answer,
        load,
        rewards,
    )

    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    trainer, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    for line in sys.stdin:
        batch = [encode_answer(tokenizer, messages, scored_text(answer)) for messages, answer in json.loads(line)]
        trainer.token_budget = max(TOKEN_BUDGET, *(len(sequence.loss_mask) for sequence in batch))
        replies.write(json.dumps(rewards(trainer, batch).tolist()) + "\n")
        replies.flush()


if __name__ == "__main__":
    die_with_parent()
    quiet_libraries()
    serve(Path(sys.argv[1]))
