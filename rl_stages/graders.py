"""What is checked of a stage's graders before it starts: how they isolate untrusted code, and that they grade right."""

from collections import Counter
from collections.abc import Sequence

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

    Raises UnprovenGrader for each grader that gets none of them right.
    """
    prover, say = Prover(zero.judge, zero.episodes, places), zero.log.progress.say
    proofs: list[Proof] = []
    for domain in executed_domains(cascade, [stage]) if places else ():
        sources = sources_of(domain, [stage, *cascade.stages])
        found = prover.prove(domain, sources)
        if not found:
            say(f"the grader of {domain} is not proven: no row of {domain} in {', '.join(sources)}")
        proofs += found
    for proof in proofs:
        for trial in proof.failed:
            say(f"{proof.domain} on {proof.place}: not proven by {trial}")
    if refusals := [proof.refusal() for proof in proofs if not proof.holds]:
        raise UnprovenGrader("\n".join(refusals))
    if proofs:
        known = dict.fromkeys(f"{proof.domain} ({proof.trials[-1].name})" for proof in proofs)
        say(f"graders proven (nodes: {len(places)}): {', '.join(known)}")
