"""The bound on answers without a score because a verifier or an environment failed."""

from collections.abc import Iterable

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.verdict import Verdict

NAMED, TOLD = 10, 3


class InfrastructureFailures(UserError):
    """More answers than allowed could not be scored. Somebody has to repair what failed: a job is not queued again."""


def require_infrastructure(verdicts: Iterable[tuple[str, Verdict]], bound: float, where: str) -> None:
    """Raises InfrastructureFailures if more than the share `bound` of the verdicts are infrastructure failures. Each
    verdict comes with its sample's id.

    Up to the bound, failures are masked and counted. Above it, the run would learn from an arbitrary remainder
    (NeMo-RL#2305)."""
    verdicts = list(verdicts)
    failed = [(name, verdict.detail) for name, verdict in verdicts if verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE]
    if len(failed) <= bound * len(verdicts):
        return
    names = ", ".join(name for name, _ in failed[:NAMED]) + (", ..." if len(failed) > NAMED else "")
    details = "; ".join(list(dict.fromkeys(detail for _, detail in failed))[:TOLD])
    raise InfrastructureFailures(
        f"{where}: {len(failed)} of {len(verdicts)} answers could not be scored, expected at most a share of {bound} "
        f"(max_infrastructure_failures). First reasons: {details}. Failed: {names}. Nothing was learned from them: "
        "repair what failed and start the run again"
    )
