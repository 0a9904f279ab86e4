"""In which tier untrusted code will run on this machine, said before the first stage starts. Torch-free."""

from collections.abc import Mapping, Sequence

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.sandbox import SandboxUnavailable, Tier, strongest
from cascade_rl.rl_stages.tasks.stage_domains import executed_domains


def tier_line(cascade: Cascade, stages: Sequence[Stage]) -> str | None:
    """One line: the tier, and why no stronger one works. None if these stages run no untrusted code.

    Raises SandboxUnavailable without any tier, unless the evaluation accepts domains without any score.
    """
    if not executed_domains(cascade, stages):
        return None
    try:
        return _line(*strongest())
    except SandboxUnavailable as refusal:
        if cascade.evaluation.max_infrastructure_failures < 1:
            raise
        return str(refusal)


def _line(tier: Tier, lacking: Mapping[Tier, str]) -> str:
    reasons = dict.fromkeys(" ".join(reason.split()) for reason in lacking.values())
    stronger = f"; no stronger one works: {'; '.join(reasons)}" if reasons else ", the strongest tier"
    return f"sandbox for untrusted code: {tier}{stronger}. `cascade doctor` says more"
