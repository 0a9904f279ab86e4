"""A cache of verdicts: the samples of a group often contain the same program or patch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from cascade_rl.rl_stages.core.verdict import Verdict

REMEMBERED = 4096


class RememberedVerdicts:
    """The newest REMEMBERED verdicts, keyed by what was judged. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[Hashable, Verdict] = OrderedDict()

    def __call__(self, judged: Hashable, judge: Callable[[], Verdict]) -> Verdict:
        """The verdict on `judged`, from `judge` if none is known. An infrastructure failure is not kept, since it says
        nothing about `judged`."""
        with self._lock:
            known = self._verdicts.get(judged)
        return known or self._keep(judged, judge())

    def _keep(self, judged: Hashable, verdict: Verdict) -> Verdict:
        if verdict.score is not None:
            with self._lock:
                self._verdicts[judged] = verdict
                while len(self._verdicts) > REMEMBERED:
                    self._verdicts.popitem(last=False)
        return verdict
