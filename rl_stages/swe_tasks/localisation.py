"""The files that an agentless repair shows: the golden ones, or these among others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.repository import Files, can_be_patched
from cascade_rl.rl_stages.swe_tasks.repair_prompt import repair_prompt
from cascade_rl.rl_stages.swe_tasks.retrieval import retrieved

Localisation = Callable[[Instance], Files | None]
"""The files of an instance's second prompt; None if it has no second prompt."""


def golden_files(instance: Instance) -> dict[str, str]:
    """The files that the golden patch changes, before the change. UserError if it changes anything else."""
    files, repaired = instance.repository.files, instance.repaired
    paths = sorted(path for path in files.keys() | repaired.keys() if files.get(path) != repaired.get(path))
    if outside := [path for path in paths if path not in files or path not in repaired or not can_be_patched(path)]:
        raise UserError(f"expected a golden patch of existing source files only; found one of {outside[0]}")
    return {path: files[path] for path in paths}


def retrieved_files(instance: Instance) -> Files | None:
    """The retrieved files. None if they lack a golden one, as no answer could be right, or are the golden ones."""
    found = retrieved(instance.problem_statement, instance.repository.files)
    return found if golden_files(instance).keys() < found.keys() else None


@dataclass(frozen=True)
class GoldenAndNoise:
    """The golden files and retrieved ones that they are not: subset B of Cascade 1 (arXiv 2512.13607, section 4).

    Noise files are taken in random order, each if the prompt then has at most `longest` tokens. All files are shown in
    random order. None if no noise file fits. The order follows from the instance's id.

    tokens  the number of tokens of a prompt
    """

    longest: int
    tokens: Callable[[str], int]

    def __call__(self, instance: Instance) -> Files | None:
        golden, issue = golden_files(instance), instance.problem_statement
        noise = [
            (path, text) for path, text in retrieved(issue, instance.repository.files).items() if path not in golden
        ]
        rng = random.Random(instance.id)
        shown = dict(golden)
        for path, text in rng.sample(noise, len(noise)):
            if self.tokens(repair_prompt(issue, {**shown, path: text})) <= self.longest:
                shown[path] = text
        return dict(rng.sample(sorted(shown.items()), len(shown))) if len(shown) > len(golden) else None
