"""Rewards of a model in processes of their own: of any family, the same from one process as from two, and as those of
transformers and of the trainer."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PretrainedConfig

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.models import read_config
from cascade_rl.engine.models.head import SCALAR_HEAD, SCALAR_HEAD_FILE
from cascade_rl.engine.rollout.seats import Seat
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry import classifier, trained_model
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.scorer import BradleyTerryScorer, ScorerDied
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.server import Model, open_model
from tests.engine.models import tiny
from tests.gloo import run_ranks

HERE = Seat(ThisNode(), range(1))
ASKED = ({"role": "user", "content": "I am Tom."},)
CONVERSATIONS: list[Conversation] = [(ASKED, text) for text in ("Hello Tom", "Hello", "<think>Hm", "")]
TEMPLATE = "{% for m in messages %}{{ m.role + ':' + m.content + '|' }}{% endfor %}"  # of no policy
SIZE = {"vocab_size": 320, "num_labels": 1, "initializer_range": 0.3}


def tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    made = train_tokenizer([ASKED])
    made.chat_template = template
    made.save_pretrained(folder)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of another family, with a chat template of its own."""
    folder = tmp_path_factory.mktemp("published")
    AutoModelForSequenceClassification.from_config(tiny.llama(**SIZE)).save_pretrained(folder)
    tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reward_model stage exports of a Qwen3, with the stop token as padding."""
    folder = tmp_path_factory.mktemp("exported")
    AutoModelForCausalLM.from_config(tiny.qwen3(**SIZE, pad_token_id=2)).save_pretrained(folder)
    save_file({SCALAR_HEAD: torch.randn(1, 64)}, folder / SCALAR_HEAD_FILE)
    train_tokenizer([ASKED]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(published: Path) -> Iterator[BradleyTerryScorer]:
    with closing(BradleyTerryScorer(published, "float32", published / "log", [HERE, HERE])) as scorer:
        yield scorer


def expected_rewards(folder: Path) -> list[float]:
    """In float64, of the texts that the model's own template makes."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
    made = train_tokenizer([ASKED])
    texts = [f"user:I am Tom.|assistant:{answer}|" for _, answer in CONVERSATIONS]
    ids = [made.encode(text, add_special_tokens=False) for text in texts]
    with torch.no_grad():
        return [float(model(torch.tensor([one])).logits) for one in ids]


def test_a_published_model_scores_what_its_own_template_renders(published: Path, scorer: BradleyTerryScorer) -> None:
    expected = expected_rewards(published)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scorer.score(CONVERSATIONS), expected, atol=1e-4)


def test_two_processes_score_at_once_and_give_the_bits_of_one(scorer: BradleyTerryScorer) -> None:
    assert scorer.concurrency == 2
    alone = classifier.checkpoint(scorer.folder, torch.float32).score(CONVERSATIONS)
    found: list[list[float]] = []
    begin = Barrier(4)

    def ask() -> None:
        begin.wait()
        found.append(scorer.score(CONVERSATIONS))

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def trained(folder: Path) -> list[float]:
    initialize_distributed(ParallelConfig(), seed=0)
    trainer = Trainer(
        read_config(folder), ParallelConfig(), OptimizerConfig(), total_steps=1, token_budget=256, seed=0,
        scalar_head=True,
    )  # fmt: skip
    trainer.load_hf(folder)
    trainer.load_scalar_head(folder)
    made = train_tokenizer([ASKED])
    encoded = [trained_model.encode_answer(made, *conversation) for conversation in CONVERSATIONS]
    return trained_model.rewards(trainer, encoded).tolist()


def test_an_export_scores_as_the_trainer_does(exported: Path) -> None:
    (expected,) = run_ranks(1, trained, exported)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(open_model(Model(exported, "float32")).score(CONVERSATIONS), expected, atol=1e-4)


def test_rewards_are_finer_than_the_dtype_of_the_hidden_states(exported: Path) -> None:
    rewards = torch.tensor(open_model(Model(exported, "bfloat16")).score(CONVERSATIONS))
    assert (rewards != rewards.bfloat16().float()).any()
    np.testing.assert_allclose(rewards, open_model(Model(exported, "float32")).score(CONVERSATIONS), atol=0.5)


def test_a_folder_of_another_model_is_refused_before_anything_is_scored(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(tiny.llama(**SIZE)).save_pretrained(tmp_path)
    tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"expected a reward model, .* found 1 labels and no score\.weight"):
        BradleyTerryScorer(tmp_path, "float32", tmp_path / "log")


@pytest.mark.parametrize("config", [tiny.nemotron_h(**SIZE), tiny.llama(**SIZE | {"num_labels": 2})])
def test_so_is_one_that_is_no_classifier_with_one_label(tmp_path: Path, config: PretrainedConfig) -> None:
    config.save_pretrained(tmp_path)
    tokenizer(tmp_path)
    with pytest.raises(UserError, match="expected a reward model"):
        classifier.checkpoint(tmp_path, torch.float32)
    tokenizer(tmp_path, template=None)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="expected a reward model's tokenizer with a chat template, found none"):
        classifier.checkpoint(tmp_path, torch.float32)


def test_a_process_that_dies_fails_its_group_and_closing_leaves_none(published: Path) -> None:
    scorer = BradleyTerryScorer(published, "float32", published / "log")
    (process,) = scorer._processes
    os.kill(process.pid, 9)
    with pytest.raises(ScorerDied, match=f"process {process.pid} on .* is gone; see {published / 'log'}"):
        scorer.score(CONVERSATIONS)
    scorer.close()
    scorer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
