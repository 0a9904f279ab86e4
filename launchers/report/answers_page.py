"""The answers of `cascade eval` as one HTML file: its numbers, and each answer token by token as a run's rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from cascade_rl.launchers.report.blocks import json_block
from cascade_rl.launchers.report.page import SCRIPTS, assembled, resource, rollout_blocks
from cascade_rl.launchers.report.rollouts import File, Rollouts, count
from cascade_rl.rl_stages.run.durable_file import write_atomically

LIMIT = 100_000  # answers in the file, as in a run's report


@dataclass(frozen=True)
class Answers:
    """What the page shows.

    facts      names and values at the top
    numbers    of the tables, as in OUT/results.json
    sources    who answered, by the index that `files` have as their stage
    tokenizer  of all sources: the texts of tokens are in the page once
    """

    title: str
    facts: Mapping[str, str]
    numbers: Mapping[str, Any]
    sources: Sequence[str]
    files: Sequence[File]
    tokenizer: Any


def write_answers(out: Path, answers: Answers) -> Rollouts:
    """Returns what is known of the answers, of which a large evaluation has more than the page."""
    rollouts = Rollouts(total=count(answers.files), limit=LIMIT)
    chunks = "".join(rollout_blocks(answers.tokenizer, rollouts, answers.files))
    facts = {
        "evaluation": [*answers.facts.items()],
        "header": {"name": answers.title},
        "benchmarks": answers.numbers,
        "stages": [{"name": source, "label": source, "band": None, "distilled": False} for source in answers.sources],
        "rollouts": rollouts.facts(),
        "experts": [],
        "bytes": len(chunks),
    }
    parts = {
        "title": escape(f"{answers.title}: answers"),
        "run": json_block("run", facts),
        "script": "\n".join(map(resource, SCRIPTS)),
        "blocks": chunks,
    }
    write_atomically(out, assembled(parts))
    return rollouts
