"""Rewards of a model that a `reward_model` stage has trained, computed on one rank in a separate process.

The trainer's process has the policy's parallel layout, and Megatron takes one layout per process. The scorer uses the
device that is available.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from cascade_rl.engine.cluster.rank_environment import ALONE
from cascade_rl.engine.rollout.server_process import environment_of_no_rank
from cascade_rl.rl_stages.core.messages import Message
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.reward_models.shaping import tanh_of_z

SERVER = "cascade_rl.rl_stages.rewards.reward_models.bradley_terry_server"


class ScorerDied(RuntimeError):
    """The scoring process is gone. Its error message is on the trainer's stderr."""


class BradleyTerryScorer:
    """Scores answers without their reasoning (`scored_text`). Safe to call from several threads.

    The process starts with the object. It ends with `close`, or with the thread that made it.

    folder  export of a `reward_model` stage
    """

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", SERVER, str(folder)]
        environment = environment_of_no_rank() | ALONE
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._folder, self._lock = folder, threading.Lock()

    def score(self, prompts_and_answers: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        """One reward for each conversation and answer, in their order. It may be any real number.

        Raises ScorerDied if the process is gone or never came up.
        """
        request = json.dumps([[list(messages), answer] for messages, answer in prompts_and_answers])
        with self._lock:
            assert self._process.stdin and self._process.stdout
            try:
                self._process.stdin.write(request + "\n")
                self._process.stdin.flush()
                reply = self._process.stdout.readline()
            except BrokenPipeError:
                reply = ""
        if not reply:
            raise ScorerDied(f"{self._folder}: the reward model's process ended with code {self._process.wait()}")
        return json.loads(reply)

    def close(self) -> None:
        """Ends the process. It can be called more than once."""
        self._process.kill()
        self._process.communicate()


class BradleyTerryVerifier:
    """A `GroupVerifier`: the model's rewards or, if `shaped`, tanh of their z-scores over the group.

    Cascade 1 needs the shaping only for weak reward models (arXiv 2512.13607, ablation of RLHF). Closing it closes the
    scorer.
    """

    concurrency = 1

    def __init__(self, scorer: BradleyTerryScorer, *, shaped: bool) -> None:
        self.scorer, self.shaped = scorer, shaped

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """A verdict for each text; infrastructure failures if the scorer is gone."""
        try:
            raw = self.scorer.score([(task.messages, text) for text in texts])
        except ScorerDied as death:
            return [Verdict.infrastructure_failure(str(death))] * len(texts)
        rewards = tanh_of_z(raw) if self.shaped else raw
        return [Verdict.scored(reward, {"reward_model": value}) for reward, value in zip(rewards, raw, strict=True)]

    def close(self) -> None:
        """Ends the scorer."""
        self.scorer.close()
