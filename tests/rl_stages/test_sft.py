"""Which demonstrations a step learns from, and which of their tokens."""

import json
import zlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.rl_stages import sft
from cascade_rl.rl_stages.base_model import _train_tokenizer
from cascade_rl.rl_stages.config.base import HELDOUT_FRACTION, BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage

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


def session(seed: int = 1, **changes: Any) -> Any:
    stage = replace(STAGE, **changes)
    return SimpleNamespace(cascade=CASCADE, stage=stage, seed=seed, tokenizer=TOKENIZER, log=True)


def batches(session: Any) -> list[list[TrainSequence]]:
    mix = sft.Mix(session.stage.data, session.seed, HELDOUT_FRACTION)
    return [sft._batch(session, mix, step)[0] for step in range(session.stage.steps)]


def sequences(session: Any) -> list[TrainSequence]:
    return [sequence for batch in batches(session) for sequence in batch]


def rows(path: Path, answers: list[str]) -> str:
    turns = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}] for answer in answers]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in turns))
    return str(path)


def test_sources_take_turns_and_fill_every_step() -> None:
    texts = [TOKENIZER.decode(sequence.token_ids) for sequence in sequences(session())]
    assert len(texts) == STAGE.steps * STAGE.sequences_per_step
    assert ["\\boxed" in text for text in texts] == [False, True] * 7 + [False]


def test_the_answer_and_its_stop_token_are_learned_and_nothing_else() -> None:
    for sequence in sequences(session()):
        learned = sequence.token_ids[1:][sequence.loss_mask]
        context = sequence.token_ids[: len(sequence.token_ids) - len(learned)]
        assert TOKENIZER.decode(context).endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert learned[-1] == TOKENIZER.eos_token_id
        assert not np.isin(TOKENIZER.all_special_ids, learned[:-1]).any()
        assert len(sequence.loss_mask) == len(sequence.token_ids) - 1


def test_the_order_is_a_function_of_the_seed() -> None:
    first, again, other = ([sequence.token_ids.tolist() for sequence in sequences(session(seed))] for seed in (1, 1, 2))
    assert first == again != other


def test_a_stage_that_was_killed_after_its_last_step_sends_no_weights_twice() -> None:
    """The session begins with the newest weights in the sampler, which takes a version only once."""
    resumed, sent = session(), []
    resumed.first_step, resumed.steps, resumed.refit = STAGE.steps, lambda: iter(()), sent.append
    sft.run(resumed)
    assert sent == []


def test_what_a_step_learns_is_a_function_of_seed_and_step() -> None:
    """A run that goes on at step 2 opens the data anew and draws what it would have drawn."""
    resumed = sft._batch(session(), sft.Mix(STAGE.data, 1, HELDOUT_FRACTION), 2)[0]
    assert [row.token_ids.tolist() for row in resumed] == [row.token_ids.tolist() for row in batches(session())[2]]


def test_sources_with_weights_come_in_these_shares(tmp_path: Path) -> None:
    data = tuple(
        f"{rows(tmp_path / f'{name}.jsonl', [name])}*{weight}"
        for name, weight in (("a", 0.55), ("b", 0.3), ("c", 0.15))
    )
    texts = [TOKENIZER.decode(row.token_ids)[-11] for row in sequences(session(data=data, steps=20))]
    assert Counter(texts) == {"a": 55, "b": 30, "c": 15}


def test_a_sequence_that_is_too_long_is_an_error_or_a_counted_drop(tmp_path: Path) -> None:
    source = rows(tmp_path / "long.jsonl", ["short", "word " * 600])
    here = session(data=(source,), sequences_per_step=2)
    with pytest.raises(UserError, match=r"long\.jsonl:2: expected at most sft.token_budget = 512 tokens; found "):
        sft._batch(here, sft.Mix(here.stage.data, 1, HELDOUT_FRACTION), 0)
    here = session(data=(source,), sequences_per_step=2, overlong="drop")
    kept, dropped = sft._batch(here, sft.Mix(here.stage.data, 1, HELDOUT_FRACTION), 0)
    assert (len(kept), dropped) == (1, 1)
    assert "short" in TOKENIZER.decode(kept[0].token_ids)
    here = session(data=(rows(tmp_path / "all.jsonl", ["word " * 600]),), overlong="drop")
    with pytest.raises(UserError, match="step 1: expected demonstrations of at most token_budget = 512"):
        sft._batch(here, sft.Mix(here.stage.data, 1, HELDOUT_FRACTION), 0)


def test_two_stages_start_from_one_another_and_draw_differently() -> None:
    """16K, then 32K, in Cascade 1: the second has its parent's weights, schedule and data of its own."""
    second = replace(STAGE, name="sft_32k", token_budget=1024)
    cascade = replace(CASCADE, stages=(STAGE, second))
    assert cascade.parent(second) == STAGE
    drawn = [
        [row.token_ids.tolist() for row in sequences(session(zlib.crc32(f"1/{stage.name}".encode())))]
        for stage in cascade.stages
    ]
    assert drawn[0] != drawn[1]


def test_the_validation_loss_is_a_mean_over_learned_tokens(tmp_path: Path) -> None:
    """Not over answers; of those that fit the budget."""
    here = session(heldout=(rows(tmp_path / "v.jsonl", ["a", "a longer one", "word " * 600]),), overlong="drop")
    read: list[TrainSequence] = []

    def log_probs(sequences: list[TrainSequence]) -> list[np.ndarray]:
        read.extend(sequences)
        return [np.where(sequence.loss_mask, -1.0 - place, np.nan) for place, sequence in enumerate(sequences)]

    here.trainer, here.phase = SimpleNamespace(log_probs=log_probs), lambda name: nullcontext()
    found = sft.Validation(here).loss()
    short, long = (int(sequence.loss_mask.sum()) for sequence in read)
    assert short < long
    assert found == {"validation_loss": pytest.approx((short + 2 * long) / (short + long))}
    assert sft.Validation(session()).loss() == {}
