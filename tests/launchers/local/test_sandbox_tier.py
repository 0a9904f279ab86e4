"""The line about the sandbox with which a run begins."""

from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.launchers.local import sandbox_tier
from cascade_rl.launchers.local.sandbox_tier import tier_line
from cascade_rl.rl_stages.sandbox import SandboxUnavailable, Tier
from cascade_rl.rl_stages.sandbox.outside import slot
from tests.launchers.fake_launcher import CASCADE
from tests.launchers.local.test_run_local import nemo_run

MISSING = "FileNotFoundError: bwrap is not in PATH\n(Debian: apt-get install bubblewrap)"
EXECUTED = replace(CASCADE, evaluation=replace(CASCADE.evaluation, domains=("code", "instruction_following", "math")))


def test_the_tier_and_why_no_stronger_one_works_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = dict.fromkeys((Tier.NAMESPACES, Tier.NAMESPACES_WITHOUT_PROC), MISSING)
    monkeypatch.setattr(sandbox_tier, "strongest", lambda: (Tier.LANDLOCK, lacking))
    assert tier_line(EXECUTED, EXECUTED.stages) == (
        "sandbox for untrusted code: landlock; no stronger one works: FileNotFoundError: bwrap is not in PATH "
        "(Debian: apt-get install bubblewrap). `cascade doctor` says more"
    )
    monkeypatch.setattr(sandbox_tier, "strongest", lambda: (Tier.NAMESPACES, {}))
    assert tier_line(EXECUTED, EXECUTED.stages[:1]) == (
        "sandbox for untrusted code: namespaces, the strongest tier. `cascade doctor` says more"
    )


@pytest.mark.sandbox
def test_no_tier_is_refused_unless_domains_may_stay_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "WORKER", "cascade_rl.no_such_module")
    with pytest.raises(SandboxUnavailable, match="expected a way to isolate untrusted code"):
        tier_line(EXECUTED, EXECUTED.stages)
    accepted = replace(EXECUTED, evaluation=replace(EXECUTED.evaluation, max_infrastructure_failures=1))
    assert "expected a way to isolate" in str(tier_line(accepted, accepted.stages))
    assert tier_line(CASCADE, CASCADE.stages) is None


@pytest.mark.process
def test_a_run_that_executes_code_begins_with_its_tier(tmp_path: Path) -> None:
    launcher = tmp_path / "executes.py"
    launcher.write_text(
        "import sys\n"
        "from cascade_rl.launchers.cli.launch import launch\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "from tests.launchers.local.test_sandbox_tier import EXECUTED\n"
        "launch(EXECUTED, stage_command=('false',))\n"
    )
    _, out, _ = nemo_run(tmp_path, launcher)
    assert out.startswith("sandbox for untrusted code: "), out
    assert "01_sft: starting" in out.splitlines()[1]
