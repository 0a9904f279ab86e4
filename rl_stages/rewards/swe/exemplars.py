"""The golden patch of an instance, and one that only adds a comment, as answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from cascade_rl.rl_stages.core.exemplar import Exemplar
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.swe.repository import can_be_patched
from cascade_rl.rl_stages.rewards.swe.unified_diff import parse_hunks, unified_diff

CANDIDATES = 3  # published data has golden patches that fail, for instance SWE-Gym's
COMMENT = "# nothing is repaired"


class KnownPatches(NamedTuple):
    """`golden` repairs the instance. `commented` is tested like any patch; one without a change would not be."""

    name: str
    task: Task
    golden: list[Edit]
    commented: list[Edit]


def exemplars(tasks: Iterable[Task]) -> Sequence[Sequence[Exemplar]]:
    """The first tasks with both patches in the SEARCH/REPLACE format. One of them is enough."""
    return [
        [Exemplar(name, task, _answer(golden), _answer(empty)) for name, task, golden, empty in known_patches(tasks)]
    ]


def known_patches(tasks: Iterable[Task]) -> Iterator[KnownPatches]:
    """Those of the first tasks."""
    for task in islice(tasks, CANDIDATES):
        instance = Instance.of(task.metadata)
        golden = golden_edits(instance)
        commented = [_commented(edit) for edit in golden if can_be_patched(edit.path)]
        yield KnownPatches(instance.id, task, golden, commented[:1])


def golden_edits(instance: Instance) -> list[Edit]:
    """The golden patch, without the files that it adds: these are not graded. Its hunks are made anew, since those of a
    row may lack the context that an edit is found by."""
    hunks = parse_hunks(unified_diff(instance.repository.files, instance.repaired))
    return [Edit(hunk.path, _text(hunk.before), _text(hunk.after)) for hunk in hunks if hunk.before]


def _commented(edit: Edit) -> Edit:
    return Edit(edit.path, edit.search, f"{COMMENT}\n{edit.search}")


def _text(lines: Sequence[str]) -> str:
    return "".join(lines).removesuffix("\n")


def _answer(edits: Sequence[Edit]) -> tuple[str]:
    return ("\n".join(map(edit_text, edits)),)
