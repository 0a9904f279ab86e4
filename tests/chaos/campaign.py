"""Runs of a cascade that are killed at random and started again with the same command, until they arrive."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cascade_rl.rl_stages.run.durable_file import JsonLines
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.chaos.drawn_tokens import drawn
from tests.chaos.recovery import Cost, Kill, costs
from tests.rl_stages.launched import LIMIT_S, Launched
from tests.rl_stages.run.finished_work import finished_work
from tests.until import until

COMMAND = {
    "engine": "cascade_rl.engine.rollout.server",
    "verifier worker": "shim.py",
    "trainer rank": "stage.run_stage",
    "launcher": "nemo-run",
}
SURVIVED = ("engine", "verifier worker")  # mostly: an engine that dies while it takes weights ends the attempt
WAIT_S = 1200.0  # for the next moment to kill, or the end
BESIDE_SAMPLES = ("probe_gap", "routing_churn")
DELAY_S = 0.5  # at most, from the moment that is chosen to the kill

Work = tuple[Path, str, str]
"""Ledger, "sample" or "verdict", and the sample's id."""


@dataclass
class Campaign:
    """One run in `folder`, and what had been finished in it whenever something was killed.

    staleness  the `max_staleness` of its `settings`
    learned    the metrics of each step that had ended at a kill, by stage and step
    """

    folder: Path
    launcher: Path
    settings: tuple[str, ...]
    rng: random.Random
    say: Callable[[str], None]
    staleness: int = 0
    starts: int = 0
    kills: list[Kill] = field(default_factory=list)
    killed_since_start: bool = False
    finished: set[Work] = field(default_factory=set)
    learned: list[tuple[str, dict[str, float]]] = field(default_factory=list)

    def run(self, targets: list[str], progress: Callable[[Path], float]) -> RunFolder:
        """Arrives, after one kill of each of `targets`, spread over the `progress` of what is in a folder, 0 to 1."""
        launched = self._start()
        moments = sorted(self.rng.uniform(0, 0.97) for _ in targets)
        for target, moment in zip(targets, moments, strict=True):
            launched = self._wait(launched, lambda _, start=moment: progress(self.folder) >= start)
            time.sleep(self.rng.uniform(0, DELAY_S))
            launched = self._wait(launched, lambda now, command=COMMAND[target]: bool(now.pids(command)))
            self._kill(launched, target, moment)
        self._wait(launched, lambda _: False)
        return RunFolder.open(self.folder / "runs/chaos")

    def _start(self) -> Launched:
        self.starts += 1
        return Launched(self.folder, self.launcher, *self.settings)

    def _wait(self, launched: Launched, condition: Callable[[Launched], bool]) -> Launched:
        """Until the condition holds or the run has arrived. A launch that was killed is started again."""
        deadline = time.monotonic() + WAIT_S
        while (code := launched.process.poll()) != 0 and (code or not condition(launched)):
            if code:
                launched = self._again(launched)
            if time.monotonic() > deadline:
                launched.kill()
                raise AssertionError(f"nothing came for {WAIT_S:.0f} s\n" + "\n".join(launched.process.communicate()))
            time.sleep(0.01)
        return launched

    def _again(self, launched: Launched) -> Launched:
        """The same command, once all processes of the one before are gone; without a kill since its start, an error."""
        told = "\n".join(launched.process.communicate())
        assert self.killed_since_start, told
        until(lambda: not launched.pids())
        self.killed_since_start = False
        return self._start()

    def _kill(self, launched: Launched, target: str, moment: float) -> None:
        pids = launched.pids(COMMAND[target])
        if not pids:
            return self.say(f"{moment:4.0%}  {target}: none is there any more")
        with suppress(ProcessLookupError):
            os.kill(self.rng.choice(pids), signal.SIGKILL)
        self.kills.append(Kill(target, time.time(), self.staleness))
        if target not in SURVIVED:
            launched.process.wait(LIMIT_S)
        self.killed_since_start = True
        self.finished |= set(work(self.folder))
        self.learned += learned(self.folder)
        return self.say(f"{moment:4.0%}  {target}: killed, {len(self.finished)} samples and verdicts finished")

    def costs(self) -> list[Cost]:
        """What each kill has cost, once the run has arrived."""
        stages = RunFolder.open(self.folder / "runs/chaos").stages
        events = [event for stage in stages for event in stage.events.rows()]
        return costs(self.kills, drawn(self.folder), [event["time"] for event in events if event["event"] == "step"])


def learned(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """What is recorded of the steps, by stage, without what was measured in engines that sampled beside it."""
    files = sorted(folder.glob("runs/chaos/stages/*/metrics.jsonl"))
    rows = [(path.parent.name, row) for path in files for row in JsonLines(path).rows()]
    return [(label, {name: row[name] for name in row if name not in BESIDE_SAMPLES}) for label, row in rows]


def ledgers(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/chaos/stages/*/ledger/version_*"))


def drawn_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in ledgers(folder))


def share_of_bytes(whole: int, folder: Path) -> float:
    """Of the bytes that there are to draw, how many have been."""
    return drawn_bytes(folder) / whole


def share_of_steps(whole: int, folder: Path) -> float:
    """Of the steps of all stages, how many have been learned."""
    files = folder.glob("runs/chaos/stages/*/metrics.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in files) / whole


def work(folder: Path) -> list[Work]:
    """All that was finished, twice where it was done twice."""
    return [(path.relative_to(folder), *done) for path in ledgers(folder) for done in finished_work(path)]


def require_nothing_lost(campaign: Campaign) -> int:
    """Returns how much was finished: all that was at any kill, and nothing of it twice."""
    done = Counter(work(campaign.folder))
    twice = [item for item, count in done.items() if count > 1]
    assert not twice, f"{len(twice)} were done twice: {twice[:5]}"
    assert campaign.finished <= done.keys(), "what was finished at a kill is gone"
    return len(done)


def require_steps_repeated(campaign: Campaign) -> None:
    """What had been learned at any kill was learned again, to the bit, though which token new weights reach depends on
    time; and no sample was finished twice, whatever the ledger."""
    run = RunFolder.open(campaign.folder / "runs/chaos")
    now = learned(campaign.folder)
    assert all(row in now for row in campaign.learned)
    for stage in run.stages:
        names = Counter(name for path in stage.ledgers(0) for kind, name in finished_work(path) if kind == "sample")
        assert not [name for name, count in names.items() if count > 1 and name.startswith(f"{stage.config.name}/")]
        assert not [event for event in stage.events.rows() if event["event"] == "ledger_refused"]


def require_same_run(found: RunFolder, expected: RunFolder) -> None:
    """Metrics, scores, samples and weights, to the bit; and no ledger was refused on the way."""
    for stage, wanted in zip(found.stages, expected.stages, strict=True):
        assert stage.metrics.path.read_bytes() == wanted.metrics.path.read_bytes(), stage.label
        assert stage.scores() == wanted.scores()
        for step in range(1, wanted.config.steps + 1):
            if wanted.rollouts(step).exists():
                assert stage.rollouts(step).read_bytes() == wanted.rollouts(step).read_bytes()
        weights = [folder.export / "model.safetensors" for folder in (stage, wanted)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        assert not [event for event in stage.events.rows() if event["event"] == "ledger_refused"]
