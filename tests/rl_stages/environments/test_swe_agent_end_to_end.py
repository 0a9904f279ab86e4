"""Agentic SWE RL on the real stack, Megatron-Core, vLLM and the sandbox, as a person runs it: `nemo-run LAUNCHER`.

The model starts from a few demonstrations, three of five of which repair the bug; the stage's repositories are mutants.
CI's rehearsal of the 30B launcher has such a stage too, from an untrained model.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import export_hf, read_config
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages import base_model
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration
from cascade_rl.rl_stages.lessons import swe_agent
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.rewards.swe.unified_diff import apply_unified_diff
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.sandbox.outside.probe import probe
from cascade_rl.rl_stages.swe_tasks.mutation import mutations
from cascade_rl.rl_stages.tasks.demonstration import load_demonstrations
from cascade_rl.rl_stages.tasks.load_tasks import split_of
from tests.gloo import run_ranks
from tests.rl_stages.environments.tiny_swe_agent import TURNS
from tests.rl_stages.launched import Launched
from tests.rl_stages.tiny_cascade import CASCADE

pytestmark = [pytest.mark.sandbox, pytest.mark.long]

LAUNCHER = Path(__file__).with_name("tiny_swe_agent.py")
TRAINED = 6
ACCURACY = 0.6
LESSONS_STEPS, LESSONS_BATCH = 60, 16
REPAIR = "sed -i s/-/+/ apples.py"


def is_alike(lesson: Lesson) -> bool:
    """A mutant that one and the same command repairs, which is all that so little training teaches."""
    ((file, broken),) = lesson.fields["repo_snapshot"]["files"].items()
    repaired = apply_unified_diff({file: broken}, lesson.fields["gold_patch"])[file]
    mutants = [mutation.apply(repaired) for mutation in mutations(repaired)]
    return file == "apples.py" and "a - b" in broken and broken in mutants


def chosen() -> list[Lesson]:
    """What is trained on, and then one to evaluate."""
    split = {lesson.prompt: split_of([{"content": lesson.prompt}]) for lesson in swe_agent.lessons()}
    alike = [lesson for lesson in swe_agent.lessons() if split[lesson.prompt] == "train" and is_alike(lesson)]
    held_out = next(lesson for lesson in swe_agent.lessons() if split[lesson.prompt] == "heldout")
    return [*alike[:TRAINED], held_out]


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_taught(folder: Path) -> None:
    """A random model, and what the demonstrations make of it."""
    initialize_distributed(ParallelConfig(), seed=1)
    data = str(folder / "demonstrations.jsonl")
    lessons = replace(CASCADE.stages[0], data=(data,))
    base = base_model.ready(RunFolder(folder, replace(CASCADE, stages=(lessons,))), ParallelConfig())
    tokenizer = AutoTokenizer.from_pretrained(base)
    optimizer = OptimizerConfig(lr=1e-2, betas=(0.9, 0.98), schedule="cosine", warmup_steps=4, min_lr=1e-3)
    config, budget = read_config(base), 1024
    trainer = Trainer(config, ParallelConfig(), optimizer, total_steps=LESSONS_STEPS, token_budget=budget, seed=1)
    trainer.load_hf(base)
    for step, rows in enumerate(np.split(np.arange(LESSONS_STEPS * LESSONS_BATCH), LESSONS_STEPS)):
        shown = load_demonstrations(data, count=len(rows), seed=step)
        encoded = [encode_demonstration(tokenizer, each.messages)[0] for each in shown]
        batch = [TrainSequence(np.array(ids), np.array(learned[1:])) for ids, learned in encoded]
        trainer.update(batch, SftLoss(), step)
    export_hf(trainer.module, config, folder / "taught", tokenizer_from=base)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> StageFolder:
    folder, rng = tmp_path_factory.mktemp("agentic"), random.Random(1)
    lessons = chosen()
    write_lines(folder / "tasks.jsonl", [lesson.row("swe_agentic") for lesson in lessons])
    taught = [lesson.demonstration(ACCURACY, rng) for lesson in lessons[:TRAINED] for _ in range(20)]
    write_lines(folder / "demonstrations.jsonl", taught)
    run_ranks(1, make_taught, folder)
    code, out, err = Launched(folder, LAUNCHER).finish()
    assert code == 0, out + err
    assert f"sandbox for untrusted code: {probe()} (nodes: 1);" in out
    assert "graders proven (nodes: 1): swe_agentic (" in out
    return RunFolder.open(folder / "runs/tiny").stage("swe_agentic_rl")


@pytest.fixture
def samples(stage: StageFolder) -> list[dict]:
    return [row for step in (1, 2) for row in read_samples(stage.rollouts(step))]


def test_each_step_learns_and_agrees_with_the_sampler(stage: StageFolder) -> None:
    rows = stage.metrics.rows()
    assert len(rows) == 2
    for row in rows:
        assert row["grad_norm"] > 0 and row["signal_fraction"] > 0
        assert 1 <= row["tme"] <= 1.001 and row["probe_gap"] <= 2e-3
        assert row["replay_fraction"] == 1 and row["infrastructure_failure_fraction"] == 0


def test_what_tools_showed_is_kept_and_has_no_loss(stage: StageFolder, samples: list[dict]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(stage.export)
    assert {3} <= {row["turns"] for row in samples} <= set(range(1, TURNS + 1))
    all_shown = ""
    for row in samples:
        ids, mask = np.array(row["token_ids"]), np.array(row["loss_mask"])
        assert mask.tolist() == (row["generated"] or [True] * len(ids))
        shown = tokenizer.decode(ids[~mask])
        assert shown.count("<|im_start|>tool\n") == row["turns"] - 1
        all_shown += shown
        assert row["finish"] == "length" or (ids[mask] == tokenizer.eos_token_id).sum() == row["turns"]
        found, given = (np.array(row[f"{who}_logprobs"])[mask] for who in ("rollout", "train"))
        assert np.allclose(found, given, atol=2e-3)
        assert not np.array(row["rollout_logprobs"])[~mask].any()
    assert "    return a " in all_shown  # of the files that it read


def test_rewards_are_those_of_the_hidden_tests(samples: list[dict]) -> None:
    assert {row["reward"] for row in samples} == {0.0, 1.0}
    for row in samples:
        assert (row["reward"] == 1) == (row["outcome"] == "completed" and row["detail"] == "as expected")
        assert row["reward"] == 0 or REPAIR in row["text"]


def test_the_step_moved_the_weights(stage: StageFolder) -> None:
    taught = stage.root.parents[3] / "taught/model.safetensors"
    assert taught.read_bytes() != (stage.export / "model.safetensors").read_bytes()
