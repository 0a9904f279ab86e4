"""A reward model on our engine: its loss and gradient against float64, one answer in each layout, the stage as a run
has it, and its rewards from another process."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.models.head import SCALAR_HEAD, SCALAR_HEAD_FILE
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import RewardLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.stage.run_stage import run_stage
from cascade_rl.rl_stages.bradley_terry import accuracy, bradley_terry, with_slopes
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.text import from_plain, to_yaml
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry import trained_model
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import conversations
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.scorer import BradleyTerryScorer
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.shaping import scored_text, tanh_of_z
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.verifier import BradleyTerryVerifier
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.tasks.pairs import load_pairs
from tests.engine.models import tiny
from tests.gloo import run_ranks
from tests.rl_stages.tiny_cascade import ANSWER, CASCADE

NAMES = ("loss", "grad_norm")


def test_loss_and_slopes_are_those_of_autograd() -> None:
    chosen, rejected = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    chosen.requires_grad_()
    expected = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
    expected.backward()
    loss, slope = bradley_terry(chosen.detach().numpy(), rejected.numpy())
    assert loss == pytest.approx(float(expected), rel=1e-12)
    assert chosen.grad is not None
    np.testing.assert_allclose(slope / 7, chosen.grad.numpy(), rtol=1e-12)
    assert np.isfinite(bradley_terry(np.array([1e4, -1e4]), np.zeros(2))[1]).all()


def test_a_model_that_cannot_tell_two_answers_apart_is_right_half_the_time() -> None:
    assert accuracy(np.array([2.0, 1.0, 0.0, 3.0]), np.array([1.0, 1.0, 1.0, 1.0])) == 2.5 / 4


# One answer in each layout.


def sequences() -> list[TrainSequence]:
    """Four chosen answers, then four rejected ones."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(4, 15, 8)
    return [TrainSequence(rng.integers(0, tiny.VOCABULARY, n + 1), np.arange(n) == n - 1) for n in map(int, lengths)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward_model")
    tiny.save(tiny.nemotron_h(), folder)
    head = torch.randn(1, 64, generator=torch.Generator().manual_seed(2))
    save_file({SCALAR_HEAD: head}, folder / SCALAR_HEAD_FILE)
    return folder


def trainer(folder: Path, parallel: ParallelConfig, token_budget: int) -> Trainer:
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-4)
    made = Trainer(
        read_config(folder), parallel, optimizer, total_steps=4, token_budget=token_budget, seed=1, scalar_head=True
    )
    made.load_hf(folder)
    made.load_scalar_head(folder)
    return made


def step(folder: Path, parallel: ParallelConfig, token_budget: int) -> dict[str, object]:
    """Of the first step; rewards after the second are those that all weights, the head's too, have moved."""
    initialize_distributed(parallel, seed=1)
    policy = trainer(folder, parallel, token_budget)
    first = trained_model.rewards(policy, sequences())
    metrics = []
    for at in range(2):
        loss, slope = bradley_terry(*np.split(trained_model.rewards(policy, sequences()), 2))
        metrics.append({"loss": loss} | policy.update(with_slopes(sequences(), slope), RewardLoss(), at))
    return {"rewards": first, "metrics": metrics, "after": trained_model.rewards(policy, sequences())}


@pytest.fixture(scope="module")
def one_process(model: Path) -> dict:
    return run_ranks(1, step, model, ParallelConfig(), 256)[0]


