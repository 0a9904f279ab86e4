"""`cascade replay` on steps that the stages' own loops recorded, with everything but an engine: all as recorded, and
what was tampered with is named."""

import contextlib
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.distillation import mopd, teacher_tokenizer
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Request, Rollout, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.train.checkpoint import CheckpointWriter
from cascade_rl.launchers.cli import replay
from cascade_rl.launchers.stage.recorded_step import RecordedStep
from cascade_rl.rl_stages import grpo
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.text import to_yaml
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run.durable_file import write_atomically
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, write_samples
from cascade_rl.rl_stages.scoring.pending_group import Answer
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.tasks.prompt_stream import any_length
from tests.distillation.test_mopd import EXPERTS, MOE_LAYERS, TOPK, make_models
from tests.engine.models import tiny
from tests.gloo import run_ranks

STEPS = 2
OBJECTIVES = ("sampled", "topk", "exact")
SHARED = {
    "steps": STEPS, "prompts_per_step": 3, "rollouts_per_prompt": 2, "sampling": Sampling(max_new_tokens=8),
    "token_budget": 256, "parent": "base", "optimizer": OptimizerConfig(lr=1e-2, eps=1e-4),
}  # fmt: skip


def cascade(models: Mapping[str, Path]) -> Cascade:
    teachers = {"math": str(models["math"]), "mcqa": str(models["code"])}
    data = ("generate:math*0.5", "generate:mcqa*0.5")  # of each of them in every step
    distilled = [
        MopdStage(name=name, domain="general", data=data, teachers=teachers, objective=name, topk=8, **SHARED)  # type: ignore[arg-type]
        for name in OBJECTIVES
    ]
    held = GrpoStage(name="held", domain="math", data=("generate:math",), kl_coefficient=0.1, **SHARED)  # type: ignore[arg-type]
    choosy = replace(held, name="choosy", kl_coefficient=0.0, dynamic_filtering=True)
    clipped = replace(held, name="clipped", kl_coefficient=0.0, surrogate="clip", dual_clip=3.0, updates_per_step=3)
    clipped = replace(clipped, normaliser="prompt", wrong_format_reward=-1.0)
    sft = SftStage(name="sft", domain="math", data=("generate:math@1",), steps=1, token_budget=256)
    return Cascade(
        name="run",
        base=BaseModel(hf=str(models["student"])),
        rollout=RolloutConfig(max_model_len=64),
        evaluation=Evaluation(domains=("math", "mcqa"), prompts_per_domain=2, max_new_tokens=8),
        stages=(sft, held, choosy, clipped, *distilled),
    )


def judge(tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]) -> list[list[Answer]]:
    """Every third answer is right, another third cut off."""
    verdicts = (Verdict.scored(1.0), Verdict.scored(0.25), Verdict(Outcome.TRUNCATED, 0.0))
    return [[Answer("text", verdicts[zlib.crc32(rollout.id.encode()) % 3]) for rollout in group] for group in groups]


class WithoutEngine(Session):
    """Draws random tokens, and takes their log-probs from the trainer."""

    def __init__(self, run: RunFolder, name: str) -> None:
        self.run, self.cascade, self.folder = run, run.cascade, run.stage(name)
        self.stage, self.layout, self.seed = self.folder.config, run.cascade.layout(self.folder.config), 1
        self.parent, self.tokenizer = Path(str(run.cascade.base.hf)), TOKENIZER  # type: ignore[assignment]
        self.hf_config = read_config(self.parent)
        self.trainer, self.checkpoints = self._build_trainer(), CheckpointWriter()
        self.first_step, self.version, self.log = self._restore(), 0, None
        self.zero = SimpleNamespace(judge=judge, rewards=judge)  # type: ignore[assignment]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def prompt_room(self, *_: object) -> Any:
        return SimpleNamespace(admits=any_length, metrics={})

    def draw(self, label: str, tasks: Sequence[Task], group: int, sampling: Sampling) -> list[list[Rollout]]:
        names = [f"{label}/{place}/{task.id}/{i}" for place, task in enumerate(tasks) for i in range(group)]
        drawn = list(map(_sequence, names))
        rollouts = []
        with Ledger() as ledger:
            ledger.open(self.folder.ledger(self.version), str(self.version))
            for name, sequence, logprobs in zip(names, drawn, self.trainer.log_probs(drawn), strict=True):
                ids, prompt = sequence.token_ids, _prompt(sequence)
                rollouts.append(
                    Rollout(
                        name,
                        ids[:prompt],
                        ids[prompt:],
                        logprobs[prompt - 1 :],
                        sequence.routes,
                        ((self.version, 0),),
                        "stop",
                    )
                )
                ledger.keep(Request(name, tuple(ids[:prompt].tolist()), sampling, 0), rollouts[-1])
        return [rollouts[first : first + group] for first in range(0, len(rollouts), group)]

    def _save(self, step: int) -> None:
        if step < STEPS:  # no step follows the last
            super()._save(step)

    def _commit(self, step: int) -> None:
        self.folder.commit_checkpoint(step)  # there is no log whose samples could be missing

    def refit(self, version: int) -> float:  # type: ignore[override]
        self.version = version
        return 0.0

    def record(
        self, step: int, metrics: Mapping[str, float], tokens: int, records: Sequence[SampleRecord] = ()
    ) -> None:
        write_samples(self.folder.rollouts(step), records)
        self.folder.record_step(step, metrics, {}, tokens)


