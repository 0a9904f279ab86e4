"""SIGKILL at random moments, then the same command again: nothing finished is lost, and the end is the same.

`make chaos KILLS=5` kills one RL stage; `make chaos` kills 100 times over SFT, GRPO and MOPD, on one rank and on
two, in turn with the engines, while they draw a step ahead, and while weights come to samples in flight. It writes
`tests/chaos/log`, at its end a table of what each kind of kill has cost. `AHEAD=N`: all runs have this max_staleness,
also that of the five kills, and the log is `log_ahead_N`. `SEED=N` kills at other moments.
"""

import json
import os
import random
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import export_hf, read_config
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.cli import replay
from cascade_rl.launchers.stage.recorded_step import RecordedStep
from cascade_rl.rl_stages import base_model
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.chaos.campaign import (
    COMMAND,
    Campaign,
    drawn_bytes,
    require_nothing_lost,
    require_same_run,
    require_steps_repeated,
    share_of_bytes,
    share_of_steps,
)
from tests.chaos.drawn_tokens import install
from tests.chaos.recovery import Cost, table
from tests.gloo import run_ranks
from tests.rl_stages.launched import Launched
from tests.rl_stages.tiny_cascade import CASCADE

HERE = Path(__file__).parent
KILLS = int(os.environ.get("CHAOS_KILLS", "5"))
PER_RUN = 20  # of a long campaign
SEED = int(os.environ.get("CHAOS_SEED") or 0)
STALENESS = os.environ.get("CHAOS_AHEAD", "")
AHEAD = ("rollout.placement=disaggregated", "rollout.max_staleness=1")
LONG_ANSWERS = ("grpo.steps=8", "grpo.sampling.max_new_tokens=64", "rollout.part_every_s=1")
FLIGHT = (*AHEAD[:1], "rollout.max_staleness=2", "rollout.deterministic=false", *LONG_ANSWERS)
FLIGHT_STEPS = 2 + 8 + 2  # of SFT, GRPO and MOPD
MODES = {0: (), 1: AHEAD, 2: FLIGHT}
GRPO_ALONE = """
from dataclasses import replace
from runpy import run_path

from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel

whole = run_path({cascade!r})["CASCADE"]
launch(replace(whole, base=BaseModel(hf="./base"), stages=(whole.stage("grpo"),)))
"""


def write_rows(folder: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    agent = {"name": "python:chaos_reward:vowels"}
    with (folder / "rows.jsonl").open("w") as file:
        for i in range(200):
            text = f"Say {words[i % 10]} {words[i // 10 % 10]} {words[3 * i % 7]} {i}."
            params = {"input": [{"role": "user", "content": text}]}
            row = {"responses_create_params": params, "agent_ref": agent, "ground_truth": "x"}
            file.write(json.dumps(row) + "\n")


def make_base(folder: Path) -> None:
    """A model that ends its answers: only those that end are judged."""
    initialize_distributed(ParallelConfig(), seed=1)
    made = base_model.ready(RunFolder(folder, CASCADE), ParallelConfig())
    hf, rng = read_config(made), np.random.default_rng(0)
    trainer = Trainer(hf, ParallelConfig(), OptimizerConfig(lr=1e-2), total_steps=12, token_budget=1024, seed=1)
    trainer.load_hf(made)
    for step in range(12):
        ids = rng.integers(0, hf["vocab_size"], (16, 48))
        ids[rng.random(ids.shape) < 0.08] = hf["eos_token_id"]
        trainer.update([TrainSequence(row, np.ones(47, np.bool_)) for row in ids], SftLoss(), step)
    export_hf(trainer.module, hf, folder / "trained", tokenizer_from=made)
    made.rename(folder / "untrained")
    (folder / "trained").rename(folder / "base")


@pytest.fixture(autouse=True)
def reward_and_plugin_are_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "plugin")
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{tmp_path / 'plugin'}")


def undisturbed(folder: Path, launcher: Path, *settings: str) -> RunFolder:
    write_rows(folder)
    code, out, err = Launched(folder, launcher, *settings).finish()
    assert code == 0, out + err
    return RunFolder.open(folder / "runs/chaos")


