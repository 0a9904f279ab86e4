"""for each step:
sample answers to each prompt from the current weights, and score them
one optimizer step on  - mean log pi  of the tokens of the best answer to each prompt
move the new weights into the sampler
"""

from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.rl_stages.agreement import require_agreement, require_replay
from cascade_rl.rl_stages.prompt_ledger import PromptLedger
from cascade_rl.rl_stages.scoring.scored_sample import record, sequences_of
from cascade_rl.rl_stages.step_batch import draw_batch, first_draws


def run(session):
    """Runs the remaining steps; resume, checkpoints, scores and the report come with the session."""
    stage, trainer, prompts = session.stage, session.trainer, PromptLedger(session)
    with first_draws(session, prompts) as stream:
        for step in session.steps():
            batch = draw_batch(stream, stage, prompts, step)
            best = [max(group, key=lambda sample: sample.reward or 0.0) for group in batch.groups]
            best = [sample for sample in best if sample.trained and (sample.reward or 0.0) >= stage.least]
            sequences = sequences_of(best, stage.sampling.temperature)
            with session.phase("log-prob"):
                logprobs = trainer.log_probs(sequences)
                gap = require_agreement(stage, best, sequences, logprobs, step)
            with session.phase("update"):
                learned = trainer.update(sequences, SftLoss(), step)
            require_replay(learned["replay_fraction"], step, session.layout.rollout)
            learned["probe_gap"] = stream.refit(step + 1)
            if session.log:
                kept = [record(*parts) for parts in zip(best, sequences, logprobs, strict=True)]
                metrics = {**batch.metrics(stage), **gap, **learned, "learned_answers": len(best)}
                session.record(step + 1, metrics, sum(sample.rollout.length for sample in batch.drawn), kept)
