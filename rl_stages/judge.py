"""Verdicts on finished samples: text from ids, truncation from the finish, the rest from the domain's verifier."""

from typing import Self

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.sample import Outcome, Rollout
from cascade_rl.rl_stages.domains import domain_named
from cascade_rl.rl_stages.task import Task
from cascade_rl.rl_stages.verdict import Verdict, Verifier


class Judge:
    """One verifier per domain, made when first needed; a context manager."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.verifiers: dict[str, Verifier] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for verifier in self.verifiers.values():
            verifier.close()

    def __call__(self, task: Task, rollout: Rollout) -> tuple[str, Verdict]:
        """The answer's text and the verdict on it. An answer that did not end is not looked at: score 0."""
        ended = rollout.finish == "stop"
        text = self.tokenizer.decode(rollout.token_ids[:-1] if ended else rollout.token_ids)
        if not ended:
            return text, Verdict(Outcome.TRUNCATED, 0.0, detail="reached max_new_tokens")
        return text, self._verifier(task.domain)(task, text)

    def _verifier(self, domain: str) -> Verifier:
        if domain not in self.verifiers:
            self.verifiers[domain] = domain_named(domain).verifier()
        return self.verifiers[domain]
