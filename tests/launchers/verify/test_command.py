"""`cascade verify` on files of answers and on the rollouts of a run: what it prints, writes and returns."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.launchers.verify import command
from cascade_rl.launchers.verify.answers import read_answers
from cascade_rl.launchers.verify.matching import matched
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.data.tokenizer import END, train_tokenizer
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, write_samples
from cascade_rl.rl_stages.tasks.demonstration import load_demonstrations
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.row_form import RowForm
from tests.rl_stages.rewards.hacks.right_answers import spoken

RED_OR_BLUE = {"options": [{"A": "red"}, {"B": "blue"}], "expected_answer": "B"}
QUESTION = {"long_context_kind": "qa", "expected_answer": "blue", "question": "Which?"}


def row(domain: str, **fields: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "Which?"}]}
    return {"responses_create_params": params, "agent_ref": {"name": domain}} | fields


def write(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return write(tmp_path / "rows.jsonl", [row("mcqa", **RED_OR_BLUE), row("mcqa", id=7, **RED_OR_BLUE)])


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_row_does_not_choose_what_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "python:evil:run"
    (tmp_path / "evil.py").write_text("raise SystemExit('called')")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = write(tmp_path / "rows.jsonl", [row(name)])
    answers = write(tmp_path / "answers.jsonl", [{"row": 1, "answer": "x"}])
    with pytest.raises(UserError, match=r"somebody else's reward .* found 'python:evil:run'"):
        command.run([rows, answers])
    (pair,) = matched([rows], read_answers(Path(answers)), RowForm([name]))
    assert pair.task.domain == name


def test_answers_are_scored_by_their_rows(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are named by number, by their own id, or by the id that rollouts have."""
    given = [
        {"row": 1, "answer": "\\boxed{B}"},
        {"id": 7, "answer": "\\boxed{A}"},
        {"id": "rows-000001", "answer": "<think>\\boxed{B}"},
    ]
    answers, out = write(tmp_path / "answers.jsonl", given), tmp_path / "out.jsonl"
    assert command.run([rows, answers, "--out", str(out)]) == 0
    lines = [line.split("\t") for line in told(capsys)]
    assert [line[:4] for line in lines[:3]] == [
        [f"{answers}:1", "1", "1", "completed"],
        [f"{answers}:2", "7", "0", "completed"],
        [f"{answers}:3", "rows-000001", "0", "wrong_format"],
    ]
    assert lines[3][0].startswith("3 answers: mean score 0.3333; completed 2, wrong_format 1; ")
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["score"], line["outcome"]) for line in written] == [
        (1.0, "completed"),
        (0.0, "completed"),
        (0.0, "wrong_format"),
    ]
    assert [(line.get("row"), str(line.get("id")), line["answer"]) for line in written] == [
        (line.get("row"), str(line.get("id")), line["answer"]) for line in given
    ]


def test_rows_of_another_form_are_read_as_in_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "rows.jsonl", [{"q": "What is 3 + 4?", "expected_answer": "7"}])
    answers = write(tmp_path / "answers.jsonl", [{"row": 1, "answer": "\\boxed{7}"}])
    assert command.run([rows, answers, "--domain", "math", "--column", "prompt=q"]) == 0
    assert told(capsys)[0].split("\t")[1:4] == ["1", "1", "completed"]
    with pytest.raises(UserError, match="--column: expected FIELD=COLUMN; found 'q'"):
        command.run([rows, answers, "--domain", "math", "--column", "q"])


