"""Held-out scores of all domains, which show the effect of each stage on its own domain and on the others."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout, Sampling
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.room import Room
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rank_zero import RankZero
from cascade_rl.rl_stages.run.sample_record import write_samples
from cascade_rl.rl_stages.scoring.infrastructure import require_infrastructure
from cascade_rl.rl_stages.scoring.scored_sample import Sample, heldout_record
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks
from cascade_rl.rl_stages.tasks.prompt_room import PromptRoom
from cascade_rl.rl_stages.tasks.prompt_stream import Admits, any_length
from cascade_rl.rl_stages.tasks.stage_domains import heldout_sources


class Evaluated(Protocol):
    """The part of a session that evaluation uses."""

    cascade: Cascade

    def prompt_room(self, room: Room, thinking_fraction: float | None = None) -> PromptRoom: ...

    def draw_all(
        self, batches: Mapping[str, Sequence[Task]], group: int, sampling: Sampling, *, heldout: bool
    ) -> dict[str, list[list[Rollout]]]: ...

    def on_rank0[T](self, produce: Callable[[RankZero], T], told: Callable[[T], T] | None = None) -> T: ...


def evaluate(session: Evaluated, when: str) -> dict[str, float]:
    """Mean score of one answer per held-out prompt, by domain, from one draw. Collective.

    The answers are kept in the stage's folder, as those "before" or "after" it.

    All stages of a run use the same prompts and seeds: a stage's scores "before" are its parent's "after", to the bit.
    Samples without a score (infrastructure failures) are left out. Raises InfrastructureFailures if their share is
    above `evaluation.max_infrastructure_failures`, and RuntimeError if no sample has a score.
    """
    settings = session.cascade.evaluation
    total = session.cascade.evaluation_room.total
    sampling = Sampling(settings.max_new_tokens, temperature=settings.temperature, max_total_tokens=total)
    room = session.prompt_room(session.cascade.evaluation_room)
    tasks = {_label(domain): heldout_tasks(session.cascade, domain, room.admits) for domain in settings.domains}
    answers = session.draw_all(tasks, 1, sampling, heldout=True)
    bound = settings.max_infrastructure_failures

    def means(zero: RankZero) -> dict[str, float]:
        groups = {domain: judged(zero, tasks[_label(domain)], answers[_label(domain)]) for domain in settings.domains}
        found = {domain: [one for (one,) in samples] for domain, samples in groups.items()}
        write_samples(zero.folder.heldout(when), [heldout_record(one) for samples in found.values() for one in samples])
        return {domain: _mean(domain, samples, bound) for domain, samples in found.items()}

    return session.on_rank0(means)


def heldout_tasks(cascade: Cascade, domain: str, admits: Admits = any_length, count: int | None = None) -> list[Task]:
    """The `heldout` rows of the domain's stages, or the held-out split of what they train on, or of the domain's
    generator if no stage trains on it. At most `count`, by default `evaluation.prompts_per_domain`; no more are
    measured.

    Raises UserError if `admits` refuses all of them.
    """
    sources, share = heldout_sources(domain, cascade)
    how: dict[str, Any] = {"split": "heldout", "seed": cascade.seed, "heldout_fraction": share}
    lists = (load_tasks(path, **how, form=form) for path, form in sources.items())
    own = (task for tasks in lists for task in tasks if task.domain == domain and admits(task))
    found = list(islice(own, count or cascade.evaluation.prompts_per_domain))
    if not found:
        where = ", ".join(sources)
        raise UserError(f"evaluation: expected held-out prompts of {domain} that fit; found none in {where}: add some")
    return found


def _label(domain: str) -> str:
    return f"heldout-{domain}"


def judged(zero: RankZero, tasks: Sequence[Task], answers: Sequence[Sequence[Rollout]]) -> list[list[Sample]]:
    """Each prompt's answers with their verdicts."""
    return [
        [Sample(task, rollout, *answer) for rollout, answer in zip(rollouts, found, strict=True)]
        for task, rollouts, found in zip(tasks, answers, zero.judge(tasks, answers), strict=True)
    ]


def _mean(domain: str, samples: Sequence[Sample], bound: float) -> float:
    verdicts = [(sample.rollout.id, sample.verdict) for sample in samples]
    require_infrastructure(verdicts, bound, f"held-out {domain}")
    scores = [sample.reward for sample in samples if sample.reward is not None]
    if not scores:
        raise RuntimeError(f"no held-out answer of {domain} could be scored: {samples[0].verdict.detail}")
    return float(np.mean(scores))