TOKENIZER = SimpleNamespace(get_vocab=lambda: {"a": 0}, chat_template=None)


def _sequence(name: str) -> TrainSequence:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    length = int(rng.integers(8, 14))
    routes = [rng.permutation(EXPERTS // 2)[:TOPK] for _ in range(length * MOE_LAYERS)]
    return TrainSequence(
        token_ids=rng.integers(0, tiny.VOCABULARY, length + 1),
        loss_mask=np.arange(length) >= 3,
        routes=np.array(routes, np.int16).reshape(length, MOE_LAYERS, TOPK),
    )


def _prompt(sequence: TrainSequence) -> int:
    return int((~sequence.loss_mask).sum()) + 1


def _take_steps(root: Path) -> None:
    teacher_tokenizer.AutoTokenizer = SimpleNamespace(from_pretrained=lambda _: TOKENIZER)  # type: ignore[misc,assignment]
    run = RunFolder.open(root)
    initialize_distributed(ParallelConfig(), run.cascade.seed)
    for stage in run.cascade.stages[1:]:
        loop: Callable[[Session], None] = mopd.run if isinstance(stage, MopdStage) else grpo.run
        loop(WithoutEngine(run, stage.name))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose stages have taken their steps, each from the base."""
    root = tmp_path_factory.mktemp("runs") / "run"
    with RunFolder.claim(root, cascade(make_models(tmp_path_factory))) as (run, _):
        run_ranks(1, _take_steps, root)
        return run


def replayed(run: RunFolder, name: str, step: int) -> tuple[int, str]:
    def told() -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            code = replay.run(RecordedStep.find(run.root, name, step))
        return code, text.getvalue()

    return run_ranks(1, told)[0]


def compared(run: RunFolder, name: str, left: int) -> int:
    """How many metrics of a step there are, but for `left` and the step's number."""
    return len(run.stage(name).metrics.rows()[STEPS - 1]) - left - 1


def test_a_kl_term_is_replayed_against_the_first_weights(recorded: RunFolder) -> None:
    row = recorded.stage("held").metrics.rows()[1]
    assert row["reference_kl"] > 1e-3  # step 1 has moved away from the reference
    assert {"reward", "length", "truncated_fraction", "signal_fraction", "tme", "loss", "grad_norm"} <= row.keys()
    code, text = replayed(recorded, "held", 2)
    assert text == (
        f"02_held, step 2: 6 samples (train_logprobs) and {compared(recorded, 'held', 1)} metrics, all as recorded; "
        "not recomputed: probe_gap\n"
    )
    assert code == 0


def test_a_clipped_step_of_several_updates_is_replayed(recorded: RunFolder) -> None:
    """The first of the three updates has the ratio 1; the others have moved away from it."""
    first, second = recorded.stage("clipped").metrics.rows()
    assert list(recorded.stage("held").metrics.rows()[0]) == [
        "reference_kl" if name == "clip_fraction" else name for name in first
    ]
    assert 0 < first["clip_fraction"] < 2 / 3
    assert first["lr"] == second["lr"] == 1e-2
    code, text = replayed(recorded, "clipped", 2)
    assert text == (
        f"04_clipped, step 2: 6 samples (train_logprobs) and {compared(recorded, 'clipped', 1)} metrics, all as "
        "recorded; not recomputed: probe_gap\n"
    )
    assert code == 0


def _goes_on(root: Path, name: str) -> tuple[int, list[dict]]:
    run = RunFolder.open(root)
    initialize_distributed(ParallelConfig(), run.cascade.seed)
    session = WithoutEngine(run, name)
    finished, session.version = session.first_step, session.first_step
    grpo.run(session)
    return finished, session.folder.metrics.rows()


def test_a_clipped_stage_goes_on_as_if_nothing_had_happened(recorded: RunFolder) -> None:
    stage = recorded.stage("clipped")
    metrics, samples = stage.metrics.rows(), stage.rollouts(2).read_bytes()
    assert run_ranks(1, _goes_on, recorded.root, "clipped")[0] == (1, metrics)
    assert stage.rollouts(2).read_bytes() == samples


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_distillation_is_replayed_with_its_teachers(recorded: RunFolder, objective: str) -> None:
    stage = recorded.stage(objective)
    assert {"reverse_kl_math", "reverse_kl_mcqa", "reverse_kl"} <= stage.metrics.rows()[1].keys()
    code, text = replayed(recorded, objective, 2)
    assert text == (
        f"{stage.label}, step 2: 6 samples (train_logprobs, teacher_logprobs) and {compared(recorded, objective, 1)} "
        "metrics, all as recorded; not recomputed: probe_gap\n"
    )
    assert code == 0


def test_what_needs_the_groups_that_were_dropped_is_named(recorded: RunFolder) -> None:
    code, text = replayed(recorded, "choosy", 1)
    assert code == 0
    _, _, left = text.partition("not recomputed: ")
    outcomes = {"reward", "length", *(f"{outcome}_fraction" for outcome in Outcome)}
    assert set(left.strip().split(", ")) == {*outcomes, "draws", "accept_rate", "surplus_groups", "probe_gap"}


def test_metrics_that_are_not_what_they_were_are_named(recorded: RunFolder) -> None:
    log = recorded.stage("held").metrics
    kept, (first, second) = log.path.read_bytes(), log.rows()
    wrong = {name: second[name] * 1.01 + 1e-4 for name in ("reward", "reference_kl", "loss", "grad_norm")}
    write_atomically(log.path, "".join(json.dumps(row) + "\n" for row in [first, second | wrong]))
    code, text = replayed(recorded, "held", 2)
    write_atomically(log.path, kept)
    *parts, summary = text.splitlines()
    assert code == 1
    assert set(parts) == {f"{name}: {second[name]:.6g}, recorded {value:.6g}" for name, value in wrong.items()}
    assert "metrics, not all as recorded; not recomputed: probe_gap" in summary


def test_another_teacher_is_seen_in_its_log_probs(recorded: RunFolder) -> None:
    swapped = {"math": str(recorded.cascade.base.hf)}
    stages = [
        replace(stage, teachers={**stage.teachers, **swapped}) if isinstance(stage, MopdStage) else stage
        for stage in recorded.cascade.stages
    ]
    config = recorded.root / "cascade.yaml"
    kept = config.read_bytes()
    write_atomically(config, to_yaml(replace(recorded.cascade, stages=tuple(stages))))
    code, text = replayed(recorded, "sampled", 2)
    write_atomically(config, kept)
    lines = text.splitlines()
    assert code == 1
    assert any("/math-" in line and "teacher_logprobs of token" in line for line in lines)
    assert not any("/mcqa-" in line or "train_logprobs of token" in line for line in lines)
    assert any(line.startswith("reverse_kl_math: ") for line in lines)


def test_a_stage_without_samples_is_refused(recorded: RunFolder) -> None:
    with pytest.raises(UserError, match="01_sft: expected a GRPO or MOPD stage, found sft"):
        RecordedStep.find(recorded.root, "sft", 1)
    with pytest.raises(UserError, match="expected the samples and metrics of step 3, found none"):
        RecordedStep.find(recorded.root, "held", 3)
