"""The answers that `cascade verify` scores: lines of a file, or the rollouts that a run recorded.

A line is {"row": number of its row, from 1} or {"id": id of its row or task}, with {"answer": text, or the texts of an
episode's turns}. With {"score": number} it says what the answer was worth before; so does what `--out` writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.report.rollouts import open_tokenizer
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.core.verdict import REASONING, final_answer
from cascade_rl.rl_stages.data.rows import Row, RowError, parse_line, read_lines
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.scoring.scored_sample import Rule

COLUMNS = (
    *("id", "task_id", "domain", "prompt_ids", "token_ids", "generated", "turns", "reward", "reward_parts", "finish"),
    "text",
)
TAIL = 16  # tokens of a prompt: enough for `<think>` and the white space behind it
FORM = '{"row": number from 1, or "id": text, "answer": text or a list of texts, "score"?: number}'

Kind = Literal["id", "row"]
Decoder = Callable[[list[int]], str]


class Name(NamedTuple):
    """How an answer names its row."""

    kind: Kind
    value: str

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"

    def field(self) -> dict[str, str | int]:
        """As a line says it."""
        return {self.kind: int(self.value) if self.kind == "row" else self.value}


@dataclass(frozen=True)
class Given:
    """An answer.

    where     its line, or the id of its sample
    turns     one text, or the model's texts in an episode
    cut       it reached a limit of its tokens
    thinking  it never leaves the reasoning that its prompt opened
    recorded  the score that it once had; None if there is none
    """

    where: str
    name: Name
    turns: tuple[str, ...]
    cut: bool = False
    thinking: bool = False
    recorded: float | None = None


@dataclass(frozen=True)
class Answers:
    """What was read; of a run, also how many rollouts were left out by reason."""

    given: Sequence[Given]
    of_run: bool = False
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def recorded(self) -> bool:
        return any(answer.recorded is not None for answer in self.given)


def read_answers(path: Path) -> Answers:
    """The answers of a JSONL file; or those of a run's rollout file, or of all such files below a folder.

    Raises UserError for any other file, and with its location for a malformed line.
    """
    if not path.exists():
        raise UserError(f"{path}: expected a .jsonl file of answers, or a run; found nothing there. Change the path")
    if path.is_dir() or path.suffix == ".parquet":
        left_out: Counter[str] = Counter()
        found = [given for file in rollout_files(path) for given in _rollouts(file, left_out)]
        return Answers(found, True, left_out)
    given = [_given(parse_line(line, where), where) for where, line in read_lines(path)]
    if not given:
        raise UserError(f"{path}: expected lines {FORM}; found an empty file")
    return Answers(given)


def rollout_files(path: Path) -> list[Path]:
    """The rollout files of a run, of a stage, or this one. Raises UserError if there is none."""
    files = [path] if path.is_file() else sorted(path.rglob("rollouts/step_*.parquet"))
    current = [file for file in files if "superseded" not in file.parts]
    if not current:
        raise UserError(f"{path}: expected a run with rollouts/step_*.parquet; found none. Name the folder of a run")
    return current


def _given(line: Row, where: str) -> Given:
    named = [Name(kind, str(line[kind])) for kind in get_args(Kind) if kind in line]
    answer, score = line.get("answer"), line.get("score")
    turns: Any = [answer] if isinstance(answer, str) else answer
    right = len(named) == 1 and isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns)
    if not right or type(score) not in (int, float, type(None)):
        raise RowError(f"{where}: expected {FORM}; found {shown(line)}")
    return Given(where, named[0], tuple(turns), recorded=score)


def _rollouts(file: Path, left_out: Counter[str]) -> Iterator[Given]:
    """The samples whose score came from rules. The others are counted in `left_out`."""
    run = RunFolder.open(file.absolute().parents[3])
    stage = next(stage for stage in run.stages if stage.root.name == file.absolute().parents[1].name)
    judged = stage.config.domain if isinstance(stage.config, GrpoStage) and stage.config.reward_model else None
    decoded = _decoder(run)
    for row in read_samples(file, COLUMNS):
        if row["domain"] == judged:
            left_out["scored by a reward model"] += 1
        elif (score := _recorded(row)) is None:
            left_out["the run has no score"] += 1
        else:
            turns = (row["text"],) if row["generated"] is None else _turns(row, decoded)
            thinking = _thinking(row["prompt_ids"], turns, decoded)
            yield Given(row["id"], Name("id", row["task_id"]), turns, row["finish"] != "stop", thinking, score)


def _recorded(row: Mapping[str, Any]) -> float | None:
    """The verdict's score, also where a rule of the stage gave another reward."""
    parts: dict[str, float] = dict(row["reward_parts"])
    score = parts["score"] if parts.keys() & set(get_args(Rule)) else row["reward"]
    return None if score is None else float(score)


def _thinking(prompt: list[int], turns: Sequence[str], decoded: Decoder) -> bool:
    """Whether a turn has no end of the reasoning that the prompt opens with its last word, as templates write it."""
    unended = any(final_answer(REASONING + turn) is None for turn in turns)
    return unended and decoded(prompt[-TAIL:]).rstrip().endswith(REASONING)


def _turns(row: Mapping[str, Any], decoded: Decoder) -> tuple[str, ...]:
    """What the model said in each turn, without the stop token."""
    spans = groupby(zip(row["token_ids"], row["generated"], strict=True), key=lambda pair: pair[1])
    return tuple(decoded([token for token, _ in span][:-1]) for own, span in spans if own)


def _decoder(run: RunFolder) -> Decoder:
    """Opens the run's tokenizer when it is first needed."""
    tokenizer = cache(lambda: open_tokenizer(run))
    return lambda ids: str(tokenizer().decode(ids, skip_special_tokens=False))
