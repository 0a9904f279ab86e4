"""The prompts of a stage: one stream over all sources, or one stream per source, mixed by the sources' weights."""

from collections.abc import Sequence
from functools import partial

from cascade_rl.rl_stages.config.base import HELDOUT_FRACTION
from cascade_rl.rl_stages.config.grpo_stage import EpochFilter
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.blend import Blend
from cascade_rl.rl_stages.tasks.load_tasks import JoinedTasks, load_tasks
from cascade_rl.rl_stages.tasks.prompt_stream import Admits, PromptStream, any_length
from cascade_rl.rl_stages.tasks.row_form import OWN, RowForm


class PromptBlend:
    """Several streams mixed in given shares. Which one comes next depends only on how many prompts were taken."""

    def __init__(self, streams: Sequence[PromptStream], blend: Blend) -> None:
        self.streams, self.blend = streams, blend
        self.position = 0
        self.taken: list[tuple[int, int]] = []  # of each task of the last `take`, its stream and what that says of it

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        sources = [self.blend.at(self.position + place)[0] for place in range(count)]
        self.position += count
        drawn = [iter(stream.take(sources.count(index))) for index, stream in enumerate(self.streams)]
        taken = [iter(stream.taken) for stream in self.streams]
        self.taken = [(index, next(taken[index])) for index in sources]
        return [next(drawn[index]) for index in sources]

    def learn(self, taken: Sequence[tuple[int, int]], pass_rates: Sequence[float | None]) -> None:
        """The pass rates of tasks by what `take` had left of each in `taken`; None if unknown."""
        for (source, own), rate in zip(taken, pass_rates, strict=True):
            self.streams[source].learn([own], [rate])


def open_prompts(
    sources: Sequence[str],
    seed: int,
    epoch_filter: EpochFilter | None = None,
    admits: Admits = any_length,
    heldout_fraction: float = HELDOUT_FRACTION,
    form: RowForm = OWN,
) -> PromptStream | PromptBlend:
    """The train split of a stage's `data`, without what `admits` refuses.

    Raises UserError as `load_tasks` and `parse_sources` do.
    """
    weights = [source.weight for source in parse_sources(sources)]
    load = partial(load_tasks, split="train", seed=seed, heldout_fraction=heldout_fraction, form=form)
    lists = [load(source) for source in sources]
    shares = [weight for weight in weights if weight is not None]
    if not shares:
        return PromptStream(JoinedTasks(lists), seed, epoch_filter, admits)
    return PromptBlend([PromptStream(tasks, seed, epoch_filter, admits) for tasks in lists], Blend(shares))
