"""Agentless SWE: a SEARCH/REPLACE repair, scored without running anything.

Nemotron-Cascade 1 gives -1 to an answer that cannot be parsed, 0 to a patch that changes nothing, 1 to the golden
patch, and the judge's P(YES) to any other (arXiv 2512.13607, Eq. 2). Scores here are in [0, 1], because gates and
held-out means read them. An answer that cannot be parsed is a "wrong format", to which a stage gives -1 in training
(`GrpoStage.wrong_format_reward`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeFailure
from cascade_rl.rl_stages.rewards.swe import similarity
from cascade_rl.rl_stages.rewards.swe.judgement import judge_messages, yes_probability
from cascade_rl.rl_stages.rewards.swe.patch import PatchError, apply_edits, parse_edits
from cascade_rl.rl_stages.rewards.swe.repository import Files, checked_files
from cascade_rl.rl_stages.rewards.swe.unified_diff import DiffError, apply_unified_diff

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task
    from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeModel

MAX_ANSWER_CHARACTERS = 100_000

Lexical = Literal["exact", "difflib"]


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier's fields, checked: `files` that a patch may change, {path: text}, and `gold_patch`, a unified diff.

    The prompt holds the issue, these files and the instructions. A judge reads all of it.
    """
    files, diff = checked_files(row.get("files"), "files"), row.get("gold_patch")
    if not isinstance(diff, str):
        raise UserError(f"expected 'gold_patch' to be a unified diff; found {str(diff)[:80]!r}")
    try:
        repaired = apply_unified_diff(files, diff)
    except DiffError as error:
        raise UserError(f"expected 'gold_patch' to apply to the files; found one that does not: {error}") from None
    if repaired == files:
        raise UserError("expected 'gold_patch' to change 'files'; found no change")
    return {"files": files, "gold_patch": diff}


class SweAgentlessVerifier:
    """See the module. Without a judge, a patch other than the golden one scores by `lexical`.

    judge    gives P(YES) in at most `max_tokens`; closed with the verifier. Its failures are infrastructure failures
    lexical  "exact": 0, "difflib": the similarity of SWE-RL (arXiv 2502.18449), near 1 for any edit of the right line
    """

    def __init__(
        self,
        judge: JudgeModel | None = None,
        max_tokens: int = 4096,
        lexical: Lexical = "exact",
        deadline_seconds: float = 5.0,
    ) -> None:
        self.concurrency = judge.concurrency if judge else 1
        self._judge = judge
        self._max_tokens = max_tokens
        self._lexical = lexical
        self._worker = DeadlineCheck(similarity.__name__, deadline_seconds)

    def __call__(self, task: Task, text: str) -> Verdict:
        files: Files = task.metadata["files"]
        try:
            patched = apply_edits(files, parse_edits(bounded_answer(text)))
        except PatchError as error:
            return Verdict.wrong_format(str(error))
        repaired = apply_unified_diff(files, task.metadata["gold_patch"])
        if patched in (files, repaired):
            return Verdict.scored(float(patched == repaired), detail="golden" if patched == repaired else "no change")
        if self._judge:
            diff = self._worker({"before": files, "answer": patched})
            return self._judged(self._judge, task, diff.detail) if diff.score == similarity.DIFFERENT else diff
        if self._lexical == "exact":
            return Verdict.scored(0.0, detail="not the golden patch")
        return self._worker({"before": files, "expected": repaired, "answer": patched})

    def close(self) -> None:
        """Ends the worker process and the judge, if there are any."""
        self._worker.close()
        if self._judge:
            self._judge.close()

    def _judged(self, judge: JudgeModel, task: Task, candidate: str) -> Verdict:
        messages = judge_messages(task.messages[-1]["content"], task.metadata["gold_patch"], candidate)
        try:
            score = yes_probability(judge, messages, self._max_tokens)
        except JudgeFailure as failure:
            return Verdict.infrastructure_failure(str(failure))
        return Verdict.scored(min(score, 1.0), detail=f"P(YES) {score:.3f}")


def bounded_answer(text: str) -> str:
    """The answer after its reasoning. PatchError if it is not finished or far too long."""
    answer = final_answer(text)
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        raise PatchError(
            f"expected a finished answer of at most {MAX_ANSWER_CHARACTERS} characters; it is unfinished or longer"
        )
    return answer
