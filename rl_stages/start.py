"""Step 0 of a stage: it starts only if the engine samples from the model that is trained.

The measurements are written to parity.json in the stage's folder, also if they prevent the start.
"""

import math
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.backend.ranks import is_rank0
from cascade_rl.engine.parity.certificate import Bounds, Certificate
from cascade_rl.engine.parity.measure import Subject, certificate_of, probed
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.rl_stages.agreement import Mismatch, require_replay
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.run.run_folder import StageFolder


def start(refit: Refit, folder: StageFolder, tokenizer: PreTrainedTokenizerBase, model: Path, step: int) -> None:
    """Gives the engine the weights of step `step`, and verifies that it has them. Collective.

    Raises StaleWeights if the gap is above rollout.probe_bound or rollout.probe_mean_bound. For a stage that learns
    from its own samples, also raises Mismatch if the gap is above its tme_bound, or if an expert that was to be
    replayed was not.
    """
    probe = refit.compare(step)
    on_policy = isinstance(folder.config, OnPolicyStage)
    bounds = bounds_of(folder.config, refit)
    replayed = probe.replay_fraction if on_policy and refit.config.replay_routes else None
    subject = Subject(str(model), refit.trainer.parallel, refit.config, replayed)
    certificate = certificate_of(subject, probed(probe), refit.probe_ids, tokenizer, bounds)
    if is_rank0():
        write_json(folder.root / "parity.json", {"step": step} | certificate.plain())
    refit.require_fresh(probe.gap)
    if on_policy:
        _require_one_policy(certificate, step)
        require_replay(probe.replay_fraction, step - 1, refit.config)


def bounds_of(stage: Stage, refit: Refit) -> Bounds:
    """The bounds at a stage's start. A stage that does not sample has no tme_bound; the probe's alone bound it."""
    tme = stage.tme_bound if isinstance(stage, OnPolicyStage) else math.inf
    config = refit.config
    return Bounds(logprob=config.probe_bound, tme=tme, mean=config.probe_mean_bound, exact=refit.exact)


def _require_one_policy(certificate: Certificate, step: int) -> None:
    (gap,) = certificate.pairs.values()
    if not gap.tme <= certificate.bounds.tme:
        raise Mismatch(
            f"start at step {step}: mean of exp|log p_train - log p_rollout| of the probe is {gap.tme:.6f}, expected "
            f"at most {certificate.bounds.tme} (largest gap {gap.max:.2e}); the worst tokens are in parity.json. If "
            "the sampler runs in lower precision, raise tme_bound; otherwise run `cascade parity` on the stage's model"
        )
