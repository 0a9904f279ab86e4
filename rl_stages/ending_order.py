"""Which groups a step learns from, where that is for their ends to say (`rollout.batch_order=ending`). Rank 0's.

    step n   first the groups of step n - 1 that no step has learned from: the next one would find them too old
             then, of its own prompts and those of the steps after it, the groups that have ended first

It learns from as many groups as it has asked for. So each group is learned from once, and the step after that which
asked for it is the last that can. What a step chose is recorded: another attempt that repeats it chooses the same.
"""

from collections.abc import Hashable, Mapping, Sequence

Group = tuple[int, int]
"""The step that asked for it, and its place among the prompts of that step."""


class EndingOrder:
    """Groups from the beginning of their samples to the step that learns from them.

    recorded  what earlier attempts have chosen, by step
    learned   the groups that the steps before `first_step` have learned from
    """

    def __init__(self, recorded: Mapping[int, Sequence[Group]], first_step: int) -> None:
        self._recorded = recorded
        self.learned = [group for step, groups in recorded.items() if step < first_step for group in groups]
        self._missing: dict[Group, set[str]] = {}  # samples of the groups that no step has learned from
        self._group_of: dict[str, Group] = {}
        self._ended: dict[Group, None] = {}  # in this order
        self._counts: dict[int, int] = {}
        self._settings: dict[int, Hashable] = {}

    def begin(self, step: int, groups: Sequence[Sequence[str]], settings: Hashable) -> None:
        """Step `step` asks for these groups of sample ids. No step learns from groups of other `settings` than its."""
        self._counts[step], self._settings[step] = len(groups), settings
        known = set(self.learned)
        for place, names in enumerate(groups):
            if (step, place) not in known:
                self._missing[step, place] = set(names)
                self._group_of |= dict.fromkeys(names, (step, place))

    def end(self, name: str) -> None:
        """A sample has ended. One that is known to have ended, or is of no group here, makes no difference."""
        if group := self._group_of.pop(name, None):
            self._missing[group].discard(name)
            if not self._missing[group]:
                self._ended[group] = None

    def groups_of(self, step: int) -> list[Group] | None:
        """The groups that the step learns from, in the order of starting; None until they have ended."""
        left = [group for group in self._missing if group[0] < step]
        others = [group for group in self._ended if group[0] >= step and self._alike(group[0], step)]
        chosen = self._recorded.get(step) or [*left, *others[: self._counts[step] - len(left)]]
        ended = len(chosen) == self._counts[step] and all(group in self._ended for group in chosen)
        return sorted(chosen) if ended else None

    def take(self, step: int) -> list[Group]:
        """`groups_of` a step for which they have ended. No other step learns from them."""
        chosen = self.groups_of(step)
        assert chosen
        for group in chosen:
            del self._missing[group], self._ended[group]
        return chosen

    def _alike(self, one: int, other: int) -> bool:
        return self._settings[one] == self._settings[other]
