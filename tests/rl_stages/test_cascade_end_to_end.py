"""The whole product on the real stack, Megatron-Core and vLLM, as a person runs it: `nemo-run LAUNCHER`.

One undisturbed run is the measure of all others: a run that loses its engine and is killed, and one on two ranks, have
to arrive where it arrived.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from cascade_rl.engine.lora.merge import merged as made_of
from cascade_rl.engine.lora.rules import factor_name
from cascade_rl.launchers.bench import asynchronous
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from tests.rl_stages.launched import Launched, cpu_ticks

TINY = Path(__file__).with_name("tiny_cascade.py")
DOMAINS = {"instruction_following", "math"}
SERVER = "cascade_rl.engine.rollout.server"
OUTCOMES = {"completed", "truncated", "wrong_format"}

SOME_STAGES = """
from dataclasses import replace
from runpy import run_path

from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel

whole = run_path({tiny!r})["CASCADE"]
launch(replace(whole, base=BaseModel(hf={base!r}), stages=tuple(map(whole.stage, {names!r}))))
"""


@dataclass(frozen=True)
class Finished:
    run: RunFolder
    out: str

    def stage(self, name: str) -> StageFolder:
        return self.run.stage(name)


def start(folder: Path, launcher: Path, *settings: str) -> Launched:
    """Runs in `folder`, whose `runs/tiny` the run folder becomes."""
    return Launched(folder, launcher, *settings)


def finish(launched: Launched, folder: Path) -> Finished:
    code, out, err = launched.finish()
    assert code == 0, out + err
    assert err == ""
    assert launched.pids() == []
    run = RunFolder.open(folder / "runs/tiny")
    return Finished(run, out)


def some_stages(folder: Path, base: Path, *names: str) -> Path:
    """A launcher file with some stages of the tiny cascade, starting from a Hugging Face checkpoint."""
    launcher = folder / "some_stages.py"
    launcher.write_text(SOME_STAGES.format(tiny=str(TINY), base=str(base), names=names))
    return launcher


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("undisturbed")
    return finish(start(folder, TINY), folder)


def rl_stages(finished: Finished) -> list[StageFolder]:
    return [stage for stage in finished.run.stages if isinstance(stage.config, GrpoStage)]


def samples(stage: StageFolder, step: int) -> list[dict]:
    return read_samples(stage.rollouts(step))


def require_same_results(found: StageFolder, expected: StageFolder) -> None:
    assert found.metrics.path.read_bytes() == expected.metrics.path.read_bytes()
    assert found.scores() == expected.scores()
    for step in range(1, expected.config.steps + 1):
        if isinstance(expected.config, GrpoStage):
            assert found.rollouts(step).read_bytes() == expected.rollouts(step).read_bytes()
    weights = [stage.export / "model.safetensors" for stage in (found, expected)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


# The run folder.


def test_the_run_folder_is_that_of_the_design(undisturbed: Finished) -> None:
    root = undisturbed.run.root
    assert {"cascade.yaml", "lineage.json", "summary.json", "base", "stages"} <= set(os.listdir(root))
    assert sorted(os.listdir(root / "stages")) == ["01_sft", "02_if_rl", "03_math_rl"]
    for stage in undisturbed.run.stages:
        expected = {"stage.yaml", "metrics.jsonl", "events.jsonl", "rollouts", "checkpoints", "export", "done"}
        assert expected <= set(os.listdir(stage.root))
        assert stage.heldout("after").exists()
        assert stage.checkpoint_steps()[-1] == stage.config.steps
        assert len(stage.checkpoint_steps()) == min(2, stage.config.steps)
        assert {".metadata", "metadata.json"} < set(os.listdir(stage.checkpoint(stage.config.steps)))
    assert not [path for path in root.rglob("*") if path.name.endswith((".partial", ".tmp"))]


def test_every_step_has_one_row_of_metrics(undisturbed: Finished) -> None:
    for stage in undisturbed.run.stages:
        rows = stage.metrics.rows()
        assert [row["step"] for row in rows] == list(range(1, stage.config.steps + 1))
        assert all(0 < row["grad_norm"] < 100 for row in rows)


def test_trainer_and_sampler_agree_at_every_step(undisturbed: Finished) -> None:
    for stage in rl_stages(undisturbed):
        for row in stage.metrics.rows():
            assert 1 <= row["tme"] <= 1.001
            assert row["probe_gap"] <= 2e-3
            assert 0 <= row["routing_churn"] < 0.5
            assert row["replay_fraction"] == 1.0
            assert row["importance_corrected"] == 0
            assert row["signal_fraction"] > 0
            outcomes = [row[f"{name}_fraction"] for name in (*OUTCOMES, "infrastructure_failure")]
            assert sum(outcomes) == pytest.approx(1)


def test_events_tell_the_seconds_of_every_phase(undisturbed: Finished) -> None:
    for stage in rl_stages(undisturbed):
        steps = [event for event in stage.events.rows() if event["event"] == "step"]
        assert [event["step"] for event in steps] == list(range(1, stage.config.steps + 1))
        for event in steps:
            assert set(event["seconds"]) == {"generation", "reward", "log-prob", "update", "refit"}
            assert event["seconds"]["generation"] > 0.01
            assert event["tokens"] == sum(len(row["token_ids"]) for row in samples(stage, event["step"]))
        weights = (stage.export / "model.safetensors").stat().st_size
        assert refit_bytes(stage) == [pytest.approx(weights, rel=0.1)] * stage.config.steps


def refit_bytes(stage: StageFolder) -> list[int]:
    return [event["bytes"] for event in stage.events.rows() if event["event"] == "refit"]


def test_every_sample_is_kept(undisturbed: Finished) -> None:
    for stage in rl_stages(undisturbed):
        for step, metrics in enumerate(stage.metrics.rows(), start=1):
            rows = samples(stage, step)
            assert len({row["id"] for row in rows}) == len(rows) == 64
            assert np.mean([row["reward"] for row in rows]) == pytest.approx(metrics["reward"])
            assert np.mean([len(row["token_ids"]) for row in rows]) == pytest.approx(metrics["length"])
            for row in rows:
                require_whole_sample(row, stage.config.domain, version=step - 1)


def require_whole_sample(row: dict, domain: str, version: int) -> None:
    count = len(row["token_ids"])
    assert 1 <= count <= 24
    assert len(row["rollout_logprobs"]) == len(row["train_logprobs"]) == len(row["loss_mask"]) == count
    assert np.allclose(row["rollout_logprobs"], row["train_logprobs"], atol=2e-3)
    assert all(row["loss_mask"])
    assert row["versions"] == [[version, 0]]
    assert row["domain"] == domain
    assert row["outcome"] in OUTCOMES
    assert (row["outcome"] == "truncated") == (row["finish"] == "length")
    assert row["outcome"] == "completed" or row["reward"] == 0


def test_advantages_of_a_group_are_normalized_rewards(undisturbed: Finished) -> None:
    for stage in rl_stages(undisturbed):
        rewards, advantages = (
            np.array([row[key] for row in samples(stage, 1)]).reshape(8, 8) for key in ("reward", "advantage")
        )
        spread = rewards.std(1, ddof=1, keepdims=True)
        expected = (rewards - rewards.mean(1, keepdims=True)) / (spread + 1e-6)
        assert np.allclose(advantages, expected, atol=1e-5)
        assert (spread > 0).any()


def test_sampled_ids_are_of_the_prompt_of_their_task(undisturbed: Finished) -> None:
    stage = undisturbed.stage("if_rl")
    tokenizer = AutoTokenizer.from_pretrained(stage.export)
    for row in samples(stage, 1):
        prompt = tokenizer.decode(row["prompt_ids"])
        assert prompt.startswith("<|im_start|>user\n")
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert row["text"] + "<|im_end|>" * (row["finish"] == "stop") == tokenizer.decode(row["token_ids"])


def test_each_stage_starts_where_the_last_one_ended(undisturbed: Finished) -> None:
    scores = [stage.scores() for stage in undisturbed.run.stages]
    assert scores[1]["before"] == scores[0]["after"]
    assert scores[2]["before"] == scores[1]["after"]
    assert all(set(score) == DOMAINS for pair in scores for score in pair.values())
    assert scores[0]["after"]["instruction_following"] > scores[0]["before"]["instruction_following"]


def test_an_export_is_the_policy_that_the_next_stage_samples_from(undisturbed: Finished) -> None:
    """transformers gives to the first samples of a stage the log-probs that vLLM and Megatron gave them."""
    for row, logprobs in by_transformers(undisturbed.stage("sft"), undisturbed.stage("if_rl")):
        assert np.allclose(logprobs, row["train_logprobs"], atol=1e-4)
        assert np.allclose(logprobs, row["rollout_logprobs"], atol=2e-3)


def by_transformers(parent: StageFolder, stage: StageFolder) -> Iterator[tuple[dict, np.ndarray]]:
    """The first samples of a stage, and their log-probs over the whole vocabulary by the weights it began with."""
    model = AutoModelForCausalLM.from_pretrained(parent.export)
    for row in samples(stage, 1)[:8]:
        ids, answer = row["prompt_ids"] + row["token_ids"], len(row["prompt_ids"])
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, answer - 1 : -1]
        yield row, logits.log_softmax(-1)[range(len(ids) - answer), row["token_ids"]].numpy()


def test_over_the_whole_vocabulary_samples_of_top_p_would_have_been_refused(undisturbed: Finished) -> None:
    """They are more likely over what was kept, as sampler and trainer have them; both agree at every step (above)."""
    stage = undisturbed.stage("math_rl")
    firsts = by_transformers(undisturbed.stage("if_rl"), stage)
    gaps = np.concatenate([np.array(row["train_logprobs"]) - logprobs for row, logprobs in firsts])
    assert gaps.min() > -1e-4
    assert np.exp(gaps).mean() > 1.01 > stage.config.tme_bound
    assert all(row["importance_weight"] == pytest.approx(1, abs=1e-3) for row in stage.metrics.rows())


def test_rl_moves_the_weights(undisturbed: Finished) -> None:
    exports = [stage.export / "model.safetensors" for stage in undisturbed.run.stages]
    assert len({path.read_bytes() for path in exports}) == 3


def test_lineage_and_summary_are_for_programs(undisturbed: Finished) -> None:
    root = undisturbed.run.root
    lineage = json.loads((root / "lineage.json").read_text())["stages"]
    assert [(stage["name"], stage["parents"]) for stage in lineage] == [
        ("sft", ["base"]),
        ("if_rl", ["sft"]),
        ("math_rl", ["if_rl"]),
    ]
    assert all((root / stage[key]).is_dir() for stage in lineage for key in ("checkpoint", "export"))
    summary = json.loads((root / "summary.json").read_text())["stages"]
    for found, stage in zip(summary, undisturbed.run.stages, strict=True):
        assert (found["name"], found["steps"], found["domain"]) == (
            stage.config.name,
            stage.config.steps,
            stage.config.domain,
        )
        assert {"before": found["before"], "after": found["after"]} == stage.scores()
    assert summary[0]["tme_max"] is summary[0]["replay_fraction_min"] is None
    assert all(1 <= stage["tme_max"] <= 1.001 for stage in summary[1:])
    assert all(stage["replay_fraction_min"] == 1.0 for stage in summary[1:])


def test_tensorboard_has_every_metric(undisturbed: Finished) -> None:
    stage = undisturbed.stage("math_rl")
    board = EventAccumulator(str(stage.root / "tensorboard")).Reload()
    rows = stage.metrics.rows()
    for name in rows[0].keys() - {"step"}:
        values = [(scalar.step, scalar.value) for scalar in board.Scalars(name)]
        assert values == [(row["step"], pytest.approx(row[name])) for row in rows]


def test_a_person_sees_each_step_and_where_the_run_is(undisturbed: Finished) -> None:
    lines = undisturbed.out.splitlines()
    assert lines[0].startswith("01_sft: starting: 40 steps of 48 sequences = 1,920 sequences")
    assert len([line for line in lines if line.startswith("02_if_rl  ") and "/3  loss" in line]) == 3
    assert [line for line in lines if line.startswith("03_math_rl: done in ")]
    assert lines[-1] == "Run folder: runs/tiny"


# The same, disturbed.


@pytest.mark.long
def test_a_run_that_is_killed_and_loses_its_engine_ends_as_if_nothing_had_happened(
    undisturbed: Finished, tmp_path: Path
) -> None:
    """The same seed: everything is equal."""
    launcher = some_stages(tmp_path, undisturbed.run.root / "base", "sft", "if_rl")
    promises = ["01_sft: starting: 40 steps"]
    for moment in moments_to_kill(tmp_path / "runs/tiny/stages", random.Random(2)):
        launched = start(tmp_path, launcher)
        moment(launched)
        launched.kill()
        assert promises[-1] in launched.process.communicate()[0]
        promises.append(goes_on(RunFolder.open(tmp_path / "runs/tiny")))
    assert promises[1].startswith("01_sft: going on from step")
    assert promises[2] == "02_if_rl: going on from step 3 of 3"

    killed = finish(start(tmp_path, launcher), tmp_path)
    assert f"01_sft: done before, skipped\n{promises[2]}" in killed.out
    (death,) = [event for event in killed.stage("if_rl").events.rows() if event["event"] == "engine_died"]
    assert "died with exit code -9" in death["detail"]
    assert "and 0 pending requests" not in death["detail"]
    for name in ("sft", "if_rl"):
        require_same_results(killed.stage(name), undisturbed.stage(name))
    assert not list(killed.run.root.rglob("*.partial"))


def moments_to_kill(stages: Path, rng: random.Random) -> list[Callable[[Launched], None]]:
    """While SFT trains; and, when the engine has died while it drew for the first RL step, while RL is evaluated
    afterwards. For kills between RL steps see tests/chaos."""
    sft, rl = stages / "01_sft", stages / "02_if_rl"
    sft_step, delay = rng.randrange(11, 38), rng.uniform(0.0, 0.3)

    def training(launched: Launched) -> None:
        launched.wait_for(lambda: rows(sft) >= sft_step and (sft / "checkpoints/step_00010").exists())  # written behind

    def evaluated(launched: Launched) -> None:
        launched.wait_for((rl / "ledger/version_00000").exists)
        kill_busy_engine(launched)
        launched.wait_for((rl / "checkpoints/step_00003").exists)
        time.sleep(delay)

    return [training, evaluated]


def kill_busy_engine(launched: Launched) -> None:
    (engine,) = launched.pids(SERVER)
    idle = cpu_ticks(engine)
    launched.wait_for(lambda: cpu_ticks(engine) > idle + 5)
    os.kill(engine, signal.SIGKILL)


def goes_on(run: RunFolder) -> str:
    """What the next launch has to say, from the complete checkpoints alone."""
    stage = next(stage for stage in run.stages if not stage.done)
    return f"{stage.label}: going on from step {stage.checkpoint_steps()[-1]} of {stage.config.steps}"


def rows(stage: Path) -> int:
    path = stage / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.long
def test_a_run_that_draws_ahead_is_killed_and_ends_with_the_same_bits(undisturbed: Finished, tmp_path: Path) -> None:
    """Killed while the engine draws for the step after the one that the trainer learns from."""
    ahead = ("rollout.placement=disaggregated", "rollout.max_staleness=1", "if_rl.steps=4")
    launcher = some_stages(tmp_path, undisturbed.stage("sft").export, "if_rl")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    expected = finish(start(whole, launcher, *ahead), whole).stage("if_rl")
    versions = [{row["versions"][0][0] for row in samples(expected, step)} for step in range(1, 5)]
    assert versions == [{0}, {0}, {1}, {2}]
    assert all(0 < row["stale_gap"] < 0.5 and row["age"] == 1 for row in expected.metrics.rows()[1:])

    ledger = killed / "runs/tiny/stages/01_if_rl/ledger/version_00001"
    launched = start(killed, launcher, *ahead)
    launched.wait_for(lambda: ledger.exists() and ledger.stat().st_size > 1000)
    launched.kill()
    launched.process.communicate()
    require_same_results(finish(start(killed, launcher, *ahead), killed).stage("if_rl"), expected)


@pytest.mark.long
def test_adapters_that_are_refitted_alone_in_a_killed_run_end_with_the_bits_of_merged_ones_in_another(
    undisturbed: Finished, tmp_path: Path
) -> None:
    settings = ("if_rl.lora.rank=4", "if_rl.optimizer.lr=1e-2")
    base = undisturbed.stage("sft").export
    launcher, adapters = some_stages(tmp_path, base, "if_rl"), "rollout.refit=adapters"
    merged, killed = tmp_path / "merged", tmp_path / "killed"
    for folder in (merged, killed):
        folder.mkdir()
    expected = finish(start(merged, launcher, *settings), merged).stage("if_rl")
    assert all(row["probe_gap"] <= 2e-3 for row in expected.metrics.rows())

    launched = start(killed, launcher, *settings, adapters)
    launched.wait_for((killed / "runs/tiny/stages/01_if_rl/checkpoints/step_00001").exists)
    launched.kill()
    launched.process.communicate()
    found = finish(start(killed, launcher, *settings, adapters), killed).stage("if_rl")
    require_same_results(found, expected)
    assert 4 * max(refit_bytes(found)) < min(refit_bytes(expected))
    factors, own = (load_file(stage.adapter / "adapter_model.safetensors") for stage in (found, expected))
    assert all(torch.equal(own[name], factor) for name, factor in factors.items())
    weights, before = (load_file(folder / "model.safetensors") for folder in (found.export, base))
    scale = found.config.lora.scale if found.config.lora else 0
    for name, weight in weights.items():
        if factor_name(name, "A") in factors:
            a, b = (factors.pop(factor_name(name, factor)) for factor in "AB")
            assert b.abs().max() > 0
            assert torch.equal(weight, made_of(before[name], b, a, scale))
        else:
            assert torch.equal(weight, before[name])
    assert not factors


@pytest.mark.long
def test_in_turn_and_ahead_are_timed_beside_each_other(
    undisturbed: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cascade bench async`, without a judgement of its figures."""
    assert asynchronous.run(tmp_path / "found.json", "this machine", undisturbed.run.root, 3, 1) == 0
    in_turn, ahead = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert (in_turn["way"], in_turn["age"], ahead["way"]) == ("in turn", 0.0, "ahead")
    assert ahead["age"] == pytest.approx(2 / 3) and in_turn["longest"] > in_turn["mean"] > 0
    assert "ms/sample" in capsys.readouterr().out


@pytest.mark.long
def test_two_ranks_train_the_same_policy(undisturbed: Finished, tmp_path: Path) -> None:
    """Data and experts over two ranks: the same first samples, the same update but for the last digits."""
    launcher = some_stages(tmp_path, undisturbed.stage("sft").export, "if_rl")
    two = finish(start(tmp_path, launcher, "nproc=2", "parallel.expert=2"), tmp_path)
    found, expected = two.stage("if_rl"), undisturbed.stage("if_rl")
    for row in found.metrics.rows():
        assert 1 <= row["tme"] <= 1.001
        assert row["replay_fraction"] == 1.0
        assert row["probe_gap"] <= 2e-3
    assert [row["token_ids"] for row in samples(found, 1)] == [row["token_ids"] for row in samples(expected, 1)]
    one_rank, two_ranks = expected.metrics.rows()[0], found.metrics.rows()[0]
    for name in ("loss", "entropy", "grad_norm", "reward", "tme"):
        assert two_ranks[name] == pytest.approx(one_rank[name], rel=1e-4)
    assert found.scores()["before"] == expected.scores()["before"]
