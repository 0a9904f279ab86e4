"""What is checked of a stage's graders before it starts: how they isolate untrusted code, and that they grade right."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from cascade_rl.engine.cluster.node import Node
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.rank_zero import RankZero
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.sandbox import SandboxUnavailable, tier_on
from cascade_rl.rl_stages.scoring.proof import Place, Proof, Prover, UnprovenGrader
from cascade_rl.rl_stages.tasks.stage_domains import executed_domains, sources_of


def say_tiers(cascade: Cascade, stage: Stage, nodes: Sequence[Node], log: StepLog) -> list[Place]:
    """Says how untrusted code is isolated on each node. Returns the nodes on which the stage runs such code.

    Raises SandboxUnavailable where a node cannot isolate it, unless the evaluation accepts domains without any score.
    """
    if not executed_domains(cascade, [stage]):
        return []
    try:
        places = [Place(node, tier_on(node)) for node in nodes]
    except SandboxUnavailable as refusal:
        if cascade.evaluation.max_infrastructure_failures < 1:
            raise
        log.progress.say(str(refusal))
        return []
    tiers = Counter(place.tier for place in places)
    found = ", ".join(f"{tier} (nodes: {count})" for tier, count in tiers.items())
    log.progress.say(f"sandbox for untrusted code: {found}; `cascade doctor` says more")
    return places


def prove_graders(cascade: Cascade, stage: Stage, zero: RankZero, places: Sequence[Place]) -> None:
    """Grades answers with known scores in each domain that runs untrusted code, on each of `places`.

    Raises UnprovenGrader, which names all graders that get none of them right, and NodeLost if a node is gone.
    """
    proofs = list(_proofs(cascade, stage, zero, places)) if places else []
    for proof in proofs:
        for trial in proof.failed:
            zero.log.progress.say(f"{proof.domain} on {proof.place}: not proven by {trial}")
    _require(proofs)
    if proofs:
        known = dict.fromkeys(f"{proof.domain} ({proof.trials[-1].name})" for proof in proofs)
        zero.log.progress.say(f"graders proven (nodes: {len(places)}): {', '.join(known)}")


def _proofs(cascade: Cascade, stage: Stage, zero: RankZero, places: Sequence[Place]) -> Iterator[Proof]:
    prover = Prover(zero.judge, zero.episodes, places)
    for domain in executed_domains(cascade, [stage]):
        sources = sources_of(domain, [stage, *cascade.stages])
        found = prover.prove(domain, sources)
        yield from found
        if not found:
            rows = f"no row of {domain} in {', '.join(sources)}"
            zero.log.progress.say(f"the grader of {domain} is not proven: {rows}")


def _require(proofs: Sequence[Proof]) -> None:
    refused = [proof for proof in proofs if not proof.holds]
    for proof in refused:
        proof.place.node.call(os.getpid)  # NodeLost: no fault of the grader, and a job that is queued again
    if refused:
        raise UnprovenGrader("\n".join(proof.refusal() for proof in refused))
