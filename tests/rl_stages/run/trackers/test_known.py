"""Which trackers there are: a config key names them, and one that is not installed ends a launch before it starts."""

from dataclasses import replace

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.run.stage_graph import content_hashes
from cascade_rl.rl_stages.run.trackers import known
from cascade_rl.rl_stages.run.trackers.known import TRACKERS, require_trackers
from tests.rl_stages.tiny_cascade import CASCADE


def test_trackers_are_named_by_a_key_that_is_in_no_hash() -> None:
    tracked = override(CASCADE, ["report_to=wandb,otel"])
    assert tracked.report_to == ("wandb", "otel")
    assert content_hashes(tracked) == content_hashes(CASCADE)
    with pytest.raises(UserError, match=r"report_to\[0\]: expected one of wandb, mlflow, otel, found 'tensorboard'"):
        override(CASCADE, ["report_to=tensorboard"])


@pytest.mark.parametrize("module", ["not_there", "not_there.below"])
def test_a_tracker_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(known, "TRACKERS", {"wandb": TRACKERS["wandb"]._replace(module=module)})
    with pytest.raises(UserError, match=rf"the package {module}, found none. Install cascade-rl\[wandb\], or leave"):
        require_trackers(replace(CASCADE, report_to=("wandb",)))


def test_what_the_lock_has_is_accepted() -> None:
    require_trackers(replace(CASCADE, report_to=("otel",)))
    require_trackers(CASCADE)