def require_replay(run: RunFolder) -> None:
    """The step after a checkpoint is what was recorded; a recorded number that is not its own is told."""
    stage = run.stage("grpo")
    assert run_ranks(1, replay.run, RecordedStep.find(run.root, "grpo", 3)) == [0]
    with pytest.raises(UserError, match="expected the checkpoint of step 3, found those of steps 2, 4"):
        RecordedStep.find(run.root, "grpo", 4)
    rows, kept = stage.metrics.rows(), stage.metrics.path.read_bytes()
    rows[2]["grad_norm"] *= 1.01
    stage.metrics.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_ranks(1, replay.run, RecordedStep.find(run.root, "grpo", 3)) == [1]
    stage.metrics.path.write_bytes(kept)


@pytest.mark.long  # in CI a rehearsal kills a run and goes on with it
@pytest.mark.skipif(KILLS > 5, reason="make chaos: the long campaign alone")
def test_nothing_is_lost_and_the_end_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    calm.mkdir()
    run_ranks(1, make_base, calm)
    launcher = tmp_path / "launcher.py"
    launcher.write_text(GRPO_ALONE.format(cascade=str(HERE / "chaos_cascade.py")))
    staleness = int(STALENESS or 0)
    settings = MODES[staleness]
    expected = undisturbed(calm, launcher, *settings)
    assert expected.stage("grpo").metrics.rows()[0]["completed_fraction"] > 0.1
    with monkeypatch.context() as standing:
        standing.chdir(calm)
        require_replay(expected)
    wild.mkdir()
    write_rows(wild)
    shutil.copytree(calm / "base", wild / "base")
    rng = random.Random(SEED or 1)
    campaign = Campaign(wild, launcher, settings, rng, print, staleness)
    targets = ["verifier worker", *COMMAND]
    rng.shuffle(targets)
    found = campaign.run(targets, partial(share_of_bytes, drawn_bytes(calm)))
    if staleness < 2:
        require_same_run(found, expected)
    require_steps_repeated(campaign)
    assert require_nothing_lost(campaign) > 4 * 64
    print(table(campaign.costs()))


@pytest.mark.hours
@pytest.mark.skipif(KILLS <= 5, reason="make chaos")
def test_a_long_campaign(tmp_path: Path) -> None:
    launcher, rng, found = HERE / "chaos_cascade.py", random.Random(SEED or 7), list[Cost]()
    log = HERE / (f"log_ahead_{STALENESS}" if STALENESS else "log")
    log.write_text("")

    def say(line: str) -> None:
        print(line, flush=True)
        with log.open("a") as file:
            file.write(line + "\n")

    calm = dict[tuple[str, ...], RunFolder]()
    for number in count():
        if len(found) >= KILLS:
            break
        nproc, staleness = 1 + number % 2, int(STALENESS or number % 6 // 2)
        settings = (f"nproc={nproc}", f"parallel.expert={nproc}", *MODES[staleness])
        if staleness < 2 and settings not in calm:
            (tmp_path / f"calm{number}").mkdir()
            calm[settings] = undisturbed(tmp_path / f"calm{number}", launcher, *settings)
        folder = tmp_path / f"wild{number}"
        folder.mkdir()
        write_rows(folder)
        say(f"run {number + 1}, seed {SEED}, {nproc} rank(s), max_staleness {staleness}")
        campaign = Campaign(folder, launcher, settings, rng, say, staleness)
        targets = rng.choices(list(COMMAND), k=min(PER_RUN, KILLS - len(found)))
        expected = calm.get(settings)
        in_flight = partial(share_of_steps, FLIGHT_STEPS)
        progress = partial(share_of_bytes, drawn_bytes(expected.root.parents[1])) if expected else in_flight
        arrived = campaign.run(targets, progress)
        done = require_nothing_lost(campaign)
        require_steps_repeated(campaign)
        if expected:
            require_same_run(arrived, expected)
        found += campaign.costs()
        same = "all of the undisturbed run" if expected else "the steps that had been learned at a kill"
        say(f"  arrived after {campaign.starts} starts; {done} samples and verdicts, 0 lost, 0 done twice;")
        say(f"  {same}: the same bits. {len(found)} kills so far")
        shutil.rmtree(folder)
    say(table(found))
