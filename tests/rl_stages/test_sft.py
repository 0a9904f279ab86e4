"""Which demonstrations a step learns from, and which of their tokens."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.rl_stages import sft
from cascade_rl.rl_stages.base_model import _train_tokenizer
from cascade_rl.rl_stages.config import BaseModel, Cascade, Evaluation, SftStage

STAGE = SftStage(
    name="sft",
    domain="general",
    data=("generate:instruction_following@0.5", "generate:math@0.5"),
    steps=3,
    sequences_per_step=5,
    token_budget=512,
)
CASCADE = Cascade(
    name="tiny",
    base=BaseModel(hf_config={"vocab_size": 512}),
    evaluation=Evaluation(domains=("math",), prompts_per_domain=8, max_new_tokens=24),
    stages=(STAGE,),
)
TOKENIZER = _train_tokenizer(CASCADE)


def session(seed: int = 1) -> Any:
    return SimpleNamespace(stage=STAGE, seed=seed, tokenizer=TOKENIZER)


def test_sources_take_turns_and_fill_every_step() -> None:
    texts = [TOKENIZER.decode(sequence.token_ids) for sequence in sft._encode_all(session())]
    assert len(texts) == STAGE.steps * STAGE.sequences_per_step
    assert ["\\boxed" in text for text in texts] == [False, True] * 7 + [False]


def test_the_answer_and_its_stop_token_are_learned_and_nothing_else() -> None:
    for sequence in sft._encode_all(session()):
        learned = sequence.token_ids[1:][sequence.loss_mask]
        context = sequence.token_ids[: len(sequence.token_ids) - len(learned)]
        assert TOKENIZER.decode(context).endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert learned[-1] == TOKENIZER.eos_token_id
        assert not np.isin(TOKENIZER.all_special_ids, learned[:-1]).any()
        assert len(sequence.loss_mask) == len(sequence.token_ids) - 1


def test_the_order_is_a_function_of_the_seed() -> None:
    first, again, other = (
        [sequence.token_ids.tolist() for sequence in sft._encode_all(session(seed))] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_stage_that_was_killed_after_its_last_step_sends_no_weights_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session begins with the newest weights in the sampler, which takes a version only once."""
    monkeypatch.setattr(sft, "from_rank0", lambda produce: produce())
    resumed, sent = session(), []
    resumed.first_step, resumed.steps, resumed.refit = STAGE.steps, lambda: iter(()), sent.append
    sft.run(resumed)
    assert sent == []
