"""Whether a prompt ends inside of the reasoning: thinking templates write the `<think>` of an answer into its prompt.

Verifiers see the sampled text. Without this, one that never leaves its reasoning looks like an answer
(huggingface/trl#6966, PrimeIntellect-ai/verifiers#213).
"""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from cascade_rl.rl_stages.core.verdict import END_OF_REASONING, REASONING, final_answer
from cascade_rl.rl_stages.data.tokenizer import turn_opening

TAIL = 256  # tokens; the opening of a turn is shorter


def never_answers(tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int] | np.ndarray, text: str) -> bool:
    """Whether `text`, sampled after that prompt, has no end of its reasoning."""
    return final_answer(opened_by(tokenizer, prompt_ids) + text) is None


def opened_by(tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int] | np.ndarray) -> str:
    """The `<think>` with which the prompt begins its answer; empty if it opens none, or also closes it."""
    tail = str(tokenizer.decode(prompt_ids[-TAIL:]))
    if REASONING not in tail:
        return ""
    header = turn_opening(tokenizer).partition(REASONING)[0].strip()  # the same in every mode
    turn = tail[tail.rindex(header) :] if header and header in tail else tail.rstrip()[-len(REASONING) :]
    return REASONING if turn.rfind(REASONING) > turn.rfind(END_OF_REASONING) else ""
