"""The first steps where they fail: a loss that does not fall, an engine that is off. They pass with vLLM in
tests/engine/sync/test_refit.py."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import pytest

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.rollouts import Request, Rollout, Scored
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.sync.probe import whole_sequence
from cascade_rl.engine.sync.weight_sync import Refit, StaleWeights
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.card import first_step
from cascade_rl.launchers.card.check import Unfit
from tests.engine.models import tiny
from tests.gloo import run_ranks

BOUND = 1e-3


class TrainersEcho:
    """Its log-probs are the trainer's plus `off`."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.off = trainer, 0.0

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        found = self.trainer.log_probs([whole_sequence(ids) for ids in sequences])
        return [Scored(logprobs + np.float32(self.off), None) for logprobs in found]

    def generate(self, requests: Sequence[Request], *_: object) -> Iterator[Rollout]:
        for request in requests:
            prompt, answer = np.array(request.prompt_ids), np.arange(request.sampling.max_new_tokens)
            (scored,) = self.score([[*prompt, *answer]])
            yield Rollout(request.id, prompt, answer, scored.logprobs[-len(answer) :], None, ((0, 0),), "length")

    def lacking(self, version: int) -> dict[int, int]:
        return {}

    def restart(self) -> None: ...

    def awaits_weights(self) -> bool:
        return False

    joining = receiving = nullcontext


def refusal(step: Callable[[], str]) -> str:
    with pytest.raises((Unfit, StaleWeights)) as error:
        step()
    return str(error.value)


def told() -> list[str]:
    parallel = ParallelConfig()
    initialize_distributed(parallel, 1)
    hf = tiny.qwen3(architectures=["Qwen3ForCausalLM"]).to_dict()
    rate = OptimizerConfig(lr=1e-2)
    trainer = Trainer(hf, parallel, rate, total_steps=9, token_budget=first_step.TOKEN_BUDGET, seed=1)
    engine, probe = TrainersEcho(trainer), first_step.texts(tiny.VOCABULARY)
    refit = Refit(trainer, engine, probe, RolloutConfig(max_model_len=64, probe_bound=BOUND))
    right = [first_step.step(trainer), first_step.refitted(refit), first_step.generated(refit)]
    engine.off = 2 * BOUND
    wrong = [refusal(lambda: first_step.refitted(refit)), refusal(lambda: first_step.generated(refit))]
    trainer.optimizer_config = OptimizerConfig(lr=0.0)
    return [*right, *wrong, refusal(lambda: first_step.step(trainer))]


def test_what_the_first_steps_say() -> None:
    step, refit, generation, stale, apart, flat = run_ranks(1, told)[0]
    assert "gradient norm" in step
    assert refit == "largest gap of a log-prob 0.0e+00, expected at most 1e-03"
    assert generation.startswith(f"{first_step.SEQUENCES * first_step.NEW_TOKENS} tokens, largest gap of a log-prob")
    assert "the engine does not sample from the weights that were sent" in stale
    assert "expected trainer and engine to agree on sampled tokens within 1e-03" in apart
    assert "found a gap of 2.0e-03 and 1.0000: see docs/symptoms/tme_grows.md" in apart
    assert "expected the loss to fall over 3 steps on the same tokens" in flat
