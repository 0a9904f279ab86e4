"""Replaces the reward of answers that switch to another script than their English prompt (arXiv 2512.13607, section 4).

The paper speaks of non-English tokens. Here letters decide: Latin and Greek letters, which formulas are full of, count
as English, also in styled variants. Letters of any other script do not. So a French prompt counts as English, and a
French answer is not detected.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.scoring.scored_sample import Penalty, Sample

LETTERS = ("Lu", "Ll", "Lt", "Lo")
ENGLISH = ("LATIN", "GREEK")
SYMBOLS = range(0x2100, 0x2150)  # letterlike symbols: the Hebrew letters among them are cardinal numbers


def has_foreign_letters(text: str) -> bool:
    return any(_is_foreign(character) for character in set(text) if not character.isascii())


def is_switched(task: Task, text: str) -> bool:
    """Whether `text`, including its reasoning, has foreign letters and the prompt has none."""
    return has_foreign_letters(text) and not any(has_foreign_letters(m["content"]) for m in task.messages)


def with_code_switch(samples: Sequence[Sample], rule: CodeSwitch) -> list[Sample]:
    """The batch with the rule's reward on its switched samples. Infrastructure failures still have no reward."""
    lowest = min((sample.reward for sample in samples if sample.reward is not None), default=0.0)
    penalty = Penalty("code_switch", rule.reward + (lowest if rule.relative_to == "lowest" else 0.0))
    return [
        replace(sample, penalty=penalty)
        if sample.reward is not None and is_switched(sample.task, sample.text)
        else sample
        for sample in samples
    ]


def _is_foreign(character: str) -> bool:
    if unicodedata.category(character) not in LETTERS or ord(character) in SYMBOLS:
        return False
    plain = unicodedata.normalize("NFKC", character)
    return not unicodedata.name(plain[0], "").startswith(ENGLISH)