def test_rewards_loss_and_gradient_are_those_of_transformers_states_in_float64(model: Path, one_process: dict) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(model, experts_implementation="eager").double()
    head = torch.randn(1, 64, generator=torch.Generator().manual_seed(2)).double().requires_grad_()
    states = [loaded.model(torch.from_numpy(s.token_ids[None, :-1])).last_hidden_state[0, -1] for s in sequences()]
    chosen, rejected = (torch.stack(states) @ head[0]).chunk(2)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
    loss.backward()
    norms = [p.grad.norm() for p in (head, *loaded.parameters()) if p.grad is not None]
    np.testing.assert_allclose(one_process["rewards"], torch.cat([chosen, rejected]).detach(), atol=1e-4)
    assert one_process["metrics"][0]["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert one_process["metrics"][0]["grad_norm"] == pytest.approx(float(torch.stack(norms).norm()), rel=1e-4)
    assert one_process["metrics"][1]["loss"] < one_process["metrics"][0]["loss"]


@pytest.mark.parametrize(
    ("parallel", "token_budget"),
    [
        (ParallelConfig(), 16),
        (ParallelConfig(tensor=2, sequence=True), 64),
        (ParallelConfig(context=2), 64),
        (ParallelConfig(pipeline=2), 16),
    ],
    ids=["data 2", "tensor 2", "context 2", "pipeline 2"],
)
def test_every_layout_gives_the_answer_of_one_process(
    model: Path, one_process: dict, parallel: ParallelConfig, token_budget: int
) -> None:
    for found in run_ranks(2, step, model, parallel, token_budget):
        np.testing.assert_allclose(found["rewards"], one_process["rewards"], atol=2e-4)
        np.testing.assert_allclose(found["after"], one_process["after"], atol=5e-3)
        for at, expected in enumerate(one_process["metrics"]):
            for name in NAMES:
                assert found["metrics"][at][name] == pytest.approx(expected[name], rel=2e-3), (at, name)


# The stage.

STAGE = RewardModelStage(
    name="reward_model",
    domain="preference",
    data=("generate:rlhf",),
    steps=20,
    pairs_per_step=16,
    token_budget=1024,
    optimizer=OptimizerConfig(lr=3e-3),
    checkpoint_every=4,
)


def cascade(*stages: object) -> Cascade:
    return replace(CASCADE, stages=(STAGE, *stages))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> StageFolder:
    with RunFolder.claim(tmp_path_factory.mktemp("run") / "tiny", cascade()) as (run, _):
        assert run_ranks(1, run_stage, run, "reward_model") == [0]
        return run.stage("reward_model")


def test_held_out_pairs_come_in_order(stage: StageFolder) -> None:
    scores = stage.scores()
    assert scores["before"] == {"preference": 0.5}  # all rewards are 0
    assert scores["after"]["preference"] > 0.75
    first, *_, last = stage.metrics.rows()
    assert first["loss"] == pytest.approx(np.log(2), rel=1e-6)
    assert last["loss"] < 0.5
    assert stage.done


CONVERSATION = ({"role": "user", "content": "I am Tom. Write about cats."},)
TASK = Task("0", "rlhf", CONVERSATION, {})
ANSWERS = ("Hello Tom, I like the cats. Thank you", "I like the cats.", "<think>Hm.</think>I like the cats.")


def rewards_of(stage: StageFolder, saved: bool) -> list[float]:
    initialize_distributed(ParallelConfig(), seed=1)
    made = trainer(stage.export, ParallelConfig(), 256)
    if saved:
        torch.nn.init.ones_(made.head().weight)
        checkpoint.load(made, stage.checkpoint(STAGE.steps))
    tokenizer = AutoTokenizer.from_pretrained(stage.export)
    texts = map(scored_text, ANSWERS)
    encoded = [trained_model.encode_answer(tokenizer, CONVERSATION, text) for text in texts]
    return trained_model.rewards(made, encoded).tolist()


def test_export_and_checkpoint_hold_one_model_and_its_head(stage: StageFolder) -> None:
    (exported,), (saved,) = (run_ranks(1, rewards_of, stage, saved) for saved in (False, True))
    assert exported == saved
    assert exported[0] > exported[1]
    assert exported[1] == pytest.approx(exported[2], rel=1e-6)  # the reasoning is not scored


def test_another_process_gives_the_same_rewards(stage: StageFolder) -> None:
    scorer = BradleyTerryScorer(stage.export, "float32", stage.logs / "reward_model.log")
    try:
        found = scorer.score(conversations(TASK, ANSWERS))
        np.testing.assert_allclose(found, run_ranks(1, rewards_of, stage, False)[0], atol=1e-5)
        verdicts = BradleyTerryVerifier(scorer, shaped=True).rank(TASK, ANSWERS)
        assert [verdict.score for verdict in verdicts] == pytest.approx(tanh_of_z(found), abs=1e-5)
    finally:
        scorer.close()


def test_a_folder_without_a_head_is_no_reward_model(tmp_path: Path) -> None:
    tiny.save(tiny.llama(), tmp_path)

    def load() -> None:
        trained_model.TrainedModel(tmp_path, "float32")

    with pytest.raises(UserError, match="expected the export of a reward_model stage, found no scalar_head"):
        run_ranks(1, load)


# The configuration.


def test_defaults_are_the_papers() -> None:
    plain = RewardModelStage(name="rm", domain="preference", data=("generate:rlhf",), token_budget=1024)
    assert (plain.pairs_per_step, plain.steps, plain.optimizer.lr) == (256, 320, 2e-6)
    assert from_plain(yaml.safe_load(to_yaml(cascade()))) == cascade()


def test_no_stage_starts_from_a_reward_model_or_is_taught_by_it() -> None:
    sft = CASCADE.stages[0]
    assert cascade(sft).parent(sft) is None
    with pytest.raises(UserError, match=r"sft.parent: expected an earlier stage or base \(base\)"):
        cascade(replace(sft, parent="reward_model"))
    mopd = MopdStage(
        name="mopd", domain="general", data=("generate:math",), steps=1, token_budget=1024, sampling=ANSWER,
        teachers={"math": "reward_model"},
    )  # fmt: skip
    with pytest.raises(UserError, match=r"mopd.teachers.math: expected the name of an earlier stage \(there is none\)"):
        cascade(mopd)


# Pairs.


def rows(folder: Path, *rows: object) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


OWN = {"messages": [{"role": "user", "content": "a"}], "chosen": "yes", "rejected": "no"}
HELPSTEER2 = {"prompt": "a", "response_1": "no", "response_2": "yes", "preference_strength": 2}
HELPSTEER3 = {"context": OWN["messages"], "response1": "yes", "response2": "no", "overall_preference": -1}


def test_three_formats_are_one_pair_and_no_preference_is_none(tmp_path: Path) -> None:
    undecided = (HELPSTEER2 | {"preference_strength": 0}, HELPSTEER3 | {"overall_preference": 0})
    found = load_pairs(rows(tmp_path, OWN, HELPSTEER2, *undecided, HELPSTEER3), split="train", seed=0)
    assert len(found) == 3
    assert len({(pair.messages[0]["content"], pair.chosen, pair.rejected) for pair in found}) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "expected a non-empty list of messages; found None"),
        (OWN | {"chosen": " "}, "expected 'chosen' to be non-empty text; found ' '"),
        (OWN | {"messages": [{"role": "system", "content": "a"}]}, "expected 'messages' to end with the user"),
        (HELPSTEER2 | {"preference_strength": 4}, "expected 'preference_strength' to be a whole number from -3 to 3"),
        (HELPSTEER3 | {"overall_preference": None}, "expected 'overall_preference' to be a whole number"),
        (HELPSTEER3 | {"response2": 3}, "expected 'response2' to be non-empty text; found 3"),
    ],
)
def test_a_wrong_row_is_told_with_file_and_line(tmp_path: Path, row: object, message: str) -> None:
    path = rows(tmp_path, OWN, row)
    with pytest.raises(UserError) as error:
        load_pairs(path, split="train", seed=0)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)


