"""RLHF: in training, a generative reward model ranks the answers to one prompt by comparing them in pairs.

Held-out answers come alone. They are scored by the observable properties that their row lists, as constraints of
instruction following. This measure is the same for all stages, and a policy that games the reward model does not
raise it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.reward_models.aggregation import (
    Judgement,
    Pair,
    all_pairs,
    circular_pairs,
    mean_scores,
    with_length_terms,
)
from cascade_rl.rl_stages.rewards.reward_models.genrm import comparison, parse_judgement
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeFailure, JudgeModel
from cascade_rl.rl_stages.rewards.verifiers.instructions import instruction_following
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import InstructionFollowingVerifier

if TYPE_CHECKING:
    from cascade_rl.rl_stages.config.reward_model import RewardModel
    from cascade_rl.rl_stages.core.task import Task

NO_ANSWER = "expected an answer after the reasoning; found none"
SHOWN_CHARACTERS = 200


class UnreadableJudgement(RuntimeError):
    """The judge's answer contains no judgement that can be read."""


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row's fields, checked; all are optional.

    `principle` says what the judge should look for. The fields of instruction following say what evaluation looks for,
    graded by the share that is met.
    """
    principle = row.get("principle")
    if principle is not None and not (isinstance(principle, str) and principle.strip()):
        raise UserError(f"expected 'principle' to be non-empty text; found {principle!r}")
    if "instruction_id_list" not in row:
        return {"principle": principle}
    return {"principle": principle} | instruction_following.parse_row({"grading_mode": "fraction", **row})


def needs_judge(fields: Mapping[str, Any]) -> bool:
    """Whether nothing in the row says what an answer that comes alone is scored by."""
    return "instruction_id_list" not in fields


class HeldoutVerifier(InstructionFollowingVerifier):
    """Scores one answer by the properties that its row lists. Without any, it has no score."""

    def __call__(self, task: Task, text: str) -> Verdict:
        if needs_judge(task.metadata):
            return Verdict.infrastructure_failure(
                "expected 'instruction_id_list' in the row, to score an answer that has no others to be compared with"
            )
        return super().__call__(task, text)


class RankingVerifier:
    """Rewards of a group by a generative reward model, on the model's scale of about 1 to 5.

    Comparisons that fail, or miss the deadline of the group, are dropped. An answer without any comparison left is an
    infrastructure failure, as is one without another to compare it with. Closing it closes the judge.
    """

    scores_truncated = False

    def __init__(self, judge: JudgeModel, settings: RewardModel, group_size: int) -> None:
        self._judge = judge
        self._settings = settings
        self._calls = ThreadPoolExecutor(judge.concurrency, thread_name_prefix="comparison")
        self.concurrency = -(-judge.concurrency // len(self._pairs(group_size)))

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """A verdict for each text; those without an answer are not compared."""
        answers = {index: answer for index, answer in enumerate(map(final_answer, texts)) if answer}
        ranked = self._rank(task, [texts[index] for index in answers], list(answers.values()))
        verdicts = dict(zip(answers, ranked, strict=True))
        return [verdicts.get(index) or Verdict.wrong_format(NO_ANSWER) for index in range(len(texts))]

    def close(self) -> None:
        """Ends the judge and drops waiting comparisons."""
        self._judge.close()
        self._calls.shutdown(cancel_futures=True)

    def _pairs(self, count: int) -> list[Pair]:
        offsets = self._settings.genrm.offsets
        return circular_pairs(count, offsets) if offsets else all_pairs(count)

    def _rank(self, task: Task, texts: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        if len(answers) < 2:
            return [Verdict.infrastructure_failure("expected another answer to compare with; found none")] * len(
                answers
            )
        pairs = self._pairs(len(answers))
        calls = {pair: self._calls.submit(self._compare, task, *(answers[index] for index in pair)) for pair in pairs}
        wait(calls.values(), self._settings.deadline_seconds)
        judgements, failures = _collect(calls)
        base = mean_scores(len(answers), judgements)
        rates = _rates(judgements, failures)
        rewards = self._rewards(base, texts, answers)
        return [
            Verdict.infrastructure_failure(f"none of its comparisons succeeded: {_told(failures)}")
            if score is None or reward is None
            else Verdict.scored(reward, {"base": score, "conciseness": reward - score, **rates}, _told(failures))
            for score, reward in zip(base, rewards, strict=True)
        ]

    def _compare(self, task: Task, first: str, second: str) -> Judgement:
        settings = self._settings
        messages = comparison(task.messages, task.metadata["principle"], first, second, settings.genrm.prompt)
        completion = self._judge.complete(
            messages, max_tokens=settings.max_tokens, temperature=settings.temperature, top_p=settings.top_p
        )
        judgement = parse_judgement(completion.answer)
        if judgement is None:
            raise UnreadableJudgement(
                f"expected scores in JSON at the reply's end, found {completion.text[-SHOWN_CHARACTERS:]!r}"
            )
        return judgement

    def _rewards(
        self, base: Sequence[float | None], texts: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """The scores with their length terms, which count only answers that have a score."""
        scored = {index: score for index, score in enumerate(base) if score is not None}
        if not scored:
            return [None] * len(base)
        reasoning = [len(_reasoning(texts[index])) for index in scored]
        lengths = [len(answers[index]) for index in scored]
        rewards = with_length_terms(list(scored.values()), reasoning, lengths, self._settings.genrm.terms)
        return [dict(zip(scored, rewards, strict=True)).get(index) for index in range(len(base))]


def _collect(calls: Mapping[Pair, Future[Judgement]]) -> tuple[dict[Pair, Judgement], list[Exception]]:
    """The judgements that arrived, and the failures of the others. Unfinished calls are abandoned."""
    judgements: dict[Pair, Judgement] = {}
    failures: list[Exception] = []
    for pair, call in calls.items():
        if call.cancel() or not call.done():
            failures.append(JudgeFailure("not done at the deadline of its group"))
            continue
        try:
            judgements[pair] = call.result()
        except (JudgeFailure, UnreadableJudgement) as failure:
            failures.append(failure)
    return judgements, failures


def _rates(judgements: Mapping[Pair, Judgement], failures: Sequence[Exception]) -> dict[str, float]:
    """Shares of a group's comparisons."""
    count = len(judgements) + len(failures)
    unreadable = sum(isinstance(failure, UnreadableJudgement) for failure in failures)
    return {
        "tie_rate": sum(judgement.is_tie for judgement in judgements.values()) / max(len(judgements), 1),
        "unreadable_rate": unreadable / count,
        "judge_failure_rate": (len(failures) - unreadable) / count,
    }


def _told(failures: Sequence[Exception]) -> str:
    return f"{len(failures)} comparisons failed, the last: {failures[-1]}" if failures else ""


def _reasoning(text: str) -> str:
    return text.rpartition("</think>")[0].replace("<think>", "").strip()