def test_of_recorded_scores_only_the_differences_are_shown(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `--out` wrote is read again, after the rules have changed."""
    answers = write(tmp_path / "answers.jsonl", [{"row": 1, "answer": f"\\boxed{{{letter}}}"} for letter in "BA"])
    out = tmp_path / "out.jsonl"
    assert command.run([rows, answers, "--out", str(out)]) == 0
    told(capsys)
    assert command.run([rows, str(out)]) == 0
    assert told(capsys)[1:] == ["0 of 2 recorded scores differ"]
    before = [json.loads(line) for line in out.read_text().splitlines()]
    assert command.run([rows, write(tmp_path / "before.jsonl", [before[0], before[1] | {"score": 0.5}])]) == 1
    shown, _, summary = told(capsys)
    assert shown.split("\t")[1:5] == ["1", "0.5", "0", "completed"]
    assert summary == "1 of 2 recorded scores differ; 0.5 -> 0: 1"


def test_an_answer_without_a_score_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "rows.jsonl", [row("long_context", **QUESTION)])
    assert command.run([rows, write(tmp_path / "answers.jsonl", [{"row": 1, "answer": "azure"}])]) == 1
    assert told(capsys)[0].split("\t")[2:4] == ["none", "infrastructure_failure"]


def test_the_turns_of_an_episode_are_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = spoken(next(DOMAINS["workplace"].lessons()).right(None))  # type: ignore[misc, arg-type]
    given = [{"row": 1, "answer": turns}, {"row": 2, "answer": turns}, {"row": 1, "answer": turns[:-1]}]
    assert command.run(["generate:workplace", write(tmp_path / "answers.jsonl", given)]) == 0
    lines = [line.split("\t")[2:4] for line in told(capsys)[:3]]
    assert lines == [["1", "completed"], ["0", "completed"], ["0", "truncated"]]


# The rollouts of a run.


def recorded(name: str, domain: str, text: str, reward: float | None, **other: Any) -> SampleRecord:
    settings = {
        "id": f"{name}/0",
        "task_id": name,
        "domain": domain,
        "reward": reward,
        "text": text,
        "finish": "stop",
        "outcome": Outcome.COMPLETED,
        "prompt_ids": np.array([1]),
        "token_ids": np.array([0]),
        "advantage": 0.0,
        "versions": ((0, 0),),
    }
    arrays = dict.fromkeys(("rollout_logprobs", "train_logprobs"), np.zeros(1, np.float32))
    return SampleRecord(**{**settings, **arrays, "loss_mask": np.ones(1, bool), **other})


def episode(name: str, tokenizer: Any, turns: list[str], reward: float) -> SampleRecord:
    """The turns with their stop tokens, and a word of the environment between two of them."""
    shown = tokenizer.encode("shown")
    spans = [tokenizer.encode(turn + END) for turn in turns]
    ids = [*chain.from_iterable([*span, *shown] for span in spans)][: -len(shown)]
    own = [*chain.from_iterable([True] * len(span) + [False] * len(shown) for span in spans)][: -len(shown)]
    return recorded(name, "workplace", "", reward, token_ids=np.array(ids), generated=np.array(own), turns=3)


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """Two stages: one that rules score, and one whose own domain a reward model scores."""
    rl: dict[str, Any] = {"steps": 1, "token_budget": 512, "sampling": Sampling(8), "rollouts_per_prompt": 2}
    judge = RewardModel(kind="server", url="http://127.0.0.1:1", model="judge", max_tokens=8)
    cascade = Cascade(
        name="verified",
        base=BaseModel(hf_config={"model_type": "nemotron_h"}),
        rollout=RolloutConfig(max_model_len=512),
        evaluation=Evaluation(domains=("mcqa", "workplace", "long_context"), prompts_per_domain=1, max_new_tokens=8),
        stages=(
            GrpoStage(name="rules", domain="mcqa", data=("generate:mcqa", "generate:workplace"), **rl),
            GrpoStage(name="judged", domain="long_context", data=("generate:long_context",), reward_model=judge, **rl),
        ),
    )
    demonstrations = load_demonstrations("generate:workplace@1", count=20, seed=0)
    tokenizer = train_tokenizer(demonstration.messages for demonstration in demonstrations)
    turns = spoken(next(DOMAINS["workplace"].lessons()).right(None))  # type: ignore[misc, arg-type]
    opened = np.array(tokenizer.encode("Which?<think>\n", add_special_tokens=False))
    right = next(DOMAINS["mcqa"].lessons()).right(None)  # type: ignore[misc, arg-type]
    with RunFolder.claim(tmp_path / "run", cascade) as (run, _):
        tokenizer.save_pretrained(run.root / "tokenizer")
        write_samples(
            run.stage("rules").rollouts(1),
            [
                recorded("mcqa-000000", "mcqa", str(right), 1.0),
                recorded("mcqa-000000", "mcqa", str(right), 0.0),  # as rules once said
                recorded("mcqa-000000", "mcqa", "?", -1.0, reward_parts={"score": 0.0, "wrong_format": 1.0}),
                recorded("mcqa-000000", "mcqa", str(right), 0.0, finish="length", outcome=Outcome.TRUNCATED),
                recorded("mcqa-000000", "mcqa", "", None, outcome=Outcome.INFRASTRUCTURE_FAILURE, finish="abort"),
                recorded("mcqa-000000", "mcqa", str(right), 0.0, prompt_ids=opened),  # it never leaves its reasoning
                recorded("other-000000", "mcqa", str(right), 1.0),
                episode("workplace-000000", tokenizer, turns, 1.0),
                episode("workplace-000001", tokenizer, turns, 1.0),
            ],
        )
        write_samples(run.stage("judged").rollouts(1), [recorded("long_context-000000", "long_context", "x", 0.3)])
        yield run.root


def test_rollouts_of_a_run_are_scored_again(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["generate:mcqa", "generate:workplace", str(run_folder)]) == 1
    *shown, unscored, judged, no_row, _, summary = told(capsys)
    assert [line.split("\t")[1:4] for line in shown] == [
        ["mcqa-000000", "0", "1"],
        ["workplace-000001", "1", "0"],
    ]
    assert {unscored, judged, no_row} == {
        "left out, the run has no score: 1",
        "left out, scored by a reward model: 1",
        "left out, its row is not in ROWS: 1",
    }
    assert summary == "2 of 7 recorded scores differ; 0 -> 1: 1; 1 -> 0: 1"


def test_a_file_of_a_run_or_a_stage_can_be_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stage,) = run_folder.glob("stages/*_rules")
    for place in (stage, stage / "rollouts" / "step_00001.parquet"):
        assert command.run(["generate:mcqa", str(place)]) == 1
        assert told(capsys)[-1] == "1 of 5 recorded scores differ; 0 -> 1: 1"
    (judged,) = run_folder.glob("stages/*_judged")
    with pytest.raises(UserError, match="found none that rules can score"):
        command.run(["generate:long_context", str(judged)])


# What is refused.

BAD = [
    ({"answer": "B"}, r"answers\.jsonl:1: expected \{\"row\": .*; found \{'answer': 'B'\}"),
    ({"row": 1, "id": "7", "answer": "B"}, "expected .*; found .*'id': '7'"),
    ({"row": 1, "answer": []}, "expected .*; found .*'answer': \\[\\]"),
    ({"row": 1, "answer": "B", "score": True}, "expected .*; found .*'score': True"),
    (
        {"row": 3, "answer": "B"},
        r"expected answers to rows of .*; found .*answers\.jsonl:1, of row 3\. Change",
    ),
    ({"row": 3, "answer": "B", "score": 1}, "expected answers to rows of .*; found .*, of row 3"),
    ({"row": 1, "answer": ["A", "B"]}, "expected one text, since mcqa has no turns; found 2 texts"),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=[str(line) for line, _ in BAD])
def test_malformed_answers_are_refused(line: dict[str, Any], message: str, rows: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        command.run([rows, write(tmp_path / "answers.jsonl", [line])])


def test_rows_that_cannot_be_told_apart_or_read_are_refused(rows: str, tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.jsonl", [{"row": 1, "answer": "B"}])
    with pytest.raises(UserError, match="expected one row of row 1; found a second"):
        command.run([rows, rows, answers])
    with pytest.raises(UserError, match=r"bad\.jsonl:1: expected .*options"):
        command.run([write(tmp_path / "bad.jsonl", [row("mcqa", options=[], expected_answer="B")]), answers])
    for missing, found in ((tmp_path / "none.jsonl", "found nothing there"), (tmp_path, "found none")):
        with pytest.raises(UserError, match=found):
            command.run([rows, str(missing)])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="found an empty file"):
        command.run([rows, str(tmp_path / "empty.jsonl")])


def test_the_command_says_what_is_wrong_and_exits_with_2(rows: str, tmp_path: Path) -> None:
    cascade = [sys.executable, "-P", "-m", "cascade_rl.launchers.cli.main", "verify"]
    right = write(tmp_path / "answers.jsonl", [{"row": 2, "answer": "\\boxed{B}"}])
    found = subprocess.run([*cascade, rows, right], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "") and "\t2\t1\tcompleted\t" in found.stdout
    found = subprocess.run([*cascade, rows, str(tmp_path / "none.jsonl")], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr.startswith("cascade: ")