def test_lessons_make_pairs_and_no_prompt_is_in_both_splits() -> None:
    train, heldout = (load_pairs("generate:rlhf", split=split, seed=0) for split in ("train", "heldout"))
    assert len(train) > 300
    assert len(heldout) > 30
    prompts = [{pair.messages[-1]["content"] for pair in pairs} for pairs in (train, heldout)]
    assert not prompts[0] & prompts[1]
    for pair in heldout:
        name = pair.messages[-1]["content"].removeprefix("I am ").partition(".")[0]
        passes = [
            name in text and text.endswith("Thank you") and len(text.split()) < 10
            for text in (pair.chosen, pair.rejected)
        ]
        assert passes == [True, False], pair
    with pytest.raises(UserError, match="generate:workplace: expected a domain whose verifier scores single answers"):
        load_pairs("generate:workplace", split="train", seed=0)
    with pytest.raises(UserError, match="expected a source of preference pairs without count and weight"):
        load_pairs("generate:rlhf*0.5", split="train", seed=0)


def test_what_is_scored_of_an_answer() -> None:
    assert scored_text("<think>a</think> b ") == "b"
    assert scored_text("<think>a") == "<think>a"
    assert scored_text(" b") == "b"


def test_shaped_rewards_are_tanh_of_z_scores() -> None:
    rewards = [1.0, 2.0, 6.0]
    expected = np.tanh((np.array(rewards) - 3) / (np.std(rewards, ddof=1) + 1e-6))
    assert tanh_of_z(rewards) == pytest.approx(expected.tolist(), rel=1e-12)
    assert tanh_of_z([5.0, 5.0]) == [0.0, 0.0]
    assert tanh_of_z([5.0]) == [0.0]
    assert tanh_of_z([]) == []
